"""The native encoder: equal bits alone and in company, and on every instruction set."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from flowvec.errors import EngineError
from flowvec.native import NativeEncoder, instruction_set
from flowvec.native.encoder import sets
from flowvec.native.tail import Step
from flowvec.native.weights import POOLINGS
from tests.runtime.native.models import STEPS, Ids, Model

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no library of the native encoder"
)

Floats = npt.NDArray[np.float32]

# Lengths around the sizes of blocks and groups.
SHORT = (1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 47, 48, 49)
LENGTHS = (*SHORT, 63, 64, 65, 191, 192, 193, 300)
SHAPES: dict[str, dict[str, Any]] = {
    "heads of 32": {},
    "heads of 64": {"hidden": 192, "heads": 3, "wide": 256},
    "one layer": {"layers": 1, "hidden": 64, "heads": 1, "wide": 70},
    "padding is not counted": {"uncounted": 7, "positions": 301, "hidden": 64, "heads": 2},
    "distances": {"hidden": 64, "heads": 2, "has_distances": True},
    "steps behind the pooling": {"hidden": 64, "heads": 2, "steps": STEPS},
}


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest) -> Model:
    return Model(**SHAPES[request.param])


def some_texts(model: Model) -> list[Ids]:
    """Texts of all lengths for one model; the scalar set is slow."""
    return texts_of(model, LENGTHS if model.hidden == 128 else SHORT)


def texts_of(model: Model, lengths: Sequence[int], seed: int = 0) -> list[Ids]:
    draw = np.random.default_rng(seed)
    return [draw.integers(0, model.vocabulary, n).astype(np.int32) for n in lengths]


def joined(texts: Sequence[Ids]) -> tuple[Ids, npt.NDArray[np.int64]]:
    return np.concatenate(texts), np.cumsum([0, *map(len, texts)], dtype=np.int64)


def states_of(encoder: NativeEncoder, texts: Sequence[Ids]) -> list[Floats]:
    ids, starts = joined(texts)
    return np.split(encoder.states(ids, starts), starts[1:-1])


def encoders(model: Model) -> dict[str, NativeEncoder]:
    return {name: NativeEncoder(model.weights(), name) for name in sets()}


def equal(a: Sequence[Floats], b: Sequence[Floats]) -> bool:
    return all(one.tobytes() == other.tobytes() for one, other in zip(a, b, strict=True))


def test_the_scalar_set_is_there_and_never_chosen() -> None:
    assert "scalar" in sets()
    assert instruction_set([]) is None
    for name in set(sets()) - {"scalar"}:
        assert instruction_set([name]) == name


def test_a_text_has_the_same_bits_in_any_company(model: Model) -> None:
    texts = some_texts(model)
    order = np.random.default_rng(1).permutation(len(texts))
    for name, encoder in encoders(model).items():
        states = states_of(encoder, texts)
        vectors = encoder.vectors(*joined(texts))
        assert equal([states_of(encoder, [text])[0] for text in texts], states), name
        assert equal([encoder.vectors(*joined([text]))[0] for text in texts], list(vectors)), name
        shuffled = [texts[i] for i in order]
        assert equal(states_of(encoder, shuffled), [states[i] for i in order]), name
        assert equal(list(encoder.vectors(*joined(shuffled))), list(vectors[order])), name
        assert equal(states_of(encoder, texts[::-1] * 3), states[::-1] * 3), name


def test_all_sets_give_the_same_bits(model: Model) -> None:
    texts = some_texts(model)
    results = {
        name: (states_of(encoder, texts), list(encoder.vectors(*joined(texts))))
        for name, encoder in encoders(model).items()
    }
    for name, (states, vectors) in results.items():
        assert equal(states, results["scalar"][0]), name
        assert equal(vectors, results["scalar"][1]), name


# SHA-256 of the vectors of short texts, as x86 processors and an emulated ARM one gave them. Stores
# rely on them: a change of what is computed needs another format of `model.native`.
BITS = {
    "heads of 32": "232262d9bbbc",
    "heads of 64": "a7669eff15ec",
    "one layer": "300b4868e935",
    "padding is not counted": "ed341e33054c",
    "distances": "e9efee41e469",
    "steps behind the pooling": "c124df33ad76",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_machine_gives_the_same_bits(shape: str) -> None:
    model = Model(**SHAPES[shape])
    for name, encoder in encoders(model).items():
        vectors = encoder.vectors(*joined(texts_of(model, SHORT)))
        assert hashlib.sha256(vectors.tobytes()).hexdigest().startswith(BITS[shape]), name


def test_weights_at_their_limit_do_not_saturate() -> None:
    """Pairs of weights whose products with the largest activations come next to 32,767."""
    model = Model(**SHAPES["one layer"])
    for name, tensor in model.tensors.items():
        if tensor.dtype == np.int8 and name != "words.weight":
            tensor[:, 0::2], tensor[:, 1::2] = 127, 1
            tensor[1::3] = -64
            tensor[2::3, 0::2], tensor[2::3, 1::2] = 64, -127
    model.tensors["words.weight"][:] = np.where(np.arange(64) % 2, -127, 127)
    texts = texts_of(model, (1, 30))
    results = [states_of(encoder, texts) for encoder in encoders(model).values()]
    assert all(equal(states, results[0]) for states in results)


def test_states_and_vectors_are_close_to_those_of_floats(model: Model) -> None:
    texts = some_texts(model)
    exact = [(model.states(text), model.vector(text)) for text in texts]
    for name, encoder in encoders(model).items():
        found = zip(states_of(encoder, texts), encoder.vectors(*joined(texts)), strict=True)
        for (states, vector), (states_wanted, wanted) in zip(found, exact, strict=True):
            error = np.linalg.norm(states - states_wanted) / np.linalg.norm(states_wanted)
            assert error < 0.025, (name, len(states))
            assert np.linalg.norm(vector - wanted) < 0.025, (name, len(states))
            assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("poolings", [*[(name,) for name in POOLINGS], POOLINGS], ids="+".join)
@pytest.mark.parametrize("is_normalized", [False, True])
def test_poolings(poolings: tuple[str, ...], is_normalized: bool) -> None:
    model = Model(**SHAPES["one layer"], poolings=poolings, is_normalized=is_normalized)
    texts = texts_of(model, (1, 2, 17, 40))
    results = {name: encoder.vectors(*joined(texts)) for name, encoder in encoders(model).items()}
    for name, vectors in results.items():
        assert vectors.shape == (4, 64 * len(poolings))
        assert equal(list(vectors), list(results["scalar"])), name
        for vector, text in zip(vectors, texts, strict=True):
            wanted = model.vector(text)
            assert np.linalg.norm(vector - wanted) < 0.025 * np.linalg.norm(wanted), name


def test_threads_get_the_same_bits(model: Model) -> None:
    texts = texts_of(model, (5, 64, 200))
    for name, encoder in encoders(model).items():
        expected = states_of(encoder, texts)
        with ThreadPoolExecutor(4) as pool:
            for states in pool.map(lambda _: states_of(encoder, texts), range(12)):  # noqa: B023
                assert equal(states, expected), name


def test_a_group_on_several_threads_has_the_same_bits(model: Model) -> None:
    texts = some_texts(model)
    for name, encoder in encoders(model).items():
        expected = encoder.states(*joined(texts))
        assert encoder.states(*joined(texts), 3).tobytes() == expected.tobytes(), name
        if name == "scalar":  # which is slow
            continue
        for text, wanted in zip(texts, states_of(encoder, texts), strict=True):
            for threads in (2, 3, 8, 1000):
                assert encoder.states(*joined([text]), threads).tobytes() == wanted.tobytes(), name


def test_token_vectors_and_tokens_that_are_not_attended_to() -> None:
    model = Model(hidden=64, heads=2, poolings=("cls",), steps=STEPS)
    texts = texts_of(model, (1, 5, 16, 17, 40))
    attended = np.array([1, 3, 16, 1, 20], np.int32)
    for name, encoder in encoders(model).items():
        ids, starts = joined(texts)
        vectors = np.split(encoder.token_vectors(ids, starts, attended=attended), starts[1:-1])
        for text, count, found in zip(texts, attended, vectors, strict=True):
            wanted = np.stack([model.finished(row) for row in model.states(text, int(count))])
            assert np.linalg.norm(found - wanted, axis=1).max() < 0.05, (name, len(text))
            one = np.array([count])
            alone = encoder.token_vectors(*joined([text]), 3, attended=one)
            assert alone.tobytes() == found.tobytes(), name
            # The first tokens are those of a text without the others.
            short = encoder.token_vectors(*joined([text[:count]]))
            assert short.tobytes() == found[:count].tobytes(), name


def test_padding_of_the_last_step_is_not_in_the_length() -> None:
    model = Model(hidden=64, heads=2, steps=(Step("part", (0,), 37), Step("exp", (1,), 37)))
    (text,) = texts_of(model, [9])
    for name, encoder in encoders(model).items():
        vector = encoder.vectors(*joined([text]))[0]
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6), name


def test_token_types() -> None:
    model = Model(hidden=64, heads=2, has_types=True)
    texts = texts_of(model, (2, 7, 33))
    types = [(np.arange(len(text)) > len(text) // 2).astype(np.uint8) for text in texts]
    for name, encoder in encoders(model).items():
        ids, starts = joined(texts)
        plain = encoder.states(ids, starts)
        found = encoder.states(ids, starts, types=np.concatenate(types))
        assert not np.array_equal(found, plain)
        zeros = np.zeros(len(ids), np.uint8)
        assert encoder.states(ids, starts, types=zeros).tobytes() == plain.tobytes()
        for text, kinds, states in zip(texts, types, np.split(found, starts[1:-1]), strict=True):
            wanted = model.states(text, types=kinds)
            error = np.linalg.norm(states - wanted) / np.linalg.norm(wanted)
            assert error < 0.025, (name, len(text))


@pytest.mark.parametrize("words", [1, 64, 300])
def test_weights_of_words(words: int) -> None:
    model = Model(hidden=64, heads=2, weighted_words=words)
    texts = texts_of(model, (1, 5, 17, 48, 100, 192, 1, 2))
    exact = [model.word_weights(text) for text in texts]
    results = []
    for name, encoder in encoders(model).items():
        found = encoder.vectors(*joined(texts))
        assert found.shape == (len(texts), words)
        for threads in (1, 2, 3):
            alone = [encoder.vectors(*joined([text]), threads)[0] for text in texts]
            assert equal(alone, list(found)), name
        for weights, wanted in zip(found, exact, strict=True):
            np.testing.assert_allclose(weights, wanted, atol=0.06)
        results.append(found)
    assert (results[0] == 0).any() or words == 1
    assert all(found.tobytes() == results[0].tobytes() for found in results)


@pytest.mark.parametrize("attended", [[0, 1], [3, 1], [1]], ids=str)
def test_wrong_numbers_of_attended_tokens_are_refused(attended: list[int]) -> None:
    encoder = NativeEncoder(Model(**SHAPES["one layer"]).weights(), "scalar")
    texts = joined([np.array([1, 2], np.int32), np.array([3], np.int32)])
    with pytest.raises(EngineError, match=r"attends|one number"):
        encoder.states(*texts, attended=np.array(attended, np.int32))
    with pytest.raises(EngineError, match="one number"):
        encoder.states(*texts, types=np.zeros(2, np.uint8))


def test_scores_far_apart_leave_one_token() -> None:
    model = Model(**SHAPES["one layer"])
    model.tensors["layers.0.qkv.scale"][:128] *= 300  # queries and keys
    (text,) = texts_of(model, [40])
    for name, encoder in encoders(model).items():
        (states,) = states_of(encoder, [text])
        exact = model.states(text)
        assert np.linalg.norm(states - exact) / np.linalg.norm(exact) < 0.3, name
        assert np.isfinite(states).all()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 3e38, 1e-40, 0.0])
def test_any_number_in_a_model_gives_the_same_bits(number: float) -> None:
    everywhere, once = Model(**SHAPES["one layer"]), Model(**SHAPES["one layer"])
    everywhere.tensors["positions"][:] = number
    everywhere.tensors["layers.0.up.scale"][::7] = number
    once.tensors["layers.0.qkv.bias"][3] = number  # one number of each query
    once.tensors["layers.0.up.bias"][5] = number
    once.tensors["words.scale"][3] = number
    for model in (everywhere, once):
        texts = texts_of(model, (1, 30))
        results = [states_of(encoder, texts) for encoder in encoders(model).values()]
        for states in results:
            for one, wanted in zip(states, results[0], strict=True):
                np.testing.assert_array_equal(one, wanted)


@pytest.mark.parametrize("ids", [[], [-1], [50], [0] * 301], ids=["none", "low", "high", "long"])
def test_wrong_texts_are_refused(ids: list[int]) -> None:
    encoder = NativeEncoder(Model(**SHAPES["heads of 32"]).weights(), "scalar")
    with pytest.raises(EngineError, match="token"):
        encoder.vectors(*joined([np.array([1, 2], np.int32), np.array(ids, np.int32)]))
    with pytest.raises(EngineError, match="all of the tokens"):
        encoder.vectors(np.array([1, 2], np.int32), np.array([0, 1]))


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden": 100}, {"hidden": 96, "heads": 3}, {"hidden": 4160, "heads": 65},
        {"heads": 3}, {"heads": 16},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_sizes_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(EngineError, match=r"must (be|have)"):
        NativeEncoder(Model(layers=1, **sizes).weights(), "scalar")


def test_two_large_weights_are_refused() -> None:
    model = Model(**SHAPES["one layer"])
    model.tensors["layers.0.up.weight"][3, 4:6] = -64, -65
    with pytest.raises(EngineError, match="two weights"):
        NativeEncoder(model.weights(), "scalar")


def test_a_set_that_the_processor_lacks_is_refused() -> None:
    with pytest.raises(EngineError, match="amx_tile"):
        NativeEncoder(Model(**SHAPES["one layer"]).weights(), "amx_tile")
