"""`verify` of what a bulk job has written: every byte that changes is seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from flowvec import Encoder
from flowvec.bulk import encode_files, verify_folder
from flowvec.errors import BulkError


def make(folder: Path, encoder: Encoder, kind: Literal["npy", "parquet"] = "npy", **given) -> Path:
    rows = [{"text": f"a dog {i}" if i % 9 else None} for i in range(50)]
    (folder / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    encode_files(encoder, folder / "in.jsonl", folder / "out", out_format=kind, rows_per_shard=20,
                 **given)  # fmt: skip
    return folder / "out"


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_verify_accepts_a_complete_folder(tmp_path: Path, tiny: Encoder, kind) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")
    check = verify_folder(make(tmp_path, tiny, kind))
    assert (check.rows, check.shards, check.dead_letters, check.problems) == (44, 3, 6, ())


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("part-000001.npy", "part-000001.npy is not what was written"),
        ("part-000001.rows.jsonl", "part-000001.rows.jsonl is missing, or not what was written"),
        ("_dead_letter.jsonl", "_dead_letter.jsonl has"),
    ],
)
@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_verify_names_damage(
    tmp_path: Path, tiny: Encoder, name: str, part: str, damage: str
) -> None:
    file = make(tmp_path, tiny) / name
    data = file.read_bytes()
    if damage == "delete":
        file.unlink()
        part = part.replace("is not what was written", "is missing")
    elif damage == "cut":
        file.write_bytes(data[:-1])
    else:
        at = data.index(b"\n") if name.startswith("_dead") else len(data) // 2
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    (problem,) = verify_folder(tmp_path / "out").problems
    assert problem.startswith(part)
    if damage == "delete" and not name.startswith("_dead"):
        make(tmp_path, tiny)  # as the message says
        assert not verify_folder(tmp_path / "out").problems


def test_verify_checks_shares_together(tmp_path: Path, tiny: Encoder) -> None:
    make(tmp_path, tiny, share=(1, 3))
    make(tmp_path, tiny, share=(3, 3))
    assert verify_folder(tmp_path / "out").problems == ("the manifest of share 2/3 is missing",)
    make(tmp_path, tiny, share=(2, 3))
    check = verify_folder(tmp_path / "out")
    assert (check.rows, check.shards, check.dead_letters, check.problems) == (44, 3, 6, ())


def test_verify_of_an_unfinished_job_and_of_no_job(tmp_path: Path, tiny: Encoder) -> None:
    out = make(tmp_path, tiny)
    manifest = json.loads((out / "_manifest.json").read_text())
    del manifest["shards"]
    (out / "_manifest.json").write_text(json.dumps(manifest))
    (problem,) = verify_folder(out).problems
    assert "not complete" in problem
    (out / "_manifest.json").write_text("{")
    with pytest.raises(BulkError, match="cannot be read"):
        verify_folder(out)
    with pytest.raises(BulkError, match="not the folder of a bulk job"):
        verify_folder(tmp_path)


def test_the_verify_command(flowvec, tmp_path: Path, tiny: Encoder) -> None:
    out = make(tmp_path, tiny)
    done = flowvec("verify", out)
    assert (done.returncode, done.stdout) == (
        0, f"{out}: 44 rows in 3 shards, 6 dead letters, all well\n")  # fmt: skip
    (out / "part-000002.npy").unlink()
    done = flowvec("verify", out, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["problems"] == ["part-000002.npy is missing"]
    done = flowvec("verify", out)
    assert (done.returncode, "give the command of the job" in done.stdout) == (1, True)
    done = flowvec("verify", out, "--salvage", "x")
    assert (done.returncode, "--salvage is for collections" in done.stderr) == (2, True)
