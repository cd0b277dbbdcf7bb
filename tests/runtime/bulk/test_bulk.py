"""Bulk jobs: what goes in comes out or is named, and a kill changes no byte of what is made."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowvec import Collection, Encoder
from flowvec.bulk import RayWorkers, encode_files, estimate_files
from flowvec.bulk import encoding as files
from flowvec.bulk import runner as work
from flowvec.bulk import windows as reading
from flowvec.bulk.journal import Folder
from flowvec.bulk.options import BulkOptions
from flowvec.bulk.part_files import ShardFile
from flowvec.bulk.prefetch import run_ahead
from flowvec.bulk.runner import job_of, run_shard
from flowvec.bulk.windows import read_windows
from flowvec.errors import BulkError, FlowvecError, InputValueError, MissingDependencyError
from flowvec.texts import lines as records
from flowvec.texts.inventory import survey
from flowvec.texts.lines import BadRecord, csv_records, lines_of
from flowvec.texts.sources import find_sources
from flowvec.texts.window import Fields

WORDS = ["the", "cat", "dog", "sleeps", "runs", "red", "green", "house", "garden", "on", "in"]


def texts_of(count: int, seed: int = 0, most: int = 25) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, most))) for _ in range(count)]


@pytest.fixture
def arrow() -> Any:
    return pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small shard has several."""
    monkeypatch.setattr(reading, "WINDOW", 16)


class StopAfter(threading.Event):
    """Set once so many shards of a run are there."""

    def __init__(self, folder: Path, shards: int) -> None:
        super().__init__()
        self._folder = folder
        self._shards = shards + self._there()

    def _there(self) -> int:
        journal = self._folder / "_journal.jsonl"
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    def is_set(self) -> bool:
        return super().is_set() or self._there() >= self._shards


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def npy_of(folder: Path) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Vectors and row maps of all shards."""
    parts = sorted(folder.glob("part-*.npy"))
    lines = [
        json.loads(line)
        for part in parts
        for line in (part.parent / f"{part.stem}.rows.jsonl").read_text().splitlines()
    ]
    return np.concatenate([np.load(part) for part in parts]), lines


def letters_of(folder: Path) -> list[dict[str, Any]]:
    file = folder / "_dead_letter.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def contents(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(folder.iterdir()) if f.name[:5] != ".lock"}


# --- records --------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200) | st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"bcd"])).map(
    b"".join), block=st.integers(1, 9), limit=st.integers(0, 20))  # fmt: skip
def test_lines_are_those_of_the_file(data: bytes, block: int, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_BLOCK", block)
        found = [line for part in lines_of(io.BytesIO(data), limit) for line in part]
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    expected = [line.removesuffix(b"\r") for line in expected]
    assert found == [line if len(line) <= limit else None for line in expected]


def test_a_line_without_end_takes_no_memory() -> None:
    class Endless(io.RawIOBase):
        left = 300

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return b"x" * size if self.left > 0 else b""

    import tracemalloc

    tracemalloc.start()
    assert list(lines_of(Endless(), 1 << 20)) == [[None]]  # type: ignore[arg-type]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 << 20


def csv_by_python(data: bytes) -> list[list[str] | None]:
    """What Python's csv makes of it; None for a record that cannot be read."""
    text = io.TextIOWrapper(
        io.BytesIO(data), encoding="utf-8-sig", errors="surrogateescape", newline=""
    )
    reader, found = csv.reader(text, strict=True), []
    while True:
        try:
            found.append(next(reader))
        except StopIteration:
            return [record for record in found if record != []]
        except csv.Error:
            found.append(None)


@settings(max_examples=1000, deadline=None)
@given(
    data=st.lists(
        st.sampled_from(
            [b"a", b"bc", b",", b'"', b'""', b'"x"', b"\n", b"\r\n", b"\r", b" ", b"\xff",
             "é".encode(), b"\xef\xbb\xbf", b"\x00"]
        ), max_size=30,
    ).map(b"".join),
    block=st.integers(1, 9),
)  # fmt: skip
def test_csv_records_are_those_of_pythons_csv(data: bytes, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_BLOCK", block)
        found = list(csv_records(io.BytesIO(data), 1 << 20))
    assert [None if isinstance(r, BadRecord) else r for r in found] == csv_by_python(data)


@given(
    st.lists(st.lists(st.text(max_size=9), min_size=2, max_size=4), max_size=9),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 30),
)
def test_what_a_writer_wrote_is_read_back(rows: list[list[str]], end: str, block: int) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    data = file.getvalue().encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_BLOCK", block)
        found = list(csv_records(io.BytesIO(b"\xef\xbb\xbf" + data), 1 << 20))
    escaped = [
        [f.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape") for f in row]
        for row in rows
    ]
    assert found == escaped


def test_a_field_that_is_too_long_takes_no_other_row_with_it() -> None:
    long = b"x" * 70 + b"\n"
    data = b'id,text\r\n0,"' + long * 250 + b'"\r\n'
    data += b"".join(b'%d,"row ""%d"""\r\n' % (i, i) for i in range(1, 100))
    header, bad, *rows = csv_records(io.BytesIO(data), 1000)
    assert header == ["id", "text"]
    assert isinstance(bad, BadRecord)
    assert bad.code == "too_large"
    assert rows == [[str(i), f'row "{i}"'] for i in range(1, 100)]


def test_pythons_limit_of_a_field_is_left_as_it_is() -> None:
    before = csv.field_size_limit()
    data = b"text\n" + b"y" * (2 * before) + b"\n"
    assert len(list(csv_records(io.BytesIO(data), 1 << 24))) == 2
    assert csv.field_size_limit() == before


def test_a_csv_record_without_end_takes_no_memory() -> None:
    class Endless(io.RawIOBase):
        def __init__(self, first: bytes) -> None:
            self.first, self.left = first, 300

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            first, self.first = self.first, b""
            return first + b"x" * (size - len(first)) if self.left > 0 else b""

    import tracemalloc

    for first in (b"", b'"', b'a,"'):
        tracemalloc.start()
        (found,) = csv_records(Endless(first), 1 << 20)  # type: ignore[arg-type]
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert isinstance(found, BadRecord)
        assert found.code == "too_large"
        assert most < 16 << 20


# --- finding and surveying ------------------------------------------------------------------------


def test_files_folders_and_globs_are_found_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl", "c.csv.gz", "notes.md", ".hidden.txt", "_SUCCESS.txt",
                 "deep/er/z.txt", "_temporary/y.txt"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    names = [Path(s.path).name for s in find_sources([tmp_path])]
    assert names == ["a.jsonl", "b.txt", "c.csv.gz", "z.txt"]
    found = find_sources([str(tmp_path / "**/*.txt"), tmp_path / "a.jsonl"])
    assert [Path(s.path).name for s in found][-1] == "a.jsonl"
    assert [s.format for s in find_sources([tmp_path / "c.csv.gz", tmp_path / "b.txt"])] == [
        "csv", "txt"]  # fmt: skip
    assert find_sources([tmp_path / "notes.md"], "txt")[0].format == "txt"


@pytest.mark.parametrize(
    ("inputs", "file_format", "part"),
    [
        ([], None, "nothing to read"),
        (["-", "a.txt"], None, "cannot be combined"),
        (["-"], "parquet", "standard input"),
        (["a.txt", "./a.txt"], None, "named twice"),
        (["nowhere.txt"], None, "cannot read nowhere.txt"),
        (["*.json"], None, "has no files"),
        (["empty"], None, "has no files"),
        (["a.md"], None, "cannot tell how to read a.md"),
        (["a.txt"], "xml", "must be one of txt"),
        (["a.txt\0"], "txt", "cannot read"),
    ],
)
def test_what_cannot_be_found_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs, file_format, part
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in ("a.txt", "a.md"):
        (tmp_path / name).write_text("x\n")
    with pytest.raises(InputValueError, match=part.replace("*", r"\*")):
        find_sources(inputs, file_format)


def _plain(path: Path, data: bytes) -> None:
    path.write_bytes(data)


OPENERS: dict[str, Callable[[Path, bytes], object]] = {
    "": _plain,
    ".gz": lambda path, data: path.write_bytes(gzip.compress(data)),
    ".bz2": lambda path, data: path.write_bytes(bz2.compress(data)),
    ".xz": lambda path, data: path.write_bytes(lzma.compress(data)),
}


def lines_bytes(texts: list[str], kind: str) -> bytes:
    if kind == "txt":
        return "\r\n".join(texts).encode()
    if kind == "jsonl":
        return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerows([["text", "n"], *([text, i] for i, text in enumerate(texts))])
    return b"\xef\xbb\xbf" + file.getvalue().encode()


@pytest.mark.parametrize("suffix", OPENERS)
@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_reading_can_begin_at_any_shard(
    tmp_path_factory: pytest.TempPathFactory, kind: str, suffix: str, data
) -> None:
    folder = tmp_path_factory.mktemp("files")
    lines = st.text(st.characters(exclude_characters="\r\n" if kind == "txt" else "\0",
                                  exclude_categories=["Cs"]), min_size=1, max_size=9)  # fmt: skip
    files = data.draw(st.lists(st.lists(lines, max_size=9), min_size=1, max_size=4))
    per_shard = data.draw(st.integers(1, 7))
    for number, texts in enumerate(files):
        OPENERS[suffix](folder / f"{number}.{kind}{suffix}", lines_bytes(texts, kind))
    sources = find_sources([folder])
    known = survey(sources, per_shard, 1 << 20)
    expected = [text for texts in files for text in texts]
    if kind == "txt":  # a byte order mark is none
        expected = [
            text.removeprefix("\ufeff") if place == 0 else text
            for texts in files
            for place, text in enumerate(texts)
        ]
    assert known.rows == len(expected)
    assert [s.rows for s in known.sources] == [len(texts) for texts in files]
    assert len(known.starts) == -(-len(expected) // per_shard)
    for shard, start in enumerate(known.starts):
        first = shard * per_shard
        stop = min(first + per_shard, len(expected))
        windows = list(
            read_windows(
                known.sources, Fields(), rows_per_shard=per_shard, start=start, first=first,
                stop=stop,
            )
        )  # fmt: skip
        assert [text for window in windows for text in window.texts] == expected[first:stop]
        assert [n for window in windows for n in window.numbers] == list(range(first, stop))
    whole = list(read_windows(known.sources, Fields(), rows_per_shard=per_shard))
    assert [text for window in whole for text in window.texts] == expected


def test_reading_of_parquet_can_begin_at_any_shard(tmp_path: Path, arrow) -> None:
    import pyarrow as pa

    texts = texts_of(50)
    table = pa.table({"text": texts, "n": list(range(50))})
    arrow.write_table(table.slice(0, 30), tmp_path / "a.parquet", row_group_size=7)
    arrow.write_table(table.slice(30), tmp_path / "b.parquet", row_group_size=4)
    known = survey(find_sources([tmp_path]), 9, 1 << 20)
    assert (known.rows, len(known.starts)) == (50, 6)
    for shard, start in enumerate(known.starts):
        first, stop = shard * 9, min(shard * 9 + 9, 50)
        (window,) = read_windows(
            known.sources,
            Fields(keep=("n",)),
            rows_per_shard=9,
            start=start,
            first=first,
            stop=stop,
        )
        assert window.texts == texts[first:stop]
        assert window.values["n"].to_pylist() == list(range(first, stop))


def test_zstd_is_read(tmp_path: Path, arrow, tiny: Encoder) -> None:
    import pyarrow as pa

    with pa.CompressedOutputStream(str(tmp_path / "a.txt.zst"), "zstd") as file:
        file.write(b"the cat\na dog\n")
    with pa.CompressedOutputStream(str(tmp_path / "b.csv.zst"), "zstd") as file:
        file.write(b"text\nthe cat\na dog\n")
    for name in ("a.txt.zst", "b.csv.zst"):
        encode_files(tiny, tmp_path / name, tmp_path / "out.npy", resume=False)
        np.testing.assert_allclose(
            np.load(tmp_path / "out.npy"), tiny.encode(["the cat", "a dog"]), atol=1e-6
        )


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_a_damaged_archive_is_found_before_anything_is_written(
    tmp_path: Path, tiny: Encoder, suffix: str
) -> None:
    OPENERS[suffix](tmp_path / f"a.txt{suffix}", "\n".join(texts_of(3000)).encode())
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(InputValueError, match="damaged"):
        encode_files(tiny, file, tmp_path / "out", out_format="npy")
    assert not (tmp_path / "out").exists()


# --- what comes out -------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_windows")
def test_shards_hold_what_the_encoder_gives(tmp_path: Path, tiny: Encoder) -> None:
    texts = texts_of(150)
    (tmp_path / "a.txt").write_text("\n".join(texts[:70]) + "\n")
    write_jsonl(tmp_path / "b.jsonl", [{"text": text} for text in texts[70:]])
    done = encode_files(
        tiny, [tmp_path / "a.txt", tmp_path / "b.jsonl"], tmp_path / "out", out_format="npy",
        rows_per_shard=40,
    )  # fmt: skip
    vectors, rows = npy_of(tmp_path / "out")
    np.testing.assert_allclose(vectors, tiny.encode(texts), atol=1e-5)
    assert [row["id"] for row in rows] == list(range(150))
    assert (done.rows_in, done.rows, done.dead_letters, done.shards) == (150, 150, 0, 4)
    assert done.complete
    assert done.encoded == 150
    assert (done.tokens, 0 <= done.padding < 0.5) == (
        sum(map(len, tiny.tokenize(texts).ids)), True)  # fmt: skip
    manifest = json.loads((tmp_path / "out/_manifest.json").read_text())
    assert [shard["rows"] for shard in manifest["shards"]] == [40, 40, 40, 30]
    assert sorted(contents(tmp_path / "out")) == sorted(
        ["_manifest.json", *(f"part-00000{i}.{s}" for i in range(4) for s in ("npy", "rows.jsonl"))]
    )
    import hashlib

    for shard in manifest["shards"]:
        data = (tmp_path / "out" / shard["file"]).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (shard["sha256"], shard["bytes"])


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_parquet_has_ids_fields_and_vectors_of_fixed_length(
    tmp_path: Path, tiny: Encoder, arrow, kind: str
) -> None:
    import pyarrow as pa

    texts = texts_of(50)
    rows = [{"key": f"k{i}", "text": t, "year": 1990 + i, "tags": ["a", i], "w": i / 4, "on": i > 3}
            for i, t in enumerate(texts)]  # fmt: skip
    file = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        write_jsonl(file, rows)
    elif kind == "csv":
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "tags"}
        columns["tags"] = [[str(tag) for tag in row["tags"]] for row in rows]
        arrow.write_table(pa.table(columns), file, row_group_size=13)
    done = encode_files(
        tiny, file, tmp_path / "out", id_field="key", keep=["year", "tags", "w", "on"],
        rows_per_shard=30,
    )  # fmt: skip
    assert (done.rows, done.shards) == (50, 2)
    table = pa.concat_tables(
        arrow.read_table(part) for part in sorted((tmp_path / "out").glob("*.parquet"))
    )
    assert table.column_names == ["id", "year", "tags", "w", "on", "vector"]
    column = table.schema.field("vector").type
    assert (column.list_size, column.value_type) == (16, pa.float32())
    assert table["id"].to_pylist() == [row["key"] for row in rows]
    expected: dict[str, list[Any]] = {
        "jsonl": [[row["year"] for row in rows], [json.dumps(row["tags"]) for row in rows],
                  [row["w"] for row in rows], [row["on"] for row in rows]],
        "csv": [[str(row[name]) for row in rows] for name in ("year", "tags", "w", "on")],
        "parquet": [[row["year"] for row in rows], [["a", str(i)] for i in range(50)],
                    [row["w"] for row in rows], [row["on"] for row in rows]],
    }  # fmt: skip
    for name, values in zip(("year", "tags", "w", "on"), expected[kind], strict=True):
        assert table[name].to_pylist() == values
    vectors = np.stack(table["vector"].to_numpy())
    np.testing.assert_allclose(vectors, tiny.encode(texts), atol=1e-5)
    about = json.loads(table.schema.metadata[b"flowvec"])
    assert about["fingerprint"] == tiny.fingerprint


@pytest.mark.parametrize("precision", ["float16", "int8", "uint8", "ubinary"])
@pytest.mark.parametrize("out_format", ["npy", "parquet"])
def test_vectors_come_in_the_precision_that_was_asked_for(
    tmp_path: Path, mini: Encoder, precision, out_format
) -> None:
    if out_format == "parquet":
        pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")
    texts = texts_of(30)
    (tmp_path / "a.txt").write_text("\n".join(texts))
    out = tmp_path / f"a.{out_format}"
    done = encode_files(mini, tmp_path / "a.txt", out, precision=precision)
    expected = (
        mini.encode(texts).astype(np.float16)
        if precision == "float16"
        else mini.encode(texts, precision=precision)
    )
    if out_format == "npy":
        found = np.load(out)
    else:
        import pyarrow.parquet

        column = pyarrow.parquet.read_table(out)["vector"]
        assert str(column.type.value_type) == {"float16": "halffloat", "ubinary": "uint8"}.get(
            precision, precision
        )
        found = np.stack(column.to_numpy())
    assert found.dtype == expected.dtype
    assert done.dim == expected.shape[1]
    if precision == "float16":
        np.testing.assert_allclose(found, expected, atol=1e-3)
    else:
        assert (found == expected).mean() > 0.999  # last bits of floats


def test_a_single_file_has_a_row_map_where_it_says_something(tmp_path: Path, tiny: Encoder) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": "the cat"}, {"text": None}, {"text": "a dog"}])
    out = tmp_path / "out.npy"
    encode_files(tiny, tmp_path / "a.jsonl", out)
    assert np.load(out).shape == (2, 16)
    rows = [json.loads(line) for line in (tmp_path / "out.rows.jsonl").read_text().splitlines()]
    assert rows == [{"row": 0, "id": 0}, {"row": 2, "id": 2}]
    (letter,) = map(json.loads, (tmp_path / "out.dead_letter.jsonl").read_text().splitlines())
    assert (letter["row"], letter["code"]) == (1, "null")
    # What an earlier run left must not be taken for this one's.
    (tmp_path / "b.txt").write_text("the cat\n")
    encode_files(tiny, tmp_path / "b.txt", out, resume=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "b.txt", "out.npy"]


def test_nothing_in_is_nothing_out(tmp_path: Path, tiny: Encoder) -> None:
    (tmp_path / "a.txt").write_text("")
    for out in ("one.npy", "folder"):
        done = encode_files(tiny, tmp_path / "a.txt", tmp_path / out, out_format="npy")
        assert (done.rows_in, done.rows, done.shards, done.complete) == (0, 0, 1, True)
    assert np.load(tmp_path / "one.npy").shape == (0, 16)
    assert np.load(tmp_path / "folder/part-000000.npy").shape == (0, 16)
    again = encode_files(tiny, tmp_path / "a.txt", tmp_path / "folder", out_format="npy")
    assert again.complete


def test_an_empty_parquet_file_has_its_columns(tmp_path: Path, tiny: Encoder, arrow) -> None:
    (tmp_path / "a.jsonl").write_text("")
    encode_files(tiny, tmp_path / "a.jsonl", tmp_path / "out.parquet", keep=["k"])
    table = arrow.read_table(tmp_path / "out.parquet")
    assert (table.num_rows, table.column_names) == (0, ["id", "k", "vector"])


def test_equal_texts_are_encoded_once(tmp_path: Path, tiny: Encoder) -> None:
    texts = [WORDS[i % 5] for i in range(60)]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    once = encode_files(tiny, tmp_path / "a.txt", tmp_path / "once.npy", dedup=True)
    assert (once.encoded, once.rows) == (5, 60)
    np.testing.assert_allclose(np.load(tmp_path / "once.npy"), tiny.encode(texts), atol=1e-5)


def test_prompts_are_put_before_each_text(tmp_path: Path, tiny: Encoder) -> None:
    (tmp_path / "a.txt").write_text("the cat\na dog\n")
    encode_files(tiny, tmp_path / "a.txt", tmp_path / "o.npy", prompt_name="query")
    expected = tiny.encode(["the cat", "a dog"], prompt_name="query")
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), expected, atol=1e-5)


# --- rows that cannot be embedded -----------------------------------------------------------------

POISON = [
    ("null", b'{"id": "a", "text": null}'),
    ("nan", b'{"id": "b", "text": NaN}'),
    ("not_text", b'{"id": "c", "text": 7}'),
    ("not_text", b'{"id": "d", "text": true}'),
    ("not_text", b'{"id": "e", "text": ["nested"]}'),
    ("not_text", b'{"id": "f", "text": {"x": 1}}'),
    ("missing_field", b'{"id": "g"}'),
    ("malformed", b'{"id": "h", "text": '),
    ("malformed", b"[1, 2]"),
    ("malformed", b"[" * 100_000),
    ("malformed", b'{"id": "i", "text": ' + b"9" * 5000 + b"}"),
    ("invalid_utf8", b'{"id": "j", "text": "\xff"}'),
    ("too_large", b'{"id": "k", "text": "' + b"x" * 200_000 + b'"}'),
    ("bad_id", b'{"id": null, "text": "the cat"}'),
    ("bad_id", b'{"id": 1.5, "text": "the cat"}'),
    ("bad_field", b'{"id": 5, "text": "the cat"}'),
    ("bad_field", b'{"id": "l", "text": "the cat", "n": "seven"}'),
    ("bad_field", b'{"id": "m", "text": "the cat", "n": 9223372036854775808}'),
    ("too_long", b'{"id": "n", "text": "' + b"cat " * 400 + b'"}'),
]


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("seed", range(3))
def test_every_poison_is_named_and_touches_no_other_row(
    tmp_path: Path, tiny: Encoder, seed: int
) -> None:
    rng = random.Random(seed)
    texts = texts_of(80, seed, most=8)
    good = [
        json.dumps({"id": f"good {i}", "text": t, "n": i}).encode() for i, t in enumerate(texts)
    ]
    lines = [(None, line) for line in good]
    for i, (code, line) in enumerate(rng.choices(POISON, k=60) + POISON):
        named = line.replace(b'"id": "n"', b'"id": "n%d"' % i)  # no two texts have one id
        lines.insert(rng.randrange(1, len(lines)), (code, named))
    blanks = 3
    for _ in range(blanks):
        lines.insert(rng.randrange(1, len(lines)), ("blank", rng.choice([b"", b"  "])))
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(line for _, line in lines))
    done = encode_files(
        tiny, tmp_path / "a.jsonl", tmp_path / "out", id_field="id", keep=["n"], out_format="npy",
        rows_per_shard=37, truncation="error", max_text_bytes=150_000,
    )  # fmt: skip
    vectors, rows = npy_of(tmp_path / "out")
    assert [row["id"] for row in rows] == [f"good {i}" for i in range(80)]
    assert [row["n"] for row in rows] == list(range(80))
    np.testing.assert_allclose(vectors, tiny.encode(texts), atol=1e-5)
    letters = letters_of(tmp_path / "out")
    bad = [(row, code) for row, (code, _) in enumerate(lines) if code not in (None, "blank")]
    assert [(letter["row"], letter["code"]) for letter in letters] == bad
    assert {letter["source"] for letter in letters} == {str(tmp_path / "a.jsonl")}
    assert all(letter["reason"] for letter in letters)
    assert (done.rows_in, done.rows, done.dead_letters, done.blank) == (
        80 + len(bad), 80, len(bad), blanks)  # fmt: skip
    assert sum(done.codes.values()) == len(bad)
    for letter in letters:
        if letter["code"] in ("null", "nan", "too_long"):
            assert letter["id"][0] in "abn"


def test_poison_in_csv(tmp_path: Path, tiny: Encoder) -> None:
    (tmp_path / "a.csv").write_bytes(
        b"id,text\n1,the cat\n2\n3,a,b\n4,\xff\n5,\"two\nlines\"\n6,\"x\"y\n\n7,"
        + b"z" * 3000
        + b"\n8,a dog\n9,\"open\n"
    )  # fmt: skip
    done = encode_files(
        tiny, tmp_path / "a.csv", tmp_path / "out", id_field="id", out_format="npy",
        max_text_bytes=2000,
    )  # fmt: skip
    vectors, rows = npy_of(tmp_path / "out")
    assert [row["id"] for row in rows] == ["1", "5", "8"]
    expected = tiny.encode(["the cat", "two\nlines", "a dog"])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    codes = [letter["code"] for letter in letters_of(tmp_path / "out")]
    assert codes == [
        "malformed",
        "malformed",
        "invalid_utf8",
        "malformed",
        "too_large",
        "malformed",
    ]
    assert done.rows_in == 9


def test_poison_in_parquet(tmp_path: Path, tiny: Encoder, arrow) -> None:
    import pyarrow as pa

    raw = [b"the cat", None, b"\xff\xfe", b"x" * 3000, b"a dog"]
    texts = pa.array(raw, pa.binary()).view(pa.string())
    table = pa.table({"text": texts, "key": ["a", "b", "c", "d", None], "n": [1, 2, 3, 4, 5]})
    arrow.write_table(table, tmp_path / "a.parquet")
    encode_files(
        tiny, tmp_path / "a.parquet", tmp_path / "out", id_field="key", keep=["n"],
        max_text_bytes=2000,
    )  # fmt: skip
    found = arrow.read_table(tmp_path / "out/part-000000.parquet")
    assert found["id"].to_pylist() == ["a"]
    assert found["n"].to_pylist() == [1]
    letters = letters_of(tmp_path / "out")
    assert [(x["row"], x["code"], x["id"]) for x in letters] == [
        (1, "null", "b"), (2, "invalid_utf8", "c"), (3, "too_large", "d"), (4, "bad_id", None)
    ]  # fmt: skip


def test_poison_in_txt(tmp_path: Path, tiny: Encoder) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfthe cat\r\n\xff\n\n" + b"y" * 3000 + b"\na dog")
    done = encode_files(
        tiny, tmp_path / "a.txt", tmp_path / "out", out_format="npy", max_text_bytes=2000
    )
    vectors, rows = npy_of(tmp_path / "out")
    assert [row["row"] for row in rows] == [0, 2, 4]  # a blank line is an empty text
    np.testing.assert_allclose(vectors, tiny.encode(["the cat", "", "a dog"]), atol=1e-5)
    codes = [(letter["row"], letter["code"]) for letter in letters_of(tmp_path / "out")]
    assert codes == [(1, "invalid_utf8"), (3, "too_large")]
    assert done.rows_in == 5


@pytest.mark.parametrize("dedup", [False, True])
def test_a_text_for_which_the_model_gives_nan_is_a_dead_letter(
    tmp_path: Path, nan_dir: Path, dedup: bool
) -> None:
    texts = ["cat", "nan", "dog", "nan", "cat"]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    with Encoder.load(nan_dir, provider="cpu") as encoder:
        encode_files(encoder, tmp_path / "a.txt", tmp_path / "out", out_format="npy", dedup=dedup)
        expected = encoder.encode(["cat", "dog", "cat"])
    np.testing.assert_allclose(npy_of(tmp_path / "out")[0], expected, atol=1e-5)
    letters = letters_of(tmp_path / "out")
    assert [(x["row"], x["id"], x["code"]) for x in letters] == [
        (1, 1, "non_finite"), (3, 3, "non_finite")]  # fmt: skip


def test_strict_stops_at_the_first(tmp_path: Path, tiny: Encoder) -> None:
    rows: list[Any] = [{"text": "the cat"}] * 25
    rows[13] = {"text": None}
    write_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(BulkError, match=r"a\.jsonl, row 13: text is null"):
        encode_files(
            tiny, tmp_path / "a.jsonl", tmp_path / "out", out_format="npy", rows_per_shard=10,
            strict=True,
        )  # fmt: skip
    assert not list((tmp_path / "out").glob("*.partial"))
    done = encode_files(
        tiny, tmp_path / "a.jsonl", tmp_path / "out", out_format="npy", rows_per_shard=10
    )
    assert (done.shards_before, done.rows, done.dead_letters) == (1, 24, 1)


@pytest.mark.parametrize(
    ("content", "options", "part"),
    [
        ('{"body": "x"}\n', {}, "no field 'text' in its first rows; it has body"),
        ('{"text": "x"}\n', {"keep": ["k"]}, "no field 'k' in its first rows"),
        ('{"text": "x"}\n', {"keep": ["vector"]}, "cannot be kept"),
        ('{"text": "x"}\n', {"keep": ["id"]}, "cannot be kept"),
        ('{"text": "x"}\n', {"precision": "int4"}, "precision must be one of"),
        ('{"text": "x"}\n', {"truncation": "maybe"}, "truncation must be one of"),
        ('{"text": "x"}\n', {"prompt_name": "none"}, "no prompt"),
        ('{"text": "x"}\n', {"rows_per_shard": 0}, "at least 1"),
        ('{"text": "x"}\n', {"max_text_bytes": 0}, "at least 1"),
        ('{"text": "x"}\n', {"share": (3, 2)}, "from 1 to n"),
        ('{"text": "x"}\n', {"share": (0, 2)}, "from 1 to n"),
        ('{"text": "x"}\n', {"out_format": "csv"}, "one of parquet, npy, collection"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    tmp_path: Path, tiny: Encoder, content, options, part
) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(InputValueError, match=part):
        encode_files(
            tiny, tmp_path / "a.jsonl", tmp_path / "out", **({"out_format": "npy"} | options)
        )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl"]


# --- going on -------------------------------------------------------------------------------------


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """100 rows, a few of which cannot be embedded."""
    return write_jsonl(
        tmp_path / "rows.jsonl",
        [{"text": None if i % 17 == 3 else t} for i, t in enumerate(texts_of(100))],
    )


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """1,000 rows, a few of which cannot be embedded: more than are on their way at a time."""
    texts = texts_of(1000)
    return write_jsonl(
        tmp_path / "many.jsonl",
        [{"text": None if i % 17 == 3 else text} for i, text in enumerate(texts)],
    )


COMMON: dict[str, Any] = {"out_format": "npy", "rows_per_shard": 24}


@pytest.mark.usefixtures("small_windows")
def test_a_job_that_was_stopped_goes_on_with_the_same_bytes(
    tmp_path: Path, tiny: Encoder, many: Path
) -> None:
    whole = encode_files(tiny, many, tmp_path / "whole", **COMMON)
    stop = threading.Event()
    stop.set()
    nothing = encode_files(tiny, many, tmp_path / "out", stop=stop, **COMMON)
    assert (nothing.complete, nothing.rows, nothing.shards) == (False, 0, 0)
    before = 0
    for _ in range(2):
        stop = StopAfter(tmp_path / "out", 1)
        done = encode_files(tiny, many, tmp_path / "out", stop=stop, **COMMON)
        assert not done.complete
        assert done.shards_before == before < done.shards
        before = done.shards
        assert not list((tmp_path / "out").glob("*.partial"))
    done = encode_files(tiny, many, tmp_path / "out", **COMMON)
    assert done.complete
    assert done.shards_before == before
    assert (done.rows, done.dead_letters) == (941, 59)
    # Of all runs, not of the last one alone.
    assert done.codes == whole.codes == {"null": 59}
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    again = encode_files(tiny, many, tmp_path / "out", **COMMON)
    assert (again.encoded, again.complete, again.rows) == (0, True, 941)
    assert again.codes == whole.codes
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_windows")
def test_shares_fill_one_folder_with_the_files_of_one_job(
    tmp_path: Path, tiny: Encoder, rows: Path
) -> None:
    encode_files(tiny, rows, tmp_path / "whole", **COMMON)
    for index in (3, 1, 2):
        encode_files(tiny, rows, tmp_path / "out", share=(index, 3), **COMMON)
    whole, shared = contents(tmp_path / "whole"), contents(tmp_path / "out")
    parts = {name for name in whole if name.startswith("part-")}
    assert {name for name in shared if name.startswith("part-")} == parts
    assert all(shared[name] == whole[name] for name in parts)
    letters = b"".join(shared[f"_dead_letter.{i}-of-3.jsonl"] for i in (1, 2, 3)
                       if f"_dead_letter.{i}-of-3.jsonl" in shared)  # fmt: skip
    assert sorted(letters.splitlines()) == sorted(whole["_dead_letter.jsonl"].splitlines())


@pytest.mark.parametrize("damage", ["deleted", "cut", "renamed only", "half a line", "no journal"])
@pytest.mark.usefixtures("small_windows")
def test_what_the_journal_does_not_vouch_for_is_made_again(
    tmp_path: Path, tiny: Encoder, many: Path, damage: str
) -> None:
    encode_files(tiny, many, tmp_path / "whole", **COMMON)
    out = tmp_path / "out"
    encode_files(tiny, many, out, stop=StopAfter(out, 2), **COMMON)
    part, journal = out / "part-000001.npy", out / "_journal.jsonl"
    if damage == "deleted":
        part.unlink()
    elif damage == "cut":
        part.write_bytes(part.read_bytes()[:-1])
    elif damage == "renamed only":
        journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    elif damage == "half a line":
        journal.write_bytes(journal.read_bytes()[:-5])
    else:
        journal.unlink()
    (out / "part-000003.npy.partial").write_bytes(b"left by a kill, and an earlier version")
    (out / "_part-000039.npy.17-ab.partial").write_bytes(b"left by a kill")
    done = encode_files(tiny, many, out, **COMMON)
    assert done.complete
    assert contents(out) == contents(tmp_path / "whole")


def test_a_finished_job_whose_file_is_gone_makes_it_again(
    tmp_path: Path, tiny: Encoder, rows: Path
) -> None:
    out = tmp_path / "out"
    encode_files(tiny, rows, out, **COMMON)
    before = contents(out)
    (out / "part-000002.npy").unlink()
    assert encode_files(tiny, rows, out, **COMMON).shards_before == 4
    assert contents(out) == before
    (out / "_dead_letter.jsonl").unlink()
    encode_files(tiny, rows, out, **COMMON)
    assert contents(out) == before


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("option", "options.precision was"),
        ("input", "sha256 was"),
        ("more", "rows was 100 and is 101"),
        ("model", "model.fingerprint was"),
        ("other file", "is gone"),
    ],
)
def test_another_job_is_refused_and_the_difference_named(
    tmp_path: Path, tiny: Encoder, tiny_dir: Path, nan_dir: Path, rows: Path, change: str, part: str
) -> None:
    out = tmp_path / "out"
    encode_files(tiny, rows, out, **COMMON)
    before = contents(out)
    options, encoder, inputs = dict(COMMON), tiny, rows
    if change == "option":
        options["precision"] = "float16"
    elif change == "input":
        rows.write_text(rows.read_text().replace("cat", "dog", 1))
    elif change == "more":
        rows.write_text(rows.read_text() + '{"text": "x"}\n')
    elif change == "model":
        encoder = Encoder.load(nan_dir, provider="cpu")
    else:
        inputs = Path(rows.rename(tmp_path / "other.jsonl"))
    with pytest.raises(BulkError, match=part):
        encode_files(encoder, inputs, out, **options)
    assert contents(out) == before
    done = encode_files(encoder, inputs, out, resume=False, **options)
    assert (done.complete, done.shards_before) == (True, 0)
    encode_files(encoder, inputs, tmp_path / "anew", **options)
    assert contents(out) == contents(tmp_path / "anew")


def test_a_file_that_was_only_touched_is_the_same(
    tmp_path: Path, tiny: Encoder, rows: Path
) -> None:
    encode_files(tiny, rows, tmp_path / "out", **COMMON)
    before = contents(tmp_path / "out")
    os.utime(rows, ns=(1, 1))
    assert encode_files(tiny, rows, tmp_path / "out", **COMMON).encoded == 0
    assert contents(tmp_path / "out") == before


def test_an_input_that_changes_meanwhile_is_noticed(
    tmp_path: Path, tiny: Encoder, rows: Path
) -> None:
    def change(_: object) -> None:
        os.utime(rows, ns=(1, 1))

    with pytest.raises(BulkError, match="changed while it was being read"):
        encode_files(tiny, rows, tmp_path / "out", on_progress=change, **COMMON)
    assert "shards" not in json.loads((tmp_path / "out/_manifest.json").read_text())


@pytest.mark.parametrize("change", ["longer", "shorter", "another"])
def test_a_single_file_of_a_mixed_input_never_appears(
    tmp_path: Path, tiny: Encoder, rows: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    found = files.survey

    def then_changed(*arguments):
        known = found(*arguments)
        lines = rows.read_text().splitlines(keepends=True)
        lines = {"longer": [*lines, lines[0]], "shorter": lines[:50]}.get(
            change, [line.replace("cat", "dogs") for line in lines]
        )
        rows.write_text("".join(lines))
        return known

    monkeypatch.setattr(files, "survey", then_changed)
    with pytest.raises(BulkError, match="changed"):
        encode_files(tiny, rows, tmp_path / "out.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_folder_of_others_is_left_alone(tmp_path: Path, tiny: Encoder, rows: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("")
    for resume in (True, False):
        with pytest.raises(BulkError, match=r"holds other files \(thesis\.tex\)"):
            encode_files(tiny, rows, tmp_path / "out", resume=resume, **COMMON)
    names = {p.name for p in (tmp_path / "out").iterdir()} - {".lock"}
    assert names == {"thesis.tex"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"flowvec_bulk": 99}'])
def test_a_damaged_manifest_is_an_error(
    tmp_path: Path, tiny: Encoder, rows: Path, content: str
) -> None:
    encode_files(tiny, rows, tmp_path / "out", **COMMON)
    (tmp_path / "out/_manifest.json").write_text(content)
    with pytest.raises(BulkError, match=r"manifest\.json"):
        encode_files(tiny, rows, tmp_path / "out", **COMMON)


def test_without_ray_nothing_is_begun(
    tmp_path: Path, tiny: Encoder, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"\[cpu,files,ray\]"):
        encode_files(tiny, rows, tmp_path / "out", workers=RayWorkers(2), **COMMON)
    assert not (tmp_path / "out").exists()


def test_two_at_once_are_one_too_many(tmp_path: Path, tiny: Encoder, rows: Path) -> None:
    refused: list[Exception] = []

    def second(_: object) -> None:
        if not refused:
            try:
                encode_files(tiny, rows, tmp_path / "out", **COMMON)
            except FlowvecError as error:
                refused.append(error)

    assert encode_files(tiny, rows, tmp_path / "out", on_progress=second, **COMMON).complete
    assert "is being written by another process" in str(refused[0])


def test_a_reader_that_fails_comes_after_what_it_gave() -> None:
    def source():
        yield from range(5)
        raise ValueError("broken")

    found: list[int] = []
    with pytest.raises(ValueError, match="broken"):
        found.extend(run_ahead(source(), 2, threading.Event()))
    assert found == list(range(5))


def test_a_consumer_that_leaves_ends_the_reader() -> None:
    closed = threading.Event()

    def source():
        try:
            yield from range(1000)
        finally:
            closed.set()

    running = run_ahead(source(), 2, threading.Event())
    assert next(running) == 0
    running.close()
    assert closed.is_set()
    assert not [t for t in threading.enumerate() if t.name == "flowvec-read"]


# --- into a collection ----------------------------------------------------------------------------


def test_vectors_go_into_a_collection(tmp_path: Path, tiny: Encoder) -> None:
    texts = texts_of(60)
    file = write_jsonl(
        tmp_path / "a.jsonl",
        [{"key": f"k{i}", "text": t, "n": i, "tags": ["x", i]} for i, t in enumerate(texts)]
        + [{"key": "bad", "text": None}],
    )
    options: dict[str, Any] = {"id_field": "key", "keep": ["n", "tags"], "out_format": "collection",
                               "rows_per_shard": 25}  # fmt: skip
    done = encode_files(tiny, file, tmp_path / "c", **options)
    assert (done.rows, done.dead_letters, done.shards) == (60, 1, 3)
    with Collection.open(tmp_path / "c", encoder=tiny) as c:
        assert len(c) == 60
        (item,) = c.get(["k7"])
        assert item is not None
        assert (item.text, item.metadata) == (texts[7], {"n": 7, "tags": ["x", 7]})
        np.testing.assert_allclose(item.vector, tiny.encode(texts[7]), atol=1e-5)
        assert c.search(item.vector, 1)[0].text == texts[7]
    (letter,) = letters_of(tmp_path / "c.job")
    assert letter["id"] == "bad"
    assert encode_files(tiny, file, tmp_path / "c", **options).encoded == 0


def test_a_row_that_the_model_fails_is_not_in_the_collection(tmp_path: Path, nan_dir: Path) -> None:
    (tmp_path / "a.txt").write_text("cat\nnan\ndog\n")
    with Encoder.load(nan_dir, provider="cpu") as encoder:
        encode_files(encoder, tmp_path / "a.txt", tmp_path / "c", out_format="collection")
    with Collection.open(tmp_path / "c") as c:
        assert [item and item.text for item in c.get([0, 1, 2])] == ["cat", None, "dog"]


def test_a_worker_gives_memory_back_after_each_shard(
    tmp_path: Path, tiny: Encoder, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bool] = []
    monkeypatch.setattr(work, "trim_memory", lambda: given.append(True))
    known = survey(find_sources([rows]), 24, 1 << 20)
    options = BulkOptions("npy", Fields(), "float32", None, "truncate", False, 24)
    (tmp_path / "out").mkdir()
    for shard in (0, 3):
        found = run_shard(tiny, known, options, None, Folder(tmp_path / "out"), shard)
        assert found.record.file == f"part-00000{shard}.npy"
    assert len(given) == 2


def test_batches_depend_on_no_number_of_cores(tiny: Encoder) -> None:
    options = BulkOptions("npy", Fields(), "float32", None, "truncate", False, 100)
    assert not job_of(tiny, options).shared_out


@pytest.mark.usefixtures("small_windows")
def test_a_collection_is_gone_on_with(tmp_path: Path, tiny: Encoder, many: Path) -> None:
    options: dict[str, Any] = {"out_format": "collection", "rows_per_shard": 24}
    stop = StopAfter(tmp_path / "c.job", 1)
    first = encode_files(tiny, many, tmp_path / "c", stop=stop, **options)
    assert not first.complete
    assert encode_files(tiny, many, tmp_path / "c", **options).complete
    with Collection.open(tmp_path / "c") as c:
        assert len(c) == 941
    other = write_jsonl(many.parent / "other.jsonl", [{"text": "x"}])
    with pytest.raises(FlowvecError):
        encode_files(tiny, other, tmp_path / "c", **options)
    with pytest.raises(InputValueError, match="float32 or float16"):
        encode_files(tiny, many, tmp_path / "d", precision="binary", **options)


# --- estimates and the command --------------------------------------------------------------------


def test_an_estimate_counts_rows_and_scales_a_sample(tmp_path: Path, tiny: Encoder) -> None:
    texts = texts_of(400)
    rows = [{"text": None if i % 4 == 0 else text} for i, text in enumerate(texts)]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    found = estimate_files(tiny, file, rows_per_shard=50)
    assert (found.rows, found.shards) == (400, 8)
    assert found.dead_share == pytest.approx(0.25)
    tokens = sum(map(len, tiny.tokenize([r["text"] for r in rows if r["text"]]).ids))
    assert found.tokens == pytest.approx(tokens, rel=0.01)
    assert found.bytes == 300 * 16 * 4
    assert found.seconds > 0
    half = estimate_files(tiny, file, rows_per_shard=50, precision="float16")
    assert half.bytes == found.bytes // 2


def test_the_command_encodes_folders_and_says_what_it_did(flowvec, tmp_path, tiny_dir) -> None:
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in/a.jsonl", [{"t": "the cat", "u": "x"}, {"t": 5, "u": "y"}])
    options = ("--text-field", "t", "--id-field", "u", "--out-format", "npy", "--provider", "cpu")
    done = flowvec("encode", tiny_dir, "in", "-o", "out", *options)
    assert done.returncode == 0, done.stderr
    assert "2 rows in, 1 x 16 float32 out, 1 dead letter (1 not_text); 1 file;" in done.stdout
    again = flowvec("encode", tiny_dir, "in", "-o", "out", *options, "--json")
    found = json.loads(again.stdout)
    assert (found["encoded"], found["rows_in"], found["shards_before"]) == (0, 2, 1)
    refused = flowvec("encode", tiny_dir, "in", "-o", "out", *options, "--precision", "float16")
    assert (refused.returncode, "options.precision was" in refused.stderr) == (2, True)
    anew = flowvec("encode", tiny_dir, "in", "-o", "out", *options, "--restart", "--strict")
    assert (anew.returncode, "a.jsonl, row 1: t is a number" in anew.stderr) == (2, True)
    dry = flowvec("encode", tiny_dir, "in", "--dry-run", "--text-field", "t")
    assert "2 rows" in dry.stdout
    into = flowvec("encode", tiny_dir, "in", "--into", "c", "--text-field", "t", "--id-field", "u")
    assert into.returncode == 0, into.stderr
    assert "the cat" in flowvec("search", "c", "cat").stdout


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_a_shard_and_shows_how_to_go_on(
    tmp_path: Path, tiny_dir: Path, number: int
) -> None:
    (tmp_path / "a.txt").write_text("\n".join(texts_of(60_000)))
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from flowvec.cli.main import main; main()"
    )
    words = ["encode", str(tiny_dir), "a.txt", "-o", "out", "--out-format", "npy",
             "--rows-per-shard", "500", "--provider", "cpu"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    until = time.monotonic() + 60
    while not list(tmp_path.glob("out/part-*.npy")) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + number, told
    assert "stopped; this goes on:\nflowvec encode" in told
    assert not list(tmp_path.glob("out/*.partial"))
    lines = (tmp_path / "out/_journal.jsonl").read_text().splitlines()
    assert 0 < len(lines) < 120
    assert len(lines) == len(list(tmp_path.glob("out/part-*.npy")))


def test_one_wrong_row_does_not_decide_what_a_field_holds(tmp_path: Path, tiny: Encoder) -> None:
    rows = [{"id": f"k{i}", "text": "the cat", "n": i, "w": i if i % 2 else i / 2, "x": [i]}
            for i in range(20)]  # fmt: skip
    rows[3]["id"], rows[5]["n"] = 3, "five"
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    encode_files(tiny, file, tmp_path / "o", id_field="id", keep=["n", "w", "x"], out_format="npy")
    columns = json.loads((tmp_path / "o/_manifest.json").read_text())["columns"]
    assert columns == {"id": "string", "n": "int64", "w": "double", "x": "json"}
    assert [x["row"] for x in letters_of(tmp_path / "o")] == [3, 5]


def test_nothing_is_written_after_a_window_that_could_not_be(
    tmp_path: Path, tiny: Encoder, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WINDOW", 8)
    write, calls = ShardFile.write, []

    def failing(self, window, kept, vectors) -> None:
        calls.append(window.first)
        if window.first == 32:
            raise OSError(28, "No space left on device")
        write(self, window, kept, vectors)

    with monkeypatch.context() as patch:
        patch.setattr(ShardFile, "write", failing)
        with pytest.raises(BulkError, match=r"cannot write into .*: No space left"):
            encode_files(tiny, rows, tmp_path / "out", **COMMON)
    assert calls[-1] == 32
    encode_files(tiny, rows, tmp_path / "out", **COMMON)
    monkeypatch.undo()
    monkeypatch.setattr(reading, "WINDOW", 8)
    encode_files(tiny, rows, tmp_path / "whole", **COMMON)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_fields_beside_the_id_are_named_once() -> None:
    fields = Fields(id="key", keep=("key", "n", "n"))
    assert (fields.named, fields.beside_id) == (("key", "n"), ("n",))
    assert replace(fields, id=None).beside_id == ("key", "n")


def test_values_that_cannot_be_ids_do_not_change_the_column_of_those_that_can(
    tiny: Encoder, tmp_path: Path, arrow: Any
) -> None:
    rows = [{"id": key, "text": "a cat"} for key in (1, 1.5, 2, True, 3, [4], {"a": 1})]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    done = encode_files(tiny, file, tmp_path / "out", id_field="id")
    found = arrow.read_table(tmp_path / "out" / "part-000000.parquet")
    assert found["id"].to_pylist() == [1, 2, 3]
    assert done.codes == {"bad_id": 4}
