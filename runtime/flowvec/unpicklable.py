"""Objects of one process, which have threads, locks and open files."""

from __future__ import annotations

from typing import NoReturn

from flowvec.errors import InputTypeError

__all__ = ["OfOneProcess"]


class OfOneProcess:
    """The base of classes whose objects cannot be pickled, copied or given to another process."""

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied.

        Raises:
            InputTypeError: always; it says what to do.
        """
        kind = type(self).__name__
        raise InputTypeError(
            f"this {kind} cannot be pickled or copied: its threads and files belong to this "
            "process; open or create one in each process"
        )
