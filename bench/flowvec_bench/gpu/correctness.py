"""Steps that check flowvec on a GPU against float32 on the CPU."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec import Encoder, NonFiniteError, OutOfMemoryError, ProviderUnavailableError
from flowvec.bundle.bundle import Bundle
from flowvec.engine.providers import CUDA, TENSORRT, Engine
from flowvec.engine.selection import open_session, provider_status
from flowvec.errors import FlowvecError, first_line
from flowvec_bench.gpu.child import Emit
from flowvec_bench.gpu.setting_up import memory_used
from flowvec_bench.gpu.settings import MAX_LENGTH, Settings

__all__ = [
    "check_devices",
    "check_engines",
    "check_memory",
    "check_nan",
    "check_out_of_memory",
    "check_processes",
]

Floats = npt.NDArray[np.float32]

_LEAST_COSINE = 0.999
_MODEL = "minilm-l6"
# Vectors that are read again in another process or batch: half precision's rounding.
_SAME = 0.9999


def _cosine(left: Floats, right: Floats) -> float:
    """The least cosine of two arrays' rows; NaN if there is one."""
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(((left.astype(np.float64) * right).sum(axis=1) / norms).min())


def _exact(settings: Settings) -> Encoder:
    """The model in float32 on the CPU, which the export has compared with torch."""
    return Encoder.load(settings.bundle(_MODEL), provider="cpu", compute="float32", proof="never")


def check_engines(settings: Settings, emit: Emit) -> None:
    """Every provider and compute type: cosine to float32 on the CPU, and in other batches."""
    unusual = ["", " ", "\ud800", "a", "\u732b" * 600, "the " * 2000, "caf\u00e9 \U0001f408"]
    count = 200 if settings.stand_in else 2000
    texts = [*settings.texts("sentences", count), *settings.texts("passages", count // 10)]
    texts += unusual
    with _exact(settings) as exact:
        expected = exact.encode(texts)
    status = provider_status()
    for provider in (CUDA, TENSORRT):
        for compute in ("float32", "float16"):
            name = f"{provider} {compute}"
            if (reason := status[provider]) is not None:
                emit(name, note=f"not run: {reason}")
                continue
            _check_engine(settings, emit, name, provider, compute, texts, expected)


def _check_engine(
    settings: Settings, emit: Emit, name: str, provider: str, compute: Any,
    texts: list[str], expected: Floats,
) -> None:  # fmt: skip
    try:
        encoder = Encoder.load(
            settings.bundle(_MODEL), provider=provider, compute=compute, proof="always"
        )
    except FlowvecError as error:
        emit(f"{name}, proof at load", passed=False, note=str(error))
        return
    with encoder:
        emit(f"{name}, proof at load", passed=True, note=str(encoder.info().proof))
        try:
            together = encoder.encode(texts)
            alone = np.stack([encoder.encode(text) for text in texts[:50] + texts[-50:]])
            small = encoder.encode(texts, max_batch_tokens=512)
        except FlowvecError as error:
            emit(name, passed=False, note=str(error))
            return
    least = _cosine(together, expected)
    emit(f"{name}, against float32 on the CPU", passed=least >= _LEAST_COSINE, cosine=least)
    batches = min(
        _cosine(np.concatenate([together[:50], together[-50:]]), alone), _cosine(together, small)
    )
    emit(f"{name}, in other batches", passed=batches >= _SAME, cosine=batches)
    emit(f"{name}, finite", passed=bool(np.isfinite(together).all()), texts=len(texts))


def check_nan(settings: Settings, emit: Emit) -> None:
    """A model that gives NaN for one word is an error that names the text, and nothing hangs."""
    import torch
    from safetensors.torch import load_file, save_file

    from flowvec_bench.peers.model_forms import random_model
    from flowvec_export import export

    folder = Path(settings.work) / "nan"
    sizes = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64
    }  # fmt: skip
    if not (folder / "bundle" / "manifest.json").exists():
        shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run left
        random_model(sizes, Path(settings.tokenizer), MAX_LENGTH, folder / "source")
        bundle = export(folder / "source", folder / "plain", max_length=MAX_LENGTH, variants=())
        with Encoder.load(bundle.path, provider="cpu") as encoder:
            word = encoder.tokenize(["zebra"]).ids[0][1]
        file = folder / "source" / "model.safetensors"
        weights = load_file(file)
        weights["embeddings.word_embeddings.weight"][word] = torch.nan
        save_file(weights, file, metadata={"format": "pt"})
        export(folder / "source", folder / "bundle", max_length=MAX_LENGTH, variants=())
    texts = ["the cat", "a zebra", "a dog"]
    with Encoder.load(folder / "bundle", provider="cuda", compute="float32") as encoder:
        try:
            encoder.encode(texts)
        except NonFiniteError as error:
            emit("NaN is refused", passed="item 1" in str(error), note=str(error))
        else:
            emit("NaN is refused", passed=False, note="no error")
        vectors = encoder.encode([texts[0], texts[2]])
        emit("the next call works", passed=bool(np.isfinite(vectors).all()))


def check_memory(settings: Settings, emit: Emit) -> None:
    """Memory after each tenth of 200,000 texts of all lengths."""
    each = 200 if settings.stand_in else 20_000
    sentences, passages = settings.texts("sentences", each), settings.texts("passages", each // 20)
    used: list[tuple[float, float | None]] = []
    with Encoder.load(settings.bundle(_MODEL), provider="cuda") as encoder:
        for part in range(10):
            rng = np.random.default_rng(part)
            cut = [text[: rng.integers(10, 400)] for text in sentences]
            encoder.encode([*cut, *passages])
            process = _resident()
            used.append((process, memory_used()))
            emit(f"after {(part + 1) * each} texts", process_mib=process, gpu_mib=used[-1][1])
    grown = used[-1][0] - used[2][0]
    emit("the process does not grow", passed=grown < 0.1 * used[2][0] + 64, grown_mib=grown)
    first, last = used[2][1], used[-1][1]
    if first is None or last is None:
        emit("the GPU's memory does not grow", note="not run: no nvidia-smi")
    else:
        emit("the GPU's memory does not grow", passed=last < 1.1 * first, grown_mib=last - first)


def _resident() -> float:
    """MiB of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def check_out_of_memory(settings: Settings, emit: Emit) -> None:
    """A batch that does not fit is an `OutOfMemoryError`, and the next one works."""
    session = open_session(Bundle.load(settings.bundle(_MODEL)), Engine(CUDA, "float32", 1))
    few = np.full((4, 16), 7, dtype=np.int64)
    expected = session.run(few, np.ones_like(few))
    held = _leave_little_memory(settings)
    rows = 40_000 if settings.stand_in else 100_000
    many = np.full((rows, MAX_LENGTH), 7, dtype=np.int64)
    for attempt in (1, 2):
        try:
            session.run(many, np.ones_like(many))
        except OutOfMemoryError as error:
            emit(f"out of memory, attempt {attempt}", passed=True, note=str(error))
        except FlowvecError as error:
            emit(f"out of memory, attempt {attempt}", passed=False, note=str(error))
        else:
            emit(f"out of memory, attempt {attempt}", passed=False, note="the batch did fit")
        again = session.run(few, np.ones_like(few))
        emit(f"the next call, attempt {attempt}", passed=_cosine(again, expected) >= _SAME)
    del held


def _leave_little_memory(settings: Settings) -> Any:
    """Take all but 2 GiB of the device's memory; for a stand-in, limit the process."""
    if settings.stand_in:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (512 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        return None
    import torch

    free, _ = torch.cuda.mem_get_info()
    return torch.empty(max(0, free - (2 << 30)), dtype=torch.uint8, device="cuda")


_DEVICE_CODE = """
import sys
from pathlib import Path
from flowvec_bench.gpu.settings import Settings
settings = Settings.load(Path(sys.argv[1]))
if settings.stand_in:
    from flowvec_bench.gpu.stand_in import use_stand_in
    use_stand_in()
from flowvec import Encoder
with Encoder.load(settings.bundle("minilm-l6"), device=sys.argv[2]) as encoder:
    encoder.encode(["the cat"])
    print(encoder.engine.device)
"""


def check_devices(settings: Settings, emit: Emit) -> None:
    """`device="auto"` and `"cuda"`, with and without a visible GPU."""
    cases = (
        (None, "auto", "cuda"),
        ("0", "auto", "cuda"),
        ("", "auto", "cpu"),
        ("-1", "auto", "cpu"),
        ("99", "auto", "cpu"),
        (None, "cuda", "cuda"),
        ("-1", "cuda", ProviderUnavailableError.__name__),
        (None, "cpu", "cpu"),
    )

    def last_line(case: tuple[str | None, str, str]) -> str:
        visible, device, _ = case
        environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        run = _python(_DEVICE_CODE, str(_settings_file(settings)), device, env=environment)
        lines = (run.stdout if run.returncode == 0 else run.stderr).strip().splitlines()
        return lines[-1] if lines else ""

    with ThreadPoolExecutor(4) as pool:
        for (visible, device, wanted), last in zip(cases, pool.map(last_line, cases), strict=True):
            emit(
                f"device={device!r} with CUDA_VISIBLE_DEVICES={visible!r}",
                passed=wanted in last,
                note=last[-300:],
            )


def check_processes(settings: Settings, emit: Emit) -> None:
    """Forked and spawned children, and two processes at once on one GPU."""
    texts = settings.texts("sentences", 100 if settings.stand_in else 2000)
    with _exact(settings) as exact:
        expected = exact.encode(texts)

    def check(
        name: str, method: str, count: int, encoder: Encoder | None = None, *,
        may_fail: bool = False,
    ) -> None:  # fmt: skip
        context: Any = multiprocessing.get_context(method)
        answers = context.Queue()
        children = [
            context.Process(target=_encode_in_child, args=(settings, texts, answers, encoder))
            for _ in range(count)
        ]
        for child in children:
            child.start()
        try:
            for _ in children:
                vectors = answers.get(timeout=40)
                if isinstance(vectors, str):  # an error of flowvec
                    emit(name, passed=may_fail, note=vectors)
                    return
                if (cosine := _cosine(vectors, expected)) < _LEAST_COSINE:
                    emit(name, passed=False, cosine=cosine)
                    return
        except Exception as error:  # queue.Empty: the child hangs or died
            emit(name, passed=False, note=f"no answer: {type(error).__name__}")
            return
        finally:
            for child in children:
                child.join(5)
                child.kill()
        emit(name, passed=True)

    check("forked before the model was loaded", "fork", 1)
    check("spawned", "spawn", 1)
    check("two processes on one GPU", "spawn", 2)
    with Encoder.load(settings.bundle(_MODEL), provider="cuda") as encoder:
        encoder.encode(texts)
        check("spawned while the parent holds the model", "spawn", 1)
        # CUDA cannot be used in a child that is forked after its start: an error is right, and a
        # child that hangs or dies is not.
        check("forked with a loaded Encoder: no hang", "fork", 1, encoder, may_fail=True)
        vectors = encoder.encode(texts)
        emit("the parent goes on", passed=_cosine(vectors, expected) >= _LEAST_COSINE)


def _encode_in_child(
    settings: Settings, texts: list[str], answers: Any, encoder: Encoder | None
) -> None:
    if settings.stand_in:
        from flowvec_bench.gpu.stand_in import use_stand_in

        use_stand_in()
    try:
        if encoder is None:
            encoder = Encoder.load(settings.bundle(_MODEL), provider="cuda")
        answers.put(encoder.encode(texts))
    except FlowvecError as error:
        answers.put(f"{type(error).__name__}: {first_line(error)}")


def _settings_file(settings: Settings) -> Path:
    path = Path(settings.work) / "settings.json"
    if not path.exists():
        settings.save(path)
    return path


def _python(code: str, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, env=env, timeout=90,
    )  # fmt: skip
