"""The vectors file: what is written is read, and what is damaged is found."""

from __future__ import annotations

import gc
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec.collection.index.vector_file import (
    VectorFile,
    VectorFileError,
    path_of,
    remove_other_generations,
    write_generation,
)
from flowvec.collection.index.vector_format import HEADER_BYTES, Layout
from flowvec.errors import ClosedError
from tests.faults import disk
from tests.makers import vectors
from tests.runtime.collection.index.vector_files import small_file

ROOT = Path(__file__).resolve().parents[4]


def check(file: VectorFile, labels: np.ndarray, rows: np.ndarray) -> None:
    n = len(labels)
    assert file.labels(n).tolist() == labels.tolist()
    assert np.array_equal(file.gather(np.arange(n)), rows)
    assert file.damaged(0, n).tolist() == []


@given(
    dim=st.integers(1, 5),
    parts=st.lists(st.integers(0, 9), max_size=6),
    gaps=st.integers(1, 3),
    garbage=st.integers(0, 9),
)
def test_records_are_read_as_they_were_appended(
    tmp_path_factory, dim: int, parts: list[int], gaps: int, garbage: int
) -> None:
    folder = tmp_path_factory.mktemp("file")
    total = sum(parts)
    labels, rows = np.arange(total, dtype=np.int64) * gaps + 1, vectors(total, dim)
    file = small_file(folder, [], rows[:0])
    other = VectorFile.open(file.path, dim, read_only=True)
    n = 0
    for count in parts:
        # What an interrupted change wrote is replaced.
        file.append(n, np.arange(garbage) + 10_000, vectors(garbage, dim, seed=1))
        file.append(n, labels[n : n + count], rows[n : n + count])
        n += count
        check(file, labels[:n], rows[:n])
        check_later = other.labels(n)
        assert check_later.tolist() == labels[:n].tolist()
    check(other, labels, rows)
    again = VectorFile.open(file.path, dim)
    check(again, labels, rows)
    for each in (file, other, again):
        each.close()


@pytest.mark.parametrize("dim", [1, 7, 384, 1001])
def test_a_file_of_real_blocks(tmp_path: Path, dim: int) -> None:
    layout = Layout.of(dim)
    assert layout.rows >= 64
    total = min(layout.rows, 2000) + 3
    labels, rows = np.arange(1, total + 1), vectors(total, dim)
    assert write_generation(tmp_path, 7, dim, [(labels[:5], rows[:5]), (labels[5:], rows[5:])]) == (
        total
    )
    file = VectorFile.open(path_of(tmp_path, 7), dim)
    assert file.capacity % layout.rows == 0
    check(file, labels, rows)
    assert file.blocks.vectors[0].flags.c_contiguous
    assert not file.blocks.vectors.flags.writeable
    file.close()


@pytest.mark.parametrize("dim", [3, 4])
def test_every_flipped_bit_of_a_record_is_found(tmp_path: Path, dim: int) -> None:
    file = small_file(tmp_path, [3, 5, 6, 8, 9], vectors(5, dim))
    layout, content = file.layout, file.path.read_bytes()
    file.close()
    slot = 2
    places = [(4 * dim * slot, 4 * dim)]
    places += [(start + 8 * slot, 8) for start in (layout.labels_at, layout.checksums_at)]
    for start, length in places:
        for bit in range(8 * length):
            damaged = bytearray(content)
            damaged[HEADER_BYTES + start + bit // 8] ^= 1 << bit % 8
            file.path.write_bytes(damaged)
            again = VectorFile.open(file.path, dim)
            assert again.damaged(0, 5).tolist() == [slot]
            again.close()


@pytest.mark.parametrize("dim", [2, 3, 384])
def test_torn_zeroed_and_exchanged_words_are_found(tmp_path: Path, dim: int) -> None:
    # Equal words would cancel in a plain sum or XOR.
    rows = np.ones((6, dim), np.float32)
    rows[:, 0] = np.arange(6)
    file = small_file(tmp_path, [1, 2, 3, 4, 5, 6], rows)
    layout, content = file.layout, file.path.read_bytes()
    file.close()
    for start, length in [
        (0, 4 * dim),  # the vectors of slots 0, ...
        (8, max(4 * dim - 8, 4)),
        (layout.labels_at, 8),
        (layout.checksums_at, 8),
    ]:
        damaged = bytearray(content)
        damaged[HEADER_BYTES + start : HEADER_BYTES + start + length] = bytes(length)
        file.path.write_bytes(damaged)
        again = VectorFile.open(file.path, dim)
        # A record that was written as zeros where it was torn is the same record.
        assert bool(len(again.damaged(0, 6))) == (damaged != content)
        again.close()
    damaged = bytearray(content)
    one, two = (slice(HEADER_BYTES + 4 * dim * s, HEADER_BYTES + 4 * dim * (s + 1)) for s in (1, 2))
    damaged[one], damaged[two] = damaged[two], damaged[one]
    file.path.write_bytes(damaged)
    again = VectorFile.open(file.path, dim)
    assert again.damaged(0, 6).tolist() == [1, 2]
    again.close()
    file.path.write_bytes(content[:HEADER_BYTES] + bytes(len(content) - HEADER_BYTES))
    again = VectorFile.open(file.path, dim)
    assert again.damaged(0, 6).tolist() == [0, 1, 2, 3, 4, 5]
    again.close()


@pytest.mark.parametrize("damage", ["missing", "link", "empty", "header", "version", "text", "dim"])
def test_what_is_not_a_vectors_file_is_refused(tmp_path: Path, damage: str) -> None:
    file = small_file(tmp_path, [1, 2], vectors(2, 3))
    file.close()
    path, content = file.path, bytearray(file.path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("not vectors" * 1000)
    elif damage == "version":
        layout = Layout(3, 4)
        header = bytearray(layout.header())
        assert header[8:12] == (1).to_bytes(4, "little")
        header[8] = 2
        path.write_bytes(header)
    elif damage == "header":
        for bit in range(8 * 20):
            content[bit // 8] ^= 1 << bit % 8
            path.write_bytes(content)
            with pytest.raises(VectorFileError, match="graph-vectors-1"):
                VectorFile.open(path, 3)
            content[bit // 8] ^= 1 << bit % 8
        return
    with pytest.raises(VectorFileError, match="graph-vectors-1"):
        VectorFile.open(path, 4 if damage == "dim" else 3)


def test_a_file_grows_seldom(tmp_path: Path) -> None:
    file = small_file(tmp_path, [], vectors(0, 3))
    capacities = set()
    for n in range(1000):
        file.append(n, np.array([n + 1]), vectors(1, 3, seed=n))
        capacities.add(file.capacity)
    assert len(capacities) < 30  # of 250 blocks
    file.close()


def test_a_file_that_is_too_short_is_found(tmp_path: Path) -> None:
    file = small_file(tmp_path, [1, 2], vectors(2, 3))
    with pytest.raises(VectorFileError, match="shorter than 5 records"):
        file.labels(5)
    with pytest.raises(VectorFileError, match="shorter than 5 records"):
        file.append(5, np.array([9]), vectors(1, 3))
    file.close()


@pytest.mark.parametrize("labels", [[2], [1], [0], [3, 3], [4, 3]])
def test_labels_ascend(tmp_path: Path, labels: list[int]) -> None:
    file = small_file(tmp_path, [1, 2], vectors(2, 3))
    with pytest.raises(VectorFileError, match="ascending"):
        file.append(2, np.array(labels), vectors(len(labels), 3))
    check(file, np.array([1, 2]), vectors(2, 3))
    file.close()


def test_a_file_that_is_opened_for_reading_is_not_written(tmp_path: Path) -> None:
    file = small_file(tmp_path, [1, 2], vectors(2, 3))
    file.close()
    file.path.chmod(0o444)
    reader = VectorFile.open(file.path, 3, read_only=True)
    content = file.path.read_bytes()
    for count in (1, 20):  # with room for it, and without
        with pytest.raises(VectorFileError, match="cannot write"):
            reader.append(2, np.arange(count) + 9, vectors(count, 3))
    check(reader, np.array([1, 2]), vectors(2, 3))
    assert file.path.read_bytes() == content
    reader.close()


def test_a_closed_file_says_so_and_leaves_its_arrays(tmp_path: Path) -> None:
    file = small_file(tmp_path, [1, 2], vectors(2, 3))
    rows = file.blocks.vectors
    file.close()
    file.close()
    assert np.array_equal(rows[0, :2], vectors(2, 3))
    for call in (
        lambda: file.labels(2),
        lambda: file.gather(np.array([0])),
        lambda: file.append(2, np.array([3]), vectors(1, 3)),
        lambda: file.damaged(0, 1),
    ):
        with pytest.raises(ClosedError):
            call()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts handles in Linux's /proc")
def test_no_handle_is_left_open(tmp_path: Path) -> None:
    def handles() -> list[str]:
        """Files of this test that are open; other threads open and close others meanwhile."""
        names = []
        for handle in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):
                names.append(str(handle.readlink()))
        return [name for name in names if name.startswith(str(tmp_path))]

    def use() -> None:
        file = VectorFile.create(tmp_path, 1, 300)
        for n in range(0, 4000, 500):
            file.append(n, np.arange(n + 1, n + 501), vectors(500, 300))
        other = VectorFile.open(file.path, 300, read_only=True)
        other.labels(4000)
        other.close()
        file.close()
        with pytest.raises(VectorFileError):
            VectorFile.open(file.path, 3)

    with (tmp_path / "other").open("wb"):
        assert len(handles()) == 1
    use()
    gc.collect()
    assert handles() == []


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_leaves_the_file_to_its_parent(tmp_path: Path) -> None:
    file = small_file(tmp_path, [1, 2], vectors(2, 3))
    child = os.fork()
    if not child:
        good = np.array_equal(file.gather(np.array([0, 1])), vectors(2, 3))
        file.close()
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    file.append(2, np.array([5]), vectors(1, 3, seed=2))
    check(file, np.array([1, 2, 5]), np.concatenate((vectors(2, 3), vectors(1, 3, seed=2))))
    file.close()


READER = """
import sys
from pathlib import Path
import numpy as np
from flowvec.collection.index.vector_file import VectorFile
file = VectorFile.open(Path(sys.argv[1]), 3, read_only=True)
first = file.blocks.vectors
for line in sys.stdin:
    n = int(line)
    labels = file.labels(n)
    rows = file.gather(np.arange(n))
    bad = len(file.damaged(0, n))
    print(bad, labels.sum(), float(rows.sum(dtype="f8")), float(first[0, 0].sum()), flush=True)
"""


@pytest.mark.process
def test_another_process_follows_a_file_that_grows(tmp_path: Path) -> None:
    rows = np.arange(900, dtype=np.float32).reshape(300, 3)
    file = small_file(tmp_path, [1], rows[:1])
    capacities = {file.capacity}
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(file.path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as reader:  # fmt: skip
        assert reader.stdin is not None
        assert reader.stdout is not None
        for had, n in pairwise((1, 1, 2, 3, 50, 51, 300)):
            file.append(had, np.arange(had + 1, n + 1), rows[had:n])
            capacities.add(file.capacity)
            reader.stdin.write(f"{n}\n")
            reader.stdin.flush()
            expected = [0, sum(range(1, n + 1)), rows[:n].sum(dtype="f8"), 3.0]
            assert [float(x) for x in reader.stdout.readline().split()] == expected
        reader.stdin.close()
        assert reader.wait(300) == 0
    assert len(capacities) > 2
    file.close()


def test_a_generation_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_generation(tmp_path, 2, 3, [(np.array([1, 2]), vectors(2, 3))])
    content = path_of(tmp_path, 2).read_bytes()

    def stopping():
        yield np.array([1]), vectors(1, 3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_generation(tmp_path, 2, 3, stopping())
    with pytest.raises(VectorFileError):
        write_generation(tmp_path / "missing", 2, 3, ())
    with pytest.raises(VectorFileError, match="dim"):
        write_generation(tmp_path, 2, 0, ())
    assert [file.name for file in tmp_path.iterdir()] == ["graph-vectors-2.f32"]
    assert path_of(tmp_path, 2).read_bytes() == content


def test_other_generations_are_removed(tmp_path: Path) -> None:
    for number in (1, 2, 13):
        write_generation(tmp_path, number, 3, ())
    kept = ["graph-1.hnsw", "graph-vectors-x.f32", "graph-vectors-2.f32"]
    (tmp_path / "graph-1.hnsw").touch()
    (tmp_path / "graph-vectors-x.f32").touch()
    (tmp_path / "graph-vectors-2.f32.77.partial").touch()
    remove_other_generations(tmp_path, 2)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(kept)
    remove_other_generations(tmp_path, None)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(kept[:2])


# Appends with a disk on which calls fail; prints the outcome of each append.
WRITER = """
import ctypes, os, sys
from pathlib import Path
import numpy as np
from flowvec.collection.index.vector_file import VectorFile, VectorFileError
path, at, error, once, limit = Path(sys.argv[1]), *map(int, sys.argv[2:])
disk = ctypes.CDLL(None)
file = VectorFile.open(path, 3)
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
disk.faulty_disk_arm(os.fsencode(path.parent), at, error, once)
n, label = 2, 100
for count in (1, 1, 9, 2):
    label += 20
    try:
        file.append(n, np.arange(count) + label, np.full((count, 3), label, "f4"))
    except VectorFileError as refused:
        print("refused", refused)
    else:
        n += count
    assert not len(file.damaged(0, n))
print("calls", disk.faulty_disk_calls(), n)
"""


def run_writer(
    folder: Path, library: Path, at: int, error: int, once: int, limit: int = 0
) -> tuple[list[str], Path]:
    """Lines of a writer, and a log of its calls."""
    log = folder / "calls.log"
    log.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(folder / "c/graph-vectors-1.f32"),
         *map(str, (at, error, once, limit))],
        env={**os.environ, "LD_PRELOAD": str(library), "FAULTY_DISK_LOG": str(log)},
        capture_output=True, text=True, timeout=600, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), log


needs_faulty_disk = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which(os.environ.get("CC", "cc")) is None,
    reason="the faulty disk is compiled on Linux",
)


@pytest.mark.process
@needs_faulty_disk
@pytest.mark.parametrize("once", [0, 1])
def test_a_full_disk_refuses_an_append_and_leaves_valid_records(tmp_path: Path, once: int) -> None:
    library = disk.compile_disk(tmp_path)
    (tmp_path / "c").mkdir()
    at, refusals = 1, 0
    while True:
        file = small_file(tmp_path / "c", [3, 4], vectors(2, 3))
        file.append(2, np.array([5, 6]), vectors(2, 3))  # was not committed
        file.close()
        lines, _ = run_writer(tmp_path, library, at, disk.ERRORS[at % 3], once)
        assert all("cannot write" in line for line in lines if line.startswith("refused"))
        refusals += len(lines) - 1
        n = int(lines[-1].split()[2])
        again = VectorFile.open(file.path, 3)
        assert again.labels(n)[:2].tolist() == [3, 4]
        assert again.damaged(0, n).tolist() == []
        again.close()
        if at > int(lines[-1].split()[1]):
            break
        at += 3 if at > 3 else 1
    assert refusals > 3


@pytest.mark.process
@needs_faulty_disk
def test_a_file_that_may_not_grow_refuses_an_append(tmp_path: Path) -> None:
    library = disk.compile_disk(tmp_path)
    (tmp_path / "c").mkdir()
    file = small_file(tmp_path / "c", [3, 4], vectors(2, 3))
    file.close()
    lines, _ = run_writer(tmp_path, library, 0, 0, 0, limit=file.path.stat().st_size)
    assert lines[-1].endswith(" 4")  # two appends of a row fit, and none of nine
    assert "cannot write" in lines[0]


@pytest.mark.process
@needs_faulty_disk
def test_records_of_interrupted_changes_are_gone_from_disk_before_new_ones_are_written(
    tmp_path: Path,
) -> None:
    library = disk.compile_disk(tmp_path)
    (tmp_path / "c").mkdir()
    file = small_file(tmp_path / "c", [3, 4], vectors(2, 3))
    file.append(2, np.arange(5, 12), vectors(7, 3))
    file.close()
    lines, log = run_writer(tmp_path, library, 0, 0, 0)
    assert lines[-1].startswith("calls")
    calls = [line.split()[0] for line in log.read_text().splitlines()]
    # Zeros over the checksums of three blocks, once, and then never again.
    assert calls[:4] == ["write", "write", "write", "sync"]
    assert calls.count("sync") == 1


FULL = """
import sys
from pathlib import Path
import numpy as np
from flowvec.collection.index.vector_file import VectorFile, VectorFileError
folder = Path(sys.argv[1])
file = VectorFile.create(folder, 1, 128)
rows = np.ones((5000, 128), np.float32)
file.append(0, np.arange(1, 2), rows[:1])
try:
    with (folder / "other").open("wb", buffering=0) as other:
        while other.write(bytes(4096)):
            pass
except OSError:
    pass
try:
    file.append(1, np.arange(2, 5001), rows[1:])
except VectorFileError:
    print(len(file.damaged(0, 1)))
"""


@pytest.mark.process
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare to mount a tmpfs")
def test_a_full_file_system_in_memory_is_an_error(tmp_path: Path) -> None:
    """Reading what was never written takes memory there, and kills the process if none is left."""
    mount = f"mount -t tmpfs -o size=8m tmpfs {shlex.quote(str(tmp_path))}"
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*inside, mount], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let the tests mount a tmpfs")
    command = shlex.join([sys.executable, "-c", FULL, str(tmp_path)])
    done = subprocess.run(
        [*inside, f"{mount} && {command}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\n"
