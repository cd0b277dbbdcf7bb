"""A window of JSON Lines that is parsed at once equals the same lines parsed one by one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec.bulk.windows import read_windows
from flowvec.texts.readers import jsonl
from flowvec.texts.sources import find_sources
from flowvec.texts.window import Fields, Window
from tests.drawing import examples

PLAIN = b'{"text": "a cat", "key": 7, "score": 0.5, "good": true, "name": "caf\\u00e9"}'
FIELDS = Fields("text", "key", ("score", "good", "name"))
# Lines that the two parsers might read differently.
ODD = [
    b"",
    b"   ",
    b"\r",
    b"{}",
    b"[]",
    b"7",
    b"null",
    b'"text"',
    b'{"key": 1}',
    b'{"text": "a"}',
    b'{"text": null, "key": 1}',
    b'{"text": NaN, "key": 1}',
    b'{"text": 3, "key": 1}',
    b'{"text": ["a"], "key": 1}',
    b'{"text": {"a": 1}, "key": 1}',
    b'{"text": "a", "key": null}',
    b'{"text": "a", "key": 1.0}',
    b'{"text": "a", "key": 1e2}',
    b'{"text": "a", "key": true}',
    b'{"text": "a", "key": "1"}',
    b'{"text": "a", "key": -9223372036854775808}',
    b'{"text": "a", "key": 9223372036854775808}',
    b'{"text": "a", "key": -0}',
    b'{"text": "a", "key": 01}',
    b'{"text": "a", "text": "b", "key": 1}',
    b'{"text": "a", "key": 1, "key": 2}',
    b'{"text": "a", "key": 1, "else": 1, "else": 2}',
    b'{"te\\u0078t": "a", "key": 1}',
    b'{"text": "a", "key": 1} {"text": "b", "key": 2}',
    b'{"text": "a", "key": 1}{"text": "b", "key": 2}',
    b'{"text": "a", "key": 1},',
    b'{"text": "a", "key": 1,}',
    b'{"text": "a", "key": 1} x',
    b'{"text": "a", "key": 1}\x0c',
    b'{"text": "a", "key": 1',
    b'"key": 1}',
    b'{"text": "a", "key": 1, "else": [{}',
    b'{"text": "a", "key": 1, "else": [}',
    b'{"text": "a", "key": 1, "else": [1, {"b": [null, {}]}]}',
    b'{"text": "a", "key": 1, "else": 1e999}',
    b'{"text": "a", "key": 1, "else": .5}',
    b'{"text": "a", "key": 1, "else": NaN}',
    b'{"text": "a", "key": 1, "score": NaN}',
    b'{"text": "a", "key": 1, "score": -Infinity}',
    b'{"text": "a", "key": 1, "score": 3}',
    b'{"text": "a", "key": 1, "score": 0.1000000000000000055511151231257827}',
    b'{"text": "a", "key": 1, "score": 123456789012345678901234567890}',
    b'{"text": "a", "key": 1, "score": "0.5"}',
    b'{"text": "a", "key": 1, "score": null, "good": null, "name": null}',
    b'{"text": "a", "key": 1, "good": 1}',
    b'{"text": "a", "key": 1, "good": "true"}',
    b'{"text": "a", "key": 1, "name": "2020-01-01T00:00:00"}',
    b'{"text": "a", "key": 1, "name": 5}',
    b'{"text": "a", "key": 1, "name": "\\ud83d\\ude00"}',
    b'{"text": "a", "key": 1, "name": "\\ud83d"}',
    b'{"text": "\\ude00\\ud83d", "key": 1}',
    b'{"text": "a\\u0000b", "key": 1}',
    b'{"text": "a\x00b", "key": 1}',
    b'{"text": "a\tb", "key": 1}',
    b'{"text": "a\\x", "key": 1}',
    b'{"text": "\xff", "key": 1}',
    b'{"text": "\xed\xa0\x80", "key": 1}',
    b'{"text": "a", "key": 1, "else": "\xff"}',
    b'\xef\xbb\xbf{"text": "a", "key": 1}',
    b"{'text': 'a', 'key': 1}",
    b'{"text": "", "key": 1}',
    b'{"text": "' + b"long " * 100 + b'", "key": 1}',
    b'{"text": "a", "key": 1, "": 2}',
    b'{"text": "a" "key": 1}',
    b'{"text": "a", "key": 1, "else": tru}',
    b' {"text": "a", "key": 1} ',
    b'null {"text": "a", "key": 1}',
    b'{"text": "a", "key": 1} null',
    b'{"text": "a", "key": 1, "else": ' + b"[" * 2000 + b"]" * 2000 + b"}",
    b'{"text": "a", "key": 1, "else": ' + b"[" * 499 + b"]" * 499 + b"}",
    b'{"text": "a", "key": 1, "else": ' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"text": "a", "key": 1, "else": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
    b'{"text": "' + b"[{" * 3000 + b'", "key": 1}',
]


def windows_of(path: Path, fields: Fields) -> list[Window]:
    return list(read_windows(find_sources([path]), fields, rows_per_shard=10))


def as_text(window: Window) -> str:
    """Everything in a window, to compare: here NaN equals itself, and 1 differs from 1.0.

    Sets are sorted, since equal sets may be iterated in different orders.
    """
    content = asdict(window)
    return repr({k: sorted(v) if isinstance(v, set) else v for k, v in content.items()})


@pytest.fixture
def both_ways(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Fields], list[Window]]:
    """Read a file with the parser of all lines at once and without it, and compare."""
    pytest.importorskip("pyarrow.json", reason="needs the extra [files]")

    def both(path: Path, fields: Fields) -> list[Window]:
        at_once = windows_of(path, fields)
        with monkeypatch.context() as patched:
            patched.setattr(jsonl, "_arrow_json", lambda: None)
            alone = windows_of(path, fields)
        assert [as_text(w) for w in at_once] == [as_text(w) for w in alone]
        return at_once

    return both


@pytest.mark.parametrize("odd", ODD, ids=lambda line: line[:40].decode("latin-1"))
@pytest.mark.parametrize("second", [b"", b'{"text": "z", "key": 9}'], ids=["blank", "plain"])
def test_an_odd_line_is_read_as_by_itself(
    tmp_path: Path, both_ways: Callable[[Path, Fields], list[Window]], odd: bytes, second: bytes
) -> None:
    """With a blank line next to it: two rows on one line must not compensate for it."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([PLAIN] * 4 + [odd, second] + [PLAIN] * 9))
    own_types = Fields("text", "key", ("good", "name"), kept_as_json=True, for_collection=True)
    for fields in (FIELDS, Fields(), Fields(max_text_bytes=200), own_types):
        read = both_ways(path, fields)
        rows = sum(len(w.texts) + len(w.dead) + w.blank for w in read)
        assert rows == sum(w.rows for w in read) == 15


KINDS = ["string", "json", "bool"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)


@examples(150)
@given(data=st.data())
def test_any_records_are_read_as_line_by_line(data: st.DataObject, tmp_path_factory) -> None:
    pytest.importorskip("pyarrow.json", reason="needs the extra [files]")
    of = {
        "text": st.text(st.characters(), max_size=9) | json_values,
        "key": st.integers(-5, 5) | json_values,
        "score": st.floats() | json_values,
        "name": st.text(max_size=4) | json_values,
        "else": json_values,
    }
    usual = {"text": st.text(max_size=9), "key": st.integers(-(2**63), 2**63 - 1),
             "score": st.floats(), "name": st.none() | st.text(max_size=3)}  # fmt: skip
    records = data.draw(
        st.lists(st.fixed_dictionaries(usual), min_size=1, max_size=12)
        | st.lists(st.fixed_dictionaries({}, optional=of), min_size=1, max_size=6)
    )
    escaped = data.draw(st.booleans())
    lines = [json.dumps(record, ensure_ascii=escaped) for record in records]
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    columns = {"key": "int64", "score": "double", "name": data.draw(st.sampled_from(KINDS))}
    fields = Fields("text", "key", ("score", "name"))

    def read() -> list[str]:
        sources = find_sources([path])
        windows = read_windows(sources, fields, rows_per_shard=100, columns=columns)
        return [as_text(window) for window in windows]

    before = read()
    with mock.patch.dict(sys.modules, {"pyarrow.json": None}):  # as if it were not installed
        assert read() == before


def test_plain_lines_are_not_parsed_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow.json", reason="needs the extra [files]")
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([PLAIN] * 30))
    seen: list[Any] = []
    loads = json.loads
    monkeypatch.setattr(jsonl.json, "loads", lambda line: (seen.append(line), loads(line))[1])
    windows = windows_of(path, FIELDS)
    assert len(seen) == 10  # the first window, to see what its fields hold
    assert [w.texts for w in windows] == [["a cat"] * 10] * 3
    assert windows[2].values == {"key": [7] * 10, "score": [0.5] * 10, "good": [True] * 10,
                                 "name": ["caf\u00e9"] * 10}  # fmt: skip
    assert windows[2].place(3) == (str(path), 23)


@pytest.mark.parametrize(
    "text", ["null", 'null {"text": "a"}', "null\nnull", "7", '[{"text": "a"}]']
)
def test_a_window_that_is_not_an_object_does_not_end_the_process(
    tmp_path: Path, python: Callable[..., Any], text: str
) -> None:
    """Arrow's parser reads past its memory where a block begins with something else."""
    pytest.importorskip("pyarrow.json", reason="needs the extra [files]")
    (tmp_path / "a.jsonl").write_text(text)
    done = python(
        f"""
from flowvec.bulk.windows import read_windows
from flowvec.texts.sources import find_sources
from flowvec.texts.window import Fields
for _ in range(20):
    windows = list(read_windows(find_sources([{str(tmp_path / "a.jsonl")!r}]), Fields(),
                              rows_per_shard=10, columns={{}}))
assert sum(len(w.dead) for w in windows) == {len(text.splitlines())}
"""
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("first", "rest"), [([1, "a"], []), (["a", 1], [2]), ([None], [1, "a"])])
def test_ids_stay_what_they_are(tmp_path: Path, first: list[Any], rest: list[Any]) -> None:
    ids = [*first, *rest]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "x", "id": i}) + "\n" for i in ids))
    windows = list(read_windows(find_sources([path]), Fields(id="id"), rows_per_shard=len(first)))
    read = [i for w in windows for i in w.ids(Fields(id="id"))]
    assert read == [i for i in ids if i is not None]
    assert [type(i) for i in read] == [type(i) for i in ids if i is not None]
    assert len([letter for w in windows for letter in w.dead]) == ids.count(None)


def test_ids_after_blank_lines_stay_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n" * 10 + '{"text": "x", "id": "a"}\n{"text": "y", "id": 3}\n')
    windows = windows_of(path, Fields(id="id"))
    assert [i for w in windows for i in w.ids(Fields(id="id"))] == ["a", 3]
