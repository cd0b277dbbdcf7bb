"""The tokenizers of the full-text index: words, or all runs of three characters."""

# ruff: noqa: RUF001 - letters of other scripts
from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import unicodedata
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import (
    Collection,
    CollectionBusyError,
    CollectionError,
    Encoder,
    InputTypeError,
    InputValueError,
)
from flowvec.collection.hybrid import query_terms
from flowvec.collection.store.bm25 import WordStatistics
from flowvec.collection.store.full_text import TOKENIZERS
from flowvec.collection.store.store import FILE, Store
from flowvec.texts.folding import folded
from tests.drawing import examples
from tests.inside import access_of, run_sql, store_of
from tests.runtime.collection.conftest import SETTINGS, refusing

TEXTS = {
    "tokyo": "東京の天気は晴れです。",
    "osaka": "大阪では雨が降っています。",
    "thai": "แมวนอนหลับอยู่บนเสื่อ",
    "english": "The unbelievable ZX81 computer",
    "short": "AI",
    "none": None,
}


@pytest.fixture
def c(tmp_path: Path, tiny: Encoder) -> Any:
    """Rows of several languages; words decide, since the model is random."""
    with Collection.create(tmp_path / "c", encoder=tiny) as collection:
        rows = {key: text for key, text in TEXTS.items() if text is not None}
        collection.add(list(rows), list(rows.values()), [{"n": n} for n in range(len(rows))])
        collection.add_vectors(["none"], np.ones((1, 16)))
        yield collection
        assert collection.verify() == []


def first(c: Collection, query: str, **options: Any) -> Any:
    return c.search(query, 1, hybrid=True, vector_weight=0.0, **options)[0].id


def worded(c: Collection, query: str, **options: Any) -> list[Any]:
    """Ids of the rows that share words with a query."""
    hits = c.search(query, 99, hybrid=True, vector_weight=0.0, min_score=1e-9, **options)
    return [hit.id for hit in hits]


# --- trigrams -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("東京の天気", ["tokyo"]),
        ("明日の東京の", ["tokyo"]),  # a part is enough
        ("雨が降っている", ["osaka"]),
        ("นอนหลับ", ["thai"]),
        ("believ", ["english"]),
        ("x81", ["english"]),
        ("the believable", ["english"]),
        ("大阪", ["osaka"]),  # shorter than three characters
        ("ai", ["short"]),
        ("雨 天", ["tokyo", "osaka"]),
        ("猫", []),
        ("", []),
        ("! ?", []),
        ("the", ["english"]),
    ],
)
def test_trigrams_find_parts_of_texts(c: Collection, query: str, ids: list[str]) -> None:
    c.index_texts(tokenizer="trigram")
    assert sorted(worded(c, query)) == sorted(ids)


def test_words_do_not_find_them(c: Collection) -> None:
    c.index_texts(tokenizer="unicode61")
    assert worded(c, "東京の天気") == worded(c, "believ") == []
    assert worded(c, "computers") == ["english"]


def test_trigrams_follow_changes_and_filters(c: Collection) -> None:
    c.index_texts(tokenizer="trigram")
    c.add(["new", "english"], ["東京都", "nothing"], [{"n": 9}, None])
    c.delete(["osaka"])
    assert worded(c, "東京都の天気") == ["new", "tokyo"] or worded(c, "東京都の天気") == [
        "tokyo",
        "new",
    ]
    assert worded(c, "東京都の天気", filter={"n": 9}) == ["new"]
    assert worded(c, "東京", filter={"n": {"<": 9}}) == ["tokyo"]
    assert worded(c, "believable") == worded(c, "大阪") == []


# --- which tokenizer, and its change --------------------------------------------------------------


def test_the_tokenizer_is_recorded_and_kept(tmp_path: Path, tiny: Encoder, c: Collection) -> None:
    assert c.info().full_text is None
    c.index_texts()
    assert c.info().full_text == "unicode61"
    c.index_texts(tokenizer="trigram")
    assert c.info().full_text == "trigram"
    with Collection.open(tmp_path / "c", encoder=tiny) as other:
        assert other.info().full_text == "trigram"
        assert first(other, "東京の天気") == "tokyo"
    c.index_texts()  # keeps it
    c.compact()
    assert c.info().full_text == "trigram"
    assert first(c, "東京の天気") == "tokyo"
    c.index_texts(tokenizer="unicode61")
    assert c.info().full_text == "unicode61"
    assert worded(c, "東京の天気") == []


def test_the_same_tokenizer_is_not_made_again(c: Collection) -> None:
    c.index_texts(tokenizer="trigram")
    db = store_of(c).database.connection
    before = db.execute("PRAGMA schema_version").fetchall()
    c.index_texts(tokenizer="trigram")
    c.index_texts()
    first(c, "東京の天気")
    assert db.execute("PRAGMA schema_version").fetchall() == before  # no table was made


def test_other_handles_follow_a_change_of_the_tokenizer(
    tmp_path: Path, tiny: Encoder, c: Collection
) -> None:
    c.index_texts()
    with Collection.open(tmp_path / "c", encoder=tiny) as other:
        assert worded(other, "東京の天気") == []
        c.index_texts(tokenizer="trigram")
        assert worded(other, "東京の天気") == ["tokyo"]
        assert other.verify() == []


def test_a_change_that_fails_leaves_the_index_as_it_was(c: Collection, tmp_path: Path) -> None:
    c.index_texts()
    db = store_of(c).database.connection
    db.set_authorizer(refusing(sqlite3.SQLITE_CREATE_TRIGGER))
    with pytest.raises(CollectionError, match="not authorized"):
        c.index_texts(tokenizer="trigram")
    db.set_authorizer(None)
    assert c.info().full_text == "unicode61"
    assert worded(c, "computers") == ["english"]
    assert c.verify() == []


def test_an_incomplete_index_is_made_again(
    c: Collection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    c.index_texts(tokenizer="trigram")
    run_sql(tmp_path / "c", "DROP TRIGGER words_of_new")
    vector = np.ones(c.info().dim)
    c.add_vectors(["new"], [vector], ["cafe\u0301"])
    with (
        Collection.open(tmp_path / "c", write_timeout=0) as other,
        access_of(c).writing(),
        pytest.raises(CollectionBusyError, match="is incomplete"),
    ):
        other.search(vector, text="CAFÉ", hybrid=True)
    for _ in range(2):
        hits = c.search(vector, 9, text="CAFÉ", hybrid=True, vector_weight=0.0, min_score=1e-9)
        assert [hit.id for hit in hits] == ["new"]
    assert caplog.text.count("made again") == 1
    assert c.info().full_text == "trigram"


def test_an_old_sqlite_is_named(c: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 33, 0))
    with pytest.raises(CollectionError, match=r"trigram needs SQLite 3\.34"):
        c.index_texts(tokenizer="trigram")


@pytest.mark.parametrize("wrong", ["icu", "", 3, True])
def test_other_tokenizers_are_refused(c: Collection, wrong: Any) -> None:
    with pytest.raises((InputTypeError, InputValueError), match="tokenizer must be one of"):
        c.index_texts(tokenizer=wrong)
    assert c.info().full_text is None


KILLED = """
import os, random, signal, sys, time
from flowvec import Collection
path, seed = sys.argv[1], int(sys.argv[2])
rng = random.Random(seed)
for kill in range(25):
    child = os.fork()
    if not child:
        try:
            with Collection.open(path) as c:
                for round in range(1000):
                    c.index_texts(tokenizer=("trigram", "unicode61")[(kill + round) % 2])
        finally:
            os._exit(1)
    time.sleep(rng.uniform(0.0, 0.04))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with Collection.open(path) as c:
        assert c.verify() == [], c.verify()
        print(c.info().full_text, len(c))
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("rows", [5, 80])
def test_a_kill_leaves_one_tokenizer_or_the_other(tmp_path: Path, rows: int) -> None:
    with Collection.create(tmp_path / "c", dim=6) as c:
        texts = [f"text {i} about cats" for i in range(rows)]
        c.add_vectors(range(rows), np.eye(rows, 6) + 1, texts)
        before = [(item.id, item.text) for item in c.rows()]
    seed = random.Random(rows).randrange(1 << 30)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "c"), str(seed)],
                          capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} <= {
        "None",
        "trigram",
        "unicode61",
    }
    with Collection.open(tmp_path / "c") as c:
        assert [(item.id, item.text) for item in c.rows()] == before
        c.index_texts(tokenizer="trigram")
        vector = np.ones(c.info().dim)
        c.add_vectors(["new"], [vector], ["東京の天気"])
        hits = c.search(vector, text="東京の", hybrid=True, vector_weight=0.0, min_score=1e-9)
        assert [hit.id for hit in hits] == ["new"]
        assert c.verify() == []


# --- prefixes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "finds"),
    [
        ("comp", True), ("the comp", True), ("COMPU", True), ("computers", True),
        ("comp ", False), ("comp.", False), ("comp cat", False), ("omputer", False),
        ("unbeliev", True), ("unbelievab", True), ("comp x", False),
    ],
)  # fmt: skip
def test_the_last_word_may_be_the_beginning_of_a_word(
    c: Collection, query: str, finds: bool
) -> None:
    c.index_texts(tokenizer="unicode61")
    assert worded(c, query, prefix=True) == (["english"] if finds else [])


WORDS = [
    "running", "happiness", "universities", "nationality", "studies", "organizations", "cats",
    "resting", "stopped", "rational", "conditionally", "hopefulness", "activity", "sensibilities",
    "electricity", "adjustments", "dependent", "effectiveness", "allowance", "inference",
    "defensible", "irritants", "replacement", "communism", "homologous", "bowdlerizing",
    "relational", "generalization", "operators", "decisiveness", "callousness", "vietnamization",
    "predication", "digitizers",
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_every_beginning_of_a_word_finds_it(tmp_path: Path, word: str) -> None:
    """Also where the index holds the word without its ending."""
    with closing(Store(tmp_path / FILE, create=SETTINGS)) as store:
        with store.transaction():
            store.upsert(["a", "b"], np.zeros((2, 3), np.float32), [word, "12"], [None] * 2)
            store.full_text.build()
        for end in range(1, len(word) + 1):
            terms, _ = query_terms(word[:end], "unicode61", prefix=True)
            assert list(store.full_text.search(" OR ".join(terms), 9)) == [1], word[:end]
        assert not store.full_text.search(query_terms(word[:2], "unicode61")[0][0], 9)


def test_a_prefix_is_for_hybrid_searches(c: Collection) -> None:
    with pytest.raises(InputValueError, match="add hybrid=True"):
        c.search("comp", prefix=True)
    with pytest.raises(InputTypeError, match="prefix"):
        c.search("comp", hybrid=True, prefix=1)  # type: ignore[arg-type]


# --- against Python -------------------------------------------------------------------------------

PIECES = st.sampled_from(
    ["東京", "天気", "の", "cat", "Cat", "sits", " ", "é", "ab", "x", '"', "*", "NOT", "แมว"]
)
SOME = st.lists(PIECES, max_size=6).map("".join)
QUERIES = SOME | st.text(max_size=12)


@examples(60)
@given(texts=st.lists(SOME, min_size=1, max_size=8), query=QUERIES)
def test_trigram_queries_agree_with_python(
    tmp_path_factory: Any, texts: list[str], query: str
) -> None:
    terms, short = query_terms(query, "trigram")
    parts = [term.strip('"') for term in terms] or short
    expected = {i + 1 for i, text in enumerate(texts)
                if any(part in folded(text) for part in parts)}  # fmt: skip
    folder = tmp_path_factory.mktemp("store")
    with closing(Store(folder / FILE, create=SETTINGS)) as store:
        with store.transaction():
            vectors = np.zeros((len(texts), 3), np.float32)
            store.upsert(range(len(texts)), vectors, texts, [None] * len(texts))
            store.full_text.build("trigram")
        rows = (
            store.full_text.search(" OR ".join(terms), 99) if terms
            else store.full_text.scan(short, 99) if short else {}
        )  # fmt: skip
        assert set(rows) == expected
        for prefix in (False, True):
            for term in query_terms(query, "unicode61", prefix=prefix)[0]:
                store.full_text.search(term, 9)  # no text is an error of syntax


def test_another_tokenizer_that_cannot_be_made_is_refused_by_the_name_of_the_one_that_is_there(
    tmp_path: Path, tiny: Encoder
) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(["a"], ["a cat"])
        c.index_texts()
        with (
            Collection.open(tmp_path / "c", write_timeout=0) as other,
            access_of(c).writing(),
            pytest.raises(CollectionBusyError, match=r"unicode61, .* trigram"),
        ):
            other.index_texts(tokenizer="trigram")


# --- spellings ------------------------------------------------------------------------------------

SCRIPTS = {
    "arabic": "السَّلامُ عليكم يا أصدقاء",
    "armenian": "Հայաստան երկիր",
    "bengali": "আমার সোনার বাংলা",
    "chinese": "東京 漢字",
    "cyrillic": "Новый ёж пьёт чай",
    "devanagari": "यह किताब अच्छी है",
    "ethiopic": "ሰላም ለዓለም",
    "georgian": "საქართველო ქვეყანა",
    "greek": "Η Αθήνα είναι ωραία πόλη",
    "hangul": "한국어를 공부합니다",
    "hebrew": "שָׁלוֹם לָעוֹלָם",
    "kana": "ガラス データ ぱぴぷ",
    "khmer": "ភាសា ខ្មែរ",
    "latin": "Crème brûlée à la façon Łódź oﬃce",
    "myanmar": "မြန်မာ ဘာသာ",
    "persian": "می\u200cخواهم بروم",
    "tamil": "தமிழ் மொழி",
    "thai": "ภาษาไทย น้ำ",
    "vietnamese": "Tiếng Việt rất đẹp",
}


@pytest.fixture(scope="module", params=["unicode61", "trigram"])
def of_scripts(request: Any, tmp_path_factory: Any) -> Any:
    """Each text in each form of Unicode."""
    with Collection.create(tmp_path_factory.mktemp("scripts") / "c", dim=2) as collection:
        rows = {
            f"{form} {name}": unicodedata.normalize(form, text)
            for name, text in SCRIPTS.items()
            for form in ("NFC", "NFD", "NFKC", "NFKD")
        }
        collection.index_texts(tokenizer=request.param)
        collection.add_vectors(list(rows), np.ones((len(rows), 2)), list(rows.values()))
        yield collection
        assert collection.verify() == []


@examples(60)
@given(data=st.data())
def test_a_text_is_found_by_each_of_its_words_in_every_form(of_scripts: Any, data: Any) -> None:
    name = data.draw(st.sampled_from(sorted(SCRIPTS)))
    word = data.draw(st.sampled_from(SCRIPTS[name].split()))
    form = data.draw(st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
    spelled = data.draw(st.sampled_from([str, str.upper, str.lower]))
    query = unicodedata.normalize(form, spelled(word))
    hits = of_scripts.search([1, 1], 99, text=query, hybrid=True, vector_weight=0.0, min_score=1e-9)
    assert {f"{form} {name}" for form in ("NFC", "NFD", "NFKC", "NFKD")} <= {hit.id for hit in hits}
    if of_scripts.info().full_text == "unicode61":  # no other text has these words
        assert {str(hit.id).split()[1] for hit in hits} == {name}


# --- which words of a query count -----------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_every_word_counts(tmp_path: Path, tokenizer: Any) -> None:
    texts = {"it": "the IT department", "who": "The Who played", "a": "vitamin A", "b": "vitamin B"}
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(list(texts), np.ones((4, 2)), list(texts.values()))
        c.index_texts(tokenizer=tokenizer)

        def found(query: str) -> list[Any]:
            hits = c.search([1, 1], 9, text=query, hybrid=True, vector_weight=0.0, min_score=1e-9)
            return [hit.id for hit in hits]

        assert found("IT support")[0] == "it"  # "it" is a part of "vitamin", too
        assert found("the who")[0] == "who"
        assert set(found("vitamin A")[:2]) == {"a", "b"}
        if tokenizer == "unicode61":
            assert found("vitamin A")[0] == "a"
        long = " ".join(f"filler{i}" for i in range(5000))
        assert found(f"{long} department") == ["it"]


def test_the_rarest_words_of_a_long_query_count() -> None:
    rows = 1_000_000
    terms = [f'"{n}"' for n in range(1000)]
    counts = WordStatistics(rows, rows, tuple(n + 1 for n in range(1000)))
    assert counts.telling(terms * 1) == terms[:256]
    common = WordStatistics(rows, rows, (900_000, 3, 0, 200_000))
    assert common.telling(["the", "rare", "none", "of"]) == ["rare"]
    assert WordStatistics(rows, rows, (900_000, 200_000)).telling(["the", "of"]) == ["of"]
    # In a small collection, all words of a short query count, as often as they are there.
    assert WordStatistics(9, 9, (9, 3, 9)).telling(["the", "rare", "the"]) == ["the", "rare", "the"]
    assert WordStatistics(rows, rows, ()).telling([]) == []
