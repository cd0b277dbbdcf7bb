"""The sets of kernels of this processor, each for a test of its own."""

from __future__ import annotations

import os

import pytest

from flowvec.hnsw.library import library


def _sets() -> dict[str, str]:
    """Values of FLOWVEC_HNSW_SIMD, by the set that each gives here: the lowest first."""
    before = os.environ.get("FLOWVEC_HNSW_SIMD")
    sets = {}
    try:
        for limit in ("base", "avx2", "all"):
            os.environ["FLOWVEC_HNSW_SIMD"] = limit
            sets.setdefault(library().flowvec_hnsw_scan_simd().decode(), limit)
    finally:
        if before is None:
            del os.environ["FLOWVEC_HNSW_SIMD"]
        else:
            os.environ["FLOWVEC_HNSW_SIMD"] = before
    return sets


SETS = _sets()


@pytest.fixture(params=SETS)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each set of kernels that this processor has."""
    monkeypatch.setenv("FLOWVEC_HNSW_SIMD", SETS[request.param])
    return str(request.param)
