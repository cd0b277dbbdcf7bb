"""Whether an output and an input are the same place, or one of them contains the other.

A place is a file or a folder, by its path or its URL. Paths are compared by what they lead to:
links are followed, and what exists is known by its number in the file system, so that hard links,
mounts and other spellings of a name are the same place. URLs are compared by their bucket and the
parts of their path; user names and options do not count, except servers that both name.
"""

from __future__ import annotations

import os
import posixpath
import stat
import sys
from collections.abc import Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote

from flowvec.errors import FlowvecError, InputValueError
from flowvec.texts.urls import is_url, name_of, recorded, shown

__all__ = ["Place", "check_apart", "check_new", "check_outputs_apart"]

# Schemes of fsspec and pyarrow that lead to the same objects.
_SAME_SCHEMES = {
    "s3a": "s3", "s3n": "s3", "gcs": "gs",
    "abfs": "az", "abfss": "az", "adl": "az", "wasb": "az", "wasbs": "az",
}  # fmt: skip
_LOCAL_SCHEMES = ("file", "local")
_ENDPOINTS = ("endpoint_override", "endpoint_url")
_STDIN = "-"

_Steps = tuple[Hashable, ...]
# Steps to folders that are known already.
_Known = dict[str, list[Hashable]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path or a URL leads to.

    Attributes:
        paths: the steps from the root to the place, each known by the whole way to it. There are
            two if a URL has escapes, which some libraries decode and others keep.
        exists: whether it is a file or folder of this machine that exists; a URL counts as one.
        endpoint: the server that the options of a URL name; None if they do not.
    """

    paths: tuple[_Steps, ...]
    exists: bool
    endpoint: str | None = None

    @classmethod
    def of(cls, path: str | Path, known: _Known | None = None) -> Place:
        """The place of a path or a URL. Pipes and devices are in no place.

        Args:
            path: a path or a URL.
            known: kept between the calls for many files, so that each folder is looked at once.
        """
        known = {} if known is None else known
        text = str(path)
        if not is_url(text):
            return cls(*_local(text, known))
        name = name_of(text).rpartition("::")[2]  # of chained schemes the last is the store's
        scheme, _, rest = name_of(recorded(name)).partition("://")
        if scheme in _LOCAL_SCHEMES:
            if rest.startswith("localhost/"):
                rest = rest.removeprefix("localhost")
            either = [_local(one, known) for one in dict.fromkeys((rest, unquote(rest)))]
            return cls(
                tuple(steps for paths, _ in either for steps in paths),
                any(exists for _, exists in either),
            )
        scheme = _SAME_SCHEMES.get(scheme, scheme)
        options = parse_qs(text[len(name_of(text)) :].removeprefix("?"))
        endpoints = [options[name][0] for name in _ENDPOINTS if name in options]
        return cls(
            tuple(_remote(scheme, one) for one in dict.fromkeys((rest, unquote(rest)))),
            True,
            endpoints[0].rpartition("://")[2].rstrip("/").lower() if endpoints else None,
        )

    def contains(self, other: Place) -> bool:
        """Whether another place is this one, or is in it."""
        if None not in (self.endpoint, other.endpoint) and self.endpoint != other.endpoint:
            return False
        return any(mine[-1] in its for mine in self.paths for its in other.paths)


def check_apart(
    out: str | Path,
    inputs: Iterable[str | Path | None],
    error: type[FlowvecError] = InputValueError,
    *,
    may_be_in: bool = False,
) -> None:
    """Refuse an output that is an input, contains one, or is in one.

    Call it before anything is written.

    Args:
        out: the file or folder that is written.
        inputs: files and folders that are read. None, and what does not exist, is ignored.
        error: the class of the error.
        may_be_in: whether the output may be in an input, which is a folder whose other files are
            read.

    Raises:
        FlowvecError: they are not apart.
    """
    place, known = Place.of(out), _Known()
    for one in inputs:
        if one is None:
            continue
        there = Place.of(one, known)
        if not there.exists:
            continue
        holds, lies = place.contains(there), there.contains(place)
        if holds or (lies and not may_be_in):
            how = "is" if holds and lies else "contains" if holds else "is in"
            name = "standard input" if str(one) == _STDIN else shown(str(one))
            raise error(
                f"the output {shown(str(out))} {how} the input {name}, which would be changed: "
                "name another output"
            )


def check_outputs_apart(outs: Iterable[str | Path | None]) -> None:
    """Refuse two outputs of one command that are the same file.

    Raises:
        InputValueError: they are.
    """
    named = [one for one in outs if one is not None]
    places = [Place.of(one) for one in named]
    for i, place in enumerate(places):
        for j in range(i):
            if place.contains(places[j]) and places[j].contains(place):
                raise InputValueError(
                    f"{shown(str(named[j]))} and {shown(str(named[i]))} are the same output: name "
                    "another one"
                )


def check_new(out: str | Path, *, overwrite: bool) -> None:
    """Refuse a file that exists, unless it may be replaced. Pipes and devices are written to.

    Raises:
        InputValueError: it exists.
    """
    with suppress(OSError):
        if not overwrite and stat.S_ISREG(Path(out).stat().st_mode):
            raise InputValueError(
                f"{shown(str(out))} exists: name another file, or give --overwrite "
                "(overwrite=True) to replace it"
            )


def _local(path: str, known: _Known) -> tuple[tuple[_Steps, ...], bool]:
    """The steps to a path of this machine, and whether it leads to a file or a folder."""
    try:
        if path == _STDIN:  # a file may be redirected to it
            status = None if sys.stdin is None else os.fstat(sys.stdin.fileno())
            folder, name = list[Hashable](), path
        else:
            named = Path(path)
            with suppress(RuntimeError):  # the home of an unknown user
                named = named.expanduser()
            if named.is_symlink() or named.name in ("", ".."):
                named = Path(os.path.realpath(named))
            parent = str(named.parent)
            if parent not in known:
                known[parent] = _numbers_of(Path(os.path.realpath(parent)))
            folder, name = known[parent], named.name
            status = _status_of(str(named))
    except (OSError, ValueError):  # a NUL, or no standard input
        return (), False
    if status is None:
        return ((*folder, (*folder, name)),), False
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return (), False
    return ((*folder, _number(status)),), True


def _status_of(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - for many files
    except OSError:
        return None


def _numbers_of(folder: Path) -> list[Hashable]:
    """A folder and those above it, from the root; those that do not exist by name."""
    steps: list[Hashable] = []
    for one in (*reversed(folder.parents), folder):
        status = _status_of(str(one))
        steps.append(str(one) if status is None else _number(status))
    return steps


def _number(status: os.stat_result) -> Hashable:
    return status.st_dev, status.st_ino


def _remote(scheme: str, rest: str) -> _Steps:
    """The bucket, then each part of a URL's path; `x/../y` is `y`, as some stores see it."""
    bucket, _, path = rest.partition("/")
    # What is before `@` of abfs://container@account is the bucket.
    bucket = bucket.partition("@")[0].lower()
    steps = [part for part in posixpath.normpath(f"/{path}").split("/") if part]
    if scheme == "memory" and bucket:  # it has no buckets
        bucket, steps = "", [bucket, *steps]
    return tuple((scheme, bucket, *steps[:end]) for end in range(len(steps) + 1))
