"""Who races: each peer at its best, with pinned versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["FLOWVEC", "PEERS", "Peer"]

_TORCH = "torch==2.13.0"
_SIZES = (8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Peer:
    """One row.

    Attributes:
        name: as it is shown.
        engine: of `worker.py`.
        requirements: of its environment; none is this process's own.
        options: for the engine; what depends on the model is added.
        batch_sizes: what its best is chosen from; None alone leaves the library its own.
        without: packages to take out of its environment again: some break it.
        form: what it reads: the sentence-transformers directory (`source`), an ONNX file of token
            vectors beside a tokenizer (`onnx`), or a flowvec bundle (`bundle`).
    """

    name: str
    engine: str
    requirements: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    batch_sizes: tuple[int | None, ...] = _SIZES
    form: str = "source"
    without: tuple[str, ...] = ()


FLOWVEC: dict[str, Peer] = {
    "flowvec": Peer("flowvec", "flowvec", (), {"load": {}}, (None,), "bundle"),
    "flowvec-float32": Peer(
        "flowvec, ONNX Runtime float32", "flowvec", (),
        {"load": {"provider": "cpu", "compute": "float32"}}, (None,), "bundle",
    ),
    "flowvec-int8": Peer(
        "flowvec, ONNX Runtime int8", "flowvec", (),
        {"load": {"provider": "cpu", "compute": "int8"}}, (None,), "bundle",
    ),
    "flowvec-openvino-float32": Peer(
        "flowvec, OpenVINO float32", "flowvec", (),
        {"load": {"provider": "openvino", "compute": "float32"}}, (None,), "bundle",
    ),
}  # fmt: skip

_ST = ("sentence-transformers==6.2.0", "transformers==5.23.0", _TORCH)

PEERS: dict[str, Peer] = {
    "st-default": Peer(
        "sentence-transformers, as it comes", "sentence-transformers", _ST,
        {"dtype": "float32"}, (None,),
    ),
    "st-float32": Peer(
        "sentence-transformers, torch float32", "sentence-transformers", _ST, {"dtype": "float32"}
    ),
    "st-bfloat16": Peer(
        "sentence-transformers, torch bfloat16", "sentence-transformers", _ST,
        {"dtype": "bfloat16"},
    ),
    "st-openvino": Peer(
        "sentence-transformers, OpenVINO bfloat16", "sentence-transformers",
        ("sentence-transformers==6.2.0", "optimum-intel[openvino]==2.2.0", _TORCH),
        {
            "backend": "openvino",
            "model_kwargs": {"ov_config": {"INFERENCE_PRECISION_HINT": "bf16"}},
        },
        without=("torchvision",),  # of another torch
    ),
    "st-onnx": Peer(
        "sentence-transformers 5.7, ONNX Runtime", "sentence-transformers",
        ("sentence-transformers==5.7.0", "optimum-onnx==0.1.0", "onnxruntime==1.31.1",
         "transformers==4.57.6", _TORCH),
        {"backend": "onnx", "model_kwargs": {"provider": "CPUExecutionProvider"}},
    ),
    "fastembed": Peer("fastembed", "fastembed", ("fastembed==0.9.1",), {}, _SIZES, "onnx"),
    "infinity": Peer(
        "infinity, torch float32", "infinity", ("infinity-emb[torch]==0.0.78", _TORCH)
    ),
}  # fmt: skip
