"""Token ids that a caller gives in place of a text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["GivenIds"]


@dataclass(frozen=True, slots=True, eq=False)
class GivenIds:
    """A text as token ids: what a tokenizer would make of it goes to the model as it is.

    Attributes:
        ids: int32 (tokens,), with special tokens around them, or without.
        prompt: a text before it, which is tokenized.
    """

    ids: npt.NDArray[np.int32]
    prompt: str = ""

    def __len__(self) -> int:
        """How many ids there are."""
        return len(self.ids)

    def __radd__(self, prompt: str) -> GivenIds:
        """The same after a prompt: jobs write `prompt + text`."""
        return GivenIds(self.ids, prompt + self.prompt)
