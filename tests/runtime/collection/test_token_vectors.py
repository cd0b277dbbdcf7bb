"""Token vectors of a collection: kept with their rows, and read instead of made when reranking."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import (
    AsyncCollection,
    AsyncEncoder,
    Collection,
    Encoder,
    FingerprintMismatchError,
    Hit,
    InputTypeError,
    InputValueError,
    MultiVectorEncoder,
    maxsim,
)
from flowvec.collection.reranking import stored_scores
from flowvec.collection.store.token_table import TokenCodec
from tests.inside import run_sql
from tests.makers import texts_of, vectors

TEXTS = texts_of(40, seed=3)
QUERY = "the cat sleeps on a red bread"


@pytest.fixture
def filled(tmp_path: Path, tiny: Encoder) -> Iterator[Collection]:
    """A collection of 40 texts."""
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(range(len(TEXTS)), TEXTS)
        yield c


@pytest.fixture(scope="module")
def other_model(
    multi_vector_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MultiVectorEncoder]:
    """The same model under another name, so that it has another fingerprint."""
    import json
    import shutil

    path = tmp_path_factory.mktemp("other") / "other"
    shutil.copytree(multi_vector_dir, path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["late_interaction"]["document_length"] -= 1
    (path / "manifest.json").write_text(json.dumps(manifest))
    with MultiVectorEncoder.load(path, provider="cpu") as loaded:
        yield loaded


class Watch:
    """A model that notes the documents that it encodes, and calls a function after that."""

    def __init__(self, model: MultiVectorEncoder) -> None:
        self.texts: list[str] = []
        self.then: Callable[[], object] = list
        self.model, real = model, model.encode_document

        def encode(texts: Any, **options: Any) -> Any:
            self.texts += texts
            made = real(texts, **options)
            self.then()
            return made

        model.encode_document = encode


@pytest.fixture
def watch(multi_vector_dir: Path) -> Iterator[Watch]:
    with MultiVectorEncoder.load(multi_vector_dir, provider="cpu", streams=2) as loaded:
        yield Watch(loaded)


# --- reranking ------------------------------------------------------------------------------------


def test_stored_vectors_give_the_hits_of_made_ones(
    filled: Collection, multi_vector: MultiVectorEncoder, watch: Watch
) -> None:
    queries = [QUERY, *TEXTS[:5]]
    expected = filled.search_batch(queries, 10, rerank=multi_vector, rerank_from=30)
    assert filled.add_token_vectors(multi_vector) == len(TEXTS)
    found = filled.search_batch(queries, 10, rerank=watch.model, rerank_from=30)
    assert watch.texts == []
    for ours, theirs in zip(found, expected, strict=True):
        scores = {hit.id: hit.score for hit in theirs}
        assert [hit.score for hit in ours] == pytest.approx([hit.score for hit in theirs], rel=2e-3)
        assert all(hit.score == pytest.approx(scores[hit.id], rel=2e-3)
                   for hit in ours if hit.id in scores)  # fmt: skip
        assert all(hit.search_rank is not None for hit in ours)


@pytest.mark.parametrize("most", [1, 12, 25])
def test_many_queries_read_the_vectors_of_some_hits_at_a_time(
    filled: Collection, multi_vector: MultiVectorEncoder, most: int
) -> None:
    filled.add_token_vectors(multi_vector)
    queries = TEXTS[:9]
    hits = filled.search_batch(queries, 12)
    counts, document_tokens = list[int](), filled._document_tokens

    def tokens(encoder: MultiVectorEncoder, part: list[list[Hit]]) -> Any:
        counts.append(sum(map(len, part)))
        return document_tokens(encoder, part)

    found = stored_scores(multi_vector, queries, hits, tokens, hits_at_once=most)
    assert max(counts) <= max(most, 12)
    assert len(counts) == -(-9 // max(1, most // 12))
    expected = stored_scores(multi_vector, queries, hits, document_tokens)
    assert found is not None
    assert expected is not None
    assert found.shape == (9 * 12,)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_vectors_of_signs_are_those_of_the_signs(
    filled: Collection, multi_vector: MultiVectorEncoder
) -> None:
    filled.add_token_vectors(multi_vector, dtype="signs")
    hits = filled.search(QUERY, 40, rerank=multi_vector, rerank_from=40)
    dim = multi_vector.dim
    documents = [
        np.where(vectors > 0, 1.0, -1.0).astype(np.float32) / np.float32(np.sqrt(dim))
        for vectors in multi_vector.encode_document(TEXTS)
    ]
    expected = maxsim(multi_vector.encode_query(QUERY), documents)[0]
    assert {hit.id: hit.score for hit in hits} == pytest.approx(
        dict(enumerate(expected.tolist())), rel=1e-5
    )


def test_rows_without_stored_vectors_are_made_as_stored_ones(
    filled: Collection, multi_vector: MultiVectorEncoder, watch: Watch
) -> None:
    filled.add_token_vectors(multi_vector, dtype="signs")
    filled.add(["twin"], [TEXTS[7]])  # of the same text, without stored vectors
    filled.add(["new"], ["a new text about bread"])
    hits = {hit.id: hit.score for hit in filled.search(QUERY, 42, rerank=watch.model)}
    assert set(watch.texts) <= {TEXTS[7], "a new text about bread"}
    assert hits["twin"] == pytest.approx(hits[7], rel=1e-6)
    assert filled.add_token_vectors(multi_vector) == 2
    again = {hit.id: hit.score for hit in filled.search(QUERY, 42, rerank=multi_vector)}
    assert again == pytest.approx(hits, rel=1e-6)


def test_another_model_does_not_read_them(
    filled: Collection, multi_vector: MultiVectorEncoder, other_model: MultiVectorEncoder
) -> None:
    expected = filled.search(QUERY, 5, rerank=other_model)
    filled.add_token_vectors(multi_vector, dtype="signs")
    assert filled.search(QUERY, 5, rerank=other_model) == expected
    with pytest.raises(FingerprintMismatchError, match="drop_token_vectors"):
        filled.add_token_vectors(other_model)
    with pytest.raises(FingerprintMismatchError):
        filled.token_vectors_size(other_model)
    filled.drop_token_vectors()
    assert filled.add_token_vectors(other_model) == len(TEXTS)


def test_a_replaced_text_is_never_scored_by_the_old_vectors(
    filled: Collection, multi_vector: MultiVectorEncoder
) -> None:
    filled.add_token_vectors(multi_vector)
    filled.add([3], [QUERY])
    filled.update_metadata([4], [{"n": 1}])
    best = filled.search(QUERY, 1, rerank=multi_vector)[0]
    assert (best.id, filled.info().token_rows) == (3, len(TEXTS) - 1)
    assert filled.verify() == []


def test_hits_of_an_older_state_get_the_vectors_of_their_own_texts(
    filled: Collection, multi_vector: MultiVectorEncoder
) -> None:
    """Another process may replace a row, and store its vectors, between search and reranking."""
    filled.add_token_vectors(multi_vector)
    hits = filled.search(QUERY, 40)
    filled.add([3], ["quite another text"])
    filled.add_token_vectors(multi_vector)
    tokens = filled._document_tokens(multi_vector, [hits])
    assert tokens is not None
    expected = multi_vector.encode_document(TEXTS)
    for text, made in zip(TEXTS, expected, strict=True):
        assert tokens[text] == pytest.approx(made, abs=2e-3)


def test_a_task_reranks_by_them_too(
    tmp_path: Path, tiny: Encoder, multi_vector: MultiVectorEncoder, watch: Watch
) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(range(len(TEXTS)), TEXTS)
        c.add_token_vectors(multi_vector)
        expected = c.search(QUERY, 5, rerank=multi_vector)

    async def search() -> Any:
        async with (
            AsyncEncoder(tiny) as encoder,
            AsyncCollection.open(tmp_path / "c", encoder=encoder) as c,
        ):
            return await c.search(QUERY, 5, rerank=watch.model)

    assert asyncio.run(search()) == expected
    assert watch.texts == []


# --- rows and their vectors -----------------------------------------------------------------------


def test_any_history_keeps_counts_and_vectors_of_the_rows_alone(
    tmp_path: Path, tiny: Encoder, multi_vector: MultiVectorEncoder
) -> None:
    rng = random.Random(2)
    rows: dict[int, str] = {}
    with Collection.create(tmp_path / "c", encoder=tiny) as first:
        second = Collection.open(tmp_path / "c", encoder=tiny)
        for _ in range(12):
            c = rng.choice([first, second])
            ids = rng.sample(range(30), rng.randint(1, 8))
            texts = [f"{rng.choice(TEXTS)} {rng.random()}" for _ in ids]
            c.add(ids, texts)
            rows |= dict(zip(ids, texts, strict=True))
            for gone in rng.sample(range(30), 3):
                c.delete([gone])
                rows.pop(gone, None)
            if rng.random() < 0.7:
                c.add_token_vectors(multi_vector)
                assert c.info().token_rows == len(rows)
            assert c.verify() == []
        first.add_token_vectors(multi_vector)
        info = second.info()
        sizes = [len(one) for one in multi_vector.encode_document(list(rows.values()))]
        assert info.token_rows == len(rows)
        assert info.token_bytes == sum(sizes) * 2 * multi_vector.dim
        assert (info.token_dtype, info.token_model) == ("float16", multi_vector.bundle.handle)
        second.close()


def test_it_continues_where_it_was_stopped(filled: Collection, watch: Watch) -> None:
    rows = 300  # more than are made at once
    dim = filled.info().dim
    filled.add_vectors(range(rows), vectors(rows, dim=dim), [f"a {i}" for i in range(rows)])
    filled.add_vectors(["no text"], np.ones((1, dim), np.float32))
    stop = threading.Event()
    watch.then = stop.set
    made = filled.add_token_vectors(watch.model, stop=stop)
    assert 0 < made < rows
    assert filled.info().token_rows == made
    assert filled.add_token_vectors(watch.model) == rows - made
    assert filled.add_token_vectors(watch.model) == 0
    assert filled.info().token_rows == rows


def test_two_writers_make_each_once(
    tmp_path: Path, filled: Collection, multi_vector: MultiVectorEncoder, watch: Watch
) -> None:
    """The other one finishes while this one has encoded its rows and has not written them yet."""
    other = Collection.open(tmp_path / "c")

    def finish() -> None:
        assert other.add_token_vectors(multi_vector) == len(TEXTS)
        other.delete([0])

    watch.then = finish
    assert filled.add_token_vectors(watch.model) == 0
    assert filled.info().token_rows == len(TEXTS) - 1
    assert filled.verify() == []
    other.close()


# --- size -----------------------------------------------------------------------------------------


def test_the_size_is_said_before_and_nothing_is_written(
    tmp_path: Path, filled: Collection, multi_vector: MultiVectorEncoder
) -> None:
    size = filled.token_vectors_size(multi_vector)
    small = filled.token_vectors_size(multi_vector, dtype="signs")
    assert filled.info().token_rows == 0
    filled.add_token_vectors(multi_vector)
    assert (size.rows, size.dtype, small.dtype) == (len(TEXTS), "float16", "signs")
    # All rows are in the sample.
    assert size.bytes == pytest.approx(filled.info().token_bytes + 40 * len(TEXTS), abs=1)
    assert small.bytes < size.bytes / 4
    assert filled.token_vectors_size(multi_vector).rows == 0
    assert filled.token_vectors_size(multi_vector).bytes == 0


@pytest.mark.parametrize("dim", [1, 7, 8, 16, 129])
def test_numbers_come_back_as_they_were_stored(dim: int) -> None:
    vectors = np.random.default_rng(dim).normal(size=(5, dim)).astype(np.float32)
    halves, signs = TokenCodec(dim, "float16"), TokenCodec(dim, "signs")
    assert np.array_equal(halves.decode(halves.encode(vectors)), vectors.astype(np.float16))
    read = signs.decode(signs.encode(vectors))
    assert np.array_equal(read > 0, vectors > 0)
    assert np.linalg.norm(read, axis=1) == pytest.approx(1.0, rel=1e-6)
    for codec in (halves, signs):
        assert len(codec.encode(vectors)) == 5 * codec.bytes_per_token
        assert codec.decode(codec.encode(vectors[:0])).shape == (0, dim)
    with pytest.raises(InputValueError, match="too large for float16"):
        halves.encode(np.full((1, dim), 1e6, np.float32))


def test_wrong_arguments_are_errors(
    tmp_path: Path, filled: Collection, multi_vector: MultiVectorEncoder, tiny: Encoder
) -> None:
    for wrong in (tiny, "my-colbert", None):
        with pytest.raises(InputTypeError, match="must be a MultiVectorEncoder"):
            filled.add_token_vectors(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputValueError, match="dtype"):
        filled.add_token_vectors(multi_vector, dtype="int8")  # type: ignore[arg-type]
    filled.add_token_vectors(multi_vector)
    with pytest.raises(InputValueError, match="are float16, not signs"):
        filled.add_token_vectors(multi_vector, dtype="signs")


# --- the layout and damage ------------------------------------------------------------------------


def test_the_layout_changes_with_the_first_token_vectors_alone(
    tmp_path: Path, tiny: Encoder, multi_vector: MultiVectorEncoder
) -> None:
    path = tmp_path / "c"
    with Collection.create(path, encoder=tiny) as c:
        assert c.add_token_vectors(multi_vector) == 0
        c.add_vectors(["a"], np.ones((1, tiny.dim), np.float32))
        assert c.add_token_vectors(multi_vector) == 0  # no row has a text
        c.drop_token_vectors()
    with Collection.open(path, encoder=tiny) as c:
        c.add(["b"], ["a text"])
        c.add_token_vectors(multi_vector)
        c.drop_token_vectors()
        c.drop_token_vectors()
        info = c.info()
        assert (info.token_rows, info.token_bytes, info.token_model) == (0, 0, None)
        assert c.verify() == []
        assert c.add_token_vectors(multi_vector, dtype="signs") == 1
        c.compact()
        assert c.verify() == []
        c.delete(["a"])
        assert len(c.search("a text", 1, rerank=multi_vector)) == 1


_KILLED = """
import os, signal, sys
from flowvec import Collection, MultiVectorEncoder
from flowvec.collection.store.meta import MetaTable

write = MetaTable.write
def killing(self, values):
    write(self, values)
    if "token_rows" in values:  # the last statement of the first token vectors
        os.kill(os.getpid(), signal.SIGKILL)
MetaTable.write = killing
with Collection.open(sys.argv[1]) as c, MultiVectorEncoder.load(sys.argv[2], provider="cpu") as m:
    c.add_token_vectors(m)
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_kill_leaves_the_collection_whole(
    tmp_path: Path, tiny: Encoder, multi_vector: MultiVectorEncoder, multi_vector_dir: Path
) -> None:
    path = tmp_path / "c"
    with Collection.create(path, encoder=tiny) as c:
        c.add(["a"], ["kept"])
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(path), str(multi_vector_dir)], check=False
    )
    assert done.returncode == -signal.SIGKILL
    with Collection.open(path, encoder=tiny) as c:
        assert c.verify() == []
        assert c.info().token_rows == 0
        assert c.add_token_vectors(multi_vector) == 1


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE token_vectors SET vectors = zeroblob(32) WHERE label = 2", "row 2 do not match"),
        ("UPDATE token_vectors SET text = x'00' WHERE label = 2", "row 2 do not match"),
        ("UPDATE token_vectors SET vectors = 'text' WHERE label = 2", "row 2 do not match"),
        ("UPDATE token_vectors SET label = 99 WHERE label = 2", "row 99 do not match"),
        ("DELETE FROM token_vectors WHERE label = 2", "of 39 rows, but 40 were written"),
    ],
)
def test_damage_is_found_and_never_ranks(
    tmp_path: Path, filled: Collection, multi_vector: MultiVectorEncoder, tiny: Encoder,
    statement: str, message: str, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    filled.add_token_vectors(multi_vector)
    expected = filled.search(QUERY, 40, rerank=multi_vector, rerank_from=40)
    filled.close()
    run_sql(tmp_path / "c", statement)
    with Collection.open(tmp_path / "c", encoder=tiny) as c:
        assert any(message in problem for problem in c.verify())
        found = c.search(QUERY, 40, rerank=multi_vector, rerank_from=40)
        assert [(hit.id, hit.score) for hit in found] == [
            (hit.id, pytest.approx(hit.score, rel=1e-5)) for hit in expected
        ]
    with caplog.at_level(logging.WARNING):
        assert Collection.salvage(tmp_path / "c", tmp_path / "new") == 0
    assert "token vectors were not copied" in caplog.text
    with Collection.open(tmp_path / "new", encoder=tiny) as new:
        assert new.verify() == []
        assert new.add_token_vectors(multi_vector) == 40


# --- the command line -----------------------------------------------------------------------------


def test_the_commands_store_and_use_them(
    flowvec: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path,
    multi_vector_dir: Path,
) -> None:  # fmt: skip
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in TEXTS))
    words = ("index", str(tmp_path / "c"), str(file), "--model", "mini", "--token-model",
             str(multi_vector_dir), "--token-dtype", "signs")  # fmt: skip
    done = flowvec(*words)
    assert done.returncode == 0, done.stderr
    assert "token vectors of 40 rows take about" in done.stderr
    assert "token vectors of 40 rows added" in done.stdout
    again = flowvec(*words, "--resume", "--json")
    assert (again.returncode, '"token_vectors": 0' in again.stdout) == (0, True), again
    found = flowvec(
        "search", str(tmp_path / "c"), QUERY, "-k", "3", "--rerank", str(multi_vector_dir)
    )
    assert (found.returncode, len(found.stdout.splitlines())) == (0, 3), found
    wrong = flowvec(*words[:5], "--token-dtype", "signs")
    assert (wrong.returncode, "goes with --token-model" in wrong.stderr) == (2, True)
    wrong = flowvec(*words[:-1], "int4", "--resume")
    assert (wrong.returncode, "float16" in wrong.stderr) == (2, True)


def test_the_command_replaces_token_vectors_of_another_kind(
    flowvec: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path,
    multi_vector_dir: Path, other_model: MultiVectorEncoder,
) -> None:  # fmt: skip
    file = tmp_path / "texts.txt"
    file.write_text("a cat\na dog\n")
    place, other = str(tmp_path / "c"), str(other_model.bundle.path)
    model = ("--token-model", str(multi_vector_dir))
    made = flowvec("index", place, str(file), "--model", "mini", *model)
    assert made.returncode == 0, made.stderr
    replacing = "--replace-token-vectors makes all of them again"
    for words, message in (
        ((*model, "--token-dtype", "signs"), "stored as float16, not signs: leave --token-dtype"),
        (("--token-model", other), "and --token-model is another one"),
    ):
        for files in ((), (str(file), "--resume")):
            wrong = flowvec("index", place, *files, *words)
            assert wrong.returncode == 2, wrong.stdout
            assert message in wrong.stderr
            assert replacing in wrong.stderr
            assert "drop_token_vectors" not in wrong.stderr
    for words, dtype in (
        ((*model, "--token-dtype", "signs"), "signs"), (("--token-model", other), "float16"),
    ):  # fmt: skip
        for count in (2, 0):  # the second time there is nothing to replace
            done = flowvec("index", place, *words, "--replace-token-vectors", "--json")
            assert f'"token_vectors": {count}' in done.stdout, done
        with Collection.open(place) as collection:
            info = collection.info()
        assert (info.token_dtype, info.token_rows) == (dtype, 2)
    assert info.token_model == other
    wrong = flowvec("index", place, "--full-text", "trigram", "--replace-token-vectors")
    assert (wrong.returncode, "goes with --token-model" in wrong.stderr) == (2, True)
