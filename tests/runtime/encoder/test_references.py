"""Reference texts: what they cover, how they are kept, and how they are run."""

from __future__ import annotations

import zipfile
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import Bundle, BundleError, Encoder
from flowvec.bundle.manifest import REFERENCES
from flowvec.encoder.batching import bucket_length
from flowvec.encoder.proof import make_bundle_references
from flowvec.encoder.references import (
    MAX_BYTES,
    References,
    make_references,
    reference_batches,
    reference_ids,
)
from flowvec.engine.onnxruntime_session import Session
from flowvec.engine.providers import CPU, Engine
from flowvec.tokenizer.tokenizer import Tokenizer


def words(texts):
    """Ids as a tokenizer would give them: a word is a token, 1 begins a text and 2 ends it."""

    def ids(text):
        return [1, *(crc32(word.encode()) % 1000 + 3 for word in text.split()), 2][:600]

    return [ids(text) for text in texts]


@pytest.mark.parametrize("name", ["mini", "tiny"])
def test_the_texts_cover_what_engines_stumble_over(name: str, tiny_dir: Path) -> None:
    bundle = Bundle.load(tiny_dir if name == "tiny" else name)
    references = References.read(bundle.path / REFERENCES, bundle.manifest.dim)
    lengths = [len(row) for row in references.ids]
    assert 1 in lengths
    assert max(lengths) == min(512, bundle.manifest.max_length)
    assert {length % 2 for length in lengths} == {0, 1}
    assert len(set(references.ids)) == len(lengths) >= 20
    unknown = Tokenizer(bundle.tokenizer, 64)(["東京"]).ids[0][1]
    assert any(unknown in row for row in references.ids)  # special characters


def test_the_vectors_are_those_that_the_model_gives(tiny_dir: Path) -> None:
    bundle = Bundle.load(tiny_dir)
    kept = References.read(bundle.path / REFERENCES, bundle.manifest.dim)
    again = make_bundle_references(bundle, Session(bundle, Engine(CPU, "float32", 1)))
    assert again.ids == kept.ids
    np.testing.assert_allclose(again.vectors, kept.vectors, atol=1e-5)


def test_a_text_among_them_has_the_vector_that_encode_gives_it() -> None:
    bundle = Bundle.load("mini")
    references = References.read(bundle.path / REFERENCES, bundle.manifest.dim)
    tokenizer = Tokenizer(bundle.tokenizer, bundle.manifest.max_length)
    text = "The harbour lies at the mouth of a slow brown river"
    ids = tuple(tokenizer([text]).ids[0])
    cut = max((row for row in references.ids if row[:4] == ids[:4] and len(row) > 4), key=len)
    with Encoder.load("mini", provider="cpu", compute="float32") as encoder:
        whole = make_references(
            Session(bundle, Engine(CPU, "float32", 1)).run, [ids], bundle.manifest.pad_id
        )
        np.testing.assert_allclose(whole.vectors[0], encoder.encode(text), atol=1e-6)
    assert len(cut) <= bundle.manifest.max_length


@given(st.integers(1, 600), st.sampled_from([1, 16, 384, 1024, 4096, 1 << 20]))
def test_they_fit_whatever_the_model(max_length: int, dim: int) -> None:
    ids = reference_ids(lambda texts: [row[:max_length] for row in words(texts)], max_length, dim)
    assert ids
    assert all(0 < len(row) <= max_length for row in ids)
    assert max(map(len, ids)) == min(max_length, 512)
    if dim <= 4096:
        vectors = np.ones((len(ids), dim), dtype=np.float32)
        made = References(tuple(map(tuple, ids)), vectors)
        assert len(made.to_bytes()) <= MAX_BYTES


def test_equal_references_are_equal_bytes_and_read_back(tmp_path: Path) -> None:
    vectors = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    made = References(((5,), (1, 2), (3, 4, 5)), vectors)
    assert made.to_bytes() == References(made.ids, vectors.copy()).to_bytes()
    (tmp_path / "r.npz").write_bytes(made.to_bytes())
    read = References.read(tmp_path / "r.npz", 2)
    assert read.ids == made.ids
    np.testing.assert_array_equal(read.vectors, vectors)


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"nonsense",
        b"PK\x03\x04",
        {"lengths": [1, 2]},
        {"ids": [-1, 2, 3, 4, 5, 6]},
        {"vectors": [[1.0, np.nan]] * 3},
        {"vectors": [[1.0, 2.0], [0.0, 0.0], [1.0, 2.0]]},
        {"vectors": [[1.0]] * 3},
        {"lengths": [0, 3, 3]},
        {"lengths": [], "ids": [], "vectors": np.zeros((0, 2))},
    ],
    ids=str,
)
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, wrong) -> None:
    file = tmp_path / "r.npz"
    if isinstance(wrong, bytes):
        file.write_bytes(wrong)
    else:
        arrays = {"lengths": [1, 2, 3], "ids": [1, 2, 3, 4, 5, 6], "vectors": [[1.0, 2.0]] * 3}
        types = {"lengths": np.int32, "ids": np.int32, "vectors": np.float32}
        arrays |= wrong
        np.savez(file, **{k: np.asarray(v, dtype=types[k]) for k, v in arrays.items()})
    with pytest.raises(BundleError, match=r"r\.npz"):
        References.read(file, 2)


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "r.npz",
        lengths=np.ones(1 << 20, np.int32),
        ids=np.ones(1 << 20, np.int32),
        vectors=np.ones((1 << 20, 2), np.float32),
    )
    assert (tmp_path / "r.npz").stat().st_size < MAX_BYTES
    with pytest.raises(BundleError, match="more than"):
        References.read(tmp_path / "r.npz", 2)


def test_an_array_that_claims_to_be_huge_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "r.npz"
    file.write_bytes(References(((5,), (1, 2)), np.ones((2, 2), np.float32)).to_bytes())
    with zipfile.ZipFile(file) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    for shape in (b"(999999999999, 2)", b"(99999999, 2)"):
        content = members["vectors.npy"]
        old = b"'shape': (2, 2), }"
        assert old in content
        new = b"'shape': " + shape + b", }"
        claimed = content.replace(old + b" " * (len(new) - len(old)), new)
        with zipfile.ZipFile(file, "w") as made:
            for name, member in members.items():
                made.writestr(name, claimed if name == "vectors.npy" else member)
        with pytest.raises(BundleError, match=r"r\.npz"):
            References.read(file, 2)


def test_a_pickle_in_the_file_is_not_opened(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "r.npz",
        lengths=np.array([print], dtype=object),
        ids=np.zeros(1, np.int32),
        vectors=np.ones((1, 2), np.float32),
    )
    with pytest.raises(BundleError, match="pickle"):
        References.read(tmp_path / "r.npz", 2)


def test_texts_without_a_vector_are_left_out(nan_dir: Path) -> None:
    def run(ids, mask):
        return np.where(ids[:, :1] == 7, np.nan, np.ones((len(ids), 2))).astype(np.float32)

    made = make_references(run, [[7, 1], [8, 1]], 0)
    assert made.ids == ((8, 1),)
    with pytest.raises(BundleError, match="NaN"):
        make_references(run, [[7, 1], [7]], 0)


@given(st.lists(st.integers(1, 512), min_size=1, max_size=24))
def test_every_text_runs_alone_and_in_company_of_odd_and_even_numbers(lengths: list[int]) -> None:
    batches = reference_batches(lengths)
    alone = [batch for batch in batches if len(batch.rows) == 1]
    assert sorted(batch.rows[0] for batch in alone) == list(range(len(lengths)))
    for batch in batches:
        assert batch.length >= max(lengths[i] for i in batch.rows)
    together = [batch for batch in batches if len(batch.rows) > 1]
    for remainder in (0, 1):
        rows = [i for b in together if len(b.rows) % 2 == remainder for i in b.rows]
        assert len(rows) == len(set(rows))  # none twice
    for batch in together:
        longest = max(lengths[i] for i in batch.rows)
        if len(batch.rows) % 2:
            assert batch.length == longest
        else:
            assert batch.length == min(bucket_length(longest), max(lengths))


def test_those_of_a_bundle_hold_all_kinds_of_batches() -> None:
    bundle = Bundle.load("mini")
    references = References.read(bundle.path / REFERENCES, bundle.manifest.dim)
    batches = reference_batches([len(row) for row in references.ids])
    counts = {len(batch.rows) for batch in batches}
    assert {1, 4, 7, 14, 15} <= counts
    assert max(counts) > 10
    assert any(batch.length % 2 for batch in batches if len(batch.rows) > 1)
    ragged = [b for b in batches if len({len(references.ids[i]) for i in b.rows}) > 1]
    assert len(ragged) > 3
