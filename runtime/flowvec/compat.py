"""What newer versions of Python have in their standard library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["override"]

if sys.version_info >= (3, 12):
    from typing import override
elif TYPE_CHECKING:
    from typing_extensions import override
else:
    _Method = TypeVar("_Method", bound=Callable[..., Any])

    def override(method: _Method) -> _Method:
        """Say that a method overrides one of a base class, which documents it."""
        return method
