"""Several fields as one text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowvec import Collection, Encoder
from flowvec.bulk import encode_files, estimate_files
from flowvec.errors import BulkError, InputTypeError, InputValueError
from flowvec.texts.joining import join_texts, text_fields
from flowvec.texts.rows import read_rows
from tests.makers import write_jsonl
from tests.runtime.bulk.conftest import letters_of

ROWS: list[dict[str, Any]] = [
    {"id": 0, "title": "A title", "text": "a body"},
    {"id": 1, "title": None, "text": "only a body"},
    {"id": 2, "title": "Only a title", "text": None},
    {"id": 3, "title": "", "text": " spaces "},
]
JOINED = ["A title a body", "only a body", "Only a title", "spaces"]


@pytest.mark.parametrize("title", [None, "", " ", "A title", "A title "])
@pytest.mark.parametrize("text", ["", " a body ", "a body"])
def test_a_title_is_joined_as_retrieval_sets_do(title: str | None, text: str) -> None:
    assert join_texts([title, text]) == f"{title or ''} {text}".strip()
    assert join_texts([None, None]) is None


def test_fields_are_named_by_commas_or_in_a_list() -> None:
    assert text_fields("title, text") == text_fields(["title", "text"]) == ("title", "text")
    assert text_fields("text") == text_fields(["text"]) == "text"
    assert text_fields(["a,b", "c"]) == ("a,b", "c")
    for wrong in ([], ",", "a,a", "a,", ["a", "a"]):
        with pytest.raises(InputValueError, match="text_field"):
            text_fields(wrong)
    for odd in (None, 7, ["a", 7], {"a": 1}):
        with pytest.raises((InputTypeError, InputValueError), match="text_field"):
            text_fields(odd)


def _texts(folder: Path) -> list[str | None]:
    with Collection.open(folder) as collection:
        return [row.text for row in collection.list()]


def test_several_fields_are_one_text_in_every_format(tmp_path: Path, tiny: Encoder) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    import pyarrow.parquet

    write_jsonl(tmp_path / "a.jsonl", ROWS)
    # A row that is read by itself, so that all are.
    write_jsonl(tmp_path / "slow.jsonl", [*ROWS, {"id": 4, "title": "\ud800", "text": ""}])
    cells = [[str(row[name] or "") for name in ("id", "title", "text")] for row in ROWS]
    lines = [",".join(one) + "\n" for one in [["id", "title", "text"], *cells]]
    (tmp_path / "a.csv").write_text("".join(lines))
    pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    for name in ("a.jsonl", "slow.jsonl", "a.csv", "a.parquet"):
        encode_files(
            tiny, tmp_path / name, tmp_path / f"{name}.c", text_field="title,text",
            out_format="collection",
        )  # fmt: skip
        assert _texts(tmp_path / f"{name}.c")[:4] == JOINED, name
        if name != "a.parquet":
            rows = list(read_rows(str(tmp_path / name), text_field=["title", "text"]))
            assert [row.text for row in rows][:4] == JOINED


def test_a_row_without_any_of_the_fields_is_a_dead_letter(tmp_path: Path, tiny: Encoder) -> None:
    bad = [{"title": None, "text": None}, {"id": 5}, {"title": 7, "text": "a body"}]
    write_jsonl(tmp_path / "a.jsonl", [*ROWS, *bad])
    options: dict[str, Any] = {"text_field": "title,text", "out_format": "npy"}
    done = encode_files(tiny, tmp_path / "a.jsonl", tmp_path / "a", **options)
    assert done.rows == 4
    codes = [(letter["row"], letter["code"]) for letter in letters_of(tmp_path / "a")]
    assert codes == [(4, "null"), (5, "missing_field"), (6, "not_text")]
    with pytest.raises(InputTypeError, match=r"line 5: .*title and text.*null"):
        list(read_rows(str(tmp_path / "a.jsonl"), text_field="title,text"))


def test_a_file_may_lack_a_field_that_another_has(tmp_path: Path, tiny: Encoder) -> None:
    (tmp_path / "a.csv").write_text("text\nno title\n")
    (tmp_path / "b.csv").write_text("title,text\nA title,a body\n")
    options: dict[str, Any] = {"text_field": ["title", "text"], "out_format": "collection"}
    for i, names in enumerate((["a.csv", "b.csv"], ["b.csv", "a.csv"])):
        encode_files(tiny, [tmp_path / name for name in names], tmp_path / f"c{i}", **options)
        assert sorted(map(str, _texts(tmp_path / f"c{i}"))) == ["A title a body", "no title"]
    with pytest.raises(InputValueError, match="has no field 'title'"):
        encode_files(tiny, tmp_path / "a.csv", tmp_path / "d", **options)
    options["text_field"] = "x,y"
    with pytest.raises(InputValueError, match="'x' or 'y'; it has title, text"):
        encode_files(tiny, tmp_path / "b.csv", tmp_path / "d", **options)
    (tmp_path / "a.txt").write_text("a line\n")
    with pytest.raises(InputValueError, match="txt, which has no fields"):
        encode_files(tiny, tmp_path / "a.txt", tmp_path / "d", **options)


def test_other_fields_are_another_job(tmp_path: Path, tiny: Encoder) -> None:
    rows = write_jsonl(tmp_path / "a.jsonl", ROWS)
    encode_files(tiny, rows, tmp_path / "a", text_field="title,text", out_format="npy")
    same = encode_files(tiny, rows, tmp_path / "a", text_field=["title", "text"], out_format="npy")
    assert same.encoded == 0
    manifest = json.loads((tmp_path / "a/_manifest.json").read_text())
    assert manifest["options"]["text"] == ["title", "text"]
    with pytest.raises(BulkError, match=r"options\.text"):
        encode_files(tiny, rows, tmp_path / "a", text_field="text,title", out_format="npy")
    assert estimate_files(tiny, rows, text_field="title,text", out_format="npy").rows == 4


def test_the_command_index_takes_several_fields(
    tmp_path: Path, tiny_dir: Path, flowvec: Any
) -> None:
    rows = write_jsonl(tmp_path / "a.jsonl", ROWS)
    words = ["index", tmp_path / "c", rows, "--id-field", "id", "--text-field", "title,text"]
    for more, told in (["--model", tiny_dir], "4 rows added"), ([], "4 were there already"):
        done = flowvec(*words, *more)
        assert done.returncode == 0, done.stderr
        assert told in done.stdout
    assert _texts(tmp_path / "c") == JOINED
