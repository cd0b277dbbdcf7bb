"""Lines are the same however their bytes come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server.line_reader import LineReader

MOST = 8


@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"a", b"\n")), max_size=8))
def test_lines_do_not_depend_on_pieces(pieces: list[bytes]) -> None:
    reader = LineReader(MOST)
    lines = [line for piece in pieces for line in reader.feed(piece)]
    assert reader.held_bytes <= MOST
    lines += reader.end()
    whole = enumerate(b"".join(pieces).split(b"\n"), 1)
    assert lines == [
        (number, line if len(line) <= MOST else None)
        for number, line in whole
        if line.strip() or len(line) > MOST
    ]
