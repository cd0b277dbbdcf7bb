"""Caches traces of models between tests: tracing takes most of an export, and is a pure function.

A cached trace is used for a module of the same classes, settings and weights, if all classes come
from packages. Modules that a test defines itself are traced each time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

# Where traces are kept. Tests of tracing itself set an empty folder.
FOLDER = Path("set by traces_are_remembered")

_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
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
    folder.mkdir(exist_ok=True)
    from flowvec_export.assembly import from_torch

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "FOLDER", folder)
        patch.setattr(from_torch, "to_onnx", remembering(from_torch.to_onnx))
        # torch parses the source of all 500 functions of this table again for each trace. The
        # module is private to torch: without it, tests are slower and nothing else changes.
        with contextlib.suppress(ImportError, AttributeError):
            from torch.onnx._internal.exporter import _registration

            table = _registration.onnxscript_apis
            patch.setattr(table, "get_torchlib_ops", functools.cache(table.get_torchlib_ops))
        yield


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
            if hasattr(value, "to_dict"):
                value = value.to_dict()  # a transformers configuration
            elif isinstance(value, _FUNCTIONS):
                value = getattr(value, "__qualname__", None)
            elif not isinstance(value, int | float | str | tuple | type(None)):
                continue
            digest.update(f"{key}={value!r}".encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
