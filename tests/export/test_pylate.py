"""Checkpoints that PyLate itself wrote: its token vectors and its scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import MultiVectorEncoder, maxsim
from flowvec_export import export
from tests.export.conftest import POSITIONS, TEXTS
from tests.export.late_interaction import DIM, make_encoder, randomize

REASON = "needs pylate, which has its environment"
models = pytest.importorskip("pylate.models", reason=REASON)
colbert_scores = pytest.importorskip("pylate.scores", reason=REASON).colbert_scores

import torch  # noqa: E402

pytestmark = pytest.mark.parity

LENGTHS = {"query_length": 16, "document_length": 30}
QUERIES = [
    "who?",
    "who sleeps on the red mat in the garden",
    "[Q] who",
    "  a dog, a cat.  ",
    "the cat sleeps while the dog runs and a man is eating bread by the sea",
    "",
]
# A snowman and most of the punctuation are unknown words of the tokenizer.
DOCUMENTS = [
    *TEXTS,
    "A cat, a dog. And, 12,345 stocks.",
    "snowman \u2603 and ` or ~ and {}",
    " \tThe sea, the sea!\n",
    "stocks fell on monday as investors feared that rates would rise again " * 4,
    "!?",
]
# Texts with markers inside. Where spaces count, those beside a marker are lost.
MARKED = ["[q] who? [D] [d] a cat", "the cat [q] sleeps [D] here", "a [MASK] sleeps"]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "bert, attended": ("bert", {"attend_to_expansion_tokens": True}),
    "bert, not filled up": ("bert", {"do_query_expansion": False}),
    "bert, other markers": ("bert", {"query_prefix": "query:", "document_prefix": "the"}),
    "bert, no markers": ("bert", {"query_prefix": "", "document_prefix": ""}),
    "bert, nothing skipped": ("bert", {"skiplist_words": []}),
    "bert, longest": ("bert", {"query_length": POSITIONS, "document_length": POSITIONS}),
    "roberta": ("roberta", {}),
    "xlm-roberta": ("xlm-roberta", {}),
    "modernbert": ("modernbert", {"attend_to_expansion_tokens": True}),
}


def make_colbert(folder: Path, architecture: str, **options: Any) -> Path:
    """A checkpoint of PyLate's own classes, saved after it encoded, as after training."""
    source = make_encoder(folder / "encoder", architecture, markers={})
    options = {**LENGTHS, "embedding_size": DIM, **options}
    model = models.ColBERT(str(source), device="cpu", **options)
    torch.manual_seed(1)
    randomize(model)
    for is_query in (False, True):
        model.encode(["a cat"], is_query=is_query, show_progress_bar=False)
    model.save_pretrained(str(folder / "colbert"))
    return folder / "colbert"


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_and_scores_are_those_of_pylate(kind: str, tmp_path: Path) -> None:
    architecture, options = KINDS[kind]
    source = make_colbert(tmp_path, architecture, **options)
    marked = [] if architecture in ("roberta", "xlm-roberta") else MARKED
    sides = {True: [*QUERIES, *marked], False: [*DOCUMENTS, *marked]}
    bundle = export(source, tmp_path / "bundle")
    with MultiVectorEncoder.load(bundle.path, provider="cpu", compute="float32") as model:
        ours = {True: model.encode_query(sides[True]), False: model.encode_document(sides[False])}
    reference = models.ColBERT(str(source), device="cpu")
    for batch_size in (1, 32):
        theirs = {
            is_query: reference.encode(
                texts, is_query=is_query, batch_size=batch_size, show_progress_bar=False
            )
            for is_query, texts in sides.items()
        }
        for is_query, texts in sides.items():
            for text, a, b in zip(texts, ours[is_query], theirs[is_query], strict=True):
                assert a.shape == b.shape, text
                np.testing.assert_allclose(a, b, rtol=0, atol=2e-5, err_msg=text)
        # One document at a time: PyLate fills up several with zeros, which are more similar to a
        # token than vectors with a negative product.
        wanted = [
            [float(colbert_scores(query[None], document[None])) for document in theirs[False]]
            for query in theirs[True]
        ]
        np.testing.assert_allclose(maxsim(ours[True], ours[False]), wanted, rtol=0, atol=1e-3)
