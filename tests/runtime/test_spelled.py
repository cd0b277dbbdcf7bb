"""Messages of errors in parts, which Python and JSON write in two ways."""

from __future__ import annotations

import pickle

import pytest

from flowvec.errors import FlowvecError, InputTypeError, InputValueError, OverloadedError
from flowvec.spelled import (
    A_DICT,
    TRUE_OR_FALSE,
    argument,
    json_message,
    kind_of,
    setting,
    shown,
)


class Odd:
    def __repr__(self) -> str:
        return "<odd>"


@pytest.mark.parametrize(
    ("part", "python", "json"),
    [
        (setting("hybrid", True), "hybrid=True", '"hybrid": true'),
        (setting("fusion", "ranks"), "fusion='ranks'", '"fusion": "ranks"'),
        (argument("text"), "text=", '"text"'),
        (shown(None), "None", "null"),
        (shown("猫"), "'猫'", '"猫"'),
        (shown(Odd()), "<odd>", "<odd>"),
        (kind_of({}), "dict", "an object"),
        (kind_of(None), "NoneType", "null"),
        (kind_of(Odd()), "Odd", "Odd"),
        (A_DICT, "a dict", "an object"),
        (TRUE_OR_FALSE, "True or False", "true or false"),
    ],
)
def test_each_part_has_two_spellings(part: object, python: str, json: str) -> None:
    error = InputValueError("one ", part, " two")
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert str(same) == f"one {python} two"
        assert json_message(same) == f"one {json} two"


@pytest.mark.parametrize("kind", [FlowvecError, InputTypeError, OverloadedError, ValueError])
def test_a_message_without_parts_stays_as_it_is(kind: type[Exception]) -> None:
    assert str(kind("plain")) == json_message(kind("plain")) == "plain"
