"""Lines, and csv records, of files."""

from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from flowvec.texts.lines import BadRecord, csv_records, lines_of
from tests.drawing import examples


@examples(200)
@given(data=st.binary(max_size=200) | st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"bcd"])).map(
    b"".join), block=st.integers(1, 9), limit=st.integers(0, 20))  # fmt: skip
def test_lines_are_those_of_the_file(data: bytes, block: int, limit: int) -> None:
    parts = lines_of(io.BytesIO(data), limit, block_bytes=block)
    lines = [line for part in parts for line in part]
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    expected = [line.removesuffix(b"\r") for line in expected]
    assert lines == [line if len(line) <= limit else None for line in expected]


def test_a_line_without_end_takes_no_memory() -> None:
    class Endless(io.RawIOBase):
        left = 300

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return b"x" * size if self.left > 0 else b""

    import tracemalloc

    tracemalloc.start()
    assert list(lines_of(Endless(), 1 << 20)) == [[None]]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 << 20


def csv_by_python(data: bytes) -> list[list[str] | None]:
    """What Python's csv makes of it; None for a record that cannot be read."""
    text = io.TextIOWrapper(
        io.BytesIO(data), encoding="utf-8", errors="surrogateescape", newline=""
    )
    reader, records = csv.reader(text, strict=True), []
    while True:
        try:
            records.append(next(reader))
        except StopIteration:
            return [record for record in records if record != []]
        except csv.Error:
            records.append(None)


@examples(1000)
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
    records = list(csv_records(io.BytesIO(data), 1 << 20, block_bytes=block))
    assert [None if isinstance(r, BadRecord) else r for r in records] == csv_by_python(data)


@given(
    st.lists(st.lists(st.text(max_size=9), min_size=2, max_size=4), max_size=9),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 30),
)
def test_what_a_writer_wrote_is_read_back(rows: list[list[str]], end: str, block: int) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    data = file.getvalue().encode("utf-8", "surrogatepass")
    records = list(csv_records(io.BytesIO(data), 1 << 20, block_bytes=block))
    escaped = [
        [f.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape") for f in row]
        for row in rows
    ]
    assert records == escaped


def test_a_field_that_is_too_long_affects_no_other_row() -> None:
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
            self.first, self.left = first, 50

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            first, self.first = self.first, b""
            return first + b"x" * (size - len(first)) if self.left > 0 else b""

    import tracemalloc

    for first in (b"", b'"', b'a,"'):
        tracemalloc.start()
        (record,) = csv_records(Endless(first), 1 << 20)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert isinstance(record, BadRecord)
        assert record.code == "too_large"
        assert most < 16 << 20
