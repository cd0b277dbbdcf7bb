"""Packages of the extras, and the line that installs an extra."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from flowvec.errors import MissingDependencyError

__all__ = ["install_line", "require"]


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
        raise MissingDependencyError(f"{what} needs {', '.join(missing)}: {install_line(extras)}")


def install_line(extras: str) -> str:
    """The command that installs extras, from the source that this flowvec was installed from.

    Args:
        extras: their names, for example `cpu,files`.
    """
    return f"python -m pip install {_requirement(extras)}"


def _requirement(extras: str) -> str:
    plain = f'"flowvec[{extras}]"'
    try:
        # What pip records for a package that is not from an index (PEP 610).
        origin = json.loads(distribution("flowvec").read_text("direct_url.json") or "{}")
        url, is_editable = str(origin["url"]), bool(origin.get("dir_info", {}).get("editable"))
    except (PackageNotFoundError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return plain
    if "vcs_info" in origin:
        return f'"flowvec[{extras}] @ {origin["vcs_info"].get("vcs", "git")}+{url}"'
    if not url.startswith("file:///"):
        return plain
    path = Path(_unquoted(url.removeprefix("file://" if os.name != "nt" else "file:///")))
    if not path.exists():
        return plain
    if path.is_dir():
        return f'{"-e " if is_editable else ""}"{path}[{extras}]"'
    return f'"flowvec[{extras}] @ {url}"'


def _unquoted(path: str) -> str:
    """A URL's path with escapes such as %20 decoded, without importing network code."""
    decoded = re.sub(rb"%([0-9A-Fa-f]{2})", lambda m: bytes([int(m[1], 16)]), path.encode())
    return decoded.decode("utf-8", "replace")
