"""Static embedders on the native engine: their vectors, and files that say where a table is."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec.errors import BundleError, EngineError
from flowvec.native import NativeEncoder, TableWeights
from flowvec.native.encoder import sets
from flowvec.native.table import GRAPH_TYPES, Stored
from flowvec.native.tail import Step
from tests.drawing import examples

WIDTH, TOKENS, ROWS, POSITIONS = 48, 90, 70, 40
TEXTS = [[3], list(range(40)), [5, 5, 89], [0, 7], [], [7], [61, 2, 7, 33, 1]]
STEPS = (Step("constant", (), WIDTH), Step("subtract", (0, 1), WIDTH), Step("product", (2,), 20))


class Model:
    """A random static embedder, in a file as a graph holds it: at any byte."""

    def __init__(
        self,
        folder: Path,
        row_type: str = "F16",
        *,
        width: int = WIDTH,
        of_backbone: bool = False,
        has_rows: bool = False,
        has_weights: bool = False,
        ignored: int | None = None,
        steps: tuple[Step, ...] = (),
        is_normalized: bool = True,
    ) -> None:
        draw = np.random.default_rng(1)
        rows = ROWS if has_rows else TOKENS
        table = draw.standard_normal((rows, width))
        table[2, :8] *= 1e-7  # below float16's normal numbers
        table = np.rint(table * 30).clip(-128, 127) if row_type == "I8" else table
        tensors: dict[str, npt.NDArray[Any]] = {"rows": table.astype(GRAPH_TYPES[row_type])}
        if has_rows:
            tensors["row_of"] = draw.integers(0, ROWS, TOKENS).astype("<i4")
        if has_weights:
            tensors["weights"] = draw.uniform(0.1, 2, TOKENS).astype("<f4")
        if of_backbone:
            tensors["positions"] = draw.standard_normal((POSITIONS, WIDTH)).astype("<f2")
            tensors["norm.weight"] = draw.uniform(0.5, 2, WIDTH).astype("<f4")
            tensors["norm.bias"] = draw.standard_normal(WIDTH).astype("<f4")
        self.tensors, self.of_backbone, self.ignored = tensors, of_backbone, ignored
        names = {type_: name for name, type_ in GRAPH_TYPES.items()}
        content, stored = b"the graph: ", {}
        for name, values in tensors.items():
            stored[name] = Stored(names[values.dtype], values.shape, len(content))
            content += values.tobytes() + b"?"
        self.tail = [
            draw.standard_normal((step.length,) if not step.operands else (WIDTH, step.length))
            for step in steps
            if step.operation in ("constant", "product")
        ]
        self.graph, self.file = folder / "model.onnx", folder / "table.native"
        self.graph.write_bytes(content)
        self.weights = TableWeights(
            stored=stored,
            steps=steps,
            is_normalized=is_normalized,
            is_weighted=of_backbone,
            least=1e-9 if of_backbone else 1.0,
            ignored=ignored,
            epsilon=1e-5,
            tensors=dict(zip(["tail.0", "tail.2"], map(np.float32, self.tail), strict=False)),
        )
        self.weights.write(self.file)

    def encoder(self, instructions: str) -> NativeEncoder:
        return NativeEncoder(TableWeights.read(self.file, self.graph), instructions)

    def vector(self, ids: list[int]) -> npt.NDArray[np.float64]:
        """The definition, in double precision."""
        of = {name: values.astype(np.float64) for name, values in self.tensors.items()}
        kept = np.array([token for token in ids if token != self.ignored], np.int64)
        rows = of["rows"][self.tensors["row_of"][kept] if "row_of" in of else kept]
        if self.of_backbone:
            rows = rows + of["positions"][: len(kept)]
            rows -= rows.mean(1, keepdims=True)
            rows /= np.sqrt((rows * rows).mean(1, keepdims=True) + 1e-5)
            rows = rows * of["norm.weight"] + of["norm.bias"]
        weights = of["weights"][kept] if "weights" in of else np.ones(len(kept))
        divisor = weights.sum() if self.of_backbone else max(len(kept), 1)
        vector = weights @ rows / max(divisor, 1e-9)
        if self.tail:
            vector = (vector - self.tail[0]) @ self.tail[1]
        length = np.linalg.norm(vector) if self.weights.is_normalized else 1
        result: npt.NDArray[np.float64] = vector / max(length, 1e-12)
        return result


def encoded(encoder: NativeEncoder, texts: list[list[int]]) -> npt.NDArray[np.float32]:
    starts = np.array([0, *accumulate(map(len, texts))])
    return encoder.vectors(np.array([i for text in texts for i in text], np.int32), starts)


KINDS: list[dict[str, Any]] = [
    {"row_type": "F32"},
    {"row_type": "F32", "width": 17},
    {"row_type": "F16", "width": 300, "is_normalized": False},
    {"row_type": "I8", "width": 9, "has_rows": True},
    {"has_weights": True, "ignored": 7, "steps": STEPS},
    {"row_type": "I8", "of_backbone": True, "has_rows": True, "has_weights": True},
    {"of_backbone": True, "steps": STEPS, "is_normalized": False},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_vectors_are_those_of_the_definition_on_every_set_and_in_any_company(
    kind: dict[str, Any], tmp_path: Path
) -> None:
    model = Model(tmp_path, **kind)
    wanted = np.stack([model.vector(text) for text in TEXTS])
    found = {name: encoded(model.encoder(name), TEXTS) for name in sets()}
    np.testing.assert_allclose(found["scalar"], wanted, rtol=2e-5, atol=2e-6)
    for name, vectors in found.items():
        assert vectors.tobytes() == found["scalar"].tobytes(), name
        alone = [encoded(model.encoder(name), [text]) for text in reversed(TEXTS)]
        assert np.concatenate(alone[::-1]).tobytes() == vectors.tobytes(), name


@pytest.mark.parametrize(
    "ids", [[-1], [TOKENS], [0] * (POSITIONS + 1)], ids=["low", "high", "long"]
)
def test_wrong_texts_are_refused(tmp_path: Path, ids: list[int]) -> None:
    encoder = Model(tmp_path, of_backbone=True).encoder("scalar")
    with pytest.raises(EngineError):
        encoded(encoder, [[1], ids])


def test_what_only_layers_have_is_refused(tmp_path: Path) -> None:
    encoder = Model(tmp_path).encoder("scalar")
    with pytest.raises(EngineError, match="texts alone"):
        encoder.token_vectors(np.zeros(1, np.int32), np.array([0, 1]))


@pytest.mark.parametrize("number", [-1, ROWS], ids=str)
def test_a_token_without_a_row_is_refused(tmp_path: Path, number: int) -> None:
    model = Model(tmp_path, has_rows=True)
    weights = TableWeights.read(model.file, model.graph)
    weights.tensors["row_of"][8] = number
    with pytest.raises(EngineError, match="no row"):
        NativeEncoder(weights, "scalar")
    rows = replace(weights.stored["rows"], shape=(TOKENS - 1, WIDTH))
    stored = {"rows": rows, "weights": Stored("F32", (TOKENS,), 0)}
    tensors = {"rows": weights.tensors["rows"], "weights": np.ones(TOKENS, np.float32)}
    with pytest.raises(EngineError, match="no row"):
        NativeEncoder(replace(weights, stored=stored, tensors=tensors), "scalar")


def facts_of(file: Path) -> dict[str, Any]:
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    facts: dict[str, Any] = json.loads(
        json.loads(content[8 : 8 + length])["__metadata__"]["flowvec"]
    )
    return facts


def with_facts(file: Path, facts: Any) -> None:
    header = json.dumps({"__metadata__": {"flowvec": json.dumps(facts)}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)


WRONG: list[dict[str, Any]] = [
    {"format": 2},
    {"graph": {}},
    {"graph": []},
    {"graph": {"rows": 7}},
    {"least": -1.0},
    {"least": "1"},
    {"epsilon": 2.0},
    {"is_weighted": 1},
    {"is_normalized": None},
    {"ignored": -1},
    {"ignored": "7"},
    {"steps": [{"operation": "product", "operands": [0], "length": 20, "begin": 0}]},
]


@pytest.mark.parametrize("changed", WRONG, ids=str)
def test_wrong_facts_are_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    model = Model(tmp_path)
    with_facts(model.file, facts_of(model.file) | changed)
    with pytest.raises(BundleError):
        TableWeights.read(model.file, model.graph)


PLACES: list[tuple[str, dict[str, Any] | None]] = [
    ("rows", {"offset": -1}),
    ("rows", {"offset": 1 << 30}),
    ("rows", {"offset": 1.0}),
    ("rows", {"dtype": "I32"}),
    ("rows", {"dtype": "F64"}),
    ("rows", {"shape": [WIDTH]}),
    ("rows", {"shape": [TOKENS, 0]}),
    ("rows", {"shape": [1 << 24, 1 << 24]}),
    ("rows", {"shape": [TOKENS, 16]}),
    ("positions", {"dtype": "I8"}),
    ("weights", {"shape": [TOKENS - 1]}),
    ("norm.bias", None),
    ("other", {"dtype": "F32", "shape": [1], "offset": 0}),
]


@pytest.mark.parametrize(("name", "changed"), PLACES, ids=str)
def test_wrong_places_are_refused(
    tmp_path: Path, name: str, changed: dict[str, Any] | None
) -> None:
    model = Model(tmp_path, of_backbone=True, has_rows=True, has_weights=True)
    facts = facts_of(model.file)
    if changed is None:
        del facts["graph"][name]
    else:
        facts["graph"][name] = facts["graph"].get(name, {}) | changed
    with_facts(model.file, facts)
    with pytest.raises(BundleError):
        TableWeights.read(model.file, model.graph)


def test_numbers_that_are_not_finite_and_a_shorter_graph_are_refused(tmp_path: Path) -> None:
    model = Model(tmp_path, has_weights=True)
    content = bytearray(model.graph.read_bytes())
    model.graph.write_bytes(content[:-2])
    with pytest.raises(BundleError, match="ends before"):
        TableWeights.read(model.file, model.graph)
    content[-5:-1] = np.float32(np.nan).tobytes()
    model.graph.write_bytes(content)
    with pytest.raises(BundleError, match="not finite"):
        TableWeights.read(model.file, model.graph)
    model.graph.unlink()
    with pytest.raises(BundleError, match="cannot read"):
        TableWeights.read(model.file, model.graph)


@given(st.data())
@examples(200)
def test_any_places_are_an_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    model = Model(tmp_path_factory.mktemp("table"), of_backbone=True, has_rows=True)
    facts = facts_of(model.file)
    name = data.draw(st.sampled_from(sorted(facts["graph"])))
    places = facts["graph"][name]
    field = data.draw(st.sampled_from(("dtype", "shape", "offset")))
    numbers = st.integers(-2, 1 << 33) | st.integers(0, 20_000)
    places[field] = data.draw(
        {
            "dtype": st.sampled_from(sorted(GRAPH_TYPES)),
            "shape": st.lists(numbers, max_size=3),
            "offset": numbers,
        }[field]
    )
    with_facts(model.file, facts)
    try:
        encoder = model.encoder("scalar")
    except (BundleError, EngineError):
        return
    vectors = encoded(encoder, [[0, 1, 2]])
    assert vectors.shape == (1, encoder.dim)
