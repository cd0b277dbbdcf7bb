"""Reading texts from files."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from pathlib import Path

import pytest

from flowvec.errors import InputTypeError, InputValueError
from flowvec.texts.rows import Row, read_rows


def write_input(folder: Path, name: str, data: str | bytes) -> str:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def test_txt_has_one_text_per_line_including_empty_lines(tmp_path: Path) -> None:
    source = write_input(tmp_path, "a.txt", "\ufeffone\r\n\ntwo\u2028still two\nlast")
    rows = list(read_rows(source))
    assert rows == [Row(0, "one"), Row(1, ""), Row(2, "two\u2028still two"), Row(3, "last")]


@pytest.mark.parametrize(("suffix", "module"), [("gz", gzip), ("xz", lzma), ("bz2", bz2)])
def test_compressed_files_are_read_by_the_extension_below(tmp_path: Path, suffix, module) -> None:
    data = b'{"text": "one"}\n{"text": "two"}\n'
    source = write_input(tmp_path, f"a.jsonl.{suffix}", module.compress(data))
    assert list(read_rows(source)) == [Row(0, "one"), Row(1, "two")]
    plain = write_input(tmp_path, f"b.txt.{suffix}", module.compress("\ufeffone\n".encode()))
    assert list(read_rows(plain)) == [Row(0, "one")]
    damaged = module.compress(random.Random(0).randbytes(5000).hex().encode())[:-900]
    with pytest.raises(InputValueError, match="is damaged or cannot be read"):
        list(read_rows(write_input(tmp_path, f"c.txt.{suffix}", damaged)))
    with pytest.raises(InputValueError, match="is damaged or cannot be read"):
        list(read_rows(write_input(tmp_path, f"d.txt.{suffix}", b"no archive at all")))


def test_jsonl_has_fields(tmp_path: Path) -> None:
    lines = [{"text": "one", "id": 7}, {"text": "two\n2", "id": "b", "more": [1]}]
    source = write_input(tmp_path, "a.jsonl", "\n".join(map(json.dumps, lines)) + "\n\n")
    assert list(read_rows(source)) == [Row(0, "one"), Row(1, "two\n2")]


def test_csv_has_columns(tmp_path: Path) -> None:
    source = write_input(tmp_path, "a.csv", 'key,body\r\nk1,"a, ""b""\nc"\r\nk2,d\r\n')
    rows = list(read_rows(source, text_field="body"))
    assert rows == [Row(0, 'a, "b"\nc'), Row(1, "d")]


def test_csv_takes_long_fields(tmp_path: Path) -> None:
    source = write_input(tmp_path, "a.csv", "text\n" + "x" * 300_000 + "\n")
    assert len(next(iter(read_rows(source))).text) == 300_000


def test_the_format_can_be_given(tmp_path: Path) -> None:
    source = write_input(tmp_path, "a.data", '{"text": "one"}\n')
    assert list(read_rows(source, file_format="jsonl")) == [Row(0, "one")]
    assert list(read_rows(source, file_format="txt")) == [Row(0, '{"text": "one"}')]


@pytest.mark.parametrize(
    ("name", "data", "options", "error", "message"),
    [
        ("a.jsonl", '{"text": "x"}\nrubbish\n', {}, InputValueError, "line 2: the line is not"),
        ("a.jsonl", "[1]\n", {}, InputValueError, "line 1: the line is not a JSON object"),
        ("a.jsonl", '{"body": "x"}\n', {}, InputValueError, "no field 'text'; it has body"),
        ("a.jsonl", '{"text": null}\n', {}, InputTypeError, "line 1: text is null"),
        ("a.jsonl", '{"text": 3}\n', {}, InputTypeError, "text is a number, not a text"),
        ("a.jsonl", "[" * 100_000 + "\n", {}, InputValueError, "line 1: the line is"),
        ("a.csv", "a,b\n1,2\n", {}, InputValueError, "no field 'text'; it has a, b"),
        ("a.csv", "text,text\na,b\n", {}, InputValueError, "2 columns named 'text'"),
        ("a.csv", "a,text\n1\n", {}, InputValueError, "row 0: the record has 1"),
        ("a.csv", 'text\nfirst\n"second\nthird\n', {}, InputValueError, "a quote is not closed"),
        ("a.txt", b"caf\xe9\n", {}, InputValueError, "not UTF-8"),
        ("a.pdf", "x", {}, InputValueError, "--format"),
        ("a.txt", "x", {"file_format": "xml"}, InputValueError, "--format"),
    ],
)
def test_a_bad_input_says_where(tmp_path: Path, name, data, options, error, message) -> None:
    with pytest.raises(error, match=message):
        list(read_rows(write_input(tmp_path, name, data), **options))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputValueError, match=r"nowhere\.txt"):
        list(read_rows(str(tmp_path / "nowhere.txt")))
    with pytest.raises(InputValueError, match="cannot read"):
        list(read_rows(str(tmp_path), file_format="txt"))


def test_rows_are_read_one_at_a_time(tmp_path: Path) -> None:
    source = write_input(tmp_path, "a.jsonl", '{"text": "one"}\nrubbish\n')
    rows = read_rows(source)
    assert next(rows) == Row(0, "one")


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    """As in bulk jobs, so that the same file has the same rows."""
    data = b"one\rstill one\r\ntwo\x0bx\x85\xe2\x80\xa8y\n".replace(b"\x85", "\x85".encode())
    (tmp_path / "a.txt").write_bytes(data)
    texts = [row.text for row in read_rows(str(tmp_path / "a.txt"))]
    assert texts == ["one\rstill one", "two\x0bx\x85\u2028y"]
    from flowvec.bulk.windows import read_windows
    from flowvec.texts.sources import find_sources
    from flowvec.texts.window import Fields

    windows = read_windows(find_sources([tmp_path / "a.txt"]), Fields(), rows_per_shard=9)
    assert [text for window in windows for text in window.texts] == texts


def test_the_csv_field_limit_of_the_process_is_not_changed(tmp_path: Path) -> None:
    import csv

    before = csv.field_size_limit()
    source = write_input(tmp_path, "a.csv", "text\n" + "x" * 300_000 + "\n\xef\n")
    assert len(list(read_rows(source))) == 2
    assert csv.field_size_limit() == before
    (tmp_path / "b.csv").write_bytes(b"text\n\xff\n")
    with pytest.raises(InputValueError, match="row 0: text is not UTF-8"):
        list(read_rows(str(tmp_path / "b.csv")))
