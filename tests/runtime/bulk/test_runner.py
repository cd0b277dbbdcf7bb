"""One shard of a job: what a worker does for it, and what it leaves."""

from __future__ import annotations

import gzip
import json
import pickle
import random
from pathlib import Path

import numpy as np
import pytest

from flowvec import Encoder
from flowvec.bulk import encode_files, runner
from flowvec.bulk.journal import Folder
from flowvec.bulk.options import BulkOptions
from flowvec.bulk.repeats import OnDuplicate, Repeats, find_repeats
from flowvec.bulk.runner import job_of, run_shard
from flowvec.bulk.windows import decided_columns
from flowvec.texts.inventory import Start, Survey, survey_inputs
from flowvec.texts.sources import Source, find_sources
from flowvec.texts.window import Fields
from tests.makers import contents, texts_of


def test_a_worker_gives_memory_back_after_each_shard(
    tmp_path: Path, tiny: Encoder, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bool] = []
    monkeypatch.setattr(runner, "trim_memory", lambda: given.append(True))
    known = survey_inputs(find_sources([rows]), 24, 1 << 20)
    options = BulkOptions("npy", Fields(), "float32", None, "truncate", 24)
    (tmp_path / "out").mkdir()
    for shard in (0, 3):
        shard_run = run_shard(tiny, known, options, None, Folder(tmp_path / "out"), shard)
        assert shard_run.record.file == f"part-00000{shard}.npy"
    assert len(given) == 2


@pytest.mark.parametrize("rule", ["last", "dead-letter"])
@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv"])
def test_a_worker_needs_the_files_of_its_shard_only(
    tmp_path: Path, tiny: Encoder, kind: str, rule: OnDuplicate, small_windows: None
) -> None:
    """Shards of a job, each done with a part of the survey, are those of the whole job."""
    rng = random.Random(kind)
    (tmp_path / "in").mkdir()
    texts = iter(texts_of(1000))
    for number in range(25):
        rows = [(rng.randrange(200), next(texts)) for _ in range(rng.choice([0, 1, 7, 24, 60]))]
        if kind == "csv":
            lines = ["id,text", *(f"{key},{text}" for key, text in rows)]
        else:
            lines = [json.dumps({"id": key, "text": text}) for key, text in rows]
        content = "".join(line + "\n" for line in lines).encode()
        file = tmp_path / "in" / f"{number:02}.{kind}"
        file.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    encode_files(tiny, tmp_path / "in", tmp_path / "here", id_field="id", on_duplicate=rule,
                 rows_per_shard=24, out_format="npy")  # fmt: skip
    fields = Fields("text", "id", kept_as_json=True)
    options = BulkOptions("npy", fields, "float32", None, "truncate", 24, rule)
    sources = find_sources([tmp_path / "in"])
    columns = decided_columns(sources, fields)
    survey = survey_inputs(sources, 24, 1 << 20)
    repeats = find_repeats(survey.sources, fields, columns, rule, lambda: None)
    assert repeats is not None
    (tmp_path / "out").mkdir()
    folder = Folder(tmp_path / "out")
    for shard in range(len(survey.starts)):
        span = survey.span_of(shard)
        part = survey.part_of(shard)
        assert len(part.sources) == len(span) < 25
        mine = repeats.part_of(shard * 24, shard * 24 + 24, span)
        run_shard(tiny, part, options, columns, folder, shard, repeats=mine)
    letters = b"".join(file.read_bytes() for file in sorted((tmp_path / "out").glob("_part*")))
    expected = contents(tmp_path / "here")
    assert letters == expected.pop("_dead_letter.jsonl", b"")
    del expected["_manifest.json"]
    parts = contents(tmp_path / "out")
    assert {name: data for name, data in parts.items() if name[0] != "_"} == expected


def test_the_plan_of_a_shard_does_not_grow_with_the_inputs() -> None:
    def plan(files: int) -> int:
        sources = tuple(
            Source(f"s3://bucket/{i:09}.jsonl", "jsonl", 9, 9, "0" * 64, 50) for i in range(files)
        )
        starts = tuple(Start(i, 0, 0) for i in range(0, files, 2))
        survey = Survey(sources, starts, files * 50)
        rows = np.arange(0, files * 50, 25)
        repeats = Repeats(rows, rows[::-1].copy(), sources, Fields(id="id"), "dead-letter")
        shard = len(starts) // 2
        mine = repeats.part_of(shard * 100, shard * 100 + 100, survey.span_of(shard))
        return len(pickle.dumps((survey.part_of(shard), mine)))

    assert plan(100_000) < plan(100) * 1.2


def test_batches_do_not_depend_on_the_number_of_cores(tiny: Encoder) -> None:
    options = BulkOptions("npy", Fields(), "float32", None, "truncate", 100)
    assert not job_of(tiny, options).shared_out
