"""Names of models on the Hugging Face hub, told apart from paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from flowvec.errors import InputValueError

__all__ = ["HubName", "first_folder_exists", "is_commit", "parse_hub_name"]

# The hub's rules: `name` or `organization/name`, at most 96 characters.
_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_MOST_CHARACTERS = 96
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Branches and tags of git; `refs/pr/1` is a proposed change.
_REVISION = re.compile(r"\w[\w./-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the hub.

    Attributes:
        name: `organization/name`, or `name` alone.
        revision: a branch, a tag or a commit; None is the main branch.
    """

    name: str
    revision: str | None = None

    @property
    def commit(self) -> str | None:
        """The revision, if it is a full commit, which never changes its meaning."""
        return self.revision if self.revision is not None and is_commit(self.revision) else None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def is_commit(text: str) -> bool:
    """Whether a text is a full commit: 40 hexadecimal digits."""
    return _COMMIT.fullmatch(text) is not None


def parse_hub_name(text: str, revision: str | None = None) -> HubName | None:
    """Read `organization/name` or `name`, with `@revision` behind it or given apart.

        >>> parse_hub_name("organization/model@v1")
        HubName(name='organization/model', revision='v1')

    Returns:
        None if the hub's rules do not allow such a name.

    Raises:
        InputValueError: two different revisions are given, or one that git does not allow.
    """
    name, sign, suffix = text.partition("@")
    parts = name.split("/")
    fits = (
        len(name) <= _MOST_CHARACTERS
        and 1 <= len(parts) <= 2
        and all(_NAME.fullmatch(part) and part[-1] not in ".-" for part in parts)
        and not ("--" in name or ".." in name or name.endswith(".git"))
    )
    if not fits or (sign and not suffix):
        return None
    if sign and revision is not None and suffix != revision:
        raise InputValueError(f"{text} names another revision than revision={revision!r}")
    revision = suffix if sign else revision
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise InputValueError(f"revision must be a branch, a tag or a commit, but is {revision!r}")
    return HubName(name, revision)


def first_folder_exists(text: str) -> bool:
    """Whether the first part of a relative path exists, so that the text means a path."""
    try:
        return Path(text.split("/")[0]).exists()
    except OSError:
        return True
