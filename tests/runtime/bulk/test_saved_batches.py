"""Work on an unfinished shard is kept for the next run, which writes the same bytes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Encoder
from flowvec.bulk import encode_files
from flowvec.bulk.journal import Folder
from flowvec.bulk.saved_batches import SavedBatches
from tests.makers import contents

# One shard of many windows.
ONE_SHARD: dict[str, Any] = {"out_format": "npy", "rows_per_shard": 4000}


class OnceSaved(threading.Event):
    """Set once a folder has a number of files of saved batches."""

    def __init__(self, folder: Path, files: int) -> None:
        super().__init__()
        self._folder = folder
        self._files = files

    def is_set(self) -> bool:
        return super().is_set() or len(list(self._folder.glob("*.batches"))) >= self._files


@pytest.mark.usefixtures("small_windows", "at_once")
@pytest.mark.parametrize("options", [{}, {"dedupe": True}, {"precision": "ubinary"}])
def test_a_stopped_job_continues_within_its_shard(
    tmp_path: Path, tiny: Encoder, many: Path, options: dict[str, Any]
) -> None:
    options = {**ONE_SHARD, **options}
    whole = encode_files(tiny, many, tmp_path / "whole", **options)
    out = tmp_path / "out"
    done = encode_files(tiny, many, out, stop=OnceSaved(out, 9), **options)
    assert (done.complete, done.shards) == (False, 0)
    assert 0 < done.kept < whole.encoded
    rest = encode_files(tiny, many, out, **options)
    assert (rest.complete, rest.rows, rest.kept) == (True, whole.rows, 0)
    assert rest.encoded <= whole.encoded - done.kept
    assert rest.tokens < whole.tokens
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_windows", "at_once")
def test_a_job_into_a_collection_continues_within_its_shard(
    tmp_path: Path, tiny: Encoder, many: Path
) -> None:
    options: dict[str, Any] = {"out_format": "collection", "rows_per_shard": 4000}
    out = tmp_path / "notes"
    job = tmp_path / "notes.job"
    done = encode_files(tiny, many, out, stop=OnceSaved(job, 9), **options)
    rest = encode_files(tiny, many, out, **options)
    assert (rest.complete, rest.rows) == (True, 941)
    assert rest.encoded <= 941 - done.kept < 941
    assert not list(job.glob("*.batches"))


@pytest.mark.campaign(but=1)
@pytest.mark.usefixtures("small_windows", "at_once")
@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "another job's"])
def test_damaged_work_is_done_again(tmp_path: Path, tiny: Encoder, many: Path, damage: str) -> None:
    whole = encode_files(tiny, many, tmp_path / "whole", **ONE_SHARD)
    out = tmp_path / "out"
    encode_files(tiny, many, out, stop=OnceSaved(out, 9), **ONE_SHARD)
    if damage == "another job's":
        (out / "_manifest.json").unlink()
        other = ONE_SHARD | {"rows_per_shard": 5000}
        encode_files(tiny, many, tmp_path / "whole", resume=False, **other)
        done = encode_files(tiny, many, out, **other)
        assert (done.complete, done.encoded) == (True, whole.encoded)
        assert contents(out) == contents(tmp_path / "whole")
        return
    for file in out.glob("*.batches"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes({"cut": content[:-1], "changed": content, "empty": b""}[damage])
    done = encode_files(tiny, many, out, **ONE_SHARD)
    assert (done.complete, done.encoded) == (True, whole.encoded)
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.usefixtures("at_once")
def test_work_of_finished_shards_and_of_a_job_begun_anew_is_deleted(
    tmp_path: Path, tiny: Encoder, many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {"out_format": "npy", "rows_per_shard": 100}
    seen: list[set[str]] = []
    encode_files(
        tiny, many, out, on_progress=lambda _: seen.append(
            {file.name.partition(".")[0] for file in out.glob("*.batches")}
        ), **options,
    )  # fmt: skip
    assert any(seen)
    assert all(len(names) <= 3 for names in seen)  # this shard, and those of the last ones
    assert not list(out.glob("*.batches"))
    (out / "_part-000003.0-0.batches").write_bytes(b"left by a kill")
    encode_files(tiny, many, out, resume=False, **options)
    assert not list(out.glob("*.batches"))


KILLED = """
import os, sys
from flowvec import Encoder
from flowvec.bulk import encode_files, saved_batches
saved_batches._SAVE_EVERY = 0.0
folder = sys.argv[3]
encoder = Encoder.load(sys.argv[1], provider="cpu", streams=2)
def die_once_saved(_):
    if any(name.endswith(".batches") for name in os.listdir(folder)):
        os._exit(9)
encode_files(encoder, sys.argv[2], folder, on_progress=die_once_saved, out_format="npy")
"""


@pytest.mark.process
def test_a_killed_job_ends_with_the_same_bytes(
    tmp_path: Path, tiny: Encoder, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was saved is used as after a stop, which other tests show by what is computed."""
    (tmp_path / "in.txt").write_text("".join(f"the cat {i}\n" for i in range(20_000)))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tiny_dir), "in.txt", "out"], cwd=tmp_path, check=False
    )
    assert killed.returncode == 9
    assert list((tmp_path / "out").glob("*.batches"))
    monkeypatch.chdir(tmp_path)  # inputs are compared by their paths
    done = encode_files(tiny, "in.txt", "out", out_format="npy")
    encode_files(tiny, "in.txt", "whole", out_format="npy")
    assert (done.complete, done.rows) == (True, 20_000)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_fast_job_keeps_nothing_beside_its_shards(
    tmp_path: Path, saved_every: Callable[[float], None]
) -> None:
    saved_every(1e9)
    saved = SavedBatches(Folder(tmp_path), [0], {})
    feeds = [np.ones((2, 3), np.int64)] * 2
    saved.put(feeds, np.ones((2, 4), np.float32))
    saved.close()
    assert saved.get(feeds) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("at_once")
def test_what_is_kept_is_found_by_its_tokens(tmp_path: Path) -> None:
    feeds = [np.arange(6).reshape(2, 3), np.ones((2, 3), np.int64)]
    output = np.arange(8, dtype=np.float32).reshape(2, 4)
    saved = SavedBatches(Folder(tmp_path), [4], {})
    saved.put(feeds, output)
    saved.close()
    saved.put(feeds, output)  # a stream that was late
    again = SavedBatches(Folder(tmp_path), [4], Folder(tmp_path).saved_batches())
    assert again.texts == 2
    np.testing.assert_array_equal(again.get(feeds), output)
    for other in ([feeds[0] + 1, feeds[1]], [feeds[0].reshape(3, 2), feeds[1].reshape(3, 2)]):
        assert again.get(other) is None
    again.end_shard(4)
    again.close()
    assert again.texts == 0
