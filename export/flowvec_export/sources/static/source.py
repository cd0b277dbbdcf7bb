"""A table of token vectors as a source."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flowvec.compat import override
from flowvec.errors import ExportError
from flowvec_export.assembly.draft import Draft, Weights, check_steps
from flowvec_export.assembly.from_table import Table, draft_of_table
from flowvec_export.sources.base import Source, add_weights

if TYPE_CHECKING:
    from flowvec_export.transforms import Transform

__all__ = ["StaticSource"]


@dataclass(slots=True, kw_only=True)
class StaticSource(Source):
    """A table of token vectors.

    Attributes:
        table: the vectors, and how a text's tokens become one vector.
        characters: characters for each token of max_length at which a text is cut; None if a text
            is only cut by tokens.
    """

    table: Table
    characters: int | None = None

    @override
    def draft(
        self,
        length: int,
        pooling: str | None,
        added: Sequence[Transform],
        normalize: bool | None,
        weights: Weights,
    ) -> Draft:
        steps = [*self.transforms, *added]
        check_steps(steps, self.pooled_width(pooling))
        if normalize is None:
            normalize = True if self.normalize is None else self.normalize
        return draft_of_table(
            self.table, steps, normalize=normalize, weights=weights, origin=self.origin
        )

    @override
    def pooled_width(self, pooling: str | None) -> int:
        if pooling not in (None, "mean"):
            raise ExportError(
                f"{self.origin} is a static embedder, whose vectors are means of its tokens, so it "
                f"has no pooling {pooling}"
            )
        return self.table.width

    @override
    def max_characters(self, length: int) -> int | None:
        return None if self.characters is None else self.characters * length

    @override
    def sha256(self) -> str:
        """SHA-256 (hex) of the table and of the layers that follow it."""
        table = self.table
        digest = hashlib.sha256(f"static {table.ignored}".encode())
        for values in (table.rows, table.row_of, table.weights):
            digest.update(b"none" if values is None else f"{values.dtype}{values.shape}".encode())
            digest.update(b"" if values is None else np.ascontiguousarray(values).data)
        add_weights(digest, self.transforms)
        return digest.hexdigest()
