"""From texts to token ids of queries or documents, and from the graph's output to token vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from flowvec.bundle.manifest import LateInteraction
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import Tokenized, Tokenizer

__all__ = ["TokenJob", "TokenRows", "expanded", "token_rows"]

Floats = npt.NDArray[np.float32]


def token_rows(output: Floats, lengths: npt.NDArray[np.int64]) -> Floats:
    """The vectors of all tokens without padding, float32 (tokens, dim).

    Args:
        output: float32 (batch, sequence, dim).
        lengths: tokens of each text, int64 (batch,).
    """
    rows: Floats = output[np.arange(output.shape[1]) < lengths[:, np.newaxis]]
    return rows


def expanded(ids: TokenIds, length: int, token: int, *, attended: bool) -> TokenIds:
    """Fill queries up to a length with a token, as ColBERT does.

    Args:
        ids: token ids of queries.
        length: fewest tokens of a query.
        token: what the others are filled with.
        attended: whether the query's own tokens see the added ones.
    """
    lengths = ids.lengths
    filled = np.maximum(lengths, length)
    flat = np.full(int(filled.sum()), token, dtype=np.int32)
    starts = np.cumsum(filled) - filled
    flat[np.arange(len(ids.flat)) + np.repeat(starts - ids.offsets[:-1], lengths)] = ids.flat
    out = TokenIds.from_lengths(flat, filled)
    return out if attended else replace(out, attended=lengths)


@dataclass(slots=True, eq=False)
class TokenRows:
    """Collects the token vectors of a window.

    Attributes:
        token_ids: of the texts.
        skipped: token ids that get no vector, int32 (ids,); None if all get one.
    """

    token_ids: TokenIds
    skipped: npt.NDArray[np.int32] | None
    _parts: list[Floats | None] = field(init=False)
    _wrong: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._parts = [None] * len(self.token_ids)

    def store(self, items: Sequence[int], output: Floats) -> None:
        """See `flowvec.encoder.jobs.Rows`; float32 (batch, sequence, dim)."""
        for item, vectors in zip(items, output, strict=True):
            ids = self.token_ids[item]
            # Copies, so that a text does not keep its batch in memory.
            if self.skipped is None:
                part = vectors[: len(ids)].copy()
            else:
                part = vectors[: len(ids)][~np.isin(ids, self.skipped)]
            if not np.isfinite(part).all():
                self._wrong.append(item)
            self._parts[item] = part

    def non_finite(self) -> Sequence[int]:
        """See `flowvec.encoder.jobs.Rows`."""
        return sorted(self._wrong)

    def results(self) -> list[Floats]:
        """See `flowvec.encoder.jobs.Rows`."""
        return cast(list[Floats], self._parts)


@dataclass(frozen=True, slots=True)
class TokenJob:
    """The checked options of one call of a `MultiVectorEncoder`.

    Attributes:
        head: lengths, expansion and skipped tokens.
        is_query: whether the texts are queries.
        prompt: put before each text.
        max_batch_tokens: most padded tokens in a batch.
        refuse_long: raise for a text that is too long instead of cutting it.
        refuse_empty: raise for an empty text, as the caller of the pipeline does.
        shared_out: use a smaller batch if that keeps all streams busy.
        refuse_non_finite: as for `flowvec.encoder.jobs.Job`.
    """

    head: LateInteraction
    is_query: bool
    prompt: str
    max_batch_tokens: int
    refuse_long: bool
    refuse_empty: bool = False
    shared_out: bool = True
    refuse_non_finite: bool = True

    @property
    def most_tokens(self) -> int:
        """Most tokens of a text."""
        return self.head.query_length if self.is_query else self.head.document_length

    def tokenize(self, tokenizer: Tokenizer, items: Sequence[str]) -> Tokenized:
        """Token ids of texts, each with the prompt before it; queries are filled up."""
        head, prompt = self.head, self.prompt
        tokenized = tokenizer.with_max_length(self.most_tokens)(
            [prompt + text for text in items] if prompt else items
        )
        if not self.is_query or head.expansion_length is None or head.expansion_token is None:
            return tokenized
        ids = expanded(
            tokenized.token_ids,
            head.expansion_length,
            head.expansion_token,
            attended=head.expansion_is_attended,
        )
        return replace(tokenized, token_ids=ids)

    def _rows(self, token_ids: TokenIds, dim: int) -> TokenRows:
        """Where the graph's output goes."""
        head = self.head
        if not head.skipped_tokens or (self.is_query and not head.skips_in_queries):
            return TokenRows(token_ids, None)
        return TokenRows(token_ids, np.array(head.skipped_tokens, dtype=np.int32))
