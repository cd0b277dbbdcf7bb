"""One shard of a job: what a worker does for it, and what it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowvec import Encoder
from flowvec.bulk import runner
from flowvec.bulk.journal import Folder
from flowvec.bulk.options import BulkOptions
from flowvec.bulk.runner import job_of, run_shard
from flowvec.texts.inventory import survey_inputs
from flowvec.texts.sources import find_sources
from flowvec.texts.window import Fields


def test_a_worker_gives_memory_back_after_each_shard(
    tmp_path: Path, tiny: Encoder, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bool] = []
    monkeypatch.setattr(runner, "trim_memory", lambda: given.append(True))
    known = survey_inputs(find_sources([rows]), 24, 1 << 20)
    options = BulkOptions("npy", Fields(), "float32", None, "truncate", False, 24)
    (tmp_path / "out").mkdir()
    for shard in (0, 3):
        shard_run = run_shard(tiny, known, options, None, Folder(tmp_path / "out"), shard)
        assert shard_run.record.file == f"part-00000{shard}.npy"
    assert len(given) == 2


def test_batches_do_not_depend_on_the_number_of_cores(tiny: Encoder) -> None:
    options = BulkOptions("npy", Fields(), "float32", None, "truncate", False, 100)
    assert not job_of(tiny, options).shared_out
