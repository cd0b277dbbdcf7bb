"""A ColBERT-style model that torch runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowvec.bundle.manifest import LateInteraction
from flowvec_export.sources.base import checked_length
from flowvec_export.sources.late_interaction.settings import AboutTokens

if TYPE_CHECKING:
    from flowvec_export.assembly.draft import Draft, Weights
    from flowvec_export.assembly.token_parity import OwnTokens
    from flowvec_export.sources.torch.source import TorchSource
    from flowvec_export.transforms import Dense

__all__ = ["MultiVectorSource"]


@dataclass(slots=True, kw_only=True)
class MultiVectorSource:
    """Everything that an export needs to know about a ColBERT-style model, which torch runs.

    Attributes:
        about: layers, lengths, expansion and prompts.
        encoder: the encoder below, with its tokenizer.
        dense: the layers after it.
        expansion_token: id of the token that queries are filled with.
        unknown_token: id of the token of unknown words; None if there is none.
    """

    about: AboutTokens
    encoder: TorchSource
    dense: list[Dense]
    expansion_token: int | None
    unknown_token: int | None

    @property
    def origin(self) -> str:
        """The path or name that the user gave."""
        return self.about.origin

    @property
    def own_tokens(self) -> OwnTokens | None:
        """How the library that saved it reads a text without a marker; PyLate strips it first."""
        own = self.encoder.own_tokens
        if own is None or not self.about.is_pylate:
            return own
        return lambda text, second: own(text.strip(), second)

    @property
    def name(self) -> str:
        """Last part of the path or hub name."""
        return self.encoder.name

    def late_interaction(self, requested: int | None) -> LateInteraction:
        """How queries and documents are read.

        Args:
            requested: most tokens of a document; None is the source's own.

        Raises:
            ExportError: a length is too small, larger than the encoder's positions, or unknown.
        """
        about, expansion = self.about, self.about.expansion
        document = self._length(requested or about.document_length)
        query = self._length(about.query_length) if about.query_length else None
        if expansion is not None:
            self._length(expansion.length)
            query = expansion.length if expansion.cuts else max(query or 0, expansion.length)
            if not expansion.cuts and about.query_length is None:
                query = max(query, self._length(None))
        return LateInteraction(
            query_length=self._length(None) if query is None else query,
            document_length=document,
            expansion_length=None if expansion is None else expansion.length,
            expansion_token=None if expansion is None else self.expansion_token,
            expansion_is_attended=expansion is not None and expansion.attended,
            skipped_tokens=tuple(sorted(self._skipped())),
            skips_in_queries=about.skips_in_queries,
        )

    def _length(self, requested: int | None) -> int:
        special = self.encoder.tokenizer.num_special_tokens_to_add(False)
        return checked_length(self.origin, self.encoder.max_length, requested, special + 1)

    def _skipped(self) -> set[int]:
        ids = {self.encoder.tokenizer.token_to_id(word) for word in self.about.skipped}
        if self.about.is_pylate and None in ids:
            # A word that the vocabulary lacks is the unknown token to PyLate, which skips that.
            # sentence-transformers skips such a word nowhere.
            ids.add(self.unknown_token)
        return {i for i in ids if i is not None}

    def draft(self, weights: Weights) -> Draft:
        """Make the graph from token ids to token vectors, with a reference to compare it with.

        Raises:
            ExportError: the graph cannot be made.
        """
        from flowvec_export.assembly.from_torch import draft_of_tokens

        return draft_of_tokens(
            self.encoder.model,
            self.dense,
            normalize=self.about.normalize,
            weights=weights,
            pad_id=self.encoder.pad_id,
            origin=self.origin,
        )
