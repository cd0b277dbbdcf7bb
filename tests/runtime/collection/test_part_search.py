"""Words of several collections together: which count, and the scores of one collection."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from flowvec import Collection
from flowvec.collection.part_search import PartSearcher
from flowvec.collection.query import Queries, SearchOptions
from flowvec.sharded.fusion import fused, total_statistics
from tests.inside import store_of

WORDS = ["the", "IT", "cafe\u0301", "Ёлка", "किताब", "東京", "東京の天気", "running", "a", "дом"]
QUERIES = [
    "the IT cafe",
    "елка",
    "किताब zyxwv",
    "東京",
    "東京 zyxwv",
    "天気 running",
    "a",
    "zyxwv",
    "!",
]


@pytest.fixture(scope="module", params=["unicode61", "trigram"])
def collections(request: Any, tmp_path_factory: Any) -> Iterator[list[Collection]]:
    """One with all rows, and two that each have a part."""
    random.seed(0)
    texts = [" ".join(random.choices(WORDS, k=1 + i % 7)) for i in range(120)]
    with ExitStack() as stack:
        opened = []
        for name, ids in (("all", range(120)), ("1", range(70)), ("2", range(70, 120))):
            path = tmp_path_factory.mktemp("parts") / name
            c = stack.enter_context(Collection.create(path, dim=2))
            c.add_vectors(list(ids), np.ones((len(ids), 2)), texts[ids.start : ids.stop])
            c.index_texts(tokenizer=request.param)
            opened.append(c)
        yield opened


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("prefix", [False, True])
def test_parts_give_the_words_of_one_collection(
    collections: list[Collection], query: str, prefix: bool
) -> None:
    whole, *parts = collections
    settings: Any = {"hybrid": True, "vector_weight": 0.0, "prefix": prefix}
    options = SearchOptions.checked(120, None, **settings)
    queries = Queries(np.ones((1, 2), np.float32), [query])
    searchers = {str(n): PartSearcher(part) for n, part in enumerate(parts)}
    rankings = {name: one.rankings(queries, options) for name, one in searchers.items()}
    totals = total_statistics(rankings)
    words = {name: one.words(queries, totals, options)[0] for name, one in searchers.items()}
    merged = fused({name: line[0] for name, line in rankings.items()}, words, options)
    expected = whole.search([1, 1], 120, text=query, **settings)
    assert {
        int(store_of(parts[int(name)]).ids_of([label])[label]): pytest.approx(score)
        for (name, label), score in merged.ranked
    } == {hit.id: hit.score for hit in expected}
