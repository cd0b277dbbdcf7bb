"""Rows of a collection whose rows are gone from the inputs are deleted, if that can be known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import BulkError, Collection, Encoder, InputValueError
from flowvec.bulk import BulkSummary, encode_files
from tests.drawing import examples
from tests.makers import write_jsonl

Index = Callable[..., BulkSummary]


@pytest.fixture
def index(tmp_path: Path, tiny: Encoder) -> Index:
    def index(*rows: Any, **given: Any) -> BulkSummary:
        given = {"id_field": "id", "prune": True, "skip_unchanged": True, **given}
        lines = [line if isinstance(line, str) else json.dumps(line) for line in rows]
        file = tmp_path / "in.jsonl"
        file.write_text("".join(f"{line}\n" for line in lines))
        return encode_files(tiny, file, tmp_path / "c", out_format="collection", **given)

    return index


def ids_of(folder: Path) -> set[Any]:
    with Collection.open(folder / "c") as c:
        assert c.verify() == []
        return set(c.ids())


def row(key: Any, text: Any = "a cat") -> dict[str, Any]:
    return {"id": key, "text": text}


def test_rows_that_are_gone_from_the_inputs_are_deleted(index: Index, tmp_path: Path) -> None:
    assert index(row("a"), row(1), row("1"), row("b")).pruned == 0
    done = index(row("a"), row("1"), row("new"))
    assert (done.pruned, done.unchanged, done.rows) == (2, 2, 3)
    assert ids_of(tmp_path) == {"a", "1", "new"}
    assert index(row("a"), prune=False).pruned == 0
    assert ids_of(tmp_path) == {"a", "1", "new"}


def test_all_inputs_count(index: Index, tmp_path: Path, tiny: Encoder) -> None:
    index(row("a"), row("b"), row("c"))
    files = [write_jsonl(tmp_path / f"{i}.jsonl", [row(key)]) for i, key in enumerate("bd")]
    done = encode_files(tiny, files, tmp_path / "c", out_format="collection", id_field="id",
                        skip_unchanged=True, prune=True)  # fmt: skip
    assert done.pruned == 2
    assert ids_of(tmp_path) == {"b", "d"}


@pytest.mark.parametrize("rule", ["last", "first", "dead-letter"])
def test_a_row_that_cannot_be_embedded_or_repeats_is_not_gone(
    index: Index, tmp_path: Path, rule: str
) -> None:
    index(row("a"), row("b"), row("c"))
    done = index(row("a", None), row("b"), row("b", "a dog"), on_duplicate=rule)
    assert (done.pruned, done.dead_letters > 0) == (1, True)
    assert ids_of(tmp_path) == {"a", "b"}


@pytest.mark.parametrize("bad", [{"text": "x"}, row(None), row([1]), row(1.5), '{"id": "b"', "[]"])
def test_nothing_is_pruned_if_an_id_cannot_be_read(index: Index, tmp_path: Path, bad: Any) -> None:
    index(row("a"), row("b"))
    with pytest.raises(BulkError, match="pruned: the ids of 1 input"):
        index(row("new"), bad)
    assert ids_of(tmp_path) == {"a", "b", "new"}


def test_empty_inputs_do_not_empty_a_collection(index: Index, tmp_path: Path) -> None:
    index(row("a"))
    with pytest.raises(BulkError, match="the inputs have no rows"):
        index()
    assert ids_of(tmp_path) == {"a"}


def test_rows_that_others_add_meanwhile_stay(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowvec.bulk.collection_output import ComparedTarget

    index(row("a"), row("b"))
    leave_out = ComparedTarget.leave_out

    def add_then_leave_out(self: Any, window: Any) -> None:
        self._collection.add_vectors(["theirs"], [[1.0] * 16])
        leave_out(self, window)

    monkeypatch.setattr(ComparedTarget, "leave_out", add_then_leave_out)
    assert index(row("a")).pruned == 1
    assert ids_of(tmp_path) == {"a", "theirs"}


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"id_field": None}, "needs an id_field"),
        ({"skip_unchanged": False}, "with skip_unchanged"),
        ({"prune": 1}, "prune must be True or False"),
    ],
)
def test_pruning_is_refused_where_it_cannot_apply(index: Index, given: Any, part: str) -> None:
    with pytest.raises(Exception, match=part) as raised:
        index(row("a"), **given)
    assert type(raised.value).__name__ in ("InputValueError", "InputTypeError")


def test_standard_input_is_not_pruned_by(tmp_path: Path, tiny: Encoder) -> None:
    with pytest.raises(InputValueError, match="standard input may end early"):
        encode_files(tiny, "-", tmp_path / "c", out_format="collection", input_format="jsonl",
                     id_field="id", skip_unchanged=True, prune=True)  # fmt: skip


KEYS = st.lists(st.integers(0, 5) | st.sampled_from("ab01"), min_size=1, max_size=6)


@examples(15)
@given(before=KEYS, after=KEYS)
def test_a_collection_has_the_ids_of_its_last_inputs(
    index: Index, tmp_path: Path, before: list[Any], after: list[Any]
) -> None:
    index(*map(row, before))
    index(*map(row, after))
    assert ids_of(tmp_path) == set(after)
