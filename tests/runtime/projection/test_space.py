"""Vectors before and after a transform."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import Bundle, BundleError, Collection, Encoder, InputValueError
from flowvec.engine.inner_output import BeforeTransform, transform_input, with_output
from flowvec.projection import space_frames
from flowvec.projection.isotropy import evenness_of
from tests.drawing import examples

TEXTS = [f"the cat {i} sleeps on the river" for i in range(40)]


def test_a_dense_layer_is_undone(tiny: Encoder, tmp_path: Path) -> None:
    """`tiny` ends in a Dense layer with tanh, whose output is the vector."""
    with Collection.create(tmp_path / "notes", encoder=tiny) as notes:
        notes.add(range(len(TEXTS)), TEXTS)
        *_, frame = space_frames(notes, tiny, rows=30)
    assert frame.stage == "done"
    assert frame.before is not None
    assert frame.after is not None
    assert len(frame.texts) == len(frame.before.positions) == len(frame.after.positions) == 30
    vectors = tiny.encode_document([text for text in TEXTS if text in frame.texts])
    expected = evenness_of(vectors)
    assert frame.after.evenness.mean_cosine == pytest.approx(expected.mean_cosine, abs=1e-4)
    # tanh(W x + b) of what comes before: solvable for W and b from the rows themselves.
    model = BeforeTransform(tiny.bundle)
    rows = tiny.tokenize(TEXTS).ids
    width = max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows])
    mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    before, after = model.run(ids, mask)
    known = np.concatenate([before, np.ones((len(before), 1))], 1).astype(np.float64)
    solved, *_ = np.linalg.lstsq(known, np.arctanh(after.astype(np.float64)), rcond=None)
    assert np.tanh(known @ solved) == pytest.approx(after, abs=1e-4)
    assert before.shape != after.shape or not np.allclose(before, after)


def test_without_a_transform_the_vectors_in_the_collection_are_measured(
    mini: Encoder, tmp_path: Path
) -> None:
    with Collection.create(tmp_path / "notes", encoder=mini) as notes:
        notes.add(range(len(TEXTS)), TEXTS)
        (frame,) = space_frames(notes, mini)
        assert frame.before is None
        assert frame.after is not None
        expected = evenness_of(mini.encode_document(TEXTS))
        assert frame.after.evenness.isoscore == pytest.approx(expected.isoscore, abs=1e-4)
    with pytest.raises(BundleError, match="no vector"):
        BeforeTransform(mini.bundle)


def test_too_few_rows(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "none", encoder=tiny) as notes:
        with pytest.raises(InputValueError, match="fewer than two texts"):
            list(space_frames(notes, tiny))
        with pytest.raises(InputValueError):
            list(space_frames(notes, None))


@examples(60)
@given(data=st.data())
def test_a_damaged_graph_is_an_error_or_has_no_transform(
    tiny_dir: Path, data: st.DataObject
) -> None:
    model = bytearray(Bundle.load(tiny_dir).model.read_bytes()[:4000])
    for _ in range(data.draw(st.integers(1, 4))):
        model[data.draw(st.integers(0, len(model) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BundleError):
        transform_input(bytes(model))


def test_a_graph_keeps_its_own_outputs(tiny_dir: Path) -> None:
    model = Bundle.load(tiny_dir).model.read_bytes()
    name = transform_input(model)
    assert name is not None
    assert with_output(model, name).startswith(model)


def test_a_graph_that_names_no_transform_shows_what_comes_after_it(
    tiny: Encoder, tiny_copy: Path, tmp_path: Path
) -> None:
    path = tiny_copy / "model.onnx"
    renamed = path.read_bytes().replace(b"transforms.", b"renamed.xx.")
    path.write_bytes(renamed)
    manifest = json.loads((tiny_copy / "manifest.json").read_text())
    manifest["files"]["model.onnx"]["sha256"] = hashlib.sha256(renamed).hexdigest()
    (tiny_copy / "manifest.json").write_text(json.dumps(manifest))
    with (
        Encoder.load(tiny_copy, provider="cpu") as other,
        Collection.create(tmp_path / "notes", encoder=other) as notes,
    ):
        notes.add(range(len(TEXTS)), TEXTS)
        (frame,) = space_frames(notes, other)
    assert frame.before is None
    assert frame.after is not None
    expected = evenness_of(tiny.encode_document(TEXTS))
    assert frame.after.evenness.isoscore == pytest.approx(expected.isoscore, abs=1e-4)
