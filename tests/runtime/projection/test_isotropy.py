"""The runtime's figures are those of `flowvec eval isotropy`."""

from __future__ import annotations

import numpy as np
import pytest

from flowvec import InputValueError
from flowvec.projection.isotropy import evenness_of


def test_they_are_those_of_the_benchmarks() -> None:
    measured = pytest.importorskip("flowvec_bench.quality.isotropy").measure_isotropy
    vectors = np.random.default_rng(0).normal(1, np.geomspace(4, 0.1, 12), (200, 12))
    expected, found = measured(vectors), evenness_of(vectors)
    assert found.mean_cosine == pytest.approx(expected.mean_cosine)
    assert found.isoscore == pytest.approx(expected.isoscore)
    assert found.spectrum == pytest.approx(expected.spectrum)


def test_extremes() -> None:
    even = evenness_of(np.concatenate([np.eye(5), -np.eye(5)]))
    assert even.isoscore == pytest.approx(1.0)
    assert even.mean_cosine < 0.0
    line = evenness_of(np.outer([1, 2, 3], [1.0, 2.0, 2.0]))
    assert line.isoscore == pytest.approx(0.0, abs=1e-9)
    assert line.mean_cosine == pytest.approx(1.0)
    for vectors in (np.ones((4, 3)), np.ones((1, 3)), np.ones((4, 1))):
        with pytest.raises(InputValueError):
            evenness_of(vectors)
