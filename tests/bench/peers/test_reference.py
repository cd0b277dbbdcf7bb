"""What the results of peers are compared with: the first that is not in 8 bits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from flowvec_bench.peers.runner import Reference, least_cosine

EXACT = np.eye(2, dtype=np.float32)
ROUNDED = np.array([[1, 0.1], [0, 1]], np.float32)
OTHER = -EXACT


def runner(name: str, *, is_8_bit: bool = False) -> Any:
    return SimpleNamespace(peer=SimpleNamespace(name=name), is_8_bit=is_8_bit)


def test_rows_in_8_bits_are_not_what_others_are_compared_with() -> None:
    reference = Reference(least_cosine)
    reference.add(runner("native", is_8_bit=True), ROUNDED)
    assert reference.agreements == {}
    reference.add(runner("float32"), EXACT)
    reference.add(runner("other"), OTHER)
    reference.finish()
    found = {name: round(cosine, 3) for name, cosine in reference.agreements.items()}
    assert found == {"native": 0.995, "float32": 1.0, "other": -1.0}


def test_where_all_are_in_8_bits_the_first_is_the_reference() -> None:
    reference = Reference(least_cosine)
    reference.add(runner("a", is_8_bit=True), EXACT)
    reference.add(runner("b", is_8_bit=True), ROUNDED)
    reference.finish()
    assert reference.agreements["a"] == 1.0
    assert round(reference.agreements["b"], 3) == 0.995
