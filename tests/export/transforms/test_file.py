"""The file format of a transform: what is written, and every way in which a file can be broken.

A file may come from anywhere. One that is not whole is an `ExportError` that names it, and never
takes more memory than its own size warrants.
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from flowvec.errors import ExportError, InputValueError
from flowvec_export.transforms import (
    AllButTheTop,
    BetaGammaWhitening,
    Compose,
    Dense,
    Flow,
    FlowShape,
    Identity,
    Moments,
    Rotation,
    SoftZCA,
    Standardise,
    Transform,
    Whitening,
)
from flowvec_export.transforms.file import Recipe, load_transform, save_transform
from tests.export.transforms.test_transforms import randomized, skewed_vectors

DIM = 8
GOLDEN = Path(__file__).resolve().parents[2] / "data" / "transforms" / "whitening-v1.safetensors"
RECIPE = Recipe(
    method="whitening",
    source="a-checkpoint",
    source_sha256="ab" * 32,
    pooling="cls+mean",
    max_length=40,
    corpus="sätze.txt",
    rows=950,
    held_out_rows=50,
    seed=3,
    settings={"k": None, "shape": {"levels": 2}},
    results={"bits_per_dim": [[0, 1.5, 1.25]]},
    flowvec="0.1.0",
)


def moments() -> Moments:
    return Moments.of(skewed_vectors(DIM))


def flow(shape: FlowShape, dim: int = DIM) -> Flow:
    torch.manual_seed(0)
    return randomized(Flow(dim, shape), skewed_vectors(dim))


def learned() -> Rotation:
    rotation = Rotation.fit(moments(), 6, learned=True)
    with torch.no_grad():
        assert rotation.skew is not None
        rotation.skew.normal_(generator=torch.Generator().manual_seed(0))
    return rotation


def dense(residual: torch.Tensor | None, bias: bool, activation: str = "tanh") -> Dense:
    generator = torch.Generator().manual_seed(1)
    out = DIM if residual is None or not residual.numel() else len(residual)
    weight = torch.randn(out, DIM, generator=generator)
    return Dense(weight, torch.arange(float(out)) if bias else None, activation, residual)


MADE: dict[str, Callable[[], Transform]] = {
    "whitening": lambda: Whitening.fit(moments(), 3),
    "soft-zca": lambda: SoftZCA.fit(moments(), 0.02),
    # More than any size that a configuration can name.
    "soft-zca, large eps": lambda: SoftZCA.fit(moments(), 1e9),
    "beta-gamma": lambda: BetaGammaWhitening.fit(moments(), 0.5, 0.25, 5),
    "standardise": lambda: Standardise.fit(moments()),
    "all-but-the-top": lambda: AllButTheTop.fit(moments(), 2),
    "rotation": lambda: Rotation.fit(moments(), 6),
    "rotation, learned": learned,
    "flow": lambda: flow(FlowShape(2, 3, 5)),
    "flow, affine": lambda: flow(FlowShape(1, 2, 5, "affine")),
    # The permutation is drawn from the seed in the file, here larger than any size could be.
    "flow, random": lambda: flow(FlowShape(2, 3, 5, "additive", "random", 20_261_121)),
    "identity": lambda: Identity(DIM),
    "dense": lambda: dense(None, True),
    "dense, no bias": lambda: dense(None, False, "gelu"),
    "dense, residual": lambda: dense(torch.empty(0), True),
    "dense, projection": lambda: dense(torch.ones(4, DIM), True, "identity"),
    "compose": lambda: Compose([learned(), flow(FlowShape(1, 2, 4), 6), Identity(6)]),
    "compose of compositions": lambda: Compose(
        [Compose([Standardise.fit(moments())]), Compose([flow(FlowShape(1, 1, 4))])]
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_loaded_computes_what_was_saved(tmp_path: Path, name: str) -> None:
    made = MADE[name]().eval()
    path = tmp_path / "t.safetensors"
    save_transform(made, RECIPE, path)
    loaded, recipe = load_transform(path)
    u = torch.from_numpy(skewed_vectors(DIM, 64, seed=1))
    with torch.no_grad():
        assert torch.equal(loaded(u), made(u))
        assert torch.equal(loaded.fold()(u), made.fold()(u))
    assert recipe == RECIPE
    assert (loaded.kind, loaded.config()) == (made.kind, made.config())
    assert loaded.describe() == made.describe()
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize("name", MADE)
def test_equal_transforms_are_equal_bytes(tmp_path: Path, name: str) -> None:
    for file in ("a", "b"):
        save_transform(MADE[name](), RECIPE, tmp_path / f"{file}.safetensors")
    save_transform(
        load_transform(tmp_path / "a.safetensors")[0], RECIPE, tmp_path / "c.safetensors"
    )
    first, second, third = (path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert first == second == third


def test_equal_recipes_are_equal_bytes_in_whatever_order(tmp_path: Path) -> None:
    for file, settings in (("a", {"k": 1, "eps": 2}), ("b", {"eps": 2, "k": 1})):
        recipe = dataclasses.replace(RECIPE, settings=settings)
        save_transform(MADE["whitening"](), recipe, tmp_path / f"{file}.safetensors")
    first, second = (path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert first == second


def test_a_transform_may_have_no_recipe(tmp_path: Path) -> None:
    save_transform(MADE["whitening"](), None, tmp_path / "t.safetensors")
    assert load_transform(tmp_path / "t.safetensors")[1] is None


def test_a_part_may_stand_twice(tmp_path: Path) -> None:
    part = Standardise.fit(moments())
    save_transform(Compose([part, part]), None, tmp_path / "t.safetensors")
    u = torch.from_numpy(skewed_vectors(DIM, 9))
    assert torch.equal(load_transform(tmp_path / "t.safetensors")[0](u), part(part(u)))


def test_the_file_is_what_the_docstring_says(tmp_path: Path) -> None:
    save_transform(MADE["whitening"]().double(), RECIPE, tmp_path / "t.safetensors")
    with safe_open(tmp_path / "t.safetensors", framework="pt") as file:
        metadata = file.metadata()
        assert {name: file.get_tensor(name).dtype for name in file.keys()} == {  # noqa: SIM118
            "mean": torch.float32,
            "matrix": torch.float32,
        }
    assert metadata.keys() == {"flowvec"}
    assert json.loads(metadata["flowvec"]) == {
        "format_version": 1,
        "kind": "whitening",
        "config": {"in_dim": DIM, "out_dim": 3, "full_rank": False},
        "recipe": dataclasses.asdict(RECIPE),
    }


def test_the_golden_file_of_version_1_stays_readable() -> None:
    transform, recipe = load_transform(GOLDEN)
    assert isinstance(transform, Whitening)
    # The mean goes to zero; a step of 1/4 in the first dimension gives a quarter of the first row,
    # which is (-12, -11, -10) / 8. Ones less the mean are (4 - i) / 4 and the first column is
    # 3 (i - 4) / 8: the sum over i is -3/32 of 44; the columns after it are 1/8 more each.
    mean = torch.arange(8) / 4
    first = mean + torch.tensor([0.25] + [0.0] * 7)
    rows = transform(torch.stack([mean, first, torch.ones(8)]))
    expected = [[0.0, 0.0, 0.0], [-0.375, -0.34375, -0.3125], [-4.125, -4.0, -3.875]]
    assert rows.tolist() == expected
    assert recipe is not None
    assert dataclasses.asdict(recipe) == {
        "method": "whitening",
        "source": "a-checkpoint",
        "source_sha256": "0" * 64,
        "pooling": "mean",
        "max_length": 40,
        "corpus": "sentences.txt",
        "rows": 950,
        "held_out_rows": 50,
        "seed": 7,
        "settings": {"k": 3},
        "results": {"mean_cosine": [0.75, 0.0]},
        "encoder_only": False,
        "flowvec": "0.1.0",
    }


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.bin", "t", "t.safetensors.txt", ".safetensors"])
def test_another_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputValueError, match=r"\.safetensors file"):
        save_transform(MADE["whitening"](), RECIPE, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


# 1e39 is a number in float64 and infinite in the file's float32.
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e39])
def test_a_transform_that_is_not_finite_is_refused(tmp_path: Path, value: float) -> None:
    broken = MADE["whitening"]().double()
    broken.matrix[1, 2] = value
    with pytest.raises(InputValueError, match="NaN or infinity in matrix"):
        save_transform(broken, RECIPE, tmp_path / "t.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken.safetensors").mkdir()
    for target in ("missing/t.safetensors", "file/t.safetensors", "taken.safetensors"):
        with pytest.raises(InputValueError, match=r"cannot write .*\.safetensors"):
            save_transform(MADE["whitening"](), RECIPE, tmp_path / target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken.safetensors"]


def test_a_file_is_replaced_whole_and_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    path.write_text("something else")
    with pytest.raises(InputValueError, match="overwrite=True"):
        save_transform(MADE["standardise"](), RECIPE, path)
    assert path.read_text() == "something else"
    mask = os.umask(0o022)
    try:
        save_transform(MADE["standardise"](), RECIPE, path, overwrite=True)
    finally:
        os.umask(mask)
    assert load_transform(path)[0].kind == "standardise"
    assert [file.name for file in tmp_path.iterdir()] == ["t.safetensors"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


# --- reading what is broken -----------------------------------------------------------------------

WHITENING: dict[str, Any] = {
    "format_version": 1,
    "kind": "whitening",
    "config": {"in_dim": 4, "out_dim": 2, "full_rank": False},
    "recipe": None,
}
TENSORS = {"mean": torch.zeros(4), "matrix": torch.ones(4, 2)}


def refused(path: Path) -> str:
    """The message that refuses a file, which must name it, in one line."""
    with pytest.raises(ExportError) as caught:
        load_transform(path)
    message = str(caught.value)
    assert str(path) in message
    assert len(message.splitlines()) == 1
    return message


def write_transform(
    folder: Path, header: Any = WHITENING, tensors: dict[str, torch.Tensor] = TENSORS
) -> Path:
    path = folder / "t.safetensors"
    text = header if isinstance(header, str) else json.dumps(header)
    save_file(tensors, path, {"flowvec": text})
    return path


def configured(kind: str, **config: Any) -> dict[str, Any]:
    return {**WHITENING, "kind": kind, "config": config}


def test_the_file_that_the_tests_below_break_is_whole(tmp_path: Path) -> None:
    assert load_transform(write_transform(tmp_path))[0].describe() == "whitening(4->2)"


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    assert "cannot read" in refused(tmp_path / "none.safetensors")
    assert "is a directory" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x08", b"PK\x03\x04" * 9, b"\xff" * 64, b"\0" * 64])
def test_what_is_not_a_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.safetensors").write_bytes(content)
    assert "cannot read" in refused(tmp_path / "t.safetensors")


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_transform(tmp_path).read_bytes()
    cut = tmp_path / "cut.safetensors"
    for length in (*range(0, len(whole), 37), len(whole) - 1):
        cut.write_bytes(whole[:length])
        refused(cut)


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_a_foreign_safetensors_file_is_refused(tmp_path: Path, metadata) -> None:
    path = tmp_path / "t.safetensors"
    save_file(TENSORS, path, metadata)
    assert "not a transform that `flowvec fit` wrote" in refused(path)


@pytest.mark.parametrize("text", ["", "{", "nonsense", '{"kind": }', "[" * 100_000, "9" * 5_000])
def test_a_header_that_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    assert "is not JSON" in refused(write_transform(tmp_path, text))


@pytest.mark.parametrize("header", [[], 1, None, "null", [WHITENING]])
def test_a_header_that_is_not_an_object_is_refused(tmp_path: Path, header) -> None:
    assert "format_version None" in refused(write_transform(tmp_path, json.dumps(header)))


@pytest.mark.parametrize("version", [0, 2, "1", None, [1]])
def test_another_version_is_refused_and_named(tmp_path: Path, version) -> None:
    message = refused(write_transform(tmp_path, {**WHITENING, "format_version": version}))
    assert f"format_version {version!r};" in message


@pytest.mark.parametrize("key", WHITENING)
def test_a_header_without_a_key_is_refused(tmp_path: Path, key: str) -> None:
    header = {name: value for name, value in WHITENING.items() if name != key}
    expected = "format_version None" if key == "format_version" else f"lacks {key}"
    assert expected in refused(write_transform(tmp_path, header))


@pytest.mark.parametrize("kind", ["", "Whitening", "os.system", "__init__"])
def test_an_unknown_kind_is_refused(tmp_path: Path, kind: str) -> None:
    assert f"no transform {kind!r}" in refused(
        write_transform(tmp_path, {**WHITENING, "kind": kind})
    )


@pytest.mark.parametrize("part", [{"kind": 3}, {"kind": None}, {"config": []}, {"config": None}])
def test_a_header_that_names_nothing_is_refused(tmp_path: Path, part) -> None:
    assert "names no transform" in refused(write_transform(tmp_path, WHITENING | part))


DENSE = {"in_dim": 4, "out_dim": 2, "bias": False, "activation": "tanh", "residual": None}
FLOW = {"dim": 4, "levels": 1, "depth": 1, "width": 2, "coupling": "additive",
        "permutation": "random", "seed": 0}  # fmt: skip


@pytest.mark.parametrize(
    "header",
    [
        configured("whitening"),
        configured("whitening", in_dim=4, full_rank=False),
        configured("whitening", in_dim=4, out_dim=2),  # what is missing has a default in code
        configured("whitening", in_dim=4, out_dim=2, full_rank=False, further=1),
        configured("whitening", in_dim="4", out_dim=2, full_rank=False),
        configured("whitening", in_dim=4.0, out_dim=2, full_rank=False),
        configured("whitening", in_dim=[4], out_dim=2, full_rank=False),
        configured("whitening", in_dim=None, out_dim=2, full_rank=False),
        configured("whitening", in_dim=True, out_dim=2, full_rank=False),
        configured("whitening", in_dim=-1, out_dim=2, full_rank=False),
        configured("whitening", in_dim=0, out_dim=2, full_rank=False),
        configured("soft_zca", in_dim=4, out_dim=2, full_rank=False, eps="0.05"),
        configured("soft_zca", in_dim=4, out_dim=2, full_rank=False, eps=None),
        configured("soft_zca", in_dim=4, out_dim=2, full_rank=False, eps=float("nan")),
        configured("soft_zca", in_dim=4, out_dim=2, full_rank=False, eps=float("inf")),
        configured("beta_gamma_whitening", in_dim=4, out_dim=2, full_rank=False, beta=1, gamma="x"),
        configured("identity", dim="four"),
        configured("dense", **{**DENSE, "activation": "system"}),
        configured("dense", **{**DENSE, "activation": ["tanh"]}),
        configured("dense", **{**DENSE, "residual": "other"}),
        configured("flow", **{**FLOW, "seed": None}),  # would be another permutation each time
        configured("flow", **{**FLOW, "seed": -1}),
        configured("flow", **{**FLOW, "coupling": "other"}),
        configured("flow", **{**FLOW, "permutation": ["random"]}),
        configured("flow", **{**FLOW, "levels": 0}),
        configured("flow", **{**FLOW, "levels": 2.5}),
        configured("flow", dim=4),
        configured("compose", parts=[]),
        configured("compose", parts=None),
        configured("compose", parts={"kind": "identity"}),
        configured("compose", parts=[4]),
        configured("compose", parts=[{"kind": "identity"}]),
        configured("compose", parts=[{"kind": ["identity"], "config": {"dim": 4}}]),
        configured("compose", parts=[{"kind": "identity", "config": {"dim": n}} for n in (4, 3)]),
    ],
    ids=lambda header: json.dumps(header["config"])[:60],
)  # fmt: skip
def test_a_configuration_that_does_not_fit_is_refused(tmp_path: Path, header) -> None:
    # Tensors with every size that is asked for, and many of them: it is the configuration that is
    # wrong here.
    many = {f"t{i}": torch.zeros(4, 2) for i in range(30)}
    refused(write_transform(tmp_path, header, TENSORS | many))
    refused(write_transform(tmp_path, header))


@pytest.mark.parametrize("depth", [*range(220, 340, 20), 800, 20_000])
def test_compositions_in_compositions_do_not_exhaust_the_stack(tmp_path: Path, depth: int) -> None:
    open_, close = '{"kind": "compose", "config": {"parts": [', "]}}"
    inner = '{"kind": "identity", "config": {"dim": 4}}'
    text = json.dumps(WHITENING | {"kind": "compose", "config": {"parts": ["HERE"]}})
    header = text.replace('"HERE"', open_ * depth + inner + close * depth)
    refused(write_transform(tmp_path, header))


HUGE = [10**12, 1 << 62, 10**400, 1 << 20]


@pytest.mark.parametrize("size", HUGE, ids=["10**12", "2**62", "10**400", "2**20"])
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("whitening", {"in_dim": "N", "out_dim": "N", "full_rank": True}),
        ("whitening", {"in_dim": 4, "out_dim": "N", "full_rank": False}),
        ("standardise", {"dim": "N"}),
        ("all_but_the_top", {"dim": "N", "k": "N"}),
        ("rotation", {"in_dim": "N", "out_dim": "N", "learned": True}),
        ("dense", {**DENSE, "in_dim": "N", "out_dim": "N"}),
        ("flow", {**FLOW, "dim": "N"}),
        ("flow", {**FLOW, "width": "N"}),
        ("flow", {**FLOW, "depth": "N"}),
        ("flow", {**FLOW, "dim": "N", "levels": 9, "depth": "N", "width": "N"}),
    ],
)
def test_absurd_sizes_take_no_memory(tmp_path: Path, kind, config, size) -> None:
    sized = {name: size if value == "N" else value for name, value in config.items()}
    part = {"kind": kind, "config": sized}
    path = tmp_path / "t.safetensors"
    for header in (WHITENING | part, configured("compose", parts=[part])):
        write_transform(tmp_path, header)
        tracemalloc.start()
        try:
            refused(path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        # Lists of Python numbers are what a wide flow would fill the memory with; of tensors only
        # the shapes are made, so that 2**62 squared would fail otherwise than by an `ExportError`.
        assert peak < 4 << 20


def test_one_long_tensor_does_not_pay_for_many_permutations(tmp_path: Path) -> None:
    """Sizes that the file bears out one by one, but not together."""
    dim = 1 << 16
    tensors = {"long": torch.zeros(dim), "two": torch.zeros(2)}
    tensors |= {f"t{i}": torch.zeros(1) for i in range(50)}
    write_transform(tmp_path, configured("flow", **{**FLOW, "dim": dim, "depth": 20}), tensors)
    tracemalloc.start()
    try:
        refused(tmp_path / "t.safetensors")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


# --- tensors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensors", "part"),
    [
        # The lone matrix has both sizes as axes.
        ({"matrix": TENSORS["matrix"]}, "other tensors than a whitening: mean"),
        (TENSORS | {"further": torch.zeros(1)}, "other tensors than a whitening: further"),
        (TENSORS | {"mean": torch.zeros(3)}, "float32 (4,) belongs"),
        (TENSORS | {"mean": torch.zeros(1, 4)}, "float32 (4,) belongs"),
        (TENSORS | {"matrix": torch.zeros(2, 4)}, "float32 (4, 2) belongs"),
        (TENSORS | {"mean": torch.zeros(4).double()}, "mean as torch.float64"),
        (TENSORS | {"mean": torch.zeros(4).half()}, "mean as torch.float16"),
        (TENSORS | {"mean": torch.zeros(4).int()}, "mean as torch.int32"),
        (TENSORS | {"mean": torch.tensor([0, 0, torch.nan, 0])}, "NaN or infinity in mean"),
        (TENSORS | {"matrix": torch.full((4, 2), -torch.inf)}, "NaN or infinity in matrix"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_belong_are_refused(tmp_path: Path, tensors, part: str) -> None:
    assert part in refused(write_transform(tmp_path, WHITENING, tensors))


# --- recipes --------------------------------------------------------------------------------------

PLAIN = dataclasses.asdict(RECIPE)


@pytest.mark.parametrize(
    "recipe", [[], "whitening", {}, {**PLAIN, "further": 1}], ids=["list", "text", "empty", "more"]
)
def test_a_recipe_of_other_fields_is_refused(tmp_path: Path, recipe) -> None:
    assert "other fields" in refused(write_transform(tmp_path, {**WHITENING, "recipe": recipe}))


@pytest.mark.parametrize("field", PLAIN)
def test_each_field_of_a_recipe_is_there_and_of_its_type(tmp_path: Path, field: str) -> None:
    less = {name: value for name, value in PLAIN.items() if name != field}
    assert "other fields" in refused(write_transform(tmp_path, {**WHITENING, "recipe": less}))
    for wrong in (None, 1 if field == "encoder_only" else True, [], 1.5):
        recipe = {**PLAIN, field: wrong}
        assert "wrong type" in refused(write_transform(tmp_path, {**WHITENING, "recipe": recipe}))
