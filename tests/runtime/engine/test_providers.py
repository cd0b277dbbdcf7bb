"""The decision what to run on: a pure function of what can run, the processor and the bundle."""

from __future__ import annotations

from typing import Any

import pytest

from flowvec import InputValueError, ProviderUnavailableError
from flowvec.engine.providers import (
    CPU,
    CUDA,
    NATIVE,
    OPENVINO,
    PROVIDERS,
    SHORT_NAMES,
    TENSORRT,
    Engine,
    choose,
    default_max_batch_tokens,
)

BF16 = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16"]


def status(*running: str) -> dict[str, str | None]:
    return {name: None if name in running else f"{name} is missing" for name in PROVIDERS}


BOTH = ["int8", "int8-openvino"]
ALL = [*BOTH, "int8-native"]
TABLE = ["float32-native"]
EVERYTHING = status(*PROVIDERS)


@pytest.mark.parametrize(
    ("running", "device", "expected"),
    [
        ([CPU], "auto", CPU),
        ([CPU, OPENVINO], "auto", OPENVINO),
        ([CPU, OPENVINO, CUDA], "auto", CUDA),
        ([CPU, OPENVINO, CUDA], "cpu", OPENVINO),
        ([CPU, CUDA], "cpu", CPU),
        ([CPU, CUDA], "cuda", CUDA),
        # TensorRT builds for minutes, so it must be chosen by name.
        ([CPU, TENSORRT], "auto", CPU),
    ],
)
def test_auto_takes_the_best_that_runs(running: list[str], device: str, expected: str) -> None:
    assert choose(status(*running), BF16, 4, device=device).provider == expected


@pytest.mark.parametrize(
    ("features", "variants", "options", "expected"),
    [
        (BF16, ALL, {}, (NATIVE, "int8")),
        (BF16, ALL, {"device": "cpu"}, (NATIVE, "int8")),
        (BF16, ALL, {"refused": [(NATIVE, "int8")]}, (OPENVINO, "bfloat16")),
        (BF16, BOTH, {}, (OPENVINO, "bfloat16")),
        (BF16, BOTH, {"compute": "int8"}, (OPENVINO, "int8")),
        (BF16, ALL, {"compute": "int8"}, (NATIVE, "int8")),
        (BF16, ALL, {"compute": "float32"}, (OPENVINO, "float32")),
        (BF16, ALL, {"provider": "openvino"}, (OPENVINO, "bfloat16")),
        ([*BF16, "amx_int8", "amx_bf16"], ALL, {}, (OPENVINO, "bfloat16")),
        (["avx2", "avx512f"], ALL, {}, (OPENVINO, "float32")),
        (["avx2"], ALL, {}, (NATIVE, "int8")),
        (["avx2"], BOTH, {}, (OPENVINO, "float32")),
        (["avx2", "amx_int8"], TABLE, {"layers": 0}, (NATIVE, "float32")),
        (["avx2"], TABLE, {"layers": 0, "provider": "native"}, (NATIVE, "float32")),
        (["avx2"], TABLE, {"layers": 0, "compute": "float32"}, (NATIVE, "float32")),
        (["avx2"], TABLE, {"layers": 0, "provider": "cpu"}, (CPU, "float32")),
        (["avx2"], TABLE, {"layers": 0, "refused": [(NATIVE, "float32")]}, (CPU, "float32")),
        (["avx2"], [], {"layers": 0}, (CPU, "float32")),
        (["avx2"], ALL, {"compute": "int8"}, (NATIVE, "int8")),
        (["avx2"], ALL, {"provider": "native"}, (NATIVE, "int8")),
    ],
)
def test_where_the_native_engine_is_used(
    features: list[str], variants: list[str], options: dict[str, Any], expected: tuple[str, str]
) -> None:
    engine = choose(status(CPU, OPENVINO, NATIVE), features, 4, variants, **options)
    assert (engine.provider, engine.compute) == expected


def test_the_native_engine_is_not_asked_for_what_it_lacks() -> None:
    with pytest.raises(ProviderUnavailableError, match="--variants int8-native"):
        choose(EVERYTHING, BF16, 4, BOTH, provider="native")
    with pytest.raises(ProviderUnavailableError, match="only static embedders in float32"):
        choose(EVERYTHING, BF16, 4, ALL, provider="native", compute="float32")
    with pytest.raises(ProviderUnavailableError, match="no float32-native"):
        choose(EVERYTHING, BF16, 4, [], provider="native", layers=0)
    assert choose(EVERYTHING, BF16, 4, ALL, provider="native", threads=2).streams == 2
    with pytest.raises(ProviderUnavailableError, match="no engine is proved"):
        choose(EVERYTHING, BF16, 4, ALL, provider="native", refused=[(NATIVE, "int8")])


@pytest.mark.parametrize(
    ("running", "options", "expected"),
    [
        ([CPU, OPENVINO], {}, (CPU, "float32")),
        ([OPENVINO], {}, (OPENVINO, "bfloat16")),
        ([CPU, OPENVINO], {"compute": "bfloat16"}, (OPENVINO, "bfloat16")),
        ([CPU, OPENVINO], {"provider": "openvino"}, (OPENVINO, "bfloat16")),
        ([CPU, OPENVINO, CUDA], {}, (CUDA, "float32")),
    ],
)
def test_without_layers_openvino_is_not_sought(
    running: list[str], options: dict[str, str], expected: tuple[str, str]
) -> None:
    engine = choose(status(*running), BF16, 4, layers=0, **options)
    assert (engine.provider, engine.compute) == expected


def test_the_budget_goes_by_device_and_layers() -> None:
    assert default_max_batch_tokens(Engine(CPU, "float32", 2), None) == 512
    assert default_max_batch_tokens(Engine(CPU, "float32", 2), 6) == 512
    assert default_max_batch_tokens(Engine(CPU, "float32", 2), 0) == 2048
    assert default_max_batch_tokens(Engine(CUDA, "float16", 1), 0) == 16384


@pytest.mark.parametrize("full", list(PROVIDERS))
def test_a_named_engine_is_used_or_is_an_error_with_its_reason(full: str) -> None:
    assert choose(EVERYTHING, BF16, 4, ALL, provider=full).provider == full
    others = status(*(name for name in PROVIDERS if name != full))
    with pytest.raises(ProviderUnavailableError, match=f"{full} was .*but {full} is"):
        choose(others, BF16, 4, provider=full)


@pytest.mark.parametrize(("short", "fulls"), SHORT_NAMES.items())
def test_a_short_name_means_its_first_provider_that_runs(short: str, fulls) -> None:
    for place, full in enumerate(fulls):
        engine = choose(status(CPU, *fulls[place:]), BF16, 4, ALL, provider=short.upper())
        assert engine.provider == full
    others = [name for name in PROVIDERS if name not in fulls]
    with pytest.raises(ProviderUnavailableError) as caught:
        choose(status(*others), BF16, 4, provider=short)
    for full in fulls:
        assert f"{full} is missing" in str(caught.value)


def test_a_device_without_a_provider_is_an_error_with_the_reasons() -> None:
    with pytest.raises(ProviderUnavailableError, match=f"cuda was .*but {CUDA} is"):
        choose(status(CPU), BF16, 4, device="cuda")


@pytest.mark.parametrize(
    ("provider", "features", "variants", "compute", "expected"),
    [
        (CPU, BF16, [], "auto", "float32"),
        (CPU, BF16, ["int8"], "auto", "float32"),  # other vectors are never the default
        (CPU, BF16, ["int8"], "int8", "int8"),
        (OPENVINO, BF16, ["int8-openvino"], "int8", "int8"),
        (OPENVINO, BF16, ["int8-openvino"], "auto", "bfloat16"),
        (OPENVINO, BF16, [], "auto", "bfloat16"),
        (OPENVINO, ["amx_bf16"], [], "auto", "bfloat16"),
        (OPENVINO, ["amx_bf16", "amx_fp16"], ["float16"], "auto", "bfloat16"),
        (OPENVINO, ["amx_bf16", "amx_fp16"], [], "float16", "float16"),
        (CPU, ["arm_bf16"], [], "auto", "float32"),
        (CPU, ["arm_bf16"], [], "bfloat16", "bfloat16"),
        (OPENVINO, ["avx2"], [], "auto", "float32"),
        (OPENVINO, BF16, [], "float32", "float32"),
        (CUDA, BF16, [], "auto", "float32"),
        (CUDA, [], ["float16", "int8"], "auto", "float16"),
        (TENSORRT, [], ["float16"], "float32", "float32"),
    ],
)
def test_the_compute_type(provider: str, features, variants, compute: str, expected: str) -> None:
    engine = choose(EVERYTHING, features, 4, variants, provider=provider, compute=compute)
    assert engine.compute == expected


@pytest.mark.parametrize(
    ("provider", "features", "variants", "compute", "part"),
    [
        (CPU, BF16, [], "bfloat16", f"no arm_bf16, which {CPU} needs"),
        (CPU, BF16, ["float16"], "float16", f"{CPU} cannot compute in float16"),
        (CPU, BF16, [], "int8", "flowvec export --variants int8"),
        (OPENVINO, BF16, ["int8"], "int8", "flowvec export --variants int8-openvino"),
        (OPENVINO, BF16, [], "float16", "no amx_fp16"),
        (CUDA, BF16, ["int8"], "float16", "flowvec export --variants float16"),
        (CUDA, BF16, ["int8"], "int8", f"{CUDA} cannot compute in int8"),
        (OPENVINO, ["avx2"], [], "bfloat16", "neither avx512_bf16 nor amx_bf16"),
    ],
)
def test_a_compute_type_that_cannot_be_had_is_an_error(
    provider: str, features, variants, compute: str, part: str
) -> None:
    with pytest.raises(ProviderUnavailableError) as caught:
        choose(EVERYTHING, features, 4, variants, provider=provider, compute=compute)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("running", "variants", "compute", "expected"),
    [
        ([CPU, OPENVINO], ["int8"], "int8", (CPU, "int8")),
        ([CPU, OPENVINO], BOTH, "int8", (OPENVINO, "int8-openvino")),
        ([CPU, OPENVINO, CUDA], [], "bfloat16", (OPENVINO, None)),
        ([CPU, OPENVINO, CUDA], ["float16"], "float16", (CUDA, "float16")),
        ([CPU, OPENVINO], [], "float32", (OPENVINO, None)),
    ],
)  # fmt: skip
def test_a_compute_type_alone_finds_the_best_provider_that_has_it(
    running: list[str], variants: list[str], compute: str, expected: tuple[str, str | None]
) -> None:
    engine = choose(status(*running), BF16, 4, variants, compute=compute)
    assert (engine.provider, engine.variant) == expected


def test_a_short_name_means_the_provider_that_has_the_compute_type() -> None:
    both = status(CPU, OPENVINO)
    engine = choose(both, BF16, 4, BOTH, provider="openvino", compute="int8")
    assert engine.provider == OPENVINO
    # If a graph is missing for all providers, the error is of one that could run it.
    with pytest.raises(ProviderUnavailableError, match="flowvec export --variants int8"):
        choose(both, BF16, 4, [], compute="int8")
    with pytest.raises(ProviderUnavailableError, match="--variants float16"):
        choose(EVERYTHING, BF16, 4, [], compute="float16")


def test_streams_are_one_a_core_and_one_on_a_gpu() -> None:
    assert choose(EVERYTHING, BF16, 6, provider="cpu").streams == 6
    assert choose(EVERYTHING, BF16, 6, provider="cpu", streams=3).streams == 3
    # Cores are divided between streams: the more threads a batch has, the fewer streams.
    for threads, streams in ((1, 6), (2, 3), (4, 1), (6, 1), (9, 1)):
        engine = choose(EVERYTHING, BF16, 6, provider="cpu", threads=threads)
        assert (engine.streams, engine.threads) == (streams, threads)
    assert choose(EVERYTHING, BF16, 6, provider="cuda").streams == 1
    with pytest.raises(InputValueError, match="threads are a CPU's"):
        choose(EVERYTHING, BF16, 6, provider="cuda", threads=4)
    assert Engine(CUDA, "float16", 1).device == "cuda"
    assert Engine(OPENVINO, "float32", 1).device == "cpu"
    with pytest.raises(InputValueError, match="one batch at a time"):
        choose(EVERYTHING, BF16, 6, provider="cuda", streams=2)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"compute": "float64"}, "'float64'"),
        ({"device": "gpu"}, "device must be one of auto, cpu, cuda"),
        ({"streams": 0}, "streams must be at least 1"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"provider": "cuda", "device": "cpu"}, "does not run on the device 'cpu'"),
    ],
)
def test_an_unknown_choice_is_an_error(options, part: str) -> None:
    with pytest.raises(InputValueError) as caught:
        choose(EVERYTHING, BF16, 4, **options)
    assert part in str(caught.value)


@pytest.mark.parametrize("name", ["nonsense", "", "CudaExecutionProvider"])
def test_an_unknown_provider_names_those_served(name: str) -> None:
    with pytest.raises(ProviderUnavailableError, match="cpu, openvino, native, cuda, tensorrt"):
        choose(EVERYTHING, BF16, 4, provider=name)
