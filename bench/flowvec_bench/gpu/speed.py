"""Steps that time flowvec beside the fastest ways to run sentence-transformers on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from flowvec import Encoder
from flowvec.bundle.bundle import Bundle
from flowvec.engine.providers import CUDA, TENSORRT, Engine
from flowvec.engine.selection import open_session, provider_status
from flowvec.errors import first_line
from flowvec_bench.gpu.child import Emit
from flowvec_bench.gpu.settings import MAX_LENGTH, Kind, Settings, flops_per_token, sizes_of

__all__ = ["load_torch", "race", "race_compiled", "run_graph"]

Floats = npt.NDArray[np.float32]

_LEAST_COSINE = 0.999
_ROUNDS = 3
_BUDGETS = (8192, 16384, 32768, 65536, 131072)
_BATCH_SIZES = (32, 128, 512, 1024)
# Texts on which a batch size is chosen: this share of a round's.
_TRIED = 0.2


class _Encodes(Protocol):
    def __call__(self, texts: list[str], size: int) -> Floats:
        """Unit vectors of texts, with a batch size in the contender's own unit."""


@dataclass(frozen=True, slots=True)
class _Contender:
    name: str
    load: Callable[[Settings, str], _Encodes]
    sizes: Sequence[int]
    why_not: str | None = None


def race(settings: Settings, emit: Emit, shape: str, kind: Kind) -> None:
    """Time the contenders on one shape and kind of texts, in turn."""
    _race(settings, emit, shape, kind, _contenders(settings))


def race_compiled(settings: Settings, emit: Emit, shape: str, kind: Kind) -> None:
    """Time torch.compile beside flowvec; apart, because compiling may take longer than a step."""
    usual = _contenders(settings)
    compiled = _Contender(
        "sentence-transformers, torch.compile",
        lambda settings, shape: load_torch(settings, shape, "sdpa", compiled=True),
        (128, 512),
    )
    _race(settings, emit, shape, kind, [usual[0], compiled])


def _contenders(settings: Settings) -> list[_Contender]:
    flash = None if find_spec("flash_attn") else "flash_attn is not installed"
    if settings.stand_in:
        flash = "a stand-in has no GPU"
    return [
        _Contender("flowvec CUDA float16", _flowvec("cuda", "float16"), _BUDGETS),
        _Contender(
            "sentence-transformers float16, SDPA",
            lambda settings, shape: load_torch(settings, shape, "sdpa"),
            _BATCH_SIZES,
        ),
        _Contender(
            "sentence-transformers float16, FlashAttention-2",
            lambda settings, shape: load_torch(settings, shape, "flash_attention_2"),
            _BATCH_SIZES,
            flash,
        ),
        _Contender("flowvec CUDA float32", _flowvec("cuda", "float32"), _BUDGETS),
        _Contender(
            "flowvec TensorRT float16",
            _flowvec("tensorrt", "float16"),
            _BUDGETS[1:2],
            provider_status()[TENSORRT],
        ),
    ]


def _flowvec(provider: str, compute: Any) -> Callable[[Settings, str], _Encodes]:
    def load(settings: Settings, shape: str) -> _Encodes:
        encoder = Encoder.load(settings.bundle(shape), provider=provider, compute=compute)
        return lambda texts, size: encoder.encode(texts, max_batch_tokens=size)

    return load


def load_torch(
    settings: Settings, shape: str, attention: str, *, compiled: bool = False
) -> _Encodes:
    """sentence-transformers in float16 on the GPU; in float32 on the CPU for a stand-in.

    Args:
        settings: of the run.
        shape: the model's.
        attention: as transformers names implementations: `sdpa` or `flash_attention_2`.
        compiled: by torch.compile, for inputs of changing lengths.
    """
    import torch
    from sentence_transformers import SentenceTransformer

    model: Any = SentenceTransformer(
        str(settings.source(shape)),
        device="cpu" if settings.stand_in else "cuda",
        model_kwargs={
            "torch_dtype": torch.float32 if settings.stand_in else torch.float16,
            "attn_implementation": attention,
        },
    )
    model.max_seq_length = MAX_LENGTH
    if compiled:
        transformer: Any = model[0]
        getattr(transformer, "auto_model", transformer).compile(dynamic=True)

    def encode(texts: list[str], size: int) -> Floats:
        vectors: Floats = model.encode(
            texts, batch_size=size, show_progress_bar=False, normalize_embeddings=True
        )
        return vectors

    return encode


def _race(
    settings: Settings, emit: Emit, shape: str, kind: Kind, contenders: Sequence[_Contender]
) -> None:
    texts = settings.texts(kind, settings.count(shape, kind))
    compared = texts[:64]
    with Encoder.load(
        settings.bundle(shape), provider="cpu", compute="float32", proof="never"
    ) as exact:
        tokens = sum(map(len, exact.tokenize(texts).ids))
        expected = exact.encode(compared)
    emit("texts", count=len(texts), tokens=tokens, flops_per_token=_flops(settings, shape))
    ready: list[tuple[str, _Encodes, int]] = []
    for contender in contenders:
        if contender.why_not is not None:
            emit(contender.name, note=f"not run: {contender.why_not}")
            continue
        try:
            encode = contender.load(settings, shape)
            vectors = np.asarray(encode(compared, contender.sizes[0]), dtype=np.float32)
            cosine = float((vectors * expected).sum(axis=1).min())
            size = _best_size(encode, texts[: int(len(texts) * _TRIED)], contender.sizes)
        except Exception as error:  # a contender that fails does not stop the others
            emit(contender.name, note=f"failed: {type(error).__name__}: {first_line(error)}")
            continue
        emit(f"{contender.name}: vectors", passed=cosine >= _LEAST_COSINE, cosine=cosine, size=size)
        if cosine >= _LEAST_COSINE:
            ready.append((contender.name, encode, size))
    for number in range(_ROUNDS):
        for name, encode, size in ready:
            seconds = _timed(encode, texts, size)
            emit(
                name, round=number, size=size, seconds=seconds,
                texts_per_second=len(texts) / seconds, tokens_per_second=tokens / seconds,
            )  # fmt: skip


def _best_size(encode: _Encodes, texts: list[str], sizes: Sequence[int]) -> int:
    """The size with which texts take the least time; the first pass of each is not counted."""
    if len(sizes) == 1:
        encode(texts, sizes[0])
        return sizes[0]
    seconds: dict[int, float] = {}
    for size in sizes:
        encode(texts[: len(texts) // 4], size)
        seconds[size] = _timed(encode, texts, size)
    return min(seconds, key=lambda size: seconds[size])


def _timed(encode: _Encodes, texts: list[str], size: int) -> float:
    begun = time.perf_counter()
    encode(texts, size)
    return time.perf_counter() - begun


def _flops(settings: Settings, shape: str) -> float:
    return flops_per_token(sizes_of(shape, stand_in=settings.stand_in))


def run_graph(settings: Settings, emit: Emit, shape: str) -> None:
    """The graph alone on full batches: what remains if texts and batches cost nothing."""
    session = open_session(Bundle.load(settings.bundle(shape)), Engine(CUDA, "float16", 1))
    shapes = ((256, 32), (512, 32), (2048, 32), (64, 256), (256, 256))
    for rows, length in ((4, 32), (2, 256)) if settings.stand_in else shapes:
        ids = np.full((rows, length), 7, dtype=np.int64)
        mask = np.ones_like(ids)
        for _ in range(3):
            session.run(ids, mask)
        runs, begun = 0, time.perf_counter()
        while runs < 3 or time.perf_counter() - begun < 1.0:
            session.run(ids, mask)
            runs += 1
        rate = runs * ids.size / (time.perf_counter() - begun)
        emit(f"{rows} x {length}", tokens_per_second=rate, flops_per_token=_flops(settings, shape))
