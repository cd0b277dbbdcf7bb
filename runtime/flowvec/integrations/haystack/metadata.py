"""Methods of a document store that tell what fields documents have. Each reads its documents."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from flowvec.integrations.haystack.documents import document_of

__all__ = ["MetadataMethods"]

Filters = dict[str, Any] | None


class MetadataMethods:
    """Counts, ranges and values of fields of the `meta`. Names may begin with `meta.`."""

    @abstractmethod
    def _rows(self, filters: Filters) -> Iterable[Any]:
        """Rows of the documents that meet a filter."""

    def _metas(self, filters: Filters = None) -> Iterable[dict[str, Any]]:
        for row in self._rows(filters):
            yield document_of(row, with_embedding=False).meta

    def count_unique_metadata_by_filter(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        """How many different values each field has, in the documents that meet a filter."""
        values: dict[str, set[str]] = {_name(field): set() for field in metadata_fields}
        for meta in self._metas(filters):
            for name, seen in values.items():
                if meta.get(name) is not None:
                    seen.add(_key(meta[name]))
        return {name: len(seen) for name, seen in values.items()}

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """The type of each field: `boolean`, `int`, `float` or `keyword`."""
        types: dict[str, dict[str, str]] = {}
        for meta in self._metas():
            for name, value in meta.items():
                if value is not None:
                    types[name] = {"type": _type(value)}
        return types

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """The least and the greatest value of a field; None if there is none.

        Numbers count, or texts if it has no numbers.
        """
        values = [meta.get(_name(metadata_field)) for meta in self._metas()]
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        comparable: list[Any] = numbers or [v for v in values if isinstance(v, str)]
        if not comparable:
            return {"min": None, "max": None}
        return {"min": min(comparable), "max": max(comparable)}

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: Filters = None,
    ) -> tuple[list[Any], int]:
        """A page of the different values of a field, and how many there are.

        Args:
            metadata_field: name of the field.
            search_term: only values whose text contains it; upper and lower case are equal.
            from_: how many values are skipped.
            size: most values of the page.
            filters: only documents that meet it.
        """
        values = {
            _key(value): value
            for meta in self._metas(filters)
            for value in [meta.get(_name(metadata_field))]
            if value is not None
        }
        term = (search_term or "").lower()
        keys = sorted(
            (key for key, value in values.items() if term in str(value).lower()),
            key=lambda key: (str(values[key]), key),
        )
        return [values[key] for key in keys[from_ : from_ + size]], len(keys)


def _name(field: str) -> str:
    return field.removeprefix("meta.")


def _key(value: object) -> str:
    """Equal for equal values of one type: 1, 1.0, "1" and True are four values."""
    return f"{type(value).__name__} {json.dumps(value, sort_keys=True)}"


def _type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "int"
    return "float" if isinstance(value, float) else "keyword"
