"""Values that only look like lists of texts or ids are refused; the error says what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import AsyncEncoder, Collection, Encoder, InputTypeError
from flowvec.encoder.shared_encoder import SharedEncoder

TEXTS = ["the cat", "a dog runs"]


def lookalikes() -> dict[str, Any]:
    values: dict[str, Any] = {
        "dict": dict.fromkeys(TEXTS),
        "set": set(TEXTS),
        "frozenset": frozenset(TEXTS),
    }
    try:
        import pandas
    except ImportError:
        pass
    else:
        values["DataFrame"] = pandas.DataFrame({"text": TEXTS, "n": [1, 2]})
    try:
        import pyarrow
    except ImportError:
        pass
    else:
        values["Table"] = pyarrow.table({"text": TEXTS})
    return values


ADVICE = {
    "dict": r"list\(d\.values\(\)\)",
    "set": r"sorted\(s\)",
    "frozenset": r"sorted\(s\)",
    "DataFrame": r"table\['column'\]",
    "Table": r"table\['column'\]",
}


@pytest.mark.parametrize("kind", sorted(lookalikes()))
def test_an_encoder_refuses_what_only_looks_like_texts(tiny: Encoder, kind: str) -> None:
    given = lookalikes()[kind]
    calls = [tiny.encode, tiny.stream, tiny.encode_query, tiny.encode_document]
    with SharedEncoder(tiny) as shared:
        for call in [*calls, shared.encode, shared.submit]:
            with pytest.raises(InputTypeError, match=ADVICE[kind]):
                call(given)
    assert AsyncEncoder is not None


@pytest.mark.parametrize("kind", sorted(lookalikes()))
def test_a_collection_refuses_what_only_looks_like_a_list(
    tmp_path: Path, tiny: Encoder, kind: str
) -> None:
    given = lookalikes()[kind]
    with Collection.create(tmp_path / "c", encoder=tiny) as collection:
        for call in (
            lambda: collection.add([1, 2], given),
            lambda: collection.add(given, TEXTS),
            lambda: collection.add_vectors(given, np.ones((2, tiny.dim))),
            lambda: collection.get(given),
        ):
            with pytest.raises(InputTypeError, match=ADVICE[kind]):
                call()
        assert len(collection) == 0
        collection.add(TEXTS, TEXTS)
        if "set" in kind:  # to delete them, their order does not matter
            assert collection.delete(given) == 2
        else:
            with pytest.raises(InputTypeError):
                collection.delete(given)


def test_ordered_iterables_are_accepted_as_texts(tiny: Encoder) -> None:
    expected = tiny.encode(TEXTS)
    taken: list[Any] = [tuple(TEXTS), iter(TEXTS), np.array(TEXTS), dict.fromkeys(TEXTS).keys(),
                        dict(enumerate(TEXTS)).values()]  # fmt: skip
    if "DataFrame" in (frames := lookalikes()):
        taken.append(frames["DataFrame"]["text"])
    for texts in taken:
        np.testing.assert_array_equal(tiny.encode(texts), expected)


def test_a_vector_that_float16_makes_zero_is_refused(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2, metric="ip", vector_dtype="float16") as c:
        with pytest.raises(ValueError, match=r"row 1 .* zero in float16"):
            c.add_vectors(["a", "b"], [[1.0, 1.0], [1e-9, 1e-9]])
        assert len(c) == 0
        c.add_vectors(["zero"], [[0.0, 0.0]])
        assert len(c) == 1
