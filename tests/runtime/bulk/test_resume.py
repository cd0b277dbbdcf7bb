"""A bulk job that was stopped continues, and writes the same bytes."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from flowvec import Encoder
from flowvec.bulk import RayWorkers, encode_files, encoding
from flowvec.errors import BulkError, FlowvecError, MissingDependencyError
from tests.makers import contents
from tests.runtime.bulk.conftest import COMMON, StopAfter


@pytest.mark.usefixtures("small_windows")
def test_a_stopped_job_resumes_with_the_same_bytes(
    tmp_path: Path, tiny: Encoder, many: Path
) -> None:
    whole = encode_files(tiny, many, tmp_path / "whole", **COMMON)
    stop = threading.Event()
    stop.set()
    nothing = encode_files(tiny, many, tmp_path / "out", stop=stop, **COMMON)
    assert (nothing.complete, nothing.rows, nothing.shards) == (False, 0, 0)
    before = 0
    for _ in range(2):
        stop = StopAfter(tmp_path / "out", 1)
        done = encode_files(tiny, many, tmp_path / "out", stop=stop, **COMMON)
        assert not done.complete
        assert done.shards_before == before < done.shards
        before = done.shards
        assert not list((tmp_path / "out").glob("*.partial"))
    done = encode_files(tiny, many, tmp_path / "out", **COMMON)
    assert done.complete
    assert done.shards_before == before
    assert (done.rows, done.dead_letters) == (941, 59)
    # Of all runs, not of the last one alone.
    assert done.codes == whole.codes == {"null": 59}
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    again = encode_files(tiny, many, tmp_path / "out", **COMMON)
    assert (again.encoded, again.complete, again.rows) == (0, True, 941)
    assert again.codes == whole.codes
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_windows")
def test_shares_fill_one_folder_with_the_files_of_one_job(
    tmp_path: Path, tiny: Encoder, rows: Path
) -> None:
    encode_files(tiny, rows, tmp_path / "whole", **COMMON)
    for index in (3, 1, 2):
        encode_files(tiny, rows, tmp_path / "out", share=(index, 3), **COMMON)
    whole, shared = contents(tmp_path / "whole"), contents(tmp_path / "out")
    parts = {name for name in whole if name.startswith("part-")}
    assert {name for name in shared if name.startswith("part-")} == parts
    assert all(shared[name] == whole[name] for name in parts)
    dead_letters = b"".join(shared[f"_dead_letter.{i}-of-3.jsonl"] for i in (1, 2, 3)
                       if f"_dead_letter.{i}-of-3.jsonl" in shared)  # fmt: skip
    assert sorted(dead_letters.splitlines()) == sorted(whole["_dead_letter.jsonl"].splitlines())


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("damage", ["deleted", "cut", "renamed only", "half a line", "no journal"])
@pytest.mark.usefixtures("small_windows")
def test_shards_that_the_journal_does_not_list_are_written_again(
    tmp_path: Path, tiny: Encoder, many: Path, damage: str
) -> None:
    encode_files(tiny, many, tmp_path / "whole", **COMMON)
    out = tmp_path / "out"
    encode_files(tiny, many, out, stop=StopAfter(out, 2), **COMMON)
    part, journal = out / "part-000001.npy", out / "_journal.jsonl"
    if damage == "deleted":
        part.unlink()
    elif damage == "cut":
        part.write_bytes(part.read_bytes()[:-1])
    elif damage == "renamed only":
        journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    elif damage == "half a line":
        journal.write_bytes(journal.read_bytes()[:-5])
    else:
        journal.unlink()
    (out / "_part-000039.npy.17-ab.partial").write_bytes(b"left by a kill")
    done = encode_files(tiny, many, out, **COMMON)
    assert done.complete
    assert contents(out) == contents(tmp_path / "whole")


def test_a_finished_job_writes_a_deleted_file_again(
    tmp_path: Path, tiny: Encoder, rows: Path
) -> None:
    out = tmp_path / "out"
    encode_files(tiny, rows, out, **COMMON)
    before = contents(out)
    (out / "part-000002.npy").unlink()
    assert encode_files(tiny, rows, out, **COMMON).shards_before == 4
    assert contents(out) == before
    (out / "_dead_letter.jsonl").unlink()
    encode_files(tiny, rows, out, **COMMON)
    assert contents(out) == before


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("option", "options.precision was"),
        ("input", "sha256 was"),
        ("more", "rows was 100 and is 101"),
        ("model", "model.fingerprint was"),
        ("other file", "is gone"),
    ],
)
def test_another_job_is_refused_and_the_difference_named(
    tmp_path: Path, tiny: Encoder, tiny_dir: Path, nan_dir: Path, rows: Path, change: str, part: str
) -> None:
    out = tmp_path / "out"
    encode_files(tiny, rows, out, **COMMON)
    before = contents(out)
    options, encoder, inputs = dict(COMMON), tiny, rows
    if change == "option":
        options["precision"] = "float16"
    elif change == "input":
        rows.write_text(rows.read_text().replace("cat", "dog", 1))
    elif change == "more":
        rows.write_text(rows.read_text() + '{"text": "x"}\n')
    elif change == "model":
        encoder = Encoder.load(nan_dir, provider="cpu")
    else:
        inputs = Path(rows.rename(tmp_path / "other.jsonl"))
    with pytest.raises(BulkError, match=part):
        encode_files(encoder, inputs, out, **options)
    assert contents(out) == before
    done = encode_files(encoder, inputs, out, resume=False, **options)
    assert (done.complete, done.shards_before) == (True, 0)
    encode_files(encoder, inputs, tmp_path / "anew", **options)
    assert contents(out) == contents(tmp_path / "anew")


def test_a_file_that_was_only_touched_is_the_same(
    tmp_path: Path, tiny: Encoder, rows: Path
) -> None:
    encode_files(tiny, rows, tmp_path / "out", **COMMON)
    before = contents(tmp_path / "out")
    os.utime(rows, ns=(1, 1))
    assert encode_files(tiny, rows, tmp_path / "out", **COMMON).encoded == 0
    assert contents(tmp_path / "out") == before


def test_an_input_that_changes_meanwhile_is_noticed(
    tmp_path: Path, tiny: Encoder, rows: Path
) -> None:
    def change(_: object) -> None:
        os.utime(rows, ns=(1, 1))

    with pytest.raises(BulkError, match="changed while"):
        encode_files(tiny, rows, tmp_path / "out", on_progress=change, **COMMON)
    assert "shards" not in json.loads((tmp_path / "out/_manifest.json").read_text())


@pytest.mark.parametrize("change", ["longer", "shorter", "another"])
def test_a_single_file_of_a_mixed_input_never_appears(
    tmp_path: Path, tiny: Encoder, rows: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    really = encoding.survey_inputs

    def then_changed(*arguments):
        known = really(*arguments)
        lines = rows.read_text().splitlines(keepends=True)
        lines = {"longer": [*lines, lines[0]], "shorter": lines[:50]}.get(
            change, [line.replace("cat", "dogs") for line in lines]
        )
        rows.write_text("".join(lines))
        return known

    monkeypatch.setattr(encoding, "survey_inputs", then_changed)
    with pytest.raises(BulkError, match="changed"):
        encode_files(tiny, rows, tmp_path / "out.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_folder_with_other_files_is_not_changed(
    tmp_path: Path, tiny: Encoder, rows: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("")
    for resume in (True, False):
        with pytest.raises(BulkError, match=r"files \(thesis\.tex\)"):
            encode_files(tiny, rows, tmp_path / "out", resume=resume, **COMMON)
    names = {p.name for p in (tmp_path / "out").iterdir()} - {".lock"}
    assert names == {"thesis.tex"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"flowvec_bulk": 99}'])
def test_a_damaged_manifest_is_an_error(
    tmp_path: Path, tiny: Encoder, rows: Path, content: str
) -> None:
    encode_files(tiny, rows, tmp_path / "out", **COMMON)
    (tmp_path / "out/_manifest.json").write_text(content)
    with pytest.raises(BulkError, match=r"manifest\.json"):
        encode_files(tiny, rows, tmp_path / "out", **COMMON)


def test_without_ray_nothing_is_begun(
    tmp_path: Path, tiny: Encoder, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"\[cpu,files,ray\]"):
        encode_files(tiny, rows, tmp_path / "out", workers=RayWorkers(2), **COMMON)
    assert not (tmp_path / "out").exists()


def test_two_jobs_cannot_write_one_folder(tmp_path: Path, tiny: Encoder, rows: Path) -> None:
    refused: list[Exception] = []

    def second(_: object) -> None:
        if not refused:
            try:
                encode_files(tiny, rows, tmp_path / "out", **COMMON)
            except FlowvecError as error:
                refused.append(error)

    assert encode_files(tiny, rows, tmp_path / "out", on_progress=second, **COMMON).complete
    assert "is being written by another process" in str(refused[0])
