"""Races sparse and multi-vector encoders on documents."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch
import transformers

from flowvec import maxsim
from flowvec.errors import InputValueError
from flowvec_bench.peers.model_forms import SHAPES, computes_of, export_with_variants
from flowvec_bench.peers.race import Race, race
from flowvec_bench.peers.registry import FLOWVEC, LATE, PEERS, Forms, Peer
from flowvec_bench.peers.token_forms import FASTEMBED_MARKER, write_token_forms
from flowvec_bench.workers.kinds import ENGINES
from flowvec_export.sources.torch import quiet_transformers
from flowvec_export.variants.ranking import rank_agreement
from flowvec_export.variants.retrieval import top_agreement

__all__ = [
    "Kind",
    "Rankings",
    "encoders_of",
    "least_cosine_of_texts",
    "least_mean_cosine",
    "opened_kind",
    "race_kind",
    "text_scores",
]

Kind = Literal["sparse", "multi-vector"]
Floats = npt.NDArray[np.float32]

WORKER = Path(__file__).parents[1] / "workers" / "kinds.py"
# Texts that rank the others, and texts that are ranked: as many tokens as fit into some seconds.
_MOST_QUERIES = 32
_MOST_DOCUMENTS = 300
# A row is void below this. bfloat16 gives .999 on sparse vectors, another model at most .9.
LEAST_COSINE = 0.99
_TOKEN_DIM = 128
# Terms of a text of random weights, as a trained SPLADE model has about.
_TERMS = 120
_INITIAL = 0.05
_MAX_LENGTH = 256
_SAMPLE = "a man walks the dog in a park near the river while it rains"


def encoders_of(kind: Kind) -> dict[str, Peer]:
    """Peers with such an encoder. fastembed has sparse ones too, but not from a local directory."""
    ours = [peer for name, peer in FLOWVEC.items() if name != "flowvec-one"]
    late = LATE if kind == "multi-vector" else {}
    names = {peer.name: name for name, peer in {**FLOWVEC, **PEERS, **late}.items()}
    others = [PEERS[name] for name in ("st-default", "st-float32", "st-bfloat16")]
    others += late.values()
    return {
        names[peer.name]: replace(peer, options={**peer.options, "kind": kind})
        for peer in (*ours, *others)
    }


def random_encoder(kind: Kind, shape: str, tokenizer: Path, max_length: int, folder: Path) -> Path:
    """Write a random BERT as a directory of sentence-transformers' SparseEncoder or
    MultiVectorEncoder."""
    fast = transformers.AutoTokenizer.from_pretrained(tokenizer)
    fast.model_max_length = max_length
    # The marker is one token in a text too, as PyLate makes it.
    marker = str(fast.convert_ids_to_tokens(FASTEMBED_MARKER))
    fast.add_tokens([marker], special_tokens=True)
    sizes: dict[str, Any] = {"vocab_size": len(fast), **SHAPES[shape]}
    config = transformers.BertConfig(initializer_range=_INITIAL, **sizes)
    torch.manual_seed(0)
    inner = folder / "transformer"
    model: Any
    if kind == "sparse":
        model = transformers.BertForMaskedLM(config)
        _make_sparse(model, fast)
    else:
        model = transformers.BertModel(config, add_pooling_layer=False)
    with quiet_transformers():
        model.save_pretrained(inner)
        fast.save_pretrained(inner)
        opened = _opened(kind, inner, config.hidden_size, max_length, marker)
        opened.save_pretrained(str(folder / "source"))
    return folder / "source"


def _make_sparse(model: Any, tokenizer: Any) -> None:
    """Lower the logits, so that a text has about as many weights as with trained weights."""
    with torch.no_grad():
        logits = model(**tokenizer(_SAMPLE, return_tensors="pt")).logits
        largest = logits.amax(1).flatten().sort().values
        model.cls.predictions.decoder.bias.fill_(-float(largest[-min(_TERMS, len(largest) // 4)]))
        model.cls.predictions.bias = model.cls.predictions.decoder.bias


def _opened(kind: Kind, inner: Path, width: int, max_length: int, marker: str) -> Any:
    from sentence_transformers import MultiVectorEncoder, SparseEncoder

    if kind == "sparse":
        return SparseEncoder(str(inner), device="cpu")
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.modules import Normalize

    modules: list[Any] = [
        Transformer(str(inner), document_length=max_length),
        Dense(
            width,
            _TOKEN_DIM,
            bias=False,
            activation_function=torch.nn.Identity(),
            module_input_name="token_embeddings",
        ),
        MultiVectorMask(skiplist_words=list(string.punctuation)),
        Normalize(module_input_name="token_embeddings"),
    ]
    return MultiVectorEncoder(modules=modules, prompts={"document": marker}, device="cpu")


@contextmanager
def opened_kind(
    kind: Kind,
    model: str,
    tokenizer: Path | None,
    max_length: int | None,
    racers: Sequence[Peer] = (),
) -> Iterator[tuple[Forms, Path]]:
    """A sparse or multi-vector encoder in the forms that peers read, and a folder for files.

    Args:
        kind: which of the two.
        model: a directory of sentence-transformers or PyLate, or a name of `SHAPES`.
        tokenizer: directory of the tokenizer of random weights; None for a directory.
        max_length: most tokens of a text; None is the model's.
        racers: the bundle gets the variants in 8 bits that these ask for, if they agree.

    Raises:
        InputValueError: a length is given for a multi-vector model, whose documents have their own.
        ExportError: the model cannot be exported.
    """
    if kind == "multi-vector" and tokenizer is None and max_length is not None:
        raise InputValueError(
            "a multi-vector model has lengths of its own: --max-length is for random weights"
        )
    with TemporaryDirectory(prefix="flowvec-") as temporary:
        folder = Path(temporary)
        source = Path(model)
        if tokenizer is not None:
            max_length = max_length or _MAX_LENGTH
            source = random_encoder(kind, model, tokenizer, max_length, folder / model)
        bundle = export_with_variants(source, folder / "bundle", max_length, computes_of(racers))
        paths = {"source": source, "bundle": bundle.path}
        head = bundle.manifest.late_interaction
        if head is not None:
            paths |= write_token_forms(source, head.document_length, folder)
        yield Forms(paths, bundle.manifest.max_length, bundle.manifest.dim), folder


def race_kind(
    kind: Kind,
    peers: Sequence[Peer],
    models: Mapping[str, Path],
    options: Mapping[str, Any],
    texts: Mapping[str, Sequence[str]],
    folder: Path,
    *,
    rounds: int,
    on_step: Callable[[str], object] | None = None,
) -> Race:
    """Time peers in one run; arguments as `flowvec_bench.peers.race.race`.

    Each row's `quality` says how far it ranks the texts as flowvec does in float32 on ONNX Runtime.
    Rows in 8 bits count by that, since their vectors are other ones.

    Raises:
        InputValueError: no peers, no texts or no rounds.
        FlowvecError: the first peer fails.
    """
    rankings = Rankings(kind, models["bundle"], texts)
    return race(
        peers,
        models,
        options,
        texts,
        folder,
        rounds=rounds,
        on_step=on_step,
        worker=WORKER,
        agreement=least_cosine_of_texts if kind == "sparse" else least_mean_cosine,
        least=LEAST_COSINE,
        quality=rankings.agreement,
        is_rounded=lambda peer: peer.options.get("load", {}).get("compute") == "int8",
    )


class Rankings:
    """How the texts of a race rank each other, by flowvec in float32 on ONNX Runtime."""

    def __init__(self, kind: Kind, bundle: Path, texts: Mapping[str, Sequence[str]]) -> None:
        """Encode the texts that are compared.

        Args:
            kind: of the model.
            bundle: its folder.
            texts: by kind of texts.
        """
        self._kind: Kind = kind
        self._exact: dict[str, Floats] = {}
        load = {"provider": "cpu", "compute": "float32"}
        engine = ENGINES["flowvec", kind](str(bundle), {"load": load})
        with engine.model:
            for name, items in texts.items():
                table = engine.table(engine.encode(list(items[:_MOST_DOCUMENTS]), None))
                self._exact[name] = text_scores(kind, table, len(items[:_MOST_DOCUMENTS]))

    def agreement(self, name: str, table: Floats) -> dict[str, float]:
        """Kendall's tau, the share of the same first text, and of the same ten best.

        Args:
            name: kind of texts.
            table: a peer's vectors of them.

        Returns:
            The figures by name; none if there are fewer than three texts.
        """
        exact = self._exact[name]
        if exact.shape[1] < 2:
            return {}
        other = text_scores(self._kind, table, exact.shape[1] + 1)
        ranked = rank_agreement(list(exact), list(other))
        return asdict(ranked) | {"top_10": top_agreement(exact, other, 10)}


def text_scores(kind: Kind, table: Floats, count: int) -> Floats:
    """The score of each of the first texts with all others, float32 (queries, count - 1).

    Args:
        kind: of the model.
        table: as for `least_cosine_of_texts` or `least_mean_cosine`.
        count: how many texts are compared; others are left out.
    """
    table = table[table[:, 0] < count]
    queries = min(count, _MOST_QUERIES)
    if kind == "sparse":
        rows, terms = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
        shape = (count, int(terms.max(initial=0)) + 1)
        vectors = scipy.sparse.csr_matrix((table[:, 2], (rows, terms)), shape=shape)
        scores = (vectors[:queries] @ vectors.T).toarray()
    else:
        by_text = dict(_by_text(table))
        none = np.empty((0, table.shape[1]), np.float32)
        tokens = [by_text.get(text, none)[:, 1:] for text in range(count)]
        scores = maxsim(tokens[:queries], tokens)
    is_other = ~np.eye(queries, count, dtype=bool)  # a text is its own best document
    others: Floats = scores[is_other].reshape(queries, count - 1).astype(np.float32)
    return others


def least_cosine_of_texts(a: Floats, b: Floats) -> float:
    """The smallest cosine of a text's sparse vectors in two tables; NaN if the texts differ.

    Args:
        a: float32 (weights, 3): number of the text, token id, weight.
        b: likewise.
    """
    tables = [
        {
            text: dict(zip(rows[:, 1].tolist(), rows[:, 2].tolist(), strict=True))
            for text, rows in _by_text(table)
        }
        for table in (a, b)
    ]
    left, right = tables
    if left.keys() != right.keys():
        return float("nan")
    return min(_cosine(left[text], right[text]) for text in left)


def _cosine(a: dict[float, float], b: dict[float, float]) -> float:
    dot = sum(weight * b.get(term, 0.0) for term, weight in a.items())
    norms = [np.sqrt(sum(weight * weight for weight in one.values())) for one in (a, b)]
    return float(dot / (norms[0] * norms[1]))


def least_mean_cosine(a: Floats, b: Floats) -> float:
    """The smallest mean cosine of a text's token vectors; NaN if the tokens differ in number.

    Args:
        a: float32 (tokens, 1 + dim): number of the text, vector.
        b: likewise.
    """
    if a.shape != b.shape or not np.array_equal(a[:, 0], b[:, 0]):
        return float("nan")
    left, right = a[:, 1:].astype(np.float64), b[:, 1:].astype(np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines = (left * right).sum(axis=1) / norms
    starts = np.flatnonzero(np.diff(a[:, 0], prepend=-1))
    counts = np.diff(np.append(starts, len(a)))
    return float((np.add.reduceat(cosines, starts) / counts).min())


def _by_text(table: Floats) -> Iterator[tuple[int, Floats]]:
    starts = np.flatnonzero(np.diff(table[:, 0], prepend=-1))
    for rows in np.split(table, starts[1:]):
        yield int(rows[0, 0]), rows
