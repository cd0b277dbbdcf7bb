"""Filters of other libraries: which rows they find in a collection, and what cannot be asked."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from flowvec import FlowvecError
from flowvec.integrations import filters
from flowvec.integrations.filters import (
    from_chroma,
    from_haystack,
    from_langchain,
    from_llama_index,
)
from tests.runtime.collection.store.test_filters import found_by_sql

ROWS: list[Any] = [
    {"lang": "en", "year": 2020, "tags": ["a", "b"], "and": 1, "on": "2020-01-02"},
    {"lang": "de", "year": 2024, "tags": [], "a.b": 1, "author": {"name": "Ada"}},
    {"lang": "fr", "year": 2026, "tags": ["b"], "note": "", "on": "2026-01-02"},
    None,
]
TEXTS = ["The cat sleeps.", "A dog runs.", None, "A cat."]


def rows_of(filter: dict[str, Any]) -> list[int]:
    return found_by_sql(filter, ROWS, range(len(ROWS)), TEXTS)


def test_the_examples_run() -> None:
    result = doctest.testmod(filters)
    assert (result.attempted, result.failed) == (3, 0)


@pytest.mark.parametrize(
    ("filter", "rows"),
    [
        (None, [0, 1, 2, 3]),
        ({}, [0, 1, 2, 3]),
        ({"lang": "en"}, [0]),
        ({"lang": {"$eq": "en"}}, [0]),
        ({"lang": {"$ne": "en"}}, [1, 2, 3]),
        ({"year": {"$gt": 2020, "$lte": 2024}}, [1]),
        ({"year": {"$gte": 2020, "$lt": 2026}, "lang": {"$in": ["en", "fr"]}}, [0]),
        ({"lang": {"$nin": ["en", "fr"]}}, [1, 3]),
        ({"year": {"$between": [2020, 2024]}}, [0, 1]),
        ({"year": {"$exists": False}}, [3]),
        ({"tags": {"$contains": "a"}}, [0]),
        ({"tags": {"$not_contains": "a", "$exists": True}}, [1, 2]),
        ({"tags": {"$all": ["a", "b"]}}, [0]),
        ({"$or": [{"lang": "en"}, {"year": {"$gt": 2024}}]}, [0, 2]),
        ({"$and": [{"lang": "en"}, {"$or": []}]}, []),
        ({"$and": []}, [0, 1, 2, 3]),
        ({"$nor": [{"lang": "en"}, {"lang": "de"}]}, [2, 3]),
        ({"$not": {"lang": "en"}}, [1, 2, 3]),
        ({"year": {"$not": {"$gt": 2024}}}, [0, 1, 3]),
        ({"year": {"$gt": 2020, ">": 2024}}, [2]),
        ({"$text": {"$contains": "cat"}, "$id": {"$ne": 3}}, [0]),
        ({"author.name": "Ada"}, [1]),
        # Filters of a Collection stay as they are.
        ({"or": [{"year": {">": 2024}}, {"not": {"lang": {"$ne": "de"}}}]}, [1, 2]),
        ({"and": [{"tags": {"empty": True}}, {"\\and": {"exists": False}}]}, [1, 3]),
    ],
)
def test_filters_of_langchain(filter: Any, rows: list[int]) -> None:
    assert rows_of(from_langchain(filter)) == rows


@pytest.mark.parametrize(
    ("where", "where_document", "rows"),
    [
        (None, None, [0, 1, 2, 3]),
        ({"lang": "en"}, None, [0]),
        ({"a.b": 1}, None, [1]),
        ({"and": 1}, None, [0]),
        ({"author.name": "Ada"}, None, []),
        ({"#id": {"$in": [1, 3]}}, None, [1, 3]),
        ({"#document": {"$contains": "cat"}}, None, [0, 3]),
        ({"$or": [{"year": {"$lt": 2024}}, {"lang": "fr"}]}, {"$contains": "cat"}, [0]),
        (None, {"$not_contains": "cat"}, [1, 2]),
        (None, {"$or": [{"$contains": "dog"}, {"$contains": "sleeps"}]}, [0, 1]),
        (None, {"$and": [{"$contains": "cat"}, {"$not_contains": "sleeps"}]}, [3]),
    ],
)
def test_filters_of_chroma(where: Any, where_document: Any, rows: list[int]) -> None:
    assert rows_of(from_chroma(where, where_document)) == rows


def haystack(field: str, operator: str, value: Any) -> dict[str, Any]:
    return {"field": field, "operator": operator, "value": value}


EN = haystack("meta.lang", "==", "en")
LATE = haystack("meta.year", ">", 2020)


@pytest.mark.parametrize(
    ("filter", "rows"),
    [
        (None, [0, 1, 2, 3]),
        ({}, [0, 1, 2, 3]),
        (EN, [0]),
        (haystack("meta.lang", "==", None), [3]),
        (haystack("lang", "!=", "en"), [1, 2, 3]),
        (haystack("meta.author.name", "==", "Ada"), [1]),
        (haystack("id", "in", [0, 3]), [0, 3]),
        (haystack("content", "==", "A cat."), [3]),
        (haystack("meta.year", ">=", None), []),
        (haystack("meta.year", "not in", [2020, None]), [1, 2]),
        (haystack("meta.on", "<", "2024-01-01"), [0]),
        (haystack("meta.on", ">=", datetime(2024, 1, 1)), [2]),
        ({"operator": "AND", "conditions": [EN, LATE]}, []),
        ({"operator": "OR", "conditions": [EN, LATE]}, [0, 1, 2]),
        ({"operator": "NOT", "conditions": [LATE, haystack("lang", "!=", "de")]}, [0, 1, 3]),
        ({"operator": "NOT", "conditions": [{"operator": "OR", "conditions": [EN, LATE]}]}, [3]),
    ],
)
def test_filters_of_haystack(filter: Any, rows: list[int]) -> None:
    assert rows_of(from_haystack(filter)) == rows


def one(key: str, operator: str, value: Any) -> Any:
    return SimpleNamespace(key=key, operator=operator, value=value)


def several(condition: Any, *parts: Any) -> Any:
    return SimpleNamespace(condition=condition, filters=list(parts))


@pytest.mark.parametrize(
    ("filter", "rows"),
    [
        (None, [0, 1, 2, 3]),
        (several("or"), [0, 1, 2, 3]),
        (several(None, one("lang", "==", "en"), one("year", "<", 2024)), [0]),
        (several("or", one("lang", "==", "en"), one("year", ">=", 2026)), [0, 2]),
        (several("not", one("lang", "==", "en"), one("year", ">=", 2026)), [1, 3]),
        (several("and", several("or", one("a.b", "==", 1)), one("lang", "!=", "en")), [1]),
        (several("and", one("tags", "any", ["a", "c"])), [0]),
        (several("and", one("tags", "all", ["a", "b"])), [0]),
        (several("and", one("tags", "contains", "b")), [0, 2]),
        (several("and", one("lang", "nin", ["en", "de"])), [2, 3]),
        (several("and", one("lang", "in", ["en", "de"]), one("year", "<=", 2020)), [0]),
        (several("and", one("lang", "text_match", "e")), [0, 1]),
        (several("and", one("tags", "is_empty", None)), [1, 3]),
        (several("and", one("note", "is_empty", None), one("year", ">", 2024)), [2]),
    ],
)
def test_filters_of_llama_index(filter: Any, rows: list[int]) -> None:
    assert rows_of(from_llama_index(filter)) == rows


@pytest.mark.parametrize(
    ("translate", "filter", "part"),
    [
        (from_langchain, {"lang": {"$like": "e%"}}, "'starts with'"),
        (from_langchain, {"lang": {"$ilike": "e%"}}, "upper and lower case"),
        (from_langchain, {"lang": {"$near": 1}}, "choose from"),
        (from_langchain, {"$eq": 1}, "a comparison is written"),
        (from_langchain, {"year": {"$between": [1]}}, "the least and the most"),
        (from_langchain, {"$or": {"a": 1}}, "must be a list"),
        (from_langchain, lambda document: True, "must be a dict"),
        (from_langchain, {1: 2}, "keys are texts"),
        (from_chroma, {"lang": {"$regex": "e"}}, "cannot be asked"),
        (from_chroma, "lang", "must be a dict"),
        (from_haystack, {"field": "meta.a", "operator": "=="}, "'value' is missing"),
        (from_haystack, {"operator": "AND"}, "'conditions' is missing"),
        (from_haystack, {"conditions": []}, "'operator' is missing"),
        (from_haystack, {"operator": "XOR", "conditions": []}, "AND, OR, NOT"),
        (from_haystack, haystack("meta.a", "~", 1), "choose from"),
        (from_haystack, haystack("embedding", "==", 1), "cannot be filtered by 'embedding'"),
        (from_haystack, haystack("meta.a", ">", "1"), "ISO 8601"),
        (from_haystack, haystack("meta.a", ">", [1]), "not list"),
        (from_haystack, haystack("meta.a", "==", [1]), "cannot be asked with a list"),
        (from_haystack, haystack("meta.a", "in", (1,)), "takes a list"),
        (from_llama_index, several("and", one("a", "text_match_insensitive", "x")), "lower case"),
        (from_llama_index, several("and", one("a", "~", "x")), "choose from"),
        (from_llama_index, several("xor", one("a", "==", "x")), "choose from"),
        (from_llama_index, several("and", one("a", "==", ["x"])), "cannot be asked with a list"),
        (from_llama_index, several("and", one("a", ">", None)), "NoneType"),
        (from_llama_index, {"a": 1}, "must be MetadataFilters"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    translate: Callable[[Any], Any], filter: Any, part: str
) -> None:
    with pytest.raises(FlowvecError, match=part):
        translate(filter)
