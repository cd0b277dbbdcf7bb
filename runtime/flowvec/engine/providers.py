"""What a graph can run on: providers, compute types, and the file of the bundle that each reads.

Tables and a pure function; `selection.py` asks the machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from flowvec.errors import InputValueError, ProviderUnavailableError

__all__ = [
    "COMPUTES",
    "CPU",
    "CUDA",
    "DEVICES",
    "EXPERIMENTAL",
    "NATIVE",
    "OPENVINO",
    "PROVIDERS",
    "SHORT_NAMES",
    "TENSORRT",
    "Compute",
    "Device",
    "Engine",
    "choose",
    "computes_of",
    "default_max_batch_tokens",
    "has_bfloat16",
    "is_native_best",
    "native_compute",
    "why_not",
]

Compute = Literal["auto", "float32", "bfloat16", "float16", "int8"]
Device = Literal["auto", "cpu", "cuda"]

COMPUTES: tuple[Compute, ...] = get_args(Compute)
DEVICES: tuple[Device, ...] = get_args(Device)

CPU = "CPUExecutionProvider"
# OpenVINO by itself, not as a provider of ONNX Runtime.
OPENVINO = "OpenVINORuntime"
# flowvec's own library: see `flowvec.native`.
NATIVE = "FlowvecNative"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

# Best first: `auto` uses the first that can run.
PROVIDERS: dict[str, Device] = {
    CUDA: "cuda",
    TENSORRT: "cuda",
    NATIVE: "cpu",
    OPENVINO: "cpu",
    CPU: "cpu",
}
# TensorRT takes minutes to build an engine, so it must be asked for.
_ONLY_WHEN_ASKED = (TENSORRT,)

# Written from ONNX Runtime's documentation, and never run on a GPU by this project.
EXPERIMENTAL = frozenset({CUDA, TENSORRT})

# Padded tokens per batch. On CPU, small batches stay in the cache and large ones are slower. A
# model without layers needs little cache, and its batches cost little besides the call.
_CPU_BUDGET = 512
_LAYERLESS_BUDGET = 2048
_GPU_BUDGET = 16384
_GPU_BATCHES = 2

# A short name stands for the first of its providers that can run.
SHORT_NAMES: dict[str, tuple[str, ...]] = {
    "cpu": (CPU,),
    "openvino": (OPENVINO,),
    "native": (NATIVE,),
    "cuda": (CUDA,),
    "tensorrt": (TENSORRT,),
}
_COMPUTES_OF: dict[str, tuple[str, ...]] = {
    CPU: ("float32", "bfloat16", "int8"),
    OPENVINO: ("float32", "bfloat16", "float16", "int8"),
    NATIVE: ("int8", "float32"),
    CUDA: ("float32", "float16"),
    TENSORRT: ("float32", "float16"),
}
# Instruction sets of which a processor must have one, by provider and compute type.
_NEEDED_FEATURES: dict[tuple[str, str], tuple[str, ...]] = {
    # ONNX Runtime multiplies in bfloat16 on ARM only.
    (CPU, "bfloat16"): ("arm_bf16",),
    (OPENVINO, "bfloat16"): ("avx512_bf16", "amx_bf16"),
    (OPENVINO, "float16"): ("amx_fp16",),
}
# Types that are the default of a provider, best first, where the processor has them.
_FAST_COMPUTES: dict[str, tuple[str, ...]] = {OPENVINO: ("bfloat16",)}
# Variants by provider and compute type; all other combinations run the float32 graph.
_VARIANT_OF: dict[tuple[str, str], str] = {
    (CPU, "int8"): "int8",
    # Not offered to users: it computes in float32, and shows what storing float16 costs.
    (CPU, "float16"): "float16",
    (OPENVINO, "int8"): "int8-openvino",
    (NATIVE, "int8"): "int8-native",
    (NATIVE, "float32"): "float32-native",
    (CUDA, "float16"): "float16",
    (TENSORRT, "float16"): "float16",
}


@dataclass(frozen=True, slots=True)
class Engine:
    """What runs the graph. `Encoder.info()`, `flowvec doctor` and every benchmark show it.

        >>> encoder = Encoder.load("mini", provider="cpu", compute="float32", streams=1, threads=1)
        >>> encoder.engine
        Engine(provider='CPUExecutionProvider', compute='float32', streams=1, threads=1)

    Attributes:
        provider: ONNX Runtime's name of the execution provider, `OpenVINORuntime` for OpenVINO
            itself, or `FlowvecNative` for flowvec's own engine.
        compute: type of the matrix products: `float32`, `bfloat16`, `float16` or `int8`.
        streams: batches that run at the same time; 1 on a GPU.
        threads: cores that compute one batch; 1 on a GPU.
        fused_attention: whether OpenVINO computes attention in one fused kernel. It is slower on
            every processor that was measured; `flowvec tune` tries it.
    """

    provider: str
    compute: str
    streams: int
    threads: int = 1
    fused_attention: bool = field(default=False, repr=False)

    @property
    def device(self) -> Device:
        """The device it runs on: `cpu` or `cuda`."""
        return PROVIDERS[self.provider]

    @property
    def in_flight(self) -> int:
        """Batches that are handed to the device at the same time. A GPU gets two: one computes,
        while the other's inputs or output are copied."""
        return self.streams if self.device == "cpu" else _GPU_BATCHES

    @property
    def is_experimental(self) -> bool:
        """Whether its provider has never been run by this project; loading it logs a warning."""
        return self.provider in EXPERIMENTAL

    @property
    def variant(self) -> str | None:
        """The variant of the bundle that it runs; None is the float32 graph."""
        return _VARIANT_OF.get((self.provider, self.compute))


def default_max_batch_tokens(engine: Engine, layers: int | None) -> int:
    """Default of padded tokens per batch.

    Args:
        engine: what computes.
        layers: transformer layers of the graph; None if not known.
    """
    if engine.device != "cpu":
        return _GPU_BUDGET
    return _LAYERLESS_BUDGET if layers == 0 else _CPU_BUDGET


def computes_of(provider: str) -> tuple[str, ...]:
    """The compute types that a provider has."""
    return _COMPUTES_OF[provider]


def choose(
    status: Mapping[str, str | None],
    features: Collection[str],
    cores: int,
    variants: Sequence[str] = (),
    *,
    layers: int | None = None,
    device: str = "auto",
    provider: str | None = None,
    compute: str = "auto",
    streams: int | None = None,
    threads: int | None = None,
    refused: Collection[tuple[str, str]] = (),
) -> Engine:
    """Choose what to run on, as `choose_engine`.

    Args:
        status: for each provider, why it cannot run here, or None.
        features: instruction sets of the processor.
        cores: cores that this process may use.
        variants: variants of the graph in the bundle.
        layers: as for `choose_engine`.
        device: as for `choose_engine`.
        provider: as for `choose_engine`.
        compute: as for `choose_engine`.
        streams: as for `choose_engine`.
        threads: as for `choose_engine`.
        refused: as for `choose_engine`.
    """
    if compute not in COMPUTES:
        raise InputValueError(f"compute must be one of {', '.join(COMPUTES)}, but is {compute!r}")
    if device not in DEVICES:
        raise InputValueError(f"device must be one of {', '.join(DEVICES)}, but is {device!r}")
    if streams is not None and streams < 1:
        raise InputValueError(f"streams must be at least 1, but is {streams}")
    if threads is not None and threads < 1:
        raise InputValueError(f"threads must be at least 1, but is {threads}")
    able = _able(status, device, provider)
    if layers == 0 and able[0] in (NATIVE, OPENVINO) and CPU in able:
        # No matrix products to compute, and ONNX Runtime has a cheaper call than OpenVINO.
        able = sorted(able, key=lambda name: (name != NATIVE, name != CPU))
    if compute == "auto":
        # The fastest compute type of each provider; if all of those are refused, float32 of each.
        kind = native_compute(variants, layers)
        if able == [NATIVE] and (reason := why_not(NATIVE, features, variants, kind)):
            raise ProviderUnavailableError(reason)
        if provider is None and not is_native_best(features, variants):
            able = [name for name in able if name != NATIVE] or able
        pairs = [(name, _default_compute(name, features, variants, kind)) for name in able]
        pairs += [(name, "float32") for name in able if name != NATIVE]
    else:
        # The best provider that supports the compute type; if none does, the reason of one that
        # could.
        lacks = {name: why_not(name, features, variants, compute) for name in able}
        could = sorted(
            able, key=lambda name: (lacks[name] is not None, compute not in _COMPUTES_OF[name])
        )
        if reason := lacks[could[0]]:
            raise ProviderUnavailableError(reason)
        pairs = [(name, compute) for name in could if lacks[name] is None]
    chosen = next((pair for pair in pairs if pair not in refused), None)
    if chosen is None:
        tried = ", ".join(" in ".join(pair) for pair in dict.fromkeys(pairs))
        raise ProviderUnavailableError(f"no engine is proved on this machine: {tried}")
    full, kind = chosen
    if PROVIDERS[full] == "cuda":
        if streams not in (None, 1):
            raise InputValueError(f"a GPU runs one batch at a time, but streams is {streams}")
        if threads not in (None, 1):
            raise InputValueError(f"threads are a CPU's, but on a GPU threads is {threads}")
        return Engine(full, kind, 1)
    threads = threads or 1
    return Engine(full, kind, streams or max(1, cores // threads), threads)


def _able(status: Mapping[str, str | None], device: str, provider: str | None) -> list[str]:
    """Full names of the requested providers that can run, best first."""
    if provider is None:
        fitting = [
            name
            for name, place in PROVIDERS.items()
            if device in ("auto", place) and name not in _ONLY_WHEN_ASKED
        ]
    else:
        fitting = list(SHORT_NAMES.get(provider.lower(), ())) or [
            p for p in PROVIDERS if p == provider
        ]
        if not fitting:
            raise ProviderUnavailableError(
                f"provider {provider!r} is unknown; choose one of {', '.join(SHORT_NAMES)}"
            )
        if device not in ("auto", PROVIDERS[fitting[0]]):
            raise InputValueError(f"provider {provider!r} does not run on the device {device!r}")
    if able := [name for name in fitting if status[name] is None]:
        return able
    reasons = "; ".join(dict.fromkeys(str(status[name]) for name in fitting))
    raise ProviderUnavailableError(f"{provider or device} was asked for, but {reasons}")


def has_bfloat16(features: Collection[str]) -> bool:
    """Whether a processor has instructions for OpenVINO's bfloat16 products."""
    return _has_features(OPENVINO, "bfloat16", features)


def _has_features(provider: str, compute: str, features: Collection[str]) -> bool:
    needed = _NEEDED_FEATURES.get((provider, compute))
    return needed is None or not set(needed).isdisjoint(features)


def _is_x86_without_avx512(features: Collection[str]) -> bool:
    return "avx2" in features and "avx512f" not in features


def is_native_best(features: Collection[str], variants: Sequence[str]) -> bool:
    """Whether the native engine is the fastest choice for a bundle.

    An export keeps a variant in 8 bits only if it costs little. OpenVINO was not compared on
    processors with AMX, or with AVX-512 and no VNNI.
    """
    if _VARIANT_OF[NATIVE, "int8"] not in variants:
        return _VARIANT_OF[NATIVE, "float32"] in variants
    is_faster = "avx512_vnni" in features or _is_x86_without_avx512(features)
    return is_faster and "amx_int8" not in features


def native_compute(variants: Sequence[str], layers: int | None) -> str:
    """The native engine's compute type for a bundle: float32 for the table of a static embedder."""
    is_table = layers == 0 or _VARIANT_OF[NATIVE, "float32"] in variants
    return "float32" if is_table else "int8"


def _default_compute(
    provider: str, features: Collection[str], variants: Sequence[str], native: str
) -> str:
    """The fastest compute type with almost no loss."""
    for compute in _FAST_COMPUTES.get(provider, ()):
        if _has_features(provider, compute, features):
            return compute
    if provider == NATIVE:
        return native
    is_gpu = PROVIDERS[provider] == "cuda"
    return "float16" if is_gpu and "float16" in variants else "float32"


def why_not(
    provider: str, features: Collection[str], variants: Sequence[str], compute: str
) -> str | None:
    """Why a provider that can run does not support a compute type here, or None.

    Args:
        provider: full name.
        features: instruction sets of the processor.
        variants: variants of the graph in the bundle.
        compute: the type.
    """
    if compute not in _COMPUTES_OF[provider]:
        return f"{provider} cannot compute in {compute}"
    if not _has_features(provider, compute, features):
        needed = " nor ".join(_NEEDED_FEATURES[provider, compute])
        has_none = f"neither {needed}" if " nor " in needed else f"no {needed}"
        return f"{compute} was asked for, but this processor has {has_none}, which {provider} needs"
    if (provider, compute) == (OPENVINO, "int8") and _is_x86_without_avx512(features):
        # It cannot multiply stored bytes there: bench/log/2026-11-23.md.
        return f"int8 was asked for, but {provider} computes in int8 with AVX-512 only"
    variant = _VARIANT_OF.get((provider, compute))
    if variant is not None and variant not in variants:
        if variant == "float32-native":
            return (
                f"{provider} computes only static embedders in float32, and this bundle has no "
                f"{variant}; for a static embedder, `flowvec export` makes it"
            )
        return (
            f"{compute} was asked for, but the bundle has no graph of it for {provider}; make one "
            f"with `flowvec export --variants {variant}`"
        )
    return None
