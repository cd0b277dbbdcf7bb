"""A token for which the embedding table has no row is refused before any engine sees it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flowvec import (
    Collection,
    Encoder,
    InputValueError,
    MultiVectorEncoder,
    Reranker,
    SharedEncoder,
    SharedReranker,
    SparseEncoder,
)
from flowvec.bulk import encode_files
from flowvec.encoder.batching import Batch
from tests.makers import with_added_token
from tests.runtime.bulk.conftest import letters_of, npy_of


@pytest.fixture
def lacking(tiny_dir: Path, tmp_path: Path) -> Path:
    return with_added_token(tiny_dir, tmp_path / "lacking", "<ent>")


def test_every_kind_of_model_names_text_and_token(
    provider: str,
    lacking: Path,
    reranker_dir: Path,
    sparse_dir: Path,
    multi_vector_dir: Path,
    tmp_path: Path,
) -> None:
    texts = ["the cat", "the <ent> sleeps", "<ent>"]
    pairs = [("the cat", "a dog"), ("the cat", "a <ent>")]
    with Encoder.load(lacking, provider=provider, compute="float32") as encoder:
        with pytest.raises(InputValueError, match=r"item 1 .*'<ent>' \(id 106\)"):
            encoder.encode(texts)
        with pytest.raises(InputValueError, match="item 0 "):
            encoder.encode("<ent>")
        with pytest.raises(InputValueError, match="item 5000 "):
            list(encoder.stream([*["the cat"] * 5000, "<ent>"]))
        with pytest.raises(InputValueError, match="item 1 "):
            encoder.run([[2, 5, 3], [2, 106, 3]], [Batch((0, 1), 3)])
        with Collection.create(tmp_path / "c", encoder=encoder) as collection:
            with pytest.raises(InputValueError, match="item 2 "):  # also if an id is replaced
                collection.add(["a", "a", "b"], ["the cat", *texts[::2]])
            assert collection.count() == 0
        # Cut away, it does not matter.
        assert np.isfinite(encoder.encode("cat " * 100 + "<ent>")).all()
    with Reranker.load(
        with_added_token(reranker_dir, tmp_path / "pairs", "<ent>"),
        provider=provider, compute="float32",
    ) as reranker:  # fmt: skip
        with pytest.raises(InputValueError, match=r"item 1 .*<ent>"):
            reranker.predict(pairs)
        with SharedReranker(reranker) as shared:
            with pytest.raises(InputValueError, match=r"item 1 .*<ent>"):
                shared.predict(pairs)
            assert shared.predict(pairs[:1]).shape == (1,)
    with (
        SparseEncoder.load(
            with_added_token(sparse_dir, tmp_path / "sparse", "<ent>"),
            provider=provider, compute="float32",
        ) as sparse,
        pytest.raises(InputValueError, match=r"item 1 .*<ent>"),
    ):  # fmt: skip
        sparse.encode(texts)
    with MultiVectorEncoder.load(
        with_added_token(multi_vector_dir, tmp_path / "tokens", "<ent>"),
        provider=provider, compute="float32",
    ) as tokens:  # fmt: skip
        for encode in (tokens.encode_query, tokens.encode_document):
            with pytest.raises(InputValueError, match=r"item 1 .*'<ent>' \(id 108\)"):
                encode(texts)


def test_others_of_a_queue_are_served(lacking: Path) -> None:
    with Encoder.load(lacking) as encoder, SharedEncoder(encoder) as shared:
        good = ["the cat", "a dog sleeps"]
        calls = [shared.submit(good), shared.submit(["a", "<ent>"]), shared.submit(good)]
        with pytest.raises(InputValueError, match=r"item 1 .*<ent>"):
            calls[1].result(600)
        for call in (calls[0], calls[2]):
            np.testing.assert_allclose(call.result(600), encoder.encode(good), atol=1e-5)


@pytest.mark.parametrize("dedupe", [False, True])
def test_a_job_makes_it_a_dead_letter(lacking: Path, tmp_path: Path, dedupe: bool) -> None:
    texts = ["the cat", "a <ent>", "a dog sleeps", "a <ent>"]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    with Encoder.load(lacking) as encoder:
        done = encode_files(
            encoder, tmp_path / "a.txt", tmp_path / "out", out_format="npy", dedupe=dedupe
        )
        vectors, _ = npy_of(tmp_path / "out")
        np.testing.assert_allclose(vectors, encoder.encode(texts[::2]), atol=1e-5)
    assert done.codes == {"no_row": 2}
    assert [letter["row"] for letter in letters_of(tmp_path / "out")] == [1, 3]
