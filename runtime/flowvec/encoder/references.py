"""A bundle's reference texts and their vectors, with which engines are compared.

`references.npz` holds three arrays:

    lengths   int32 (texts,)          tokens of each text
    ids       int32 (sum of lengths,) token ids, text after text
    vectors   float32 (texts, dim)    of ONNX Runtime's CPU provider in float32, each text alone

That of a reranker holds pairs of texts and their logits, and, if its graph takes token types:

    second    int32 (texts,)          where the second text of a pair begins

That of a multi-vector encoder has vectors float32 (sum of lengths, dim), one for each token.

The file stays below 150 kB, of a sparse encoder below 3.2 MB, and of a multi-vector encoder below
600 kB; bundles with wide vectors have fewer texts.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.bundle.manifest import Kind
from flowvec.encoder.batching import Batch, bucket_length, pad
from flowvec.errors import BundleError
from flowvec.tokenizer.pairs import PairTokenizer
from flowvec.tokenizer.token_ids import TokenIds

__all__ = [
    "MAX_BYTES",
    "References",
    "make_references",
    "max_bytes",
    "reference_batches",
    "reference_ids",
    "reference_ids_per_token",
    "reference_pairs",
]

Floats = npt.NDArray[np.float32]
Ids = Sequence[Sequence[int]]
# The graph's inputs, int64 (batch, sequence), to its output, float32 (batch, dim).
Run = Callable[..., Floats]

MAX_BYTES = 150_000
_MAX_BYTES_OF: dict[Kind, int] = {"sparse": 3_200_000, "multi_vector": 600_000}
# Size of the file besides the vectors: names, headers, and at most 1,300 ids.
_OVERHEAD = 8_000
# Longer texts would take too long to compare.
_LONGEST = 512
_LEAST_TEXTS = 2
# What Python's zipfile raises for damaged files.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)

# Tokens of each text, the most important first: even if few texts fit, they include the longest
# (0), one token, odd and even lengths, and lengths around 16, 32 and 64, the block sizes of
# kernels. Special characters have texts of their own.
_LENGTHS = (0, 1, 17, 33, 8, 65, 2, 16, 32, 5, 24, 11, 3, 21, 13, 7, 19, 23, 4, 29, 9, 12, 6, 15)

# Fixed, so that the same model and machine give the same file.
_TEXT = (
    "The harbour lies at the mouth of a slow brown river, and for three hundred years ships have "
    "brought timber, salt and wool to it. In winter the fog comes up from the sea before dawn; the "
    "lamps along the quay are lit, and nobody sails until they can see the other bank. A woman who "
    "repairs nets told us that her grandfather could name every boat by the sound of its engine. "
    "How much of this will be left in twenty years? The council wants to build 1,250 flats where "
    "the warehouses stand, at a cost of about $340 million, while the fishermen ask for a cold "
    "store and a deeper channel. Engineers have measured the current at four places and found that "
    "the river carries away less sand than it brings. So the harbour must be dredged each spring, "
    "or it will be closed to large ships by 2031. Children learn to row there, tourists eat fried "
    "fish from paper, and on the first Sunday in June there is a race that a boat with a red sail "
    "has won six times. Some doctors advise a swim in cold water; others call it dangerous for the "
    "heart. The museum keeps a map drawn by hand in 1712, on which the coast looks different. "
)
_SPECIAL_TEXT = "Ünïcödé - 東京 №42 😀 «ça va?» \t[x] ½ #$%&@ Ωμέγα שלום!"
_SPECIAL = (13, 24)  # which of the lengths use it


@dataclass(frozen=True, slots=True, eq=False)
class References:
    """Token ids of texts, or of pairs of texts, and what the graph gives for them.

    Attributes:
        ids: token ids of each text, special tokens included.
        vectors: float32 (texts, dim), in the same order; finite, and not zero. A reranker's are
            logits.
        second: where the second text of each pair begins, if the model tells the two apart.
        per_token: whether there is a vector for each token, text after text.
    """

    ids: tuple[tuple[int, ...], ...]
    vectors: Floats
    second: tuple[int, ...] | None = None
    per_token: bool = False

    def expected(self, texts: Sequence[int]) -> Floats:
        """The vectors of some texts, float32 (rows, dim): one for each, or for each token."""
        if not self.per_token:
            return self.vectors[list(texts)]
        offsets = self.token_ids.offsets
        return np.concatenate([self.vectors[offsets[i] : offsets[i + 1]] for i in texts])

    def rows_of(self, output: Floats, texts: Sequence[int]) -> Floats:
        """The rows of a graph's output for a batch of texts that `expected` compares with."""
        if not self.per_token:
            return output
        return np.concatenate(
            [row[: len(self.ids[i])] for row, i in zip(output, texts, strict=True)]
        )

    @property
    def token_ids(self) -> TokenIds:
        """The ids, in one array."""
        return token_ids_of(self.ids, self.second)

    def to_bytes(self) -> bytes:
        """The bytes of `references.npz`; equal references give equal bytes."""
        second: dict[str, Any] = {}
        if self.second is not None:
            second["second"] = np.array(self.second, dtype=np.int32)
        file = io.BytesIO()
        np.savez(
            file,
            lengths=np.array([len(row) for row in self.ids], dtype=np.int32),
            ids=np.array([i for row in self.ids for i in row], dtype=np.int32),
            vectors=self.vectors,
            **second,
        )
        return file.getvalue()

    @classmethod
    def read(cls, path: Path, dim: int, kind: Kind = "embedder") -> References:
        """Read `references.npz`.

        Args:
            path: of the file.
            dim: length of the bundle's vectors.
            kind: of the bundle.

        Raises:
            BundleError: the file holds something else.
        """
        most = max_bytes(kind) + 4 * dim * _LEAST_TEXTS
        per_token = kind == "multi_vector"
        try:
            with zipfile.ZipFile(path) as file:
                # An untrusted file must not fill the memory when it is unpacked.
                if sum(entry.file_size for entry in file.infolist()) > most:
                    raise BundleError(f"{path} holds more than {most} bytes")
            with np.load(path) as arrays:  # it unpickles nothing
                lengths, ids, vectors = (arrays[name] for name in ("lengths", "ids", "vectors"))
                second = arrays.get("second")
        except (OSError, ValueError, KeyError, EOFError, MemoryError, *_ZIP_ERRORS) as error:
            raise BundleError(f"cannot read {path}: {error}") from None
        types = (lengths.dtype, ids.dtype, vectors.dtype) == (np.int32, np.int32, np.float32)
        if not (
            types
            and lengths.ndim == ids.ndim == 1
            and len(lengths) > 0
            and (lengths > 0).all()
            and lengths.sum(dtype=np.int64) == len(ids)
            and (ids >= 0).all()
            and vectors.shape == (len(ids) if per_token else len(lengths), dim)
            and np.isfinite(vectors).all()
            and vectors.any(axis=1).all()
            and (second is None or (second.dtype == np.int32 and second.shape == lengths.shape))
        ):
            raise BundleError(f"{path} does not hold reference vectors of {dim} dimensions")
        rows = np.split(ids, np.cumsum(lengths)[:-1])
        return cls(
            tuple(tuple(row.tolist()) for row in rows),
            vectors,
            None if second is None else tuple(second.tolist()),
            per_token,
        )


def max_bytes(kind: Kind) -> int:
    """Most bytes of the references of a kind of bundle.

    A sparse vector has a number for each token of the vocabulary, 122 kB for one of 30,522. A
    multi-vector encoder has a vector for each token.
    """
    return _MAX_BYTES_OF.get(kind, MAX_BYTES)


def reference_ids_per_token(
    tokenize: Callable[[Sequence[str]], Ids], max_length: int, dim: int
) -> list[list[int]]:
    """`reference_ids` of a model that gives a vector for each token: as many texts as fit."""
    room = max(_LEAST_TEXTS, (max_bytes("multi_vector") - _OVERHEAD) // (4 * dim))
    chosen: list[list[int]] = []
    for row in reference_ids(tokenize, min(max_length, max(2, room // 2)), 1):
        if len(row) <= room:
            chosen.append(row)
            room -= len(row)
    return chosen


def reference_ids(
    tokenize: Callable[[Sequence[str]], Ids],
    max_length: int,
    dim: int,
    most_bytes: int = MAX_BYTES,
) -> list[list[int]]:
    """Token ids of the reference texts of a model.

    Args:
        tokenize: texts to token ids with special tokens, cut at max_length.
        max_length: most tokens of a text.
        dim: length of a vector; wider vectors mean fewer texts.
        most_bytes: most bytes of the file.

    Returns:
        At most 24 different texts: one of a single token, one of `max_length` tokens or 512, and
        others of odd and even lengths between.
    """
    longest = min(max_length, _LONGEST)
    most = max(_LEAST_TEXTS, (most_bytes - _OVERHEAD) // (4 * dim))
    # Every token covers at most a word, and words here have at most ten characters.
    text = _TEXT * (1 + 10 * longest // len(_TEXT))
    plain, special = _framed(tokenize, text), _framed(tokenize, _SPECIAL_TEXT * 8)
    chosen: dict[tuple[int, ...], None] = {}
    for i, length in enumerate(_LENGTHS):
        frame = special if length in _SPECIAL else plain
        # Each text starts elsewhere; the longest takes all of it.
        row = frame.cut(longest if length == 0 else min(length, longest), skip=7 * i)
        if len(chosen) < most:
            chosen.setdefault(tuple(row))
    return [list(row) for row in chosen]


@dataclass(frozen=True, slots=True)
class _Framed:
    """A long text's token ids, without the special tokens around every text."""

    prefix: list[int]
    body: list[int]
    suffix: list[int]

    def cut(self, length: int, skip: int) -> list[int]:
        """This many tokens of the text, with special tokens if there is room for them."""
        room = length - len(self.prefix) - len(self.suffix)
        if room < 1:
            return (self.prefix + self.suffix + self.body)[:length]
        start = min(skip, max(0, len(self.body) - room))
        return self.prefix + self.body[start : start + room] + self.suffix


def _framed(tokenize: Callable[[Sequence[str]], Ids], text: str) -> _Framed:
    """Separate a text's ids from the special tokens, by comparison with an empty text."""
    empty, full = (list(row) for row in tokenize(["", text]))
    count = 0
    while count < len(empty) and full[count] == empty[count]:
        count += 1
    prefix, suffix = empty[:count], empty[count:]
    return _Framed(prefix, full[len(prefix) : len(full) - len(suffix)], suffix)


def token_ids_of(rows: Sequence[Sequence[int]], second: Sequence[int] | None = None) -> TokenIds:
    """Ids of texts, or of pairs of texts, in one array."""
    token_ids = TokenIds.from_rows(rows)
    if second is None:
        return token_ids
    return replace(token_ids, second=np.array(second, dtype=np.int64))


def reference_pairs(tokenizer: PairTokenizer) -> tuple[list[list[int]], list[int] | None]:
    """Token ids of the reference pairs of a reranker, and where their second texts begin.

    Queries with texts that answer them and texts that do not, of odd and even lengths, and one pair
    that fills max_length or 512 tokens.
    """
    sentences = [f"{part.strip()}." for part in _TEXT.split(".") if part.strip()]
    pairs = [(sentence, sentence) for sentence in sentences[:6]]
    pairs += [
        (sentences[i % len(sentences)], " ".join(sentences[j : j + 1 + i % 4]))
        for i, j in ((i, (5 * i + 3) % len(sentences)) for i in range(12))
    ]
    pairs += [(_SPECIAL_TEXT, _SPECIAL_TEXT), ("map", _SPECIAL_TEXT), ("", sentences[0]), ("a", "")]
    pairs.append((sentences[0], _TEXT * (1 + 10 * _LONGEST // len(_TEXT))))
    tokenized = tokenizer(pairs).token_ids
    ids = [row[:_LONGEST] for row in tokenized.to_lists()]
    return ids, None if tokenized.second is None else tokenized.second.tolist()


def make_references(
    run: Run,
    ids: Iterable[Sequence[int]],
    pad_id: int,
    second: Sequence[int] | None = None,
    *,
    per_token: bool = False,
) -> References:
    """Compute the vectors, each text alone, and leave out texts without a valid vector.

    Args:
        run: of ONNX Runtime's CPU provider in float32.
        ids: as `reference_ids` or `reference_pairs` returns them.
        pad_id: the padding token's id.
        second: where the second text of each pair begins.
        per_token: whether `run` gives a vector for each token.

    Raises:
        BundleError: the model gives no text a finite vector that is not zero.
        EngineError: the engine failed.
    """
    rows = [tuple(row) for row in ids]
    token_ids = token_ids_of(rows, second)
    vectors = [run(*pad(token_ids, Batch((i,), len(row)), pad_id)) for i, row in enumerate(rows)]
    if per_token:
        vectors = [output[0] for output in vectors]
    kept = [i for i, v in enumerate(vectors) if np.isfinite(v).all() and v.any(axis=-1).all()]
    if not kept:
        raise BundleError("the model gives NaN, infinity or zeros for every reference text")
    return References(
        tuple(rows[i] for i in kept),
        np.concatenate([vectors[i] for i in kept]),
        None if second is None else tuple(second[i] for i in kept),
        per_token,
    )


# Most padded tokens in a batch of several references.
_BUDGET = 256
_ODD_COUNTS = (15, 7, 5, 3, 1)
_EVEN_COUNTS = (14, 8, 4, 2)


def reference_batches(lengths: Sequence[int]) -> list[Batch]:
    """How references are run: each alone, then in ragged batches of odd and of even row counts.

    Batches of odd counts are padded to their longest text; those of even counts to the next bucket,
    as by `flowvec.encoder.batching.plan`. The longest text is only run alone: it would cost more
    than all others together.
    """
    alone = [Batch((i,), length) for i, length in enumerate(lengths)]
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])[:-1]
    odd = _grouped(order, lengths, _ODD_COUNTS)
    even = [
        Batch(batch.rows, min(bucket_length(batch.length), max(lengths)))
        for batch in _grouped(order, lengths, _EVEN_COUNTS)
    ]
    return [*alone, *(batch for batch in [*odd, *even] if len(batch.rows) > 1)]


def _grouped(order: Sequence[int], lengths: Sequence[int], counts: Sequence[int]) -> list[Batch]:
    """Cut texts, shortest first, into batches of the largest count that is cheap enough."""
    batches = []
    start = 0
    while start < len(order):
        left = order[start:]
        count = next(
            (n for n in counts if n <= len(left) and lengths[left[n - 1]] * n <= _BUDGET),
            1,
        )
        batches.append(Batch(tuple(left[:count]), lengths[left[count - 1]]))
        start += count
    return batches
