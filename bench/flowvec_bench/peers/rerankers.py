"""Races cross-encoders: 100 documents for each query, scored in one call."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import Tensor, nn

from flowvec import Reranker
from flowvec_bench.peers.model_forms import (
    SHAPES,
    computes_of,
    export_with_variants,
    write_graph,
    write_plain_form,
)
from flowvec_bench.peers.race import Race, race
from flowvec_bench.peers.registry import FLOWVEC, PEERS, Forms, Peer
from flowvec_export.assembly.draft import LOGITS
from flowvec_export.sources.torch import quiet_transformers
from flowvec_export.variants.ranking import Agreement, rank_agreement

__all__ = ["DOCUMENTS", "correlation", "opened_reranker", "pairs_of", "race_rerankers", "rerankers"]

Floats = npt.NDArray[np.float32]

WORKER = Path(__file__).parents[1] / "workers" / "rerankers.py"
# Documents of a query.
DOCUMENTS = 100
_WORDS = (50, 200)
_QUERY_WORDS = (4, 12)
# A row is void below this. Random weights give .999 in bfloat16 and .992 in 8 bits; another model
# gives 0.
LEAST_CORRELATION = 0.97
# Of MiniLM-L6's shape: with BERT's .02, a random encoder gives all pairs nearly the same logit, and
# with .12 one in 8 bits ranks them differently, as no trained one does.
_INITIAL = 0.06


def rerankers() -> dict[str, Peer]:
    """Peers with a cross-encoder."""
    ours = {name: peer for name, peer in FLOWVEC.items() if name != "flowvec-one"}
    kinds = ("sentence-transformers", "fastembed")
    others = {name: peer for name, peer in PEERS.items() if peer.engine in kinds}
    # transformers' directories have had the same names in all versions.
    return ours | {
        name: replace(peer, form="source" if peer.form == "older" else peer.form)
        for name, peer in others.items()
    }


def pairs_of(
    paragraphs: Iterator[str], sentences: Iterator[str], queries: int, seed: int
) -> list[tuple[str, str]]:
    """A query with 100 documents of 50 to 200 words, for each of some queries."""
    draw = random.Random(seed)
    low, high = _WORDS
    documents: list[str] = []
    for paragraph in paragraphs:
        words = paragraph.split()
        if len(words) >= low:
            documents.append(" ".join(words[: draw.randint(low, high)]))
        if len(documents) == queries * DOCUMENTS:
            break
    draw.shuffle(documents)
    pairs: list[tuple[str, str]] = []
    for number, sentence in zip(range(queries), sentences, strict=False):
        query = " ".join(sentence.split()[: draw.randint(*_QUERY_WORDS)])
        few = documents[number * DOCUMENTS : (number + 1) * DOCUMENTS]
        pairs += [(query, document) for document in few]
    return pairs


def random_cross_encoder(shape: str, tokenizer: Path, max_length: int, folder: Path) -> Path:
    """Write a random BERT for sequence classification with one label."""
    # Some peers tell the two texts apart even where the tokenizer does not, so it does.
    names = ["input_ids", "token_type_ids", "attention_mask"]
    fast = transformers.AutoTokenizer.from_pretrained(tokenizer, model_input_names=names)
    sizes: dict[str, Any] = {"vocab_size": len(fast), "num_labels": 1, **SHAPES[shape]}
    config = transformers.BertConfig(initializer_range=_INITIAL, **sizes)
    torch.manual_seed(0)
    model: Any = transformers.BertForSequenceClassification(config)
    fast.model_max_length = max_length
    with quiet_transformers():
        model.save_pretrained(folder)
        fast.save_pretrained(folder)
    return folder


@contextmanager
def opened_reranker(
    model: str, tokenizer: Path | None, max_length: int, racers: Sequence[Peer]
) -> Iterator[tuple[Forms, Path]]:
    """A cross-encoder in all the forms that peers read, and a folder for temporary files.

    Raises:
        ExportError: the model cannot be exported.
    """
    with TemporaryDirectory(prefix="flowvec-") as temporary:
        folder = Path(temporary)
        source = Path(model)
        if tokenizer is not None:
            source = random_cross_encoder(model, tokenizer, max_length, folder / model)
        computes = computes_of(racers)
        bundle = export_with_variants(source, folder / "bundle", max_length, computes)
        graph = write_plain_form(source, max_length, folder / "onnx")
        classifier = transformers.AutoModelForSequenceClassification.from_pretrained(
            source, attn_implementation="eager"
        )
        write_graph(_Logits(classifier), LOGITS, graph / "model.onnx")
        paths = {"source": source, "bundle": bundle.path, "onnx": graph}
        yield Forms(paths, max_length, bundle.manifest.dim), folder


class _Logits(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        output = self.model(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        logits: Tensor = output.logits
        return logits


def correlation(a: Floats, b: Floats) -> float:
    """Pearson's correlation of two peers' logits; NaN if the shapes differ."""
    if a.shape != b.shape:
        return float("nan")
    left, right = (x.astype(np.float64).ravel() - x.mean(dtype=np.float64) for x in (a, b))
    return float(left @ right / (np.linalg.norm(left) * np.linalg.norm(right)))


def _by_query(logits: Floats, starts: Sequence[int]) -> list[Floats]:
    """The first label's logits of each query's documents, float32 (documents,)."""
    return np.split(logits.reshape(len(logits), -1)[:, 0], starts)


def _two_queries(pairs: Sequence[Any]) -> list[Any]:
    return list(pairs[: 2 * DOCUMENTS])


def race_rerankers(
    peers: Sequence[Peer],
    models: Mapping[str, Path],
    options: Mapping[str, Any],
    pairs: Sequence[tuple[str, str]],
    folder: Path,
    *,
    rounds: int,
    on_step: Callable[[str], object] | None = None,
) -> Race:
    """Time peers in one run; arguments as `flowvec_bench.peers.race.race`.

    Each row's `quality` says how far it ranks as flowvec does in float32 on ONNX Runtime.

    Raises:
        InputValueError: no peers, no pairs or no rounds.
        FlowvecError: the first peer fails.
    """
    given = json.loads(json.dumps(pairs))
    starts = [i for i, pair in enumerate(pairs) if i and pair[0] != pairs[i - 1][0]]
    with Reranker.load(models["bundle"], provider="cpu", compute="float32") as reranker:
        exact = _by_query(reranker.predict(pairs, activation="identity"), starts)

    def quality(_: str, logits: Floats) -> dict[str, float]:
        if len(logits) != len(pairs):
            return asdict(Agreement(float("nan"), float("nan")))
        return asdict(rank_agreement(exact, _by_query(logits, starts)))

    return race(
        peers,
        models,
        options,
        {"pairs": given},
        folder,
        rounds=rounds,
        on_step=on_step,
        worker=WORKER,
        agreement=correlation,
        quality=quality,
        least=LEAST_CORRELATION,
        sample=_two_queries,
    )
