"""What the page's space shows of transforms, whoever made the graph they are in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from flowvec import Collection, Encoder
from flowvec.engine.inner_output import BeforeTransform
from flowvec.projection import space_frames
from flowvec.projection.space import token_batch
from flowvec_export import Flow, FlowShape, export
from flowvec_export.transforms import Moments, SoftZCA, Transform, Whitening
from tests.export.conftest import make_texts
from tests.export.static_models import make_model2vec

OPTIMUM = Path(__file__).resolve().parents[1] / "data" / "optimum"
TEXTS = make_texts(60)


def _flow(vectors: np.ndarray) -> Transform:
    torch.manual_seed(1)
    flow = Flow(vectors.shape[1], FlowShape(levels=2, depth=2, width=8))
    flow.initialize(torch.from_numpy(np.tile(vectors, (20, 1))))  # it takes a thousand rows
    return flow.eval()


TRANSFORMS: dict[str, Callable[[np.ndarray], Transform]] = {
    "whitening": lambda v: Whitening.fit(Moments.of(v), k=8),
    "soft-zca": lambda v: SoftZCA.fit(Moments.of(v)),
    "flow": _flow,
}


@pytest.fixture(scope="module")
def sources(checkpoint, tmp_path_factory) -> dict[str, Path]:
    static = tmp_path_factory.mktemp("static") / "static"
    make_model2vec(static)
    return {"bert": checkpoint("bert"), "static": static, "onnx": OPTIMUM / "bert"}


@pytest.fixture(scope="module")
def plain(sources, tmp_path_factory) -> dict[str, np.ndarray]:
    """Vectors of the texts without a transform."""
    folder = tmp_path_factory.mktemp("plain")
    found = {}
    for name, source in sources.items():
        export(source, folder / name, normalize=False)
        with Encoder.load(folder / name, provider="cpu") as encoder:
            found[name] = encoder.encode(TEXTS)
    return found


@pytest.mark.exports
@pytest.mark.parametrize(
    ("source", "transform"),
    [
        ("bert", "whitening"), ("bert", "flow"), ("bert", "soft-zca"),
        ("static", "whitening"), ("onnx", "flow"),
    ],
)  # fmt: skip
def test_what_comes_before_it_is_what_the_model_gives_without_it(
    sources, plain, tmp_path, source, transform
) -> None:
    made = TRANSFORMS[transform](plain[source])
    export(sources[source], tmp_path / "b", transform=made)
    with (
        Encoder.load(tmp_path / "b", provider="cpu") as encoder,
        Collection.create(tmp_path / "notes", encoder=encoder) as notes,
    ):
        notes.add(range(len(TEXTS)), TEXTS)
        before, after = BeforeTransform(encoder.bundle).run(*token_batch(encoder, TEXTS))
        np.testing.assert_allclose(before, plain[source], atol=2e-4)
        np.testing.assert_allclose(after, encoder.encode(TEXTS), atol=2e-4)
        *_, frame = space_frames(notes, encoder)
    assert frame.before is not None
    assert frame.after is not None
    # Fitted on these very texts: their mean is 0, and no direction is much larger than another.
    assert abs(frame.after.evenness.mean_cosine) < 0.05
    assert frame.after.evenness.isoscore > frame.before.evenness.isoscore
