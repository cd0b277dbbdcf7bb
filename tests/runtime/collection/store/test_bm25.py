"""BM25 by the statistics of several collections: the scores of SQLite for all rows in one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from flowvec import Collection, CorruptCollectionError
from flowvec.collection.hybrid import query_terms
from flowvec.collection.store.bm25 import Bm25, WordStatistics, numbers_in
from flowvec.collection.store.filters import compile_filter
from flowvec.collection.store.store import Store
from tests.inside import store_of
from tests.makers import WORDS

SIZES = (300, 40, 660)
QUERIES = ["the cat", "cat cat sleeps stocks", "runn", "nothing of it", "a"]


def _texts() -> list[str | None]:
    rng = random.Random(3)
    texts: list[str | None] = []
    for part, size in enumerate(SIZES):
        for i in range(size):
            words = rng.choices([*WORDS, "running"], k=rng.randint(1, 4 + 60 * part))
            # One of over 127 tokens, whose number takes two bytes; and some of many occurrences.
            text = " ".join(words) + " cat" * (500 if i == 7 else 0)
            texts.append(None if i % 29 == 11 else text)
    return texts


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, list[Store]]]:
    folder, texts = tmp_path_factory.mktemp("bm25"), _texts()
    bounds = np.cumsum([0, *SIZES]).tolist()
    spans = [(0, len(texts)), *pairwise(bounds)]
    with ExitStack() as stack:
        opened = []
        for name, (first, last) in enumerate(spans):
            c = stack.enter_context(Collection.create(folder / str(name), dim=2))
            # Some rows are replaced and deleted: their words do not count.
            c.add_vectors([first, -1], np.ones((2, 2)), ["cat rain", "the cat fell"])
            c.index_texts()
            ids = list(range(first, last))
            c.add_vectors(ids, np.ones((len(ids), 2)), texts[first:last],
                          [{"n": i % 2} for i in ids])  # fmt: skip
            c.delete([-1])
            opened.append(store_of(c))
        yield opened[0], opened[1:]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("filter", [None, {"n": 1}], ids=str)
@pytest.mark.parametrize("limit", [5, 2000])
def test_parts_rank_as_one_collection_with_all_rows(
    stores: tuple[Store, list[Store]], query: str, filter: dict[str, int] | None, limit: int
) -> None:
    whole, parts = stores
    terms, _ = query_terms(query, "unicode61", prefix=query == "runn")
    condition = None if filter is None else compile_filter(filter)
    expected = whole.full_text.search(" OR ".join(terms), limit, condition)
    by = WordStatistics.total([Bm25(part.database).statistics(terms) for part in parts])
    found: list[tuple[str | int, float]] = []
    for part in parts:
        best = Bm25(part.database).best(terms, by, limit, condition)
        assert list(best.values()) == sorted(best.values(), reverse=True)
        found += [(part.ids_of([label])[label], score) for label, score in best.items()]
    found = sorted(found, key=lambda pair: -pair[1])[:limit]
    assert [item for item, _ in found] == [whole.ids_of([label])[label] for label in expected]
    np.testing.assert_allclose([score for _, score in found], list(expected.values()), rtol=1e-12)


def test_statistics_count_rows_tokens_and_rows_with_each_term(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors([1, 2, 3], np.ones((3, 2)), ["a cat", "cat cat dog", None])
        c.index_texts()
        terms = ['"cat"', '"dog"', '"cat"', '"horse"']
        assert Bm25(store_of(c).database).statistics(terms) == WordStatistics(3, 5, (2, 1, 2, 0))


def test_a_number_that_is_cut_off_is_damage() -> None:
    assert numbers_in(b"\x05\x81\x00\x7f") == [5, 128, 127]
    with pytest.raises(CorruptCollectionError, match="cut off"):
        numbers_in(b"\x05\x81")
