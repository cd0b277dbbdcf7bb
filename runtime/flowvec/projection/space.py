"""What a model's transform does to vectors: the same texts before and after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from flowvec.arguments import whole_number
from flowvec.collection.collection import Collection
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.postprocess import normalize
from flowvec.engine.inner_output import BeforeTransform, HiddenTransformError
from flowvec.errors import InputValueError
from flowvec.projection.isotropy import Evenness, evenness_of
from flowvec.projection.principal import principal_axes

__all__ = ["Space", "SpaceFrame", "space_frames", "token_batch"]

Floats = npt.NDArray[np.float32]

_BATCH = 16
_LONGEST_TEXT = 20_000
# Texts that are shown beside points.
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """One set of vectors.

    Attributes:
        evenness: its figures and spectrum.
        positions: on its own two principal axes, float32 (rows, 2).
        shares: share of the variance on each of the two.
    """

    evenness: Evenness
    positions: Floats
    shares: tuple[float, ...]

    @classmethod
    def of(cls, vectors: Floats) -> Space:
        """Measure and project vectors, float32 (rows, dim)."""
        axes = principal_axes(vectors)
        return cls(evenness_of(vectors), axes.project(vectors), axes.shares)


@dataclass(frozen=True, slots=True, eq=False)
class SpaceFrame:
    """A state of a comparison that is being made.

    Attributes:
        stage: what is being done.
        progress: 0 to 1.
        texts: beginnings of the texts, one for each position.
        before: vectors that the transform takes; None for a model without one, or whose graph
            does not show them.
        after: the model's vectors.
    """

    stage: Literal["embedding", "done"]
    progress: float
    texts: tuple[str, ...] = ()
    before: Space | None = None
    after: Space | None = None


def space_frames(
    collection: Collection, encoder: Encoder | None, *, rows: int = 1000, seed: int = 0
) -> Iterator[SpaceFrame]:
    """Compare vectors before and after a model's transform on a sample of a collection's texts.

    Both are normalized if the model's vectors are. Without a transform, without a model, or if the
    graph does not show what its transform takes, the vectors in the collection are measured, and
    nothing is embedded.

        >>> from flowvec.projection import space_frames
        >>> with Collection.create("space", dim=2) as collection:
        ...     collection.add_vectors(range(3), [[1, 0], [0, 1], [-1, 0]])
        ...     *_, frame = space_frames(collection, None)
        ...     frame.before, round(frame.after.evenness.mean_cosine, 3)
        Added(rows=3, replaced=0, truncated=0)
        (None, -0.333)

    Args:
        collection: open.
        encoder: the model that made its vectors.
        rows: how many rows to draw.
        seed: of the sample.

    Raises:
        InputTypeError, InputValueError: an argument is not valid; fewer than two rows have texts,
            or all vectors are equal.
        BundleError: the graph cannot be loaded.
    """
    whole_number("rows", rows, least=2)
    with collection._access.reading():
        labels = collection._store.labels()
        if len(labels) > rows:
            labels = np.sort(np.random.default_rng(seed).choice(labels, rows, replace=False))
        items = list(collection._store.read(labels.tolist()).values())
    texts = [(item.text or "")[:_LONGEST_TEXT] for item in items]
    model = None if encoder is None else _before_transform(encoder)
    if encoder is None or model is None:
        vectors = np.stack([item.vector for item in items]) if items else np.empty((0, 2))
        after = Space.of(np.asarray(vectors, np.float32))
        yield SpaceFrame("done", 1.0, _beginnings(texts), None, after)
        return
    texts = [text for text in texts if text]
    if len(texts) < 2:
        raise InputValueError("the collection has fewer than two texts to embed")
    pairs = list[tuple[Floats, Floats]]()
    for start in range(0, len(texts), _BATCH):
        yield SpaceFrame("embedding", start / len(texts))
        pairs.append(model.run(*token_batch(encoder, texts[start : start + _BATCH])))
    before, after_ = (np.concatenate(part) for part in zip(*pairs, strict=True))
    if encoder.bundle.manifest.normalised:
        before = normalize(before)
    yield SpaceFrame("done", 1.0, _beginnings(texts), Space.of(before), Space.of(after_))


def _before_transform(encoder: Encoder) -> BeforeTransform | None:
    """What shows the vectors before a model's transform; None if nothing does."""
    if not encoder.info().transform:
        return None
    try:
        return BeforeTransform(encoder.bundle)
    except HiddenTransformError:
        return None


def token_batch(
    encoder: Encoder, texts: Sequence[str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Token ids and mask of texts with the documents' prompt, int64 (batch, sequence)."""
    prompt = encoder.bundle.manifest.prompts.get(encoder.document_prompt, "")
    rows = encoder._tokenizer([prompt + text for text in texts]).ids
    width = max(map(len, rows))
    ids = np.full((len(rows), width), encoder.bundle.manifest.pad_id, np.int64)
    mask = np.zeros((len(rows), width), np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return ids, mask


def _beginnings(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(text[:_SHOWN_CHARACTERS] for text in texts)
