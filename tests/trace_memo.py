"""Caches traces of models between tests: tracing takes most of an export, and is a pure function.

A cached trace is used for a module of the same classes, settings and weights, if all classes come
from packages. Modules that a test defines itself are traced each time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

# Where traces are kept. Tests of tracing itself set an empty folder.
FOLDER = Path("set by traces_are_remembered")

_EXPORTER = "torch.onnx._internal.exporter"
TABLES = (
    (f"{_EXPORTER}._registration", "get_torchlib_ops"),  # of its `onnxscript_apis`
    (f"{_EXPORTER}._schemas", "op_signature_from_function"),
    ("torch._export.utils", "_collect_all_valid_cia_ops_for_namespace"),
)
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
# What no layer reads: where a model was, and what is said about it.
_WORDS_ABOUT_IT = {
    "_name_or_path", "architectures", "id2label", "label2id", "name_or_path",
    "sentence_transformers", "sbert_ce_default_activation_function", "transformers_version",
}  # fmt: skip
_PACKAGES = ("flowvec_export.", "transformers.", "torch.")


@contextlib.contextmanager
def traces_are_remembered(factory: pytest.TempPathFactory) -> Iterator[None]:
    """Within this block, equal models are traced once, and torch's operators looked up once.

    FLOWVEC_TRACES names a folder for several runs with the same packages.
    """
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # which all workers share
    folder = Path(os.environ.get("FLOWVEC_TRACES", folder / "traces"))
    patch = remember_traces_in(folder)
    yield
    patch.undo()


def remember_traces_in(folder: str | Path) -> pytest.MonkeyPatch:
    """Do so until the patch that is returned is undone."""
    from flowvec_export.assembly import from_torch

    Path(folder).mkdir(exist_ok=True)
    patch = pytest.MonkeyPatch()
    patch.setitem(globals(), "FOLDER", Path(folder))
    patch.setattr(from_torch, "to_onnx", remembering(from_torch.to_onnx))
    read_tables_once(patch)
    return patch


def place_of(module: str) -> Any:
    """The module that torch looks a table up in."""
    place = importlib.import_module(module)
    return getattr(place, "onnxscript_apis", place)


def read_tables_once(patch: pytest.MonkeyPatch) -> None:
    """Let torch read its tables of operators once, not again for each trace.

    They say which functions there are, and do not depend on a model. The modules are private to
    torch: without one, tests are slower and nothing else changes.
    """
    for module, name in TABLES:
        with contextlib.suppress(ImportError, AttributeError):
            place = place_of(module)
            patch.setattr(place, name, functools.cache(getattr(place, name)))


def remembering(trace: Callable[..., onnx.ModelProto]) -> Callable[..., onnx.ModelProto]:
    """A `to_onnx` that returns a copy of an earlier result for equal arguments."""

    def traced(model: Any, *arguments: Any, **options: Any) -> onnx.ModelProto:
        key = _key(model, (*arguments, sorted(options.items())))
        if key is None:
            return trace(model, *arguments, **options)
        made = remembered(key, lambda: trace(model, *arguments, **options).SerializeToString())
        return onnx.ModelProto.FromString(made)

    return traced


def remembered(key: str, make: Callable[[], bytes]) -> bytes:
    """What `make` returns, which is called once for a key in all workers."""
    kept = FOLDER / key
    if not kept.exists():
        partial = FOLDER / f"{key}.{os.getpid()}"
        partial.write_bytes(make())
        partial.replace(kept)  # atomically, because other workers read it
    return kept.read_bytes()


def _key(model: Any, arguments: tuple[Any, ...]) -> str | None:
    digest = hashlib.sha256(repr(arguments).encode())
    for name, module in model.named_modules():
        kind = type(module)
        if not kind.__module__.startswith(_PACKAGES) or "forward" in vars(module):
            return None
        digest.update(f"{name} {kind.__module__}.{kind.__qualname__}".encode())
        for key, value in sorted(vars(module).items()):
            if key in _WORDS_ABOUT_IT:
                continue
            if hasattr(value, "to_dict"):  # a transformers configuration
                value = {k: v for k, v in value.to_dict().items() if k not in _WORDS_ABOUT_IT}
            elif isinstance(value, _FUNCTIONS):
                value = getattr(value, "__qualname__", None)
            elif not isinstance(value, int | float | str | tuple | type(None)):
                continue
            digest.update(f"{key}={value!r}".encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
