"""What a bulk job writes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Encoder
from flowvec.bulk import encode_files
from tests.makers import WORDS, contents, texts_of, write_jsonl
from tests.runtime.bulk.conftest import npy_of


@pytest.mark.usefixtures("small_windows")
def test_shards_have_the_encoders_vectors(tmp_path: Path, tiny: Encoder) -> None:
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


@pytest.mark.parametrize(("precision", "size"), [("float32", 4), ("float16", 2), ("int8", 1)])
def test_a_number_in_parquet_takes_the_bytes_of_its_precision(
    tmp_path: Path, mini: Encoder, precision, size: int
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")
    (tmp_path / "a.txt").write_text("\n".join(texts_of(300)))
    encode_files(mini, tmp_path / "a.txt", tmp_path / "a.parquet", precision=precision)
    groups = parquet.ParquetFile(tmp_path / "a.parquet").metadata
    vector = groups.row_group(0).column(groups.num_columns - 1)
    assert vector.path_in_schema == "vector.list.element"
    assert vector.total_compressed_size < 1.1 * size * vector.num_values


@pytest.mark.parametrize("precision", ["float16", "int8", "uint8", "ubinary"])
@pytest.mark.parametrize("out_format", ["npy", "parquet"])
def test_vectors_have_the_requested_precision(
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
        vectors = np.load(out)
    else:
        import pyarrow.parquet

        column = pyarrow.parquet.read_table(out)["vector"]
        assert str(column.type.value_type) == {"float16": "halffloat", "ubinary": "uint8"}.get(
            precision, precision
        )
        vectors = np.stack(column.to_numpy())
    assert vectors.dtype == expected.dtype
    assert done.dim == expected.shape[1]
    if precision == "float16":
        np.testing.assert_allclose(vectors, expected, atol=1e-3)
    else:
        assert (vectors == expected).mean() > 0.999  # last bits of floats


def test_a_single_file_has_a_row_map_only_if_needed(tmp_path: Path, tiny: Encoder) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": "the cat"}, {"text": None}, {"text": "a dog"}])
    out = tmp_path / "out.npy"
    encode_files(tiny, tmp_path / "a.jsonl", out)
    assert np.load(out).shape == (2, 16)
    rows = [json.loads(line) for line in (tmp_path / "out.rows.jsonl").read_text().splitlines()]
    assert rows == [{"row": 0, "id": 0}, {"row": 2, "id": 2}]
    (letter,) = map(json.loads, (tmp_path / "out.dead_letter.jsonl").read_text().splitlines())
    assert (letter["row"], letter["code"]) == (1, "null")
    # Files of an earlier run must not be mistaken for files of this one.
    (tmp_path / "b.txt").write_text("the cat\n")
    encode_files(tiny, tmp_path / "b.txt", out, resume=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "b.txt", "out.npy"]


def test_an_empty_input_gives_an_empty_output(tmp_path: Path, tiny: Encoder) -> None:
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


def test_dedupe_encodes_duplicate_texts_once(tmp_path: Path, tiny: Encoder) -> None:
    texts = [WORDS[i % 5] for i in range(60)]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    once = encode_files(tiny, tmp_path / "a.txt", tmp_path / "once.npy", dedupe=True)
    assert (once.encoded, once.rows, once.repeated) == (5, 60, 55)
    np.testing.assert_allclose(np.load(tmp_path / "once.npy"), tiny.encode(texts), atol=1e-5)


def test_progress_as_lines_of_json(tmp_path: Path, tiny: Encoder, flowvec) -> None:
    (tmp_path / "a.txt").write_text("the cat\n" * 60)
    told = flowvec("encode", tiny.bundle.handle, "a.txt", "-o", "o.npy", "--progress", "json")
    line = json.loads(told.stderr.splitlines()[-1])
    assert (line["command"], line["rows"], line["total"]) == ("encode", 60, 60)
    rate, rounded = line["rows_per_second"], 0.05 + 1e-9
    fastest, slowest = 60 / (rate + rounded), 60 / (rate - rounded)
    assert fastest - 0.001 < line["seconds"] < slowest + 0.001
    assert line["eta_seconds"] == 0


def test_a_bulk_job_puts_the_prompt_before_each_text(tmp_path: Path, tiny: Encoder) -> None:
    (tmp_path / "a.txt").write_text("the cat\na dog\n")
    encode_files(tiny, tmp_path / "a.txt", tmp_path / "o.npy", prompt_name="query")
    expected = tiny.encode(["the cat", "a dog"], prompt_name="query")
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), expected, atol=1e-5)
