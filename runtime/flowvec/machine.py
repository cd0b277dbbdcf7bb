"""What this machine offers a process: available cores, processor name, vector instructions."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import lru_cache
from pathlib import Path

__all__ = [
    "available_cores",
    "available_memory",
    "cpu_features",
    "cpu_name",
    "gpu_names",
    "isa_limit",
    "trim_memory",
    "vector_instructions",
]

# The instruction sets that decide how fast an encoder runs.
_FEATURES = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "amx_int8",
    "amx_fp16",
)
# What ARM calls its flags, and what they are called here.
_ARM_FEATURES = {"asimddp": "arm_dotprod", "bf16": "arm_bf16"}
# Prefixes of the flags that each limit on oneDNN (used by OpenVINO and torch) turns off.
_BFLOAT16 = ("avx512_bf16", "amx_")
_ISA_LIMITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("SSE41", "AVX"), ("avx2", "avx_vnni", "avx512", "amx_")),
    "AVX2": ("avx_vnni", "avx512", "amx_"),
    **dict.fromkeys(("AVX2_VNNI", "AVX2_VNNI_2"), ("avx512", "amx_")),
    "AVX512_CORE": ("avx512_vnni", "avx512_fp16", *_BFLOAT16),
    "AVX512_CORE_VNNI": ("avx512_fp16", *_BFLOAT16),
    "AVX512_CORE_BF16": ("avx512_fp16", "amx_"),
    **dict.fromkeys(("AVX512_CORE_FP16", "AVX10_1_512"), ("amx_",)),
}


def available_cores() -> int:
    """Cores this process may use: the smaller of its affinity mask and its cgroup's quota.

    `os.cpu_count()` counts the whole machine: a container limited to two cores would start 64
    threads.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return within_quota(cores, _cgroup_quota(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")))


def within_quota(cores: int, quota: float | None) -> int:
    """How many of some cores a quota, in cores, allows; at least one."""
    return cores if quota is None else min(cores, max(1, round(quota)))


def _cgroup_quota(root: Path, membership: Path) -> float | None:
    """The tightest CPU quota, in cores, of this process's cgroups and those above them."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        base = root if controllers == "" else root / controllers
        if controllers != "" and "cpu" not in controllers.split(","):
            continue
        relative = Path(group.lstrip("/"))
        for folder in (base / relative, *(base / parent for parent in relative.parents)):
            quota = _read_v2(folder) if controllers == "" else _read_v1(folder)
            if quota is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def _read_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _read_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else None
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=1)
def _cpuinfo() -> dict[str, str]:
    """The first processor's entries in /proc/cpuinfo; empty if there is no such file."""
    entries: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return entries
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        entries[key.strip()] = value.strip()
    return entries


def cpu_name() -> str:
    """The processor's name, from the system."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """The available instruction sets that matter to flowvec; empty if unknown.

    Those that the environment variable ONEDNN_MAX_CPU_ISA turns off are left out.
    """
    flags = set(_cpuinfo().get("flags", "").split())
    missing = _ISA_LIMITS.get(isa_limit() or "", ())
    x86 = [name for name in _FEATURES if name in flags and not name.startswith(missing)]
    arm = set(_cpuinfo().get("Features", "").split())
    return x86 + [ours for theirs, ours in _ARM_FEATURES.items() if theirs in arm]


def isa_limit() -> str | None:
    """The limit on instruction sets in ONEDNN_MAX_CPU_ISA, in upper case; None without one."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA")
    return limit.upper() if limit else None


def vector_instructions() -> list[str]:
    """All flags of the processor that decide which kernels an engine uses, sorted."""
    flags = (_cpuinfo().get("flags") or _cpuinfo().get("Features") or "").split()
    others = {"fma", "f16c", "bmi2", "gfni"}
    x86 = {name for name in flags if name.startswith(("avx", "amx", "sse")) or name in others}
    return sorted(x86 or set(flags))


def available_memory() -> int | None:
    """Bytes that this process can still take: the least that the system and its cgroup have left.

    None if neither says.
    """
    left: list[int] = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                left.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError, IndexError):
        pass
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            most = (group / limit).read_text().strip()
            if most != "max":
                left.append(int(most) - int((group / used).read_text()))
        except (OSError, ValueError):
            continue
    return min(left, default=None)


def trim_memory() -> bool:
    """Return memory that is free in the C library to the system.

    glibc keeps an arena for each thread that allocates, and each arena keeps its largest size. So
    memory grows with work that starts threads again and again. This takes a few ms.

    Returns:
        Whether the C library supports it.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # macOS, musl; Windows
        return False
    trim.argtypes = (ctypes.c_size_t,)
    trim(0)
    return True


def gpu_names() -> list[str]:
    """NVIDIA GPUs that the driver lists on Linux; empty elsewhere."""
    names = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return names
