"""Inputs by URL: remote files are read like local ones."""

from __future__ import annotations

import bz2
import gzip
import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

from flowvec import Encoder
from flowvec.bulk import encode_files
from flowvec.errors import BulkError, InputValueError
from flowvec.texts.inventory import survey_inputs
from flowvec.texts.remote import glob_pattern, remote_files
from flowvec.texts.sources import Source, find_sources
from flowvec.texts.urls import from_anywhere, is_url, name_of, shown

pytest.importorskip("pyarrow.fs", reason="needs the extra [files]")
TEXTS = [f"the cat number {i} sleeps" for i in range(40)]


@pytest.fixture
def store() -> Any:
    """A file system of fsspec's, in memory; its files are gone afterwards."""
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec")
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def fill(store: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    store.pipe("/texts/a.jsonl", lines(TEXTS[:10]))
    store.pipe("/texts/b.jsonl.gz", gzip.compress(lines(TEXTS[10:20])))
    store.pipe("/texts/below/c.csv", b"text\n" + "\n".join(TEXTS[20:30]).encode())
    with store.open("/texts/below/d.parquet", "wb") as file:
        pq.write_table(pa.table({"text": TEXTS[30:]}), file)
    store.pipe("/texts/_SUCCESS.txt", b"no text")
    store.pipe("/texts/notes.doc", b"no text")


def test_a_remote_folder_gives_the_same_as_a_local_one(
    tmp_path: Path, tiny: Encoder, store: Any
) -> None:
    fill(store)
    done = encode_files(tiny, "memory://texts", tmp_path / "out", out_format="npy",
                        rows_per_shard=7)  # fmt: skip
    assert (done.rows, done.dead_letters, done.shards) == (40, 0, 6)
    parts = sorted((tmp_path / "out").glob("*.npy"))
    vectors = np.concatenate([np.load(part) for part in parts])
    np.testing.assert_allclose(vectors, tiny.encode(TEXTS), atol=1e-5)
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert [one["path"] for one in manifest["inputs"]] == [
        "memory://texts/a.jsonl",
        "memory://texts/b.jsonl.gz",
        "memory://texts/below/c.csv",
        "memory://texts/below/d.parquet",
    ]
    again = encode_files(tiny, "memory://texts", tmp_path / "out", out_format="npy",
                         rows_per_shard=7)  # fmt: skip
    assert again.shards_before == 6
    store.pipe("/texts/a.jsonl", lines(TEXTS[1:11]))
    with pytest.raises(BulkError, match=r"job: .*/a\.jsonl\.sha256"):
        encode_files(tiny, "memory://texts", tmp_path / "out", out_format="npy",
                     rows_per_shard=7)  # fmt: skip


def test_a_survey_hashes_the_stored_bytes(tmp_path: Path, store: Any) -> None:
    """In the same pass that counts rows; the bytes of the compressed file, not its content."""
    import hashlib

    fill(store)
    store.rm("/texts/b.jsonl.gz")
    # Bytes after the end of the stream, which a decompressor ignores.
    store.pipe("/texts/b.jsonl.bz2", bz2.compress(lines(TEXTS[10:20])) + b"?" * 3_000_000)
    known = survey_inputs(find_sources(["memory://texts"]), 7, 1 << 20)
    for source in known.sources:
        data = store.cat(source.path.removeprefix("memory:/"))
        assert source.sha256 == hashlib.sha256(data).hexdigest()
        assert (source.bytes, source.rows) == (len(data), 10)


def test_a_file_url_is_a_path(tmp_path: Path, tiny: Encoder) -> None:
    (tmp_path / "a b.jsonl").write_bytes(lines(TEXTS))
    url = (tmp_path / "a b.jsonl").as_uri()
    for inputs, out in [(url, "by-url"), (str(tmp_path / "a b.jsonl"), "by-path")]:
        encode_files(tiny, inputs, tmp_path / out, rows_per_shard=16)
    for part in (tmp_path / "by-path").glob("part-*"):
        assert part.read_bytes() == (tmp_path / "by-url" / part.name).read_bytes()
    with pytest.raises(InputValueError, match="named twice"):
        find_sources([url, url])
    for name in "kcxajqbzdm":
        (tmp_path / f"{name}.txt").write_text("x")
    stems = [Path(source.path).stem for source in find_sources([f"{tmp_path.as_uri()}/*.txt"])]
    assert stems == sorted("kcxajqbzdm")


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("memory://texts/a.jsonl", ["a.jsonl"]),
        ("memory://texts/", ["_", "a.jsonl", "b.jsonl.gz", "below/c.csv", "below/d.parquet", "n"]),
        ("memory://texts/*.jsonl*", ["a.jsonl", "b.jsonl.gz"]),
        ("memory://texts/**/*.csv", ["below/c.csv"]),
        ("memory://texts/**/?.[cp]*", ["below/c.csv", "below/d.parquet"]),
        ("memory://texts/*/[!c].*", ["below/d.parquet"]),
    ],
)
def test_urls_are_parsed(store: Any, url: str, names: list[str]) -> None:
    fill(store)
    paths = [file.url.removeprefix("memory://texts/") for file in remote_files(url)]
    known = {"n": "notes.doc"}
    expected = [known.get(name, name) for name in names if name != "_"]  # hidden ones are left out
    assert paths == expected


@pytest.mark.parametrize("pattern", ["*", "*.txt", "a?c", "**/*.txt", "**/a*/*", "[ab]*", "x+(y)"])
@pytest.mark.parametrize("name", ["a.txt", "abc", "a/b.txt", "x/ab/c", "x+(y)", "b", ".txt"])
def test_globs_are_those_of_the_file_system(tmp_path: Path, pattern: str, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    local = {PurePosixPath(p.relative_to(tmp_path)) for p in tmp_path.glob(pattern) if p.is_file()}
    assert (PurePosixPath(name) in local) == bool(glob_pattern(pattern).fullmatch(name))


def test_workers_are_given_urls_as_they_are(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert from_anywhere("s3://bucket/a.jsonl?region=x") == "s3://bucket/a.jsonl?region=x"
    assert from_anywhere("a/b.jsonl") == str(tmp_path / "a" / "b.jsonl")


def test_options_of_a_url_are_not_part_of_its_name() -> None:
    assert Source("s3://bucket/a.jsonl.gz?region=x", "jsonl").is_compressed
    assert not Source("s3://bucket/a.jsonl?region=x.gz", "jsonl").is_compressed
    assert name_of("s3://bucket/a.jsonl?region=eu-central-1&x=y") == "s3://bucket/a.jsonl"
    assert name_of("s3://bucket/part-?.jsonl") == "s3://bucket/part-?.jsonl"
    assert name_of("./a.jsonl?region=x") == "./a.jsonl?region=x"
    assert [is_url(path) for path in ("gs://a", "C://a", "C:/a", "a/b://c", "fsspec+x://a")] == [
        True, False, False, False, True]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("memory://nothing.jsonl", "no such file"),
        ("memory://nothing/*.jsonl", "no such file"),
        ("memory://texts/*.nothing", "no files to read"),
        ("memory://texts/notes.doc", "cannot tell how to read"),
        ("nowhere://texts/a.jsonl", "nowhere"),
        ("file:///nothing.jsonl", "no such file"),
    ],
)
def test_a_missing_remote_file_is_one_line(store: Any, url: str, reason: str) -> None:
    fill(store)
    with pytest.raises(InputValueError, match=re.escape(reason)) as raised:
        find_sources([url])
    assert url in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_path_that_was_a_url_is_refused(tmp_path: Path, tiny: Encoder) -> None:
    (tmp_path / "a.txt").write_text("the cat\n")
    with pytest.raises(InputValueError, match="s3:/bucket/vectors"):
        encode_files(tiny, tmp_path / "a.txt", Path("s3://bucket/vectors"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt"]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("S3://bucket/a.txt?region=x", "s3://bucket/a.txt"),
        ("s3://key:hush@bucket/a.txt", "s3://bucket/a.txt"),
        ("s3://key:hu/sh@bucket/a.txt?endpoint_override=y", "s3://bucket/a.txt"),
        ("ftp://user:hush@host/a", "ftp://host/a"),
        ("abfs://container@account/a?account_key=hush", "abfs://container@account/a"),
        ("memory://a:b/c", "memory://a:b/c"),
        ("folder/a:b@c.txt", "folder/a:b@c.txt"),
    ],
)
def test_a_url_is_shown_without_options_and_keys(url: str, name: str) -> None:
    assert shown(url) == name


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hush@bucket/a.txt?endpoint_override=127.0.0.1:1&scheme=http&allow_x=hush",
        "nowhere://user:hush@bucket/a.txt?token=hush",
        "memory://nothing/a.txt?token=hush",
    ],
)
def test_an_input_that_cannot_be_read_is_named_without_secrets(url: str) -> None:
    pytest.importorskip("fsspec", reason="needs fsspec")
    with pytest.raises(InputValueError, match="cannot read") as raised:
        find_sources([url])
    assert "hush" not in str(raised.value)


def test_the_scheme_of_a_url_may_be_in_upper_case(store: Any) -> None:
    fill(store)
    assert [source.path for source in find_sources(["MEMORY://texts/a.jsonl"])]
    assert [one.url for one in remote_files("Memory://texts/*.jsonl")] == ["memory://texts/a.jsonl"]
    with Source("MEMORY://texts/a.jsonl", "jsonl").open() as file:
        assert file.read() == lines(TEXTS[:10])


def test_what_a_job_writes_has_no_secrets_and_the_order_of_the_inputs(
    tmp_path: Path, tiny: Encoder, store: Any
) -> None:
    store.pipe("/key:hush@b/b.jsonl", lines(["a cat", "cat " * 3000]))
    store.pipe("/key:hush@a/a.jsonl", lines(["cat " * 3000, "a cat"]))
    urls = ["memory://key:hush@b/b.jsonl", "memory://key:hush@a/a.jsonl"]
    done = encode_files(tiny, urls, tmp_path / "out", out_format="npy", truncation="error")
    assert (done.rows, done.dead_letters) == (2, 2)
    written = [path.read_bytes() for path in (tmp_path / "out").iterdir()]
    assert not any(b"hush" in content for content in written)
    letters = (tmp_path / "out" / "_dead_letter.jsonl").read_text().splitlines()
    assert [(one["source"], one["row"]) for one in map(json.loads, letters)] == [
        ("memory://b/b.jsonl", 1),
        ("memory://a/a.jsonl", 0),
    ]
    again = encode_files(tiny, urls, tmp_path / "out", out_format="npy", truncation="error")
    assert again.shards_before == again.shards
