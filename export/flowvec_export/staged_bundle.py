"""Steps of an export that are the same for every kind of bundle, on a folder without a manifest."""

from __future__ import annotations

from dataclasses import replace

import onnx

from flowvec import Bundle
from flowvec.bundle.bundle import record_file
from flowvec.bundle.manifest import REFERENCES
from flowvec.encoder.proof import make_bundle_references
from flowvec.engine.onnxruntime_session import Session
from flowvec.engine.providers import CPU, Engine
from flowvec.errors import BundleError, EngineError, ExportError

__all__ = ["opset_of", "with_file", "with_references"]


def opset_of(proto: onnx.ModelProto) -> int:
    """Version of the operator set that a graph uses."""
    return max(int(entry.version) for entry in proto.opset_import)


def with_file(bundle: Bundle, name: str) -> Bundle:
    """A staged bundle with one more file in its manifest; the file is in the folder."""
    files = bundle.manifest.files | {name: record_file(bundle.path / name)}
    return Bundle(bundle.path, replace(bundle.manifest, files=files))


def with_references(bundle: Bundle) -> Bundle:
    """Write what the graph gives for the reference texts or pairs.

    Raises:
        ExportError: the graph does not run.
    """
    try:
        references = make_bundle_references(bundle, Session(bundle, Engine(CPU, "float32", 1)))
    except (BundleError, EngineError) as error:
        raise ExportError(f"the graph does not run: {error}") from error
    (bundle.path / REFERENCES).write_bytes(references.to_bytes())
    return with_file(bundle, REFERENCES)
