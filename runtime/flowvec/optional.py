"""Packages of the extras, and the line that installs an extra."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from flowvec.errors import MissingDependencyError

__all__ = ["imported_whole", "install_line", "require"]

_CONSTRAINTS = "constraints.txt"
# pip's torch for Linux brings CUDA's libraries, whether there is a GPU or not.
_OF_TORCH = (
    " (without a GPU, install PyTorch's CPU wheels first, as pytorch.org says: pip's own torch "
    "brings some GB of CUDA; docs/install.md#torch)"
)


def require(what: str, extras: str, *modules: str) -> None:
    """Check that packages are installed, without importing them.

    Args:
        what: what needs them, for the message, for example `flowvec fit`.
        extras: extras of flowvec that have them, for example `cpu,files`.
        modules: names of top-level modules.

    Raises:
        MissingDependencyError: one is missing. The message has the line that installs the extras.
    """
    if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
        of_torch = _OF_TORCH if "torch" in missing and sys.platform == "linux" else ""
        raise MissingDependencyError(
            f"{what} needs {', '.join(missing)}: {install_line(extras)}{of_torch}"
        )


def imported_whole(name: str) -> Any:
    """A module, which is imported in a thread: an interrupt does not stop that in the middle.

    Of a large package, an import that was interrupted leaves some modules, and with these it often
    cannot be imported again. Ray's workers, whose tasks are cancelled by interrupts, would then
    fail at all later tasks.

    Raises:
        ImportError: it cannot be imported.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(importlib.import_module, name).result()


def install_line(extras: str) -> str:
    """The command that installs extras, from the source that this flowvec was installed from.

    It never takes flowvec from a package index by its name: flowvec is not published there, so the
    name may be anybody's.

    Args:
        extras: their names, for example `cpu,files`.
    """
    origin = _origin()
    url = str(origin.get("url", ""))
    if "vcs_info" in origin:
        return _pip(f'"flowvec[{extras}] @ {origin["vcs_info"].get("vcs", "git")}+{url}"')
    if url.startswith("https://") and "archive_info" in origin:
        return _pip(f'"flowvec[{extras}] @ {url}"')
    path = _local(url) if url.startswith("file:///") else None
    if path is None or not path.exists():
        # Of a wheel that is gone, or of an environment that was made elsewhere.
        clone, wheel = f'-c {_CONSTRAINTS} ".[{extras}]"', f'"WHEEL[{extras}]"'
        return f"{_pip(clone)} in a clone of flowvec's repository, or {_pip(wheel)} with its wheel"
    if not path.is_dir():
        return _pip(f'"flowvec[{extras}] @ {url}"')
    constraints = path / _CONSTRAINTS
    fixed = f'-c "{constraints}" ' if constraints.is_file() else ""
    is_editable = (origin.get("dir_info") or {}).get("editable")
    return _pip(f'{fixed}{"-e " if is_editable else ""}"{path}[{extras}]"')


def _pip(arguments: str) -> str:
    return f"python -m pip install {arguments}"


def _origin() -> dict[str, Any]:
    """What pip records for a package that is not from an index (PEP 610)."""
    try:
        origin = json.loads(distribution("flowvec").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, OSError, ValueError):
        return {}
    return origin if isinstance(origin, dict) else {}


def _local(url: str) -> Path:
    """The path of a file: URL."""
    return Path(_unquoted(url.removeprefix("file://" if os.name != "nt" else "file:///")))


def _unquoted(path: str) -> str:
    """A URL's path with escapes such as %20 decoded, without importing network code."""
    decoded = re.sub(rb"%([0-9A-Fa-f]{2})", lambda m: bytes([int(m[1], 16)]), path.encode())
    return decoded.decode("utf-8", "replace")
