"""What follows the pooling, as steps: a Dense layer, whitening, a flow.

Vectors have numbers: the pooled one is 0, and the result of step i is i + 1. The last one is the
text's. These are the operations, with what their operands are:

    constant                     none; the result is the step's tensor (length,)
    product                      x and, to be added, y: x times the tensor (length of x, length) + y
    add subtract multiply divide two vectors
    relu tanh exp sigmoid        one vector
    part                         one vector: its numbers from `begin` on
    join                         two vectors, one after the other
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Step", "lengths_of", "numbers_of", "tensor_shapes"]

# Numbers of operands, in the order of the library's operations.
_OPERANDS = {
    "constant": (0,),
    "product": (1, 2),
    **dict.fromkeys(("add", "subtract", "multiply", "divide"), (2,)),
    **dict.fromkeys(("relu", "tanh", "exp", "sigmoid"), (1,)),
    "part": (1,),
    "join": (2,),
}
_OPERATIONS = tuple(_OPERANDS)
_MOST_STEPS = 4096
_MOST_FLOATS = 1 << 22  # of a text's memory
_LANES = 16


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        operation: its name.
        operands: numbers of the vectors that it reads.
        length: of its result.
        begin: of a part, where it begins.
    """

    operation: str
    operands: tuple[int, ...]
    length: int
    begin: int = 0

    @classmethod
    def parse(cls, value: Any) -> Step:
        """Read a step from JSON.

        Raises:
            ValueError, TypeError, KeyError: it is something else.
        """
        step = cls(**{**value, "operands": tuple(value["operands"])})
        if any(type(n) is not int or n < 0 for n in (*step.operands, step.length, step.begin)):
            raise ValueError(f"the step {value!r} has numbers that are not whole")
        return step

    def as_json(self) -> dict[str, Any]:
        """The step as JSON's types."""
        return asdict(self)


def lengths_of(pooled: int, steps: Sequence[Step]) -> list[int]:
    """Lengths of all vectors by number.

    Args:
        pooled: length of the pooled vector.
        steps: the steps.

    Raises:
        ValueError: a step is not possible.
    """
    if len(steps) > _MOST_STEPS:
        raise ValueError(f"{len(steps)} steps follow the pooling; {_MOST_STEPS} are allowed")
    lengths = [pooled]
    for number, step in enumerate(steps):
        counts = _OPERANDS.get(step.operation, ())
        if len(step.operands) not in counts or any(n >= len(lengths) for n in step.operands):
            raise ValueError(f"step {number} behind the pooling has impossible operands: {step}")
        given, length = [lengths[n] for n in step.operands], step.length
        if step.operation == "part":
            fits = step.begin + length <= given[0]
        elif step.operation == "join":
            fits = sum(given) == length
        elif step.operation == "product":
            fits = given[1:] in ([], [length])
        else:
            fits = all(one == length for one in given)
        if not fits or length < 1:
            raise ValueError(f"step {number} behind the pooling has an impossible length: {step}")
        lengths.append(length)
    if sum(map(_padded, lengths)) > _MOST_FLOATS:
        raise ValueError("the steps behind the pooling take too much memory")
    return lengths


def tensor_shapes(pooled: int, steps: Sequence[Step]) -> dict[str, tuple[int, ...]]:
    """Shapes of the steps' float32 tensors, by name; as `lengths_of` otherwise."""
    lengths = lengths_of(pooled, steps)
    shapes: Mapping[str, tuple[int, ...]] = {
        f"tail.{number}": (step.length,)
        if step.operation == "constant"
        else (lengths[step.operands[0]], step.length)
        for number, step in enumerate(steps)
        if step.operation in ("constant", "product")
    }
    return dict(shapes)


def numbers_of(pooled: int, steps: Sequence[Step]) -> tuple[list[int], int, int]:
    """The steps as the library takes them: numbers, floats of memory, and the result's place."""
    lengths = lengths_of(pooled, steps)
    places = [0]
    for length in lengths:
        places.append(places[-1] + _padded(length))
    numbers: list[int] = []
    for number, step in enumerate(steps):
        first, second = (*(places[n] for n in step.operands), -1, -1)[:2]
        has_size = step.operation in ("product", "join")
        size = lengths[step.operands[0]] if has_size else step.begin
        operation = _OPERATIONS.index(step.operation)
        has_tensor = step.operation in ("constant", "product")
        numbers += [operation, step.length, places[number + 1], first, second, size, has_tensor]
    return numbers, places[-1], places[-2]


def _padded(length: int) -> int:
    return -(-length // _LANES) * _LANES
