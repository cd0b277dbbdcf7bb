"""A job never reads what it writes, and never writes over what it reads."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Encoder
from flowvec.bulk import encode_files, estimate_files, merge_shares, verify_folder
from flowvec.bulk.verify import folder_info
from flowvec.errors import BulkError, InputValueError
from tests.makers import contents

OPTIONS: dict[str, Any] = {"out_format": "npy", "id_field": "id"}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with two texts, and a row that is a dead letter."""
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [{"id": "a", "text": "cats"}, {"id": "b", "text": "dogs"}, {"id": "c", "text": None}]
    (folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize("kind", ["folder", "glob", "URL"])
@pytest.mark.parametrize("out_format", ["npy", "collection"])
def test_a_job_whose_output_is_below_its_input_can_be_repeated(
    texts: Path, tiny: Encoder, kind: str, out_format: str
) -> None:
    given = {"folder": str(texts), "glob": f"{texts}/**/*.jsonl", "URL": texts.as_uri()}[kind]
    if kind == "URL":
        pytest.importorskip("pyarrow", reason="needs the extra [files]")
    options = OPTIONS | {"out_format": out_format}
    for resume in (True, True, False):
        done = encode_files(tiny, given, texts / "deep" / "vec", resume=resume, **options)
        assert (done.complete, done.rows, done.dead_letters) == (True, 2, 1)
        assert done.encoded == (2 if not done.shards_before else 0)
    assert done.shards_before == 0  # the last one began again
    estimate = estimate_files(tiny, given, texts / "deep" / "vec", id_field="id")
    assert (estimate.rows, estimate.rows_before, estimate.complete) == (3, 2, True)


def test_shares_and_other_jobs_in_the_input_folder_are_not_read(texts: Path, tiny: Encoder) -> None:
    encode_files(tiny, texts, texts / "other.npy", **OPTIONS | {"out_format": None})
    encode_files(tiny, texts, texts / "other", **OPTIONS)
    for index in (1, 2):
        encode_files(tiny, texts, texts / "vec", share=(index, 2), **OPTIONS)
    assert merge_shares(texts / "vec").rows == 2
    assert encode_files(tiny, texts, texts / "vec", **OPTIONS).encoded == 0
    assert folder_info(texts / "vec").inputs == (str(texts / "a.jsonl"),)


@pytest.mark.campaign
@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_shards_of_other_jobs_below_a_url_are_not_read(
    texts: Path, tiny: Encoder, scheme: str
) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra [files]")
    fsspec = pytest.importorskip("fsspec", reason="needs the extra [files]")
    url = texts.as_uri()
    if scheme == "memory":
        url = f"memory://{texts.parent.name}"
        fsspec.filesystem("memory").pipe(f"{url}/a.jsonl", (texts / "a.jsonl").read_bytes())
    options = {"id_field": "id", "keep": ["text"]}
    for name in ("one", "two", "two"):
        done = encode_files(tiny, url, f"{url}/{name}", **options)
        assert (done.rows_in, done.rows) == (3, 2)
    assert encode_files(tiny, f"{url}/**/*.parquet", f"{url}/three", **options).rows == 2


def test_one_file_of_another_job_in_the_input_folder_is_not_read(
    texts: Path, tiny: Encoder
) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra [files]")
    encode_files(tiny, texts, texts / "v.parquet", id_field="id", keep=["text"])
    for given in (texts, f"{texts}/*"):
        done = encode_files(tiny, given, texts.parent / "vec", **OPTIONS)
        assert (done.rows_in, done.rows) == (3, 2)
    again = encode_files(tiny, f"{texts}/*.parquet", texts.parent / "again", **OPTIONS)
    assert again.rows == 2  # vectors with texts, which are meant


def test_one_file_below_its_input_is_replaced_when_that_is_asked(
    texts: Path, tiny: Encoder
) -> None:
    for name, given in (("v.npy", texts), ("w.npy", texts / "*.jsonl")):
        encode_files(tiny, given, texts / name, id_field="id")
        with pytest.raises(BulkError, match="exists"):
            encode_files(tiny, given, texts / name, id_field="id")
        done = encode_files(tiny, given, texts / name, id_field="id", resume=False)
        assert (done.rows, done.dead_letters) == (2, 1)


@pytest.mark.parametrize(
    ("out", "inputs", "how"),
    [
        ("t.npy", "t.rows.jsonl", "is"),  # the row map
        ("t.rows.npy", "t.rows.dead_letter.jsonl", "is"),
        ("in", "in", "is"),
        ("in/deep", "in/deep", "is"),
        ("in", "in/deep/b.jsonl", "contains"),
        ("in", "in/*/b.jsonl", "contains"),
        ("in/deep", "in", "contains"),  # a file of the folder is in the output
        ("linked.npy", "t.rows.jsonl", "is"),
        ("hard.npy", "in/deep", "is"),
    ],
)
def test_an_output_that_is_or_contains_an_input_is_refused_before_anything_is_written(
    tmp_path: Path, texts: Path, tiny: Encoder, monkeypatch, out: str, inputs: str, how: str
) -> None:
    (texts / "deep").mkdir()
    for name in ("t.rows.jsonl", "t.rows.dead_letter.jsonl", "in/deep/b.jsonl",
                 "in/deep/part-000000.jsonl"):  # fmt: skip
        (tmp_path / name).write_text('{"id": 1, "text": "cats"}\n')
    (tmp_path / "linked.npy").symlink_to(tmp_path / "t.rows.jsonl")
    (tmp_path / "hard.npy").hardlink_to(texts / "deep" / "b.jsonl")
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for resume in (True, False):
        for form in (None, "collection") if "." not in out else (None,):
            with pytest.raises(InputValueError, match=f"the output .* {how} the input"):
                encode_files(tiny, inputs, out, out_format=form or "npy", resume=resume)
    with pytest.raises(InputValueError, match="the input"):
        estimate_files(tiny, inputs, out)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_parquet_file_of_texts_is_not_taken_for_a_result(texts: Path, tiny: Encoder) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    import pyarrow.parquet as pq

    file = texts / "b.parquet"
    pq.write_table(pa.table({"id": ["x"], "text": ["cats"]}), file)
    for given in (file, texts, f"{texts}/*.parquet", file.as_uri()):
        with pytest.raises(InputValueError, match="is the input"):
            encode_files(tiny, given, file, id_field="id", resume=False)
    assert pq.read_schema(file).names == ["id", "text"]
    (texts / "a.jsonl").rename(texts.parent / "a.jsonl")
    for _ in range(2):  # a result is one, and is replaced
        encode_files(tiny, texts / "*.parquet", texts / "c.parquet", id_field="id", resume=False)
    assert pq.read_table(texts / "c.parquet").num_rows == 1


def test_the_model_and_the_earlier_job_stay_as_they_are(
    tmp_path: Path, texts: Path, tiny: Encoder
) -> None:
    job = tmp_path / "job"
    encode_files(tiny, texts, job, dedupe=True, **OPTIONS)
    before = contents(job)
    for out in (job, job / "new"):
        for earlier in (job, job / "_manifest.json"):
            with pytest.raises(InputValueError, match="the input"):
                encode_files(tiny, texts, out, changed_since=earlier, resume=False, **OPTIONS)
    for out in (tiny.bundle.path / "v.npy", tiny.bundle.path / "vec", tiny.bundle.path.parent):
        for model in (tiny, tiny.bundle.path):
            with pytest.raises(InputValueError, match="the input"):
                encode_files(model, texts, out, resume=False, **OPTIONS)
    assert contents(job) == before


def test_a_file_that_would_be_replaced_beside_the_output_is_named(
    tmp_path: Path, texts: Path, tiny: Encoder
) -> None:
    for name in ("v.rows.jsonl", "v.dead_letter.jsonl"):
        (tmp_path / name).write_text("mine\n")
        with pytest.raises(BulkError, match=f"{name} exists"):
            encode_files(tiny, texts, tmp_path / "v.npy", id_field="id")
        assert (tmp_path / name).read_text() == "mine\n"
        (tmp_path / name).unlink()


def test_by_url_too(texts: Path, tiny: Encoder, memory: Any) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra [files]")
    system = memory
    system.pipe("/box/in/a.jsonl", (texts / "a.jsonl").read_bytes())
    for given in ("memory://box/in", "memory://box/in/**/*.jsonl"):
        for resume in (True, True, False):
            done = encode_files(tiny, given, "memory://box/in/vec", resume=resume, **OPTIONS)
            assert (done.rows, done.encoded) == (2, 0 if done.shards_before else 2)
        system.rm("/box/in/vec", recursive=True)
    for out in ("memory://box/in", "memory://box", "memory:///box/./in"):
        with pytest.raises(InputValueError, match="the input"):
            encode_files(tiny, "memory://box/in/a.jsonl", out, **OPTIONS)


@pytest.mark.skipif(sys.platform != "linux", reason="names of bytes are POSIX's")
@pytest.mark.parametrize("out_format", ["npy", "parquet", "collection"])
@pytest.mark.parametrize("name", [b"lat\xe9", b"a\nb\tc\x1b[31m"])
def test_names_that_are_not_utf8_are_read_back_the_same(
    tmp_path: Path, texts: Path, tiny: Encoder, name: bytes, out_format: str
) -> None:
    if out_format == "parquet":
        pytest.importorskip("pyarrow", reason="needs the extra [files]")
    given = os.fsdecode(name)
    (texts / "a.jsonl").rename(texts / f"{given}.jsonl")
    options = OPTIONS | {"out_format": out_format}
    for out in (tmp_path / "out", tmp_path / given):
        done = encode_files(tiny, texts, out, **options)
        assert (done.rows, done.dead_letters) == (2, 1)
        assert encode_files(tiny, texts, out, **options).encoded == 0
        job = out if out_format != "collection" else out.with_name(f"{out.name}.job")
        (letter,) = (job / "_dead_letter.jsonl").read_text().splitlines()
        assert json.loads(letter)["source"] == str(texts / f"{given}.jsonl")
        manifest = json.loads((job / "_manifest.json").read_text(encoding="utf-8"))
        assert manifest["inputs"][0]["path"] == str(texts / f"{given}.jsonl")
        if out_format != "collection":
            assert verify_folder(out).problems == ()
            assert folder_info(out).inputs == (str(texts / f"{given}.jsonl"),)
    if out_format == "npy":
        encode_files(tiny, texts, tmp_path / f"{given}.npy", id_field="id")
        assert np.load(tmp_path / f"{given}.npy").shape[0] == 2


def test_a_collection_cannot_be_the_root(texts: Path, tiny: Encoder) -> None:
    for skip_unchanged in (False, True):
        with pytest.raises(InputValueError, match="name a folder in it"):
            encode_files(
                tiny, texts, texts.anchor, out_format="collection", skip_unchanged=skip_unchanged
            )


def test_a_folder_without_a_name_can_be_asked_about(
    texts: Path, tiny: Encoder, monkeypatch
) -> None:
    for name, options in (("vec", OPTIONS), ("c", OPTIONS | {"out_format": "collection"})):
        encode_files(tiny, texts, texts / name, **options)
        monkeypatch.chdir(texts / name)
        estimate = estimate_files(tiny, texts, ".", id_field="id")
        assert (estimate.rows, estimate.rows_before, estimate.complete) == (3, 2, True)
