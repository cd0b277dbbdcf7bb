"""The native encoder: equal bits alone and in company, and on every instruction set."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.conftest import BUILD
from tests.native.encoders import Encoder, Floats, Ids, Library, Model, Shape

pytestmark = pytest.mark.process  # it starts a compiler

# Lengths around the sizes of blocks and groups.
LENGTHS = (1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 47, 48, 49, 63, 64, 65, 100, 191, 192, 193, 300)
SHAPES = {
    "heads of 32": Shape(),
    "heads of 64": Shape(hidden=192, heads=3, wide=256),
    "one layer": Shape(layers=1, hidden=64, heads=1, wide=70),
}
# Sets whose activations have 8 bits give the same bits; the others have 7.
EIGHT_BITS = ("scalar", "avx512_vnni")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    if not BUILD.is_file() or sys.platform == "win32":
        pytest.skip("needs the source tree, and gcc or clang")
    folder = tmp_path_factory.mktemp("encoder")
    return Library(runpy.run_path(str(BUILD))["build_encoder"](folder))


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest) -> Model:
    return Model(SHAPES[request.param])


def texts_of(model: Model, lengths: Sequence[int], seed: int = 0) -> list[Ids]:
    draw = np.random.default_rng(seed)
    return [draw.integers(0, model.shape.vocabulary, n).astype(np.int32) for n in lengths]


def equal(a: Sequence[Floats], b: Sequence[Floats]) -> bool:
    return all(one.tobytes() == other.tobytes() for one, other in zip(a, b, strict=True))


def test_the_scalar_set_is_always_there(library: Library) -> None:
    assert "scalar" in library.sets()


def test_a_text_has_the_same_states_in_any_company(library: Library, model: Model) -> None:
    texts = texts_of(model, LENGTHS)
    order = np.random.default_rng(1).permutation(len(texts))
    for name in library.sets():
        encoder = Encoder(library, model, name)
        together = encoder.states(texts)
        assert equal([encoder.states([text])[0] for text in texts], together), name
        assert equal(encoder.states([texts[i] for i in order]), [together[i] for i in order]), name
        assert equal(encoder.states(texts[::-1] * 3), together[::-1] * 3), name


def test_all_sets_with_8_bits_give_the_same_bits(library: Library, model: Model) -> None:
    texts = texts_of(model, LENGTHS)
    expected = Encoder(library, model, "scalar").states(texts)
    for name in set(EIGHT_BITS) & set(library.sets()):
        assert equal(Encoder(library, model, name).states(texts), expected), name


def test_states_are_close_to_those_of_floats(library: Library, model: Model) -> None:
    texts = texts_of(model, LENGTHS)
    exact = [model.states(text) for text in texts]
    for name in library.sets():
        limit = 0.02 if name in EIGHT_BITS else 0.04
        for states, wanted in zip(Encoder(library, model, name).states(texts), exact, strict=True):
            error = np.linalg.norm(states - wanted) / np.linalg.norm(wanted)
            assert error < limit, (name, len(wanted))


def test_threads_with_workspaces_of_their_own_get_the_same_bits(
    library: Library, model: Model
) -> None:
    for name in library.sets():
        encoder = Encoder(library, model, name)
        texts = texts_of(model, (5, 64, 200))
        expected = encoder.states(texts)
        with ThreadPoolExecutor(4) as pool:
            for states in pool.map(lambda _: encoder.states(texts), range(12)):  # noqa: B023
                assert equal(states, expected), name


def test_scores_far_apart_leave_one_token(library: Library) -> None:
    model = Model(SHAPES["one layer"])
    model.layers[0].attention_in.scales[:128] *= 300  # queries and keys
    (text,) = texts_of(model, [40])
    for name in library.sets():
        (states,) = Encoder(library, model, name).states([text])
        exact = model.states(text)
        assert np.linalg.norm(states - exact) / np.linalg.norm(exact) < 0.3, name
        assert np.isfinite(states).all()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 3e38, 1e-40, 0.0])
def test_any_number_in_a_model_gives_the_same_bits(library: Library, number: float) -> None:
    everywhere, once = Model(SHAPES["one layer"]), Model(SHAPES["one layer"])
    everywhere.words[:] = number
    everywhere.layers[0].wide.scales[::7] = number
    once.layers[0].attention_in.biases[3] = number  # one number of each query
    once.layers[0].wide.biases[5] = number
    for model in (everywhere, once):
        texts = texts_of(model, (1, 30))
        expected = Encoder(library, model, "scalar").states(texts)
        for name in set(EIGHT_BITS) & set(library.sets()):
            for states, wanted in zip(
                Encoder(library, model, name).states(texts), expected, strict=True
            ):
                np.testing.assert_array_equal(states, wanted)


@pytest.mark.parametrize("ids", [[], [-1], [50], [0] * 301], ids=["none", "low", "high", "long"])
def test_wrong_texts_are_refused(library: Library, ids: list[int]) -> None:
    encoder = Encoder(library, Model(SHAPES["heads of 32"]), "scalar")
    with pytest.raises(ValueError, match="token"):
        encoder.states([np.array([1, 2], np.int32), np.array(ids, np.int32)])


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden": 100}, {"hidden": 96, "heads": 3}, {"hidden": 8192, "heads": 128},
        {"hidden": 0}, {"heads": 3}, {"heads": 0}, {"layers": 0}, {"wide": 0},
        {"positions": 0}, {"vocabulary": -1}, {"hidden": 1 << 30},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_sizes_are_refused(library: Library, sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must (be|have)"):
        Encoder(library, Model(SHAPES["heads of 32"]), "scalar", **sizes)
