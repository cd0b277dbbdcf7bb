"""Checks of arguments. Each error names the argument and says what it should be."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from flowvec.errors import InputTypeError, InputValueError

__all__ = [
    "choice",
    "explaining",
    "flag",
    "number",
    "path_of",
    "seconds_or_none",
    "text_or_none",
    "whole_number",
]

P = ParamSpec("P")
R = TypeVar("R")

# The largest C integer.
_MOST = (1 << 31) - 1
_LONGEST = 1e9


def path_of(name: str, value: object) -> Path:
    """A path.

    Raises:
        InputTypeError: it is not a text or a path.
        InputValueError: no file can have this path.
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise InputTypeError(f"{name} must be a path, not {_shown(value)}")
    text = os.fspath(value)
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise InputValueError(f"{name} cannot be a path: {text!r}") from None
    if "\0" in text:
        raise InputValueError(f"{name} cannot be a path: {text!r}")
    return Path(text)


def whole_number(name: str, value: object, least: int = 1, most: int | None = _MOST) -> int:
    """A whole number; bounds are included.

    Args:
        name: of the argument, for messages.
        value: what was given.
        least: the lower bound.
        most: the upper bound; None means no bound.

    Raises:
        InputTypeError: it is not a whole number.
        InputValueError: it is out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputTypeError(f"{name} must be a whole number, not {_shown(value)}")
    if value < least or (most is not None and value > most):
        wanted = f"at least {least}"
        if most is not None and most < _MOST:
            wanted = f"from {least} to {most}"
        elif value > least:
            wanted = f"at most {most}"
        raise InputValueError(f"{name} must be {wanted}, but is {value}")
    return int(value)


def number(name: str, value: object) -> float:
    """A number, infinity included.

    Raises:
        InputTypeError: it is not.
        InputValueError: it is NaN, or too large for a float.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputTypeError(f"{name} must be a number, not {_shown(value)}")
    try:
        as_float = float(value)
    except OverflowError:
        raise InputValueError(f"{name} is too large: {value}") from None
    if math.isnan(as_float):
        raise InputValueError(f"{name} must be a number, but is nan")
    return as_float


def choice(name: str, value: object, choices: Sequence[Any]) -> Any:
    """One of several texts.

    Raises:
        InputValueError: it is not one of them.
    """
    if not isinstance(value, str) or value not in choices:
        raise InputValueError(f"{name} must be one of {', '.join(choices)}, but is {value!r}")
    return value


def seconds_or_none(name: str, value: object) -> float | None:
    """Seconds to wait; None, and more seconds than a clock can count, mean no limit.

    Raises:
        InputTypeError: it is not a number.
        InputValueError: it is NaN.
    """
    if value is None:
        return None
    seconds = number(name, value)
    return None if seconds > _LONGEST else max(seconds, -1.0)


def text_or_none(name: str, value: object) -> str | None:
    """A text, or None.

    Raises:
        InputTypeError: it is neither.
    """
    if value is not None and not isinstance(value, str):
        raise InputTypeError(f"{name} must be a text, not {_shown(value)}")
    return value


def flag(name: str, value: object) -> bool:
    """True or False.

    Raises:
        InputTypeError: it is neither.
    """
    if not isinstance(value, bool | np.bool_):
        raise InputTypeError(f"{name} must be True or False, not {_shown(value)}")
    return bool(value)


def explaining(foreign: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Explain keyword arguments that callers of other libraries give.

    The function, or coroutine function, keeps its signature. Other unknown arguments are Python's
    TypeError.

    Args:
        foreign: for each name what to do instead.

    Raises:
        InputTypeError: by the decorated function, if it is given one of these.
    """

    def check(names: Mapping[str, object]) -> None:
        if not foreign.keys().isdisjoint(names):
            name = next(name for name in names if name in foreign)
            raise InputTypeError(f"there is no argument {name}: {foreign[name]}")

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def explained(*args: P.args, **kwargs: P.kwargs) -> R:
            check(kwargs)
            return function(*args, **kwargs)

        @wraps(function)
        async def explained_when_awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            check(kwargs)
            return await cast(Callable[P, Awaitable[Any]], function)(*args, **kwargs)

        if inspect.iscoroutinefunction(function):
            return cast(Callable[P, R], explained_when_awaited)
        return explained

    return decorate


def _shown(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r:.40}"
