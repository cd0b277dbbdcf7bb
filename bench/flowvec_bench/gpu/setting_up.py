"""The first steps: wheels, what the machine has, and models with random weights."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flowvec.engine.onnxruntime_session import runtime_version
from flowvec.engine.providers import CUDA, TENSORRT
from flowvec.engine.selection import provider_status
from flowvec.errors import first_line
from flowvec_bench.gpu.child import Emit
from flowvec_bench.gpu.settings import MAX_LENGTH, Settings, sizes_of
from flowvec_bench.gpu.wheels import install_wheels

__all__ = ["describe", "install", "make_model", "memory_used", "smi"]

_PACKAGES = ("torch", "transformers", "sentence-transformers", "flash-attn", "tensorrt", "onnx")


def install(settings: Settings, emit: Emit) -> None:
    """Install the wheels, if a folder was given."""
    if settings.wheels is None:
        emit("wheels", note="no folder was given: the environment is used as it is")
        return
    emit("wheels", names=install_wheels(Path(settings.wheels), settings.packages))


def describe(settings: Settings, emit: Emit) -> None:
    """The machine, its versions, and the rate of its matrix products."""
    emit(
        "machine",
        gpu=smi("name,memory.total,driver_version") or "none",
        cores=len(os.sched_getaffinity(0)),
        processor=platform.processor() or platform.machine(),
        python=platform.python_version(),
    )
    versions = [f"onnxruntime {runtime_version()}"]
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    emit("versions", packages=versions)
    status = provider_status()
    reason = status[CUDA]
    emit("CUDA provider", passed=reason is None, note=reason or "")
    emit("TensorRT provider", note=status[TENSORRT] or "it can run")
    emit("FlashAttention", note="installed" if find_spec("flash_attn") else "not installed")
    if reason is not None:
        raise RuntimeError(f"no GPU can be used: {reason}")
    try:
        half, single = _matrix_rates(settings)
    except Exception as error:  # a torch without CUDA: the peers fail, flowvec may still run
        emit("matrix products", passed=False, note=f"torch failed: {first_line(error)}")
    else:
        emit("matrix products", float16_tflops=half, float32_tflops=single)


def smi(query: str) -> str | None:
    """The first GPU's answer to a query of nvidia-smi; None without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    run = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return run.stdout.splitlines()[0].strip() if run.returncode == 0 and run.stdout else None


def memory_used() -> float | None:
    """MiB of the first GPU that are in use, by all processes; None without a GPU."""
    answer = smi("memory.used")
    return float(answer) if answer else None


def _matrix_rates(settings: Settings) -> tuple[float, float]:
    """TFLOP/s of torch's products of square matrices, in float16 and float32."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    device, size = ("cpu", 256) if settings.stand_in else ("cuda", 8192)
    kinds = (torch.bfloat16 if settings.stand_in else torch.float16, torch.float32)
    rates: list[float] = []
    for kind in kinds:
        left = torch.randn(size, size, device=device).to(kind)

        def timed(runs: int, left: Any = left) -> float:
            begun = time.perf_counter()
            for _ in range(runs):
                product = left @ left
            float(product[0, 0])  # waits for the device
            return time.perf_counter() - begun

        timed(3)
        rates.append(round(20 * 2 * size**3 / timed(20) / 1e12, 3))
    return rates[0], rates[1]


def make_model(settings: Settings, emit: Emit, shape: str) -> None:
    """Write a random model of a shape as sentence-transformers reads it, and as a bundle."""
    # Here, because these import torch: other steps of this module start sooner without it.
    from flowvec_bench.peers.model_forms import random_model
    from flowvec_export import export

    folder = Path(settings.work) / shape
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sizes = sizes_of(shape, stand_in=settings.stand_in)
    random_model(sizes, Path(settings.tokenizer), MAX_LENGTH, settings.source(shape))
    bundle = export(
        settings.source(shape),
        settings.bundle(shape),
        variants=["float16"],
        max_length=MAX_LENGTH,
        # A few: the weights are random, and the proof at load compares again.
        calibration=settings.texts("sentences", 32),
    )
    emit("model", layers=bundle.manifest.layers, width=bundle.manifest.dim)
