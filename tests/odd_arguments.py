"""Odd values for every argument of a function; only flowvec's own errors may be raised."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flowvec import FlowvecError

__all__ = ["Called", "check"]

ODD: list[Any] = [
    None, 3, -1, 0, 2.5, float("nan"), float("inf"), True, "a", "", "\0", "\ud800", b"a", [],
    [None],
    [3], ["a", 3], [[1.0], [1.0, 2.0]], {}, {"a": 1}, {"a"}, (), object(), np.zeros(3),
    np.zeros((2, 2, 2)), np.array(["a"]), 1 << 80, range(3), Path("/nowhere/at/all"), lambda: None,
    [float("nan")], "2", 1j,
]  # fmt: skip


class Called:
    """Calls one argument after another with odd values, and the others with good ones."""

    def __init__(self, function: Callable[..., Any], good: dict[str, Any]) -> None:
        self.function = function
        self.good = good

    def with_odd(self, name: str, odd: Any) -> Any:
        result = self.function(**(self.good | {name: odd}))
        if inspect.iscoroutine(result):
            result = asyncio.run(asyncio.wait_for(result, 60))
        if isinstance(result, Iterator):
            list(result)
        if hasattr(result, "close") and not isinstance(result, np.ndarray):
            result.close()
        return result


def shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.40}".encode("ascii", "replace").decode()


def check(called: dict[str, Called]) -> None:
    wrong = []
    for what, call in called.items():
        for name in inspect.signature(call.function).parameters:
            if name in ("self", "options") or name.startswith("on_"):
                continue
            for odd in ODD:
                try:
                    call.with_odd(name, odd)
                except FlowvecError as error:
                    if not str(error).strip():
                        wrong.append(f"{what}({name}={shown(odd)}): an empty message")
                except BaseException as error:
                    wrong.append(f"{what}({name}={shown(odd)}): {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
