"""Creates virtual environments of peers, with pinned versions, in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from flowvec.errors import FlowvecError, first_line
from flowvec.files import write_file

__all__ = ["Environment", "PeerEnvironmentError", "make_environment"]

_READY = "ready.json"


class PeerEnvironmentError(FlowvecError, RuntimeError):
    """A peer's packages cannot be installed."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment.

    Attributes:
        python: its interpreter.
        versions: versions of the installed packages.
    """

    python: Path
    versions: dict[str, str]


def make_environment(
    requirements: tuple[str, ...],
    without: tuple[str, ...] = (),
    on_step: Callable[[str], object] | None = None,
    unchecked: tuple[str, ...] = (),
) -> Environment:
    """Create an environment, or use an existing one.

    Args:
        requirements: pinned requirements for pip; none means this process's environment.
        without: packages to uninstall afterwards.
        on_step: called with a line of text before a long step.
        unchecked: pinned requirements to install last, without what they require themselves.

    Raises:
        PeerEnvironmentError: pip cannot install them; the message is its last line.
    """
    if not requirements:
        return Environment(Path(sys.executable), _versions(Path(sys.executable)))
    material = json.dumps([*sorted(requirements), *without, *unchecked, sys.version])
    key = hashlib.sha256(material.encode()).hexdigest()[:12]
    configured = os.environ.get("FLOWVEC_CACHE")
    root = (
        Path(configured).expanduser() if configured else user_cache_path("flowvec", appauthor=False)
    )
    folder = root / "peers" / key
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if (folder / _READY).is_file():
        return Environment(python, json.loads((folder / _READY).read_text()))
    if on_step is not None:
        on_step(f"installing {', '.join((*requirements, *unchecked))}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pip = [str(python), "-m", "pip"]
    commands = [
        [sys.executable, "-m", "venv", str(folder)],
        [*pip, "install", "--quiet", *requirements],
    ]
    if unchecked:
        commands.append([*pip, "install", "--quiet", "--no-deps", *unchecked])
    if without:
        commands.append([*pip, "uninstall", "--quiet", "--yes", *without])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            reason = lines[-1] if lines else first_line(RuntimeError(done.stderr))
            raise PeerEnvironmentError(f"{', '.join(requirements)}: {reason}")
    versions = _versions(python)
    write_file(folder / _READY, json.dumps(versions).encode())
    return Environment(python, versions)


def _versions(python: Path) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps({d.metadata['Name'].lower().replace('_', '-'): d.version "
        "for d in m.distributions()}))"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise PeerEnvironmentError(f"{python} does not run: {done.stderr.strip()[-200:]}")
    versions: dict[str, str] = json.loads(done.stdout)
    return versions
