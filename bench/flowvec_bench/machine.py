"""Describes where a result was measured: processor, cores, memory and versions."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import UTC, datetime

import psutil

from flowvec.cli.doctor import examine

__all__ = ["Machine", "describe_machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's part of every result; memory in GiB."""

    cpu: str
    cpu_features: list[str]
    cores: int
    memory_gib: float
    system: str
    python: str
    flowvec: str
    packages: dict[str, str]
    measured: str


def describe_machine() -> Machine:
    """Describe this machine, now."""
    report = examine()
    return Machine(
        cpu=report.cpu,
        cpu_features=report.cpu_features,
        cores=report.cores_available,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        flowvec=report.flowvec,
        packages={name: version for name, version in report.packages.items() if version},
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
    )
