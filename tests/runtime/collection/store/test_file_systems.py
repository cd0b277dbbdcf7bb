"""Network file systems are told by the list of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowvec import Collection
from flowvec.collection.store.file_systems import network_file_system
from flowvec.collection.store.store import FILE, Store

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /mnt/share rw shared:7 - nfs4 server:/x rw,vers=4.2
31 22 0:41 / /mnt/with\\040space rw - cifs //server/y rw
32 30 0:42 / /mnt/share/local rw - ext4 /dev/vdb rw
33 22 0:43 / /mnt/over rw - ext4 /dev/vdc rw
34 33 0:44 / /mnt/over rw - fuse.sshfs host:/z rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", None),
        ("/home/x", None),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/deep/er", "nfs4"),
        ("/mnt/shared", None),
        ("/mnt/share/local/x", None),
        ("/mnt/with space/x", "cifs"),
        ("/mnt/over/x", "fuse.sshfs"),
    ],
)
def test_the_innermost_mount_decides(tmp_path: Path, folder: str, kind: str | None) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert network_file_system(Path(folder), mounts) == kind


@pytest.mark.parametrize("content", ["", "nonsense\n", "1 2 3 4 /\n"])
def test_what_cannot_be_read_says_nothing(tmp_path: Path, content: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(content)
    assert network_file_system(tmp_path, mounts) is None
    assert network_file_system(tmp_path, tmp_path / "missing") is None


def test_a_collection_on_one_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Collection.create(tmp_path / "c", dim=2).close()
    assert not caplog.records
    mounts = tmp_path / "mountinfo"
    mounts.write_text("22 1 0:40 / / rw shared:7 - nfs4 server:/x rw,vers=4.2\n")
    Store(tmp_path / "c" / FILE, mounts=mounts).close()
    assert "only processes of one machine" in caplog.text
