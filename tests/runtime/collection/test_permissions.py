"""A collection in folders that the user cannot write, list or enter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flowvec import Collection
from tests.makers import vectors

pytestmark = pytest.mark.process

# That user may not be able to read the modules, so all are imported before.
SOMEBODY = """
import mmap, os, sys, tempfile
from pathlib import Path
import numpy as np
from flowvec import Collection, CollectionError
graph = {"index": "graph", "exact_below": 20}
with tempfile.TemporaryDirectory() as warm, Collection.create(warm, dim=4, **graph) as c:
    c.add_vectors(range(30), np.eye(30, 4), ["x"] * 30)
    c.search(np.ones(4), filter={"x": 1})
    c.verify()
    c.compact()
    c.tune_recall()
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
folder = Path(sys.argv[1])
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that any user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="flowvec-"))
    folder.chmod(0o755)
    yield folder
    for level, _, _ in os.walk(folder):
        Path(level).chmod(0o755)
    shutil.rmtree(folder)


posix = pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")


def as_somebody(folder: Path, code: str) -> str:
    """The output of a program run by another user: permissions do not apply to root."""
    done = subprocess.run(
        [sys.executable, "-c", SOMEBODY + code, str(folder)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@posix
def test_a_folder_that_cannot_be_written_is_searched(public: Path) -> None:
    with Collection.create(public / "c", dim=4, index="graph", exact_below=20) as c:
        c.add_vectors(range(50), vectors(50, dim=4), [f"text {i}" for i in range(50)])
        expected = [hit.id for hit in c.search(np.ones(4))]
    for file in (public / "c").iterdir():
        file.chmod(0o444)
    (public / "c").chmod(0o555)
    code = """
with Collection.open(folder / "c") as c:
    print([hit.id for hit in c.search(np.ones(4))])
    assert c.verify() == []
    for change in (lambda: c.delete([1]), c.compact, c.index_texts):
        try:
            change()
        except CollectionError as error:
            assert "cannot be written" in str(error), error
        else:
            raise AssertionError(change)
    assert len(c) == 50
for index in ("scan", "graph"):
    with Collection.open(folder / "c", index=index, exact_below=20) as c:
        assert c.tune_recall(0.9) >= 0.9
        assert c.info().recall is None  # it is measured, and cannot be kept
"""
    assert as_somebody(public, code) == str(expected)
    assert sorted(file.name for file in (public / "c").glob("*.sqlite*")) == ["collection.sqlite"]


@posix
def test_a_read_only_handle_sees_later_writes(public: Path) -> None:
    with Collection.create(public / "c", dim=4) as c:
        c.add_vectors(range(5), vectors(5, dim=4))
        for file in (public / "c").iterdir():
            file.chmod(0o644)
        (public / "c").chmod(0o755)
        c.add_vectors(["late"], vectors(1, seed=1, dim=4))
        code = "print(len(Collection.open(folder / 'c')))"
        if os.geteuid() == 0:  # else it is the same user, who may write
            assert as_somebody(public, code) == "6"
        c.delete([1])
        assert as_somebody(public, code) == "5"


@posix
def test_a_parent_that_cannot_be_listed_is_not_a_hindrance(public: Path) -> None:
    (public / "parent").mkdir()
    (public / "parent" / "own").mkdir()
    for folder, mode in ((public / "parent" / "own", 0o777), (public / "parent", 0o111)):
        folder.chmod(mode)
    code = """
with Collection.create(folder / "parent" / "own", dim=4) as c:
    c.add_vectors([1], np.ones((1, 4)))
print(len(Collection.open(folder / "parent" / "own")))
"""
    assert as_somebody(public, code) == "1"


@posix
def test_a_folder_that_cannot_be_entered_is_a_typed_error(public: Path) -> None:
    Collection.create(public / "c", dim=4).close()
    (public / "c").chmod(0o600)
    code = """
for use in (lambda: Collection.open(folder / "c"), lambda: Collection.create(folder / "c", dim=4),
            lambda: Collection.create(folder / "c" / "d", dim=4)):
    try:
        use()
    except CollectionError as error:
        assert str(folder / "c") in str(error), error
    else:
        raise AssertionError(use)
"""
    as_somebody(public, code)
