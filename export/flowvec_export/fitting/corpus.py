"""Samples a corpus and computes its raw vectors: pooled, not transformed, not normalized."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowvec import Encoder
from flowvec.errors import InputValueError
from flowvec.texts.rows import read_rows
from flowvec.texts.sentences import split_sentences
from flowvec_export.build import export
from flowvec_export.trust import Trust

__all__ = ["embed_raw", "read_corpus", "sample_texts"]

# A sample is drawn from the first 5 x its size of texts: a large corpus is not read to its end, and
# the sample does not hold its first articles only.
_POOL_FACTOR = 5


def embed_raw(
    source: str | Path,
    texts: Sequence[str],
    *,
    pooling: str | None = None,
    max_length: int | None = None,
    encoder_only: bool = False,
    trust: Trust | None = None,
    show_progress_bar: bool | None = None,
    on_step: Callable[[str], object] | None = None,
) -> npt.NDArray[np.float32]:
    """Pooled vectors of texts before normalization, through a temporary graph.

    Args:
        source: as for `export`.
        texts: any number; each gets the source's default prompt, as in encoding.
        pooling: as for `export`; several joined by `+` are concatenated.
        max_length: as for `export`.
        encoder_only: as for `export`.
        trust: what the source may do besides being read as data; None allows nothing.
        show_progress_bar: None shows one on a terminal for long work.
        on_step: called with a line of text before each step.

    Returns:
        float32 (texts, dim), on ONNX Runtime's CPU provider.

    Raises:
        ExportError: the source cannot be exported.
        NonFiniteError: a vector holds NaN or infinity; the message names the text.
    """
    trust = trust or Trust()
    with tempfile.TemporaryDirectory(prefix="flowvec-") as folder:
        bundle = export(
            source,
            Path(folder) / "raw",
            pooling=pooling,
            max_length=max_length,
            encoder_only=encoder_only,
            trust_remote_code=trust.remote_code,
            allow_pickle=trust.pickle,
            normalize=False,
            variants=(),
            calibration=(),
            on_step=on_step,
        )
        # Always float32 on the CPU provider, because the fit is used on every engine.
        with Encoder.load(bundle.path, provider="cpu", compute="float32") as encoder:
            return encoder.encode(texts, show_progress_bar=show_progress_bar)


def read_corpus(
    source: str,
    *,
    rows: int,
    seed: int = 0,
    sentences: bool = False,
    text_field: str = "text",
    file_format: str | None = None,
) -> list[str]:
    """A seeded sample of a corpus's distinct texts, in random order.

    Args:
        source: a file as for `read_rows`, or `-`.
        rows: how many to draw, from the first 5 x rows distinct texts; a smaller corpus is used
            completely.
        seed: seed of the sample.
        sentences: split every row into sentences and leave out those of fewer than four words.
        text_field: the field of jsonl or csv that holds the text.
        file_format: `txt`, `jsonl` or `csv`; None decides by the extension.

    Raises:
        InputValueError: the file cannot be read, or has no texts.
    """
    rows_of_text = (
        row.text for row in read_rows(source, text_field=text_field, file_format=file_format)
    )
    texts: Iterable[str] = rows_of_text
    if sentences:
        texts = (s for text in rows_of_text for s in split_sentences(text) if s.count(" ") >= 3)
    return sample_texts(texts, rows, seed, source)


def sample_texts(texts: Iterable[str], rows: int, seed: int, name: str) -> list[str]:
    """Draw `rows` of the first 5 x rows distinct non-blank texts, in random order.

    Raises:
        InputValueError: rows is below 1, or there is no text.
    """
    if rows < 1:
        raise InputValueError(f"rows must be at least 1, but is {rows}")
    pool = list(islice(_distinct(texts), _POOL_FACTOR * rows))
    if not pool:
        raise InputValueError(f"there is no text in {name}")
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(pool))[:rows]
    return [pool[i] for i in chosen]


def _distinct(texts: Iterable[str]) -> Iterator[str]:
    """Each stripped text once, without blank ones."""
    seen: set[str] = set()
    for text in texts:
        stripped = text.strip()
        if stripped and stripped not in seen:
            seen.add(stripped)
            yield stripped
