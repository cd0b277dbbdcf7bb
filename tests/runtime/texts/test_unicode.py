"""Names for a terminal: one line, whatever is in them."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from flowvec.texts.unicode import printable
from flowvec.texts.urls import public, shown


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("plain é 日本語", "plain é 日本語"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\x1b[31mred\x07\x9b", r"\x1b[31mred\x07\x9b"),
        ("lat\udce9.txt", r"lat\xe9.txt"),
        ("half \ud83d", r"half \ud83d"),
        ("turned \u202e", r"turned \u202e"),
    ],
)
def test_control_characters_and_bytes_are_escaped(text: str, printed: str) -> None:
    assert printable(text) == shown(text) == printed
    assert printed.encode().decode() == printed
    assert public(text) == text


@pytest.mark.skipif(sys.platform != "linux", reason="names of bytes are POSIX's")
def test_a_command_prints_names_that_are_not_utf8(flowvec: Any, tmp_path: Any) -> None:
    name = os.fsdecode(b"lat\xe9\n\x1b[31m")
    (tmp_path / f"{name}.jsonl").write_text('{"text": null}\n')
    options = ("-o", "out", "--out-format", "npy", "--strict")
    done = flowvec("encode", "mini", f"{name}.jsonl", *options)
    assert done.returncode == 2
    assert done.stderr == "flowvec: lat\\xe9\\n\\x1b[31m.jsonl, row 0: text is null\n"
