"""Equal texts are embedded once in a job, and not again in the next one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Encoder
from flowvec.bulk import encode_files, verify_folder
from flowvec.errors import BulkError, InputValueError
from tests.makers import contents, texts_of, write_jsonl
from tests.runtime.bulk.conftest import StopAfter, letters_of, npy_of


def rows_of(texts: list[str | None]) -> list[dict[str, Any]]:
    return [{"id": f"r{i}", "text": text} for i, text in enumerate(texts)]


@pytest.fixture
def repeated(tmp_path: Path) -> Path:
    """600 rows with 150 distinct texts; some cannot be embedded, one of them because of length."""
    rng, texts = random.Random(0), [*texts_of(149), "the cat sleeps " * 50]
    return write_jsonl(
        tmp_path / "repeated.jsonl",
        rows_of([None if i % 19 == 3 else rng.choice(texts) for i in range(600)]),
    )


OPTIONS: dict[str, Any] = {
    "out_format": "npy",
    "rows_per_shard": 48,
    "id_field": "id",
    "truncation": "error",
}


def texts_by_id(file: Path) -> dict[str, str]:
    return {row["id"]: row["text"] for row in map(json.loads, file.read_text().splitlines())}


def too_long(folder: Path, file: Path) -> set[str]:
    """Texts that a job could not embed."""
    texts, letters = texts_by_id(file), letters_of(folder)
    return {texts[letter["id"]] for letter in letters if letter["code"] == "too_long"}


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("out_format", ["npy", "parquet"])
def test_equal_texts_have_one_vector_and_are_embedded_once(
    tmp_path: Path, tiny: Encoder, repeated: Path, out_format
) -> None:
    if out_format == "parquet":
        pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")
    options = OPTIONS | {"out_format": out_format}
    plain = encode_files(tiny, repeated, tmp_path / "plain", **options)
    once = encode_files(tiny, repeated, tmp_path / "once", dedupe=True, **options)
    distinct = {text for text in texts_by_id(repeated).values() if text is not None}
    assert (plain.repeated, once.repeated) == (0, 600 - 32 - len(distinct))
    assert once.encoded == len(distinct)
    assert (once.rows, once.codes) == (plain.rows, plain.codes)
    assert letters_of(tmp_path / "once") == letters_of(tmp_path / "plain")
    assert {letter["code"] for letter in letters_of(tmp_path / "once")} == {"null", "too_long"}
    assert not verify_folder(tmp_path / "once").problems
    if out_format == "npy":
        vectors, rows = npy_of(tmp_path / "once")
        expected, same_rows = npy_of(tmp_path / "plain")
        assert rows == same_rows
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
        seen: dict[str, np.ndarray] = {}
        texts = texts_by_id(repeated)
        for row, vector in zip(rows, vectors, strict=True):
            np.testing.assert_array_equal(vector, seen.setdefault(texts[row["id"]], vector))


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_stopped_job_copies_the_same_vectors(
    tmp_path: Path, tiny: Encoder, repeated: Path, precision
) -> None:
    options = OPTIONS | {"dedupe": True, "precision": precision}
    encode_files(tiny, repeated, tmp_path / "whole", **options)
    out = tmp_path / "out"
    for _ in range(3):
        encode_files(tiny, repeated, out, stop=StopAfter(out, 3), **options)
    encode_files(tiny, repeated, out, **options)
    assert contents(out) == contents(tmp_path / "whole")
    (out / "_part-000007.texts").unlink()
    assert "_part-000007.texts is missing" in verify_folder(out).problems[0]
    (out / "part-000011.npy").unlink()
    encode_files(tiny, repeated, out, **options)
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("out_format", ["npy", "parquet"])
def test_a_job_carries_over_what_has_not_changed(
    tmp_path: Path, tiny: Encoder, repeated: Path, out_format
) -> None:
    if out_format == "parquet":
        pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")
    options = OPTIONS | {"out_format": out_format}
    encode_files(tiny, repeated, tmp_path / "old", dedupe=True, **options)
    rows = [json.loads(line) for line in repeated.read_text().splitlines()]
    rows = [row for i, row in enumerate(rows) if i % 7]  # some are gone
    random.Random(1).shuffle(rows)
    for row, text in zip(rows[::20], texts_of(1000)[900:], strict=False):
        row["text"] = text
    changed = write_jsonl(tmp_path / "changed.jsonl", rows)
    old = set(texts_by_id(repeated).values()) - too_long(tmp_path / "old", repeated)
    new = [text for text in texts_by_id(changed).values() if text is not None]
    done = encode_files(
        tiny,
        changed,
        tmp_path / "new",
        changed_since=tmp_path / "old" / "_manifest.json",
        **options,
    )
    assert done.carried == sum(text in old for text in new)
    assert done.encoded == len({text for text in new if text not in old})
    plain = encode_files(tiny, changed, tmp_path / "plain", **options)
    assert (done.rows, done.codes) == (plain.rows, plain.codes)
    if out_format == "npy":
        vectors, kept = npy_of(tmp_path / "new")
        expected, same = npy_of(tmp_path / "plain")
        assert kept == same
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
    # What was carried over can be carried over again.
    again = encode_files(
        tiny, changed, tmp_path / "third", changed_since=tmp_path / "new", **options
    )
    assert again.encoded == len(too_long(tmp_path / "new", changed)) > 0


def test_what_cannot_be_carried_over_is_named(
    tmp_path: Path, tiny: Encoder, repeated: Path
) -> None:
    encode_files(tiny, repeated, tmp_path / "plain", **OPTIONS)
    with pytest.raises(BulkError, match=r"has no texts files.*--dedupe"):
        encode_files(tiny, repeated, tmp_path / "out", changed_since=tmp_path / "plain", **OPTIONS)
    with pytest.raises(BulkError, match="has no manifest"):
        encode_files(tiny, repeated, tmp_path / "out", changed_since=tmp_path / "none", **OPTIONS)
    encode_files(tiny, repeated, tmp_path / "old", dedupe=True, **OPTIONS)
    with pytest.raises(BulkError, match=r"precision was .*is .*float16"):
        encode_files(tiny, repeated, tmp_path / "out", changed_since=tmp_path / "old",
                     precision="float16", **OPTIONS)  # fmt: skip
    for out in ("a.npy", "b.parquet"):
        with pytest.raises(InputValueError, match=r"changed_since .*shards"):
            encode_files(tiny, repeated, tmp_path / out, changed_since=tmp_path / "old")
