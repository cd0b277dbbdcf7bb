"""Long texts of files become chunks in a collection, and follow their texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import Collection, Encoder, InputTypeError, InputValueError
from flowvec.bulk import BulkSummary, encode_files
from flowvec.bulk.splitting import owner_of, prefix_of
from tests.drawing import examples
from tests.makers import write_jsonl

LONG = "The cat sleeps. A dog runs. The red house. A green garden. The cat runs. "


@pytest.fixture
def index(tmp_path: Path, tiny: Encoder) -> Any:
    def index(*rows: Any, **given: Any) -> BulkSummary:
        given = {"id_field": "id", "skip_unchanged": True, "split_tokens": 12, **given}
        file = write_jsonl(tmp_path / "in.jsonl", rows)
        return encode_files(tiny, file, tmp_path / "c", out_format="collection", **given)

    return index


def row(key: Any, text: Any = LONG, **more: Any) -> dict[str, Any]:
    return {"id": key, "text": text, **more}


def check_chunks(folder: Path, tiny: Encoder, rows: list[dict[str, Any]], overlap: int = 0) -> int:
    """The collection holds the chunks of these rows and nothing else."""
    expected: dict[Any, Any] = {}
    for source in {f"{type(r['id'])}{r['id']}": r for r in rows}.values():
        chunks = tiny.split_texts([source["text"]], max_tokens=12, overlap=overlap)
        spans = [(c.start, c.end) for c in chunks] or [(0, len(source["text"]))]
        for number, (start, end) in enumerate(spans):
            metadata = {"parent": source["id"], "start": start, "end": end}
            metadata |= {name: v for name, v in source.items() if name not in ("id", "text")}
            expected[f"{prefix_of(source['id'])}{number}"] = (source["text"][start:end], metadata)
    with Collection.open(folder / "c") as c:
        assert {item.id: (item.text, item.metadata) for item in c.rows()} == expected
        assert c.verify() == []
    return len(expected)


def test_texts_become_chunks_with_their_places(index: Any, tmp_path: Path, tiny: Encoder) -> None:
    rows = [row("a", lang="en"), row(1, "The cat.", lang=None), row("1", "  ", lang="de")]
    done = index(*rows, keep=["lang"])
    del rows[1]["lang"]
    count = check_chunks(tmp_path, tiny, rows)
    assert (done.rows, done.rows_in, done.chunks, done.dead_letters) == (3, 3, count, 0)
    again = index(*rows, keep=["lang"])
    assert (again.rows, again.unchanged, again.chunks, again.encoded) == (3, 3, 0, 0)
    with Collection.open(tmp_path / "c", encoder=tiny) as c:
        hits = c.search("the cat", 9, group_by="parent")
        parents = [(hit.metadata or {})["parent"] for hit in hits]
        assert sorted(parents, key=str) == [1, "1", "a"]


def test_chunks_follow_a_text_that_changes(index: Any, tmp_path: Path, tiny: Encoder) -> None:
    index(row("a"), row("b"), row("a#1"))
    shorter = [row("a", "The cat sleeps."), row("b"), row("a#1", LONG + "A cat.")]
    done = index(*shorter)
    check_chunks(tmp_path, tiny, shorter)
    assert (done.rows, done.unchanged) == (3, 1)
    # A run that was killed before it deleted the chunks that are left over.
    with Collection.open(tmp_path / "c") as c:
        c.add_vectors(["a#1", "a#7", "a#x", "a#01"], [[1.0] * 16] * 4)
    assert index(*shorter).unchanged == 3
    with Collection.open(tmp_path / "c") as c:
        assert c.delete(["a#x", "a#01"]) == 2  # these are not chunks
    check_chunks(tmp_path, tiny, shorter)


def test_pruning_deletes_all_chunks_of_a_row(index: Any, tmp_path: Path, tiny: Encoder) -> None:
    index(row("a"), row("b"), row(1), row("1"), row("c"))
    with Collection.open(tmp_path / "c") as c:
        chunks = c.count({"parent": {"in": ["b", 1]}})
        c.add_vectors(["whole"], [[1.0] * 16])
    kept = [row("a"), row("1"), row("c", None)]
    done = index(*kept, prune=True)
    assert done.pruned == chunks + 1
    check_chunks(tmp_path, tiny, [row("a"), row("1"), row("c")])


def test_rows_without_an_id_are_split_too(index: Any, tmp_path: Path) -> None:
    index({"text": LONG}, {"text": "The cat."}, id_field=None)
    with Collection.open(tmp_path / "c") as c:
        assert {"0#0", "0#1", "1#0"} <= set(c.ids())
        assert c.count({"parent": 0}) > 1


def test_a_row_with_a_chunk_that_cannot_be_embedded_is_one_dead_letter(
    tmp_path: Path, nan_dir: Path
) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [row("a", f"{LONG} nan. {LONG} nan."), row("b")])
    done = encode_files(nan_dir, file, tmp_path / "c", out_format="collection", id_field="id",
                        skip_unchanged=True, split_tokens=12, dedupe=True)  # fmt: skip
    assert (done.rows, done.codes) == (1, {"non_finite": 1})
    (letter,) = map(json.loads, (tmp_path / "c.dead_letter.jsonl").read_text().splitlines())
    assert (letter["id"], letter["row"]) == ("a", 0)
    with Collection.open(tmp_path / "c") as c:
        assert {(item.metadata or {})["parent"] for item in c.rows()} == {"b"}


def test_parquet_is_split_too(index: Any, tmp_path: Path, tiny: Encoder) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")
    rows = [row("a", lang="en"), row("b", "The cat.", lang="de")]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    encode_files(tiny, tmp_path / "in.parquet", tmp_path / "c", out_format="collection",
                 id_field="id", keep=["lang"], skip_unchanged=True, split_tokens=12,
                 split_overlap=5)  # fmt: skip
    check_chunks(tmp_path, tiny, rows, overlap=5)


KEYS = st.text(st.sampled_from('a1#"-'), max_size=4) | st.integers(-12, 12)


@given(keys=st.lists(KEYS, min_size=2, max_size=2, unique_by=lambda k: (type(k), k)),
       numbers=st.lists(st.integers(0, 11), min_size=2, max_size=2))  # fmt: skip
def test_ids_of_chunks_are_distinct_and_know_their_row(keys: Any, numbers: Any) -> None:
    first, second = (f"{prefix_of(k)}{n}" for k, n in zip(keys, numbers, strict=True))
    assert first != second
    assert owner_of(first) == prefix_of(keys[0])
    assert owner_of(first) != owner_of(second)


TEXTS = st.sampled_from([LONG, LONG * 2, "The cat.", " ", LONG[20:], "nothing " * 30])


@examples(15)
@given(runs=st.lists(st.dictionaries(KEYS, TEXTS, min_size=1, max_size=4), min_size=1, max_size=3))
def test_a_collection_has_the_chunks_of_its_last_inputs(
    tmp_path_factory: Any, tiny: Encoder, runs: list[dict[Any, str]]
) -> None:
    folder = tmp_path_factory.mktemp("split")
    for texts in runs:
        rows = [row(key, text) for key, text in texts.items()]
        file = write_jsonl(folder / "in.jsonl", rows)
        done = encode_files(tiny, file, folder / "c", out_format="collection", id_field="id",
                            skip_unchanged=True, split_tokens=12, prune=True)  # fmt: skip
        assert done.rows == len(rows)
        check_chunks(folder, tiny, rows)


@pytest.mark.parametrize(
    ("given_options", "part"),
    [
        ({"split_tokens": 1}, "max_tokens must be from"),
        ({"split_tokens": 65}, "max_tokens must be from"),
        ({"split_tokens": "x"}, "max_tokens must be a whole number"),
        ({"split_overlap": 12}, "overlap must be from 0"),
        ({"skip_unchanged": False}, "with skip_unchanged"),
        ({"split_tokens": None, "split_overlap": 3}, "goes with split_tokens"),
        ({"keep": ["parent"]}, "'parent' cannot be kept"),
    ],
)
def test_splitting_is_refused_where_it_cannot_apply(
    index: Any, tmp_path: Path, given_options: dict[str, Any], part: str
) -> None:
    with pytest.raises((InputValueError, InputTypeError), match=part):
        index(row("a", parent=1), **given_options)
    assert not (tmp_path / "c").exists()


def test_standard_input_is_split_by_its_first_rows(tmp_path: Path, tiny: Encoder) -> None:
    with pytest.raises(InputValueError, match=r"standard input .*twice"):
        encode_files(tiny, "-", tmp_path / "c", out_format="collection", input_format="jsonl",
                     id_field="id", skip_unchanged=True, split_tokens=12,
                     on_duplicate="last")  # fmt: skip
