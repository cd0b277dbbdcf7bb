"""Token ids of many texts in one array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from flowvec.errors import InputTypeError, InputValueError
from flowvec.sequences import refuse_lookalike

__all__ = ["TokenIds"]

_MOST_ID = int(np.iinfo(np.int32).max)


@dataclass(frozen=True, slots=True, eq=False)
class TokenIds:
    """Token ids of texts of different lengths, text after text.

        >>> tokenized = Encoder.load("mini").tokenize(["A man is eating.", "Stocks fell."])
        >>> token_ids = tokenized.token_ids
        >>> len(token_ids), token_ids.lengths.tolist(), token_ids[1].shape
        (2, [7, 5], (5,))

    Attributes:
        flat: int32 (tokens,), the ids of all texts.
        offsets: int64 (texts + 1,); text i has the ids `flat[offsets[i] : offsets[i + 1]]`.
        second: for pairs of texts, where the second text of each begins among the pair's tokens,
            int64 (texts,); None if the model does not tell the two apart.
        attended: how many tokens of each text, from its beginning, the model attends to, int64
            (texts,); None is all. The others get vectors of their own.
    """

    flat: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64] | None = None
    attended: npt.NDArray[np.int64] | None = None

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int] | npt.NDArray[np.int32]]) -> TokenIds:
        """Join the ids of each text.

        Raises:
            InputTypeError: a row is not a sequence of whole numbers.
            InputValueError: an id is below 0, or does not fit into int32.
        """
        refuse_lookalike("ids", rows)
        if not isinstance(rows, Iterable):
            raise InputTypeError(f"ids must be token ids of texts, not {type(rows).__name__}")
        arrays = [_ids_of(row) for row in rows]
        return cls.from_lengths(
            np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int32),
            np.array([len(row) for row in arrays], dtype=np.int64),
        )

    @classmethod
    def from_lengths(
        cls,
        flat: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int64],
        second: npt.NDArray[np.int64] | None = None,
        attended: npt.NDArray[np.int64] | None = None,
    ) -> TokenIds:
        """Ids of texts with these numbers of tokens."""
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(flat, offsets, second, attended)

    @classmethod
    def joined(cls, parts: Sequence[TokenIds]) -> TokenIds:
        """Join the ids of consecutive texts."""
        seconds = [part.second for part in parts if part.second is not None]
        attended = None
        if any(part.attended is not None for part in parts):
            attended = np.concatenate(
                [part.lengths if part.attended is None else part.attended for part in parts]
            )
        return cls.from_lengths(
            np.concatenate([part.flat for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate(seconds) if seconds else None,
            attended,
        )

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[TokenIds, int]]) -> TokenIds:
        """The ids of some texts, which may lie in different arrays.

        Args:
            rows: for each text, the ids that hold it and its number among them; at least one.
        """
        ids = [part[text] for part, text in rows]
        seconds = [part.second[text] for part, text in rows if part.second is not None]
        lengths = np.array([len(row) for row in ids], dtype=np.int64)
        attended = None
        if any(part.attended is not None for part, _ in rows):
            attended = lengths.copy()
            for i, (part, text) in enumerate(rows):
                if part.attended is not None:
                    attended[i] = part.attended[text]
        return cls.from_lengths(
            np.concatenate(ids),
            lengths,
            np.array(seconds, dtype=np.int64) if seconds else None,
            attended,
        )

    def between(self, start: int, stop: int) -> TokenIds:
        """The ids of consecutive texts; views."""
        first, last = self.offsets[start], self.offsets[stop]
        return TokenIds(
            self.flat[first:last],
            self.offsets[start : stop + 1] - first,
            None if self.second is None else self.second[start:stop],
            None if self.attended is None else self.attended[start:stop],
        )

    def beyond(self, rows: int) -> dict[int, int]:
        """Texts with an id of `rows` or more, and the first such id of each."""
        if not len(self.flat) or int(self.flat.max()) < rows:
            return {}
        places = np.flatnonzero(self.flat >= rows)
        texts = np.searchsorted(self.offsets, places, side="right") - 1
        pairs = zip(texts[::-1].tolist(), self.flat[places[::-1]].tolist(), strict=True)
        return dict(sorted(dict(pairs).items()))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each text, int64 (texts,)."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, text: int) -> npt.NDArray[np.int32]:
        """The ids of one text, int32 (tokens,); a view."""
        return self.flat[self.offsets[text] : self.offsets[text + 1]]

    def to_lists(self) -> list[list[int]]:
        """The ids of each text as Python numbers."""
        flat, offsets = self.flat.tolist(), self.offsets.tolist()
        return [flat[a:b] for a, b in pairwise(offsets)]


def _ids_of(row: object) -> npt.NDArray[np.int32]:
    """One text's ids, checked."""
    ids = np.asarray(row)
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        raise InputTypeError("the ids of a text must be a sequence of whole numbers")
    if len(ids) and not 0 <= ids.min() <= ids.max() <= _MOST_ID:
        raise InputValueError(f"token ids must be from 0 to {_MOST_ID}")
    return ids.astype(np.int32, copy=False)
