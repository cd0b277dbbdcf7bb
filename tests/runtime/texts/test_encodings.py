"""Texts in UTF-16 and UTF-32 are told from UTF-8."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from flowvec import Encoder, InputValueError
from flowvec.bulk import encode_files
from flowvec.texts.encodings import OtherEncodingError, Utf8File, check_encoding
from flowvec.texts.rows import read_rows

TEXTS = {
    "txt": "the cat sleeps\n",
    "jsonl": '{"text": "the cat"}\n',
    "csv": "id,text\n1,the cat\n",
}


def _shown(encoding: str) -> str:
    family, bits, *order = encoding.upper().split("-")
    return f"{family}-{bits}{''.join(order)}"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_a_file_in_another_encoding_is_named(tmp_path: Path, tiny: Encoder, encoding: str) -> None:
    for kind, text in TEXTS.items():
        file = tmp_path / f"a.{kind}"
        file.write_bytes(text.encode(encoding))
        named = f"a.{kind} is in {_shown(encoding)}"
        with pytest.raises(InputValueError, match=named):
            list(read_rows(str(file)))
        with pytest.raises(InputValueError, match=named):
            encode_files(tiny, file, tmp_path / "a.npy")


def test_another_encoding_is_found_before_anything_is_written(
    tmp_path: Path, tiny: Encoder
) -> None:
    (tmp_path / "a.txt").write_text("a cat\n")
    (tmp_path / "b.txt").write_bytes("a cat\n".encode("utf-16"))
    inputs = [tmp_path / "a.txt", tmp_path / "b.txt"]
    with pytest.raises(InputValueError, match="UTF-16"):
        encode_files(tiny, inputs, tmp_path / "out", out_format="npy")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text", ["Привет, мир!\n", "a\n", "naïve\n", "日本語 の 本\n", "😀 smile\n"]
)
def test_only_other_encodings_are_refused(text: str) -> None:
    for encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        with pytest.raises(OtherEncodingError, match=_shown(encoding)):
            check_encoding((text * 9).encode(encoding))
    check_encoding((text * 9).encode())


@pytest.mark.parametrize("data", [b"", b"\0", b"a\0\n", b"one\0two\0three\0four\0\n" * 9, b"\xff"])
def test_a_zero_byte_alone_is_a_text(data: bytes) -> None:
    check_encoding(data)


@pytest.mark.parametrize("kind", TEXTS)
def test_a_byte_order_mark_is_not_part_of_the_text(
    tmp_path: Path, tiny: Encoder, kind: str
) -> None:
    file = tmp_path / f"a.{kind}"
    file.write_bytes(TEXTS[kind].encode("utf-8-sig"))
    (row,) = read_rows(str(file))
    assert row.text.startswith("the cat")
    fields = {} if kind == "txt" else {"keep": ["text"]}
    done = encode_files(tiny, file, tmp_path / "a", out_format="npy", **fields)
    assert (done.rows, done.codes) == (1, {})


@pytest.mark.parametrize("size", [1, 2, 3, 9])
@pytest.mark.parametrize("text", ["", "a", "\ufeff", "the cat \ufeff"])
def test_one_byte_order_mark_is_left_out_and_only_at_the_start(text: str, size: int) -> None:
    def read(data: bytes, *, at_start: bool = True) -> tuple[bytes, int]:
        file = Utf8File(io.BytesIO(data), at_start=at_start)
        return b"".join(iter(lambda: file.read(size), b"")), file.mark_bytes

    plain = text.encode()
    marked = text.encode("utf-8-sig")
    assert read(marked) == (plain, 3)
    assert read(marked, at_start=False) == (marked, 0)
    if not text.startswith("\ufeff"):
        assert read(plain) == (plain, 0)
