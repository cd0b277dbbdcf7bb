"""Cores that a process may use (affinity, cgroup quotas), and memory that is given back."""

from __future__ import annotations

import os
import platform
import threading
from pathlib import Path

import pytest

from flowvec import machine
from flowvec.machine import cpu_features, trim_memory, vector_instructions


def test_the_affinity_mask_bounds_the_cores(python) -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no affinity masks")
    code = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from flowvec.machine import available_cores
assert available_cores() == 1
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def tree(folder: Path, files: dict[str, str], membership: str) -> tuple[Path, Path]:
    for name, text in files.items():
        file = folder / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "self").write_text(membership)
    return folder / "cgroup", folder / "self"


@pytest.mark.parametrize(
    ("files", "membership", "quota"),
    [
        ({"a/b/cpu.max": "150000 100000\n"}, "0::/a/b\n", 1.5),
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b\n", 2.0),
        ({"a/cpu.max": "50000 100000", "a/b/cpu.max": "400000 100000"}, "0::/a/b\n", 0.5),
        ({"a/cpu.max": "max 100000"}, "0::/a\n", None),
        ({"a/cpu.max": "rubbish"}, "0::/a\n", None),
        ({}, "0::/\n", None),
        (
            {"cpu,cpuacct/d/cpu.cfs_quota_us": "300000", "cpu,cpuacct/d/cpu.cfs_period_us": "1e5"},
            "4:memory:/d\n3:cpu,cpuacct:/d\n",
            None,
        ),
        (
            {
                "cpu,cpuacct/d/cpu.cfs_quota_us": "300000",
                "cpu,cpuacct/d/cpu.cfs_period_us": "100000",
            },
            "4:memory:/d\n3:cpu,cpuacct:/d\n",
            3.0,
        ),
        (
            {"cpu/d/cpu.cfs_quota_us": "-1", "cpu/d/cpu.cfs_period_us": "100000"},
            "3:cpu:/d\n",
            None,
        ),
    ],
)
def test_the_tightest_quota_counts(tmp_path: Path, files, membership, quota) -> None:
    assert machine._cgroup_quota(*tree(tmp_path, files, membership)) == quota


@pytest.mark.parametrize(("quota", "cores"), [(0.3, 1), (1.6, 2), (64.0, 8), (None, 8)])
def test_a_quota_is_rounded_and_never_below_one(quota, cores) -> None:
    assert machine.within_quota(8, quota) == cores


def test_without_cgroups_there_is_not_a_quota(tmp_path: Path) -> None:
    assert machine._cgroup_quota(tmp_path, tmp_path / "nowhere") is None


def test_the_processor_has_a_name() -> None:
    assert machine.cpu_name()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this C library is not glibc")
def test_what_threads_left_behind_is_given_back() -> None:
    """The freed half of what threads allocated stays in their arenas, between the other half."""
    buffers: list[list[bytearray]] = []

    def work() -> None:
        mine = [bytearray(40_000) for _ in range(500)]
        del mine[::2]
        del mine[:-1]
        buffers.append(mine)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before = resident()
    assert trim_memory()
    assert before - resident() > 10e6
    assert len(buffers) == 8


SAPPHIRE_RAPIDS = (
    "sse4_2 avx avx2 fma avx512f avx512_vnni avx_vnni avx512_bf16 avx512_fp16 amx_bf16 amx_int8"
)


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        (None, SAPPHIRE_RAPIDS),
        ("ALL", SAPPHIRE_RAPIDS),
        ("nonsense", SAPPHIRE_RAPIDS),
        ("AVX512_CORE_AMX", SAPPHIRE_RAPIDS),
        ("AVX512_CORE_FP16", "avx2 avx512f avx512_vnni avx_vnni avx512_bf16 avx512_fp16"),
        ("avx512_core_bf16", "avx2 avx512f avx512_vnni avx_vnni avx512_bf16"),
        ("AVX512_CORE_VNNI", "avx2 avx512f avx512_vnni avx_vnni"),
        ("AVX512_CORE", "avx2 avx512f avx_vnni"),
        ("AVX2_VNNI", "avx2 avx_vnni"),
        ("AVX2", "avx2"),
        ("SSE41", ""),
    ],
)
def test_a_limit_on_onednn_counts(
    monkeypatch: pytest.MonkeyPatch, limit: str | None, left: str
) -> None:
    monkeypatch.setattr(machine, "_cpuinfo", lambda: {"flags": SAPPHIRE_RAPIDS})
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
    if limit is not None:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert cpu_features() == [each for each in left.split() if each not in ("sse4_2", "avx", "fma")]
    # What ONNX Runtime may use is not limited.
    assert set(vector_instructions()) == set(SAPPHIRE_RAPIDS.split())
