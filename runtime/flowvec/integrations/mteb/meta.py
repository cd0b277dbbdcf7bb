"""What MTEB keeps with the results of a model."""

from __future__ import annotations

from typing import Any

from mteb.models.model_meta import ModelMeta, ScoringFunction

from flowvec.encoder.loaded_model import LoadedModel

__all__ = ["meta_of"]


def meta_of(model: LoadedModel, kind: str, settings: dict[str, Any]) -> ModelMeta:
    """The metadata of a model of flowvec.

    The name is the bundle's, and the revision its fingerprint: results of another model, of other
    settings or of another compute type are others to MTEB.

    Args:
        model: a model of any kind.
        kind: `dense`, `cross-encoder`, `late-interaction`, `sparse` or `hybrid`.
        settings: what else results depend on.
    """
    manifest = model.bundle.manifest
    name = manifest.name if "/" in manifest.name else f"flowvec/{manifest.name}"
    is_openvino = model.engine.provider.startswith("OpenVINO")
    about: dict[str, Any] = {
        "name": name,
        "revision": model.fingerprint,
        "model_type": [kind],
        "max_tokens": model.max_length,
        "framework": ["OpenVINO" if is_openvino else "ONNX"],
        "use_instructions": bool(manifest.prompts),
        "open_weights": True,
        "experiment_kwargs": {"compute": model.engine.compute, **settings},
    }
    if kind != "cross-encoder":
        about["embed_dim"] = model.dim
        is_late = kind == "late-interaction"
        about["similarity_fn_name"] = (
            ScoringFunction.MAX_SIM if is_late else ScoringFunction(manifest.similarity)
        )
    return ModelMeta.create_empty(overwrites=about)
