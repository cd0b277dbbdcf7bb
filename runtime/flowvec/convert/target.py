"""Where a conversion goes: a file, a folder, or a collection of a vector database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flowvec.convert.rows import Rows

__all__ = ["Target", "Written"]


@dataclass(frozen=True, slots=True)
class Written:
    """What a target has received.

    Attributes:
        bytes: size of all files; None if the target is not made of files of its own.
        keeps_dtype: whether float16 stayed float16, rather than became float32.
        notes: what to do next, line by line.
    """

    bytes: int | None
    keeps_dtype: bool
    notes: tuple[str, ...]


class Target(ABC):
    """The output of a conversion. It refuses what it can when it is made, and the rest in `with`.

    Attributes:
        name: the last part of its path, or the name of the collection.
        path: the file or folder of this machine that is written, or None.
    """

    name: str
    path: Path | None

    def __enter__(self) -> Target:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        return None

    @property
    @abstractmethod
    def work(self) -> Path:
        """The folder of this machine in which temporary files are written."""

    def look(self) -> None:
        """Look whether it may be written, as far as that can be seen without writing anything.

        Raises:
            ConvertError: it may not.
        """
        return

    @abstractmethod
    def write(self, rows_with: Callable[[Path], Rows]) -> Written:
        """Write all rows: under the target's name appears all of it or nothing.

        Args:
            rows_with: makes the rows, given a folder for temporary files.

        Raises:
            ConvertError: the target may not or cannot be written, it cannot hold the rows, or the
                source is damaged.
        """
