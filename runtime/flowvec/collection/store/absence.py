"""Why a directory is not a collection, and what to do."""

from __future__ import annotations

import re
from pathlib import Path

from flowvec.errors import InputValueError
from flowvec.texts.urls import public

__all__ = ["SHARDS_FILE", "absence_of", "check_not_url", "url_of_path"]

# In the directory of a collection in shards, see `flowvec.sharded.manifest`.
SHARDS_FILE = "shards.json"
# A Path drops one of the two slashes of a URL. A drive is one letter.
_URL_IN_PATH = re.compile(r"(?:^|.*/)([A-Za-z][A-Za-z0-9+.-]+):/+(.*)")


def url_of_path(folder: Path) -> str | None:
    """The URL that a path was made of, without its options; None if it is a path.

    Example:
        >>> url_of_path(Path("/home/me/s3:/bucket/notes"))
        's3://bucket/notes'
    """
    found = _URL_IN_PATH.fullmatch(folder.as_posix())
    return None if found is None else public(f"{found[1]}://{found[2]}")


def check_not_url(path: str | Path) -> None:
    """Refuse to create a collection at a URL, which as a path is a directory such as `s3:`.

    Raises:
        InputValueError: it is a URL, or a path that was made of one.
    """
    if (url := url_of_path(Path(path))) is not None and str(path).startswith(url.partition("/")[0]):
        raise InputValueError(f"{url} is a URL, and a collection is a directory")


def absence_of(folder: Path, file: str) -> str:
    """The message for a directory without a collection.

    Args:
        folder: the directory; it may not exist.
        file: the file that every collection has.
    """
    if (folder / SHARDS_FILE).is_file():
        return (
            f"{folder} is a collection in shards: `flowvec search` searches all of them, `flowvec "
            "get` with ids reads their rows, and each shard is a collection of its own, such as "
            f"{folder / 'shard-000'}"
        )
    if not folder.exists():
        if (url := url_of_path(folder)) is not None:
            return (
                f"{url} is a URL, and a collection is a directory. Of a collection in shards below "
                "a URL, `flowvec search`, `get` with ids, `info` and `verify` work"
            )
        return f"{folder} is not a collection: there is no such directory"
    reason = f"it has no {file}" if folder.is_dir() else "it is not a directory"
    return f"{folder} is not a collection: {reason}"
