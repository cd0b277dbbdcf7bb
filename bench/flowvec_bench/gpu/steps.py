"""The steps in their order: what says the most for its time comes first."""

from __future__ import annotations

from flowvec_bench.gpu.runner import Step

__all__ = ["STEPS"]

_MINILM, _BASE, _LARGE = "minilm-l6", "bert-base", "bert-large"


def _model(shape: str, limit: float) -> Step:
    return Step(f"model-{shape}", "setting_up:make_model", limit, (shape,), ("machine",))


def _check(name: str, limit: float) -> Step:
    function = f"correctness:check_{name.replace('-', '_')}"
    return Step(f"check-{name}", function, limit, (), (f"model-{_MINILM}",))


def _speed(function: str, shape: str, limit: float, *arguments: str) -> Step:
    name = "-".join((function.replace("_", "-"), shape, *arguments))
    module = "speed" if function in ("race", "race_compiled", "run_graph") else "latency"
    return Step(name, f"{module}:{function}", limit, (shape, *arguments), (f"model-{shape}",))


STEPS: tuple[Step, ...] = (
    Step("install", "setting_up:install", 60),
    Step("machine", "setting_up:describe", 45, (), ("install",)),
    _model(_MINILM, 60),
    _check("engines", 60),
    _check("out-of-memory", 30),
    _check("nan", 60),
    _check("devices", 60),
    _check("processes", 75),
    _speed("race", _MINILM, 75, "sentences"),
    _speed("race", _MINILM, 60, "passages"),
    _speed("run_graph", _MINILM, 25),
    _speed("run_attention_kernels", _MINILM, 40),
    _speed("race_single_texts", _MINILM, 45),
    Step("tokenizing", "latency:time_tokenizing", 60, (), (f"model-{_MINILM}",)),
    _model(_BASE, 75),
    _speed("race", _BASE, 60, "sentences"),
    _speed("race", _BASE, 60, "passages"),
    _speed("run_graph", _BASE, 25),
    _speed("run_attention_kernels", _BASE, 40),
    _speed("run_packed", _MINILM, 30),
    _check("memory", 60),
    _speed("race_single_texts", _BASE, 45),
    _model(_LARGE, 120),
    _speed("race", _LARGE, 75, "sentences"),
    _speed("race", _LARGE, 75, "passages"),
    _speed("run_graph", _LARGE, 25),
    _speed("race_compiled", _MINILM, 90, "sentences"),
    _speed("race_compiled", _BASE, 90, "sentences"),
)
