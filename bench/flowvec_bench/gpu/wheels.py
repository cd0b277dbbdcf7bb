"""Installs wheels from a folder without a network, also wheels that were cut into pieces.

    python wheels.py WHEELS PACKAGES

It needs nothing but the standard library and pip.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import defaultdict
from pathlib import Path

__all__ = ["install_wheels", "join_pieces", "link_cuda_libraries"]

_PIECE = re.compile(r"(?P<wheel>.+\.whl)[.-](?:part)?[.-]?(?P<number>[0-9]+|[a-z]{1,3})")


def join_pieces(folder: Path, target: Path) -> list[Path]:
    """The wheels of a folder; pieces are joined in the order of their names.

    A piece is named as its wheel, followed by `.000`, `.part-00`, `.aa` or the like.

    Args:
        folder: where wheels and pieces are.
        target: where joined wheels go.

    Returns:
        All wheels, sorted by name.
    """
    wheels = {file.name: file for file in folder.glob("*.whl")}
    pieces: dict[str, list[tuple[int, str, Path]]] = defaultdict(list)
    for file in folder.iterdir():
        match = _PIECE.fullmatch(file.name)
        if match is not None:
            number = match["number"]
            pieces[match["wheel"]].append((len(number), number, file))
    target.mkdir(parents=True, exist_ok=True)
    for name, parts in pieces.items():
        wheels[name] = target / name
        with wheels[name].open("wb") as joined:
            for *_, part in sorted(parts):
                with part.open("rb") as read:
                    shutil.copyfileobj(read, joined)
    return [wheels[name] for name in sorted(wheels)]


def install_wheels(folder: Path, packages: Path) -> list[str]:
    """Install all wheels of a folder, and nothing else, into a folder of packages.

    The same wheels are installed once.

    Returns:
        The names of the wheels.

    Raises:
        RuntimeError: there is no wheel, or pip fails; the message is the end of its output.
    """
    wheels = join_pieces(folder, packages.with_name("joined"))
    if not wheels:
        raise RuntimeError(f"{folder} has no wheels")
    names = [wheel.name for wheel in wheels]
    known = packages / "installed.json"
    if known.is_file() and json.loads(known.read_text()) == names:
        return names
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    run = subprocess.run(
        [*command, "--target", str(packages), "--upgrade", *map(str, wheels)],
        capture_output=True,
        text=True,
    )
    if run.returncode:
        raise RuntimeError(f"pip failed: {run.stderr.strip()[-500:]}")
    link_cuda_libraries(packages)
    known.write_text(json.dumps(names))
    return names


def link_cuda_libraries(packages: Path) -> bool:
    """Let `onnxruntime.preload_dlls` find the CUDA and cuDNN libraries that came with torch.

    It looks for a folder `nvidia` beside the package onnxruntime, which is in another folder than
    torch here.

    Returns:
        Whether there are such libraries.
    """
    link = packages / "nvidia"
    for name in ("purelib", "platlib"):
        libraries = Path(sysconfig.get_path(name)) / "nvidia"
        if libraries.is_dir():
            if not link.exists():
                link.symlink_to(libraries)
            return True
    return False


if __name__ == "__main__":
    install_wheels(Path(sys.argv[1]), Path(sys.argv[2]))
