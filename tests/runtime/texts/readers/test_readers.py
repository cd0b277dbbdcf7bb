"""Reading from any row on, and compressed files."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import Encoder
from flowvec.bulk import encode_files
from flowvec.bulk.windows import read_windows
from flowvec.errors import InputValueError
from flowvec.texts.inventory import survey_inputs
from flowvec.texts.sources import find_sources
from flowvec.texts.window import Fields
from tests.drawing import examples
from tests.makers import texts_of


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
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        return "".join(["\ufeff", *lines]).encode()
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerows([["text", "n"], *([text, i] for i, text in enumerate(texts))])
    return b"\xef\xbb\xbf" + file.getvalue().encode()


@pytest.mark.parametrize("suffix", OPENERS)
@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv"])
@examples(25)
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
    known = survey_inputs(sources, per_shard, 1 << 20)
    if kind == "txt":  # a byte order mark is not of the text, and alone it is not a row
        read = [[texts[0].removeprefix("\ufeff"), *texts[1:]] if texts else [] for texts in files]
        files = [[] if texts == [""] else texts for texts in read]
    expected = [text for texts in files for text in texts]
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
    known = survey_inputs(find_sources([tmp_path]), 9, 1 << 20)
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
