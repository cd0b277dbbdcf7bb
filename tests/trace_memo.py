"""Traces once what many tests trace alike: to trace is most of an export, and a pure function.

A trace is taken again only for a module of the same classes, settings and weights, all of them from
packages; whatever a test defines itself is traced each time.
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

# Where traces are kept; another one for tests of what tracing itself does.
FOLDER = Path("set by traces_are_remembered")

_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_PACKAGES = ("flowvec_export.", "transformers.", "torch.")


@contextlib.contextmanager
def traces_are_remembered(factory: pytest.TempPathFactory) -> Iterator[None]:
    """While this lasts, equal traces are taken once, and torch's operators are looked up once."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # which all workers share
    (folder / "traces").mkdir(exist_ok=True)
    from flowvec_export.assembly import from_torch

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "FOLDER", folder / "traces")
        patch.setattr(from_torch, "to_onnx", remembering(from_torch.to_onnx))
        # torch parses the source of all 500 functions of this table for each trace anew. It is
        # torch's own affair, so where it is not found nothing is the matter but time.
        with contextlib.suppress(ImportError, AttributeError):
            from torch.onnx._internal.exporter import _registration

            table = _registration.onnxscript_apis
            patch.setattr(table, "get_torchlib_ops", functools.cache(table.get_torchlib_ops))
        yield


def remembering(trace: Callable[..., onnx.ModelProto]) -> Callable[..., onnx.ModelProto]:
    """`to_onnx` that gives a copy of an earlier result where the arguments are the same."""

    def traced(model: Any, *arguments: Any) -> onnx.ModelProto:
        key = _key(model, arguments)
        if key is None:
            return trace(model, *arguments)
        kept = FOLDER / key
        if not kept.exists():
            partial = FOLDER / f"{key}.{os.getpid()}"
            partial.write_bytes(trace(model, *arguments).SerializeToString())
            partial.replace(kept)  # at once, for others read it
        return onnx.ModelProto.FromString(kept.read_bytes())

    return traced


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
