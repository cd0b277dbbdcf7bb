"""The cache folder where flowvec keeps what it has measured on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from platformdirs import user_cache_path

from flowvec.files import write_file

__all__ = ["ENGINE_PACKAGES", "cache_folder", "installed_versions", "write_cached"]

# Packages whose versions decide what an engine computes, and how fast.
ENGINE_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "openvino")


def cache_folder() -> Path:
    """The folder of the environment variable FLOWVEC_CACHE, else one in the user's cache.

    Raises:
        OSError, RuntimeError: the user has no home directory.
    """
    configured = os.environ.get("FLOWVEC_CACHE")
    folder = (
        Path(configured).expanduser() if configured else user_cache_path("flowvec", appauthor=False)
    )
    # Without a home directory platformdirs leaves `~`, which would be a folder of that name here.
    if folder.parts[:1] == ("~",):
        raise RuntimeError("the user has no home directory")
    return folder


def installed_versions(packages: Iterable[str] = ENGINE_PACKAGES) -> dict[str, str]:
    """Versions of the packages that are installed."""
    versions: dict[str, str] = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def write_cached(path: Path, content: bytes) -> None:
    """Write a file of the cache, and create its folder.

    Raises:
        OSError: it cannot be written; no partial file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)
