"""Lists the peers, each with its best settings and pinned versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "FLOWVEC",
    "LATE",
    "MODEL2VEC_FORM",
    "PEERS",
    "STATIC",
    "STATIC_FORM",
    "Forms",
    "Peer",
    "suited",
]

_TORCH = "torch==2.13.0"
_SIZES = (8, 16, 32, 64, 128)
# A pass over a table costs little, so its libraries need larger batches.
_STATIC_SIZES = (64, 256, 1024, 4096)
_BUDGETS = (None, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Peer:
    """One row.

    Attributes:
        name: name in reports.
        engine: an engine of a program in `workers`.
        requirements: requirements of its environment; none means this process's environment.
        options: options of the engine; those that depend on the model are added.
        batch_sizes: sizes to choose the best from. If None is among them, the library's default is
            raced, and the others are only shown; flowvec's are budgets of padded tokens.
        without: packages to uninstall from its environment, because they break it.
        unchecked: requirements that are installed last and alone, because they ask for other
            versions than those that they work with.
        form: the form that it reads: the sentence-transformers directory (`source`), the same with
            the names that versions before 6 know (`older`), an ONNX file of token vectors beside a
            tokenizer (`onnx`), a flowvec bundle (`bundle`), of a static embedder the
            sentence-transformers directory (`static`) or model2vec's (`model2vec`), or of a
            multi-vector encoder PyLate's directory (`pylate`) or an ONNX file (`tokens`).
        gathers: whether it gathers waiting calls into batches of a size that it chooses.
    """

    name: str
    engine: str
    requirements: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    batch_sizes: tuple[int | None, ...] = _SIZES
    form: str = "source"
    without: tuple[str, ...] = ()
    gathers: bool = False
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forms:
    """Path of each form, and facts about the model for engines.

    Attributes:
        paths: `source`, `older`, `bundle` and, if possible, the others of `Peer.form`.
        max_length: most tokens of a text for all peers.
        dim: length of a vector.
    """

    paths: dict[str, Path]
    max_length: int
    dim: int


FLOWVEC: dict[str, Peer] = {
    "flowvec": Peer("flowvec", "flowvec", (), {"load": {}}, _BUDGETS, "bundle"),
    "flowvec-native": Peer(
        "flowvec, native int8", "flowvec", (),
        {"load": {"provider": "native", "compute": "int8"}}, _BUDGETS, "bundle",
    ),
    "flowvec-one": Peer(
        "flowvec, one stream of all cores", "flowvec", (), {"load": {}, "one_at_a_time": True},
        _BUDGETS, "bundle",
    ),
    "flowvec-float32": Peer(
        "flowvec, ONNX Runtime float32", "flowvec", (),
        {"load": {"provider": "cpu", "compute": "float32"}}, _BUDGETS, "bundle",
    ),
    "flowvec-int8": Peer(
        "flowvec, ONNX Runtime int8", "flowvec", (),
        {"load": {"provider": "cpu", "compute": "int8"}}, _BUDGETS, "bundle",
    ),
    "flowvec-openvino-int8": Peer(
        "flowvec, OpenVINO int8", "flowvec", (),
        {"load": {"provider": "OpenVINORuntime", "compute": "int8"}}, _BUDGETS, "bundle",
    ),
    "flowvec-openvino-bfloat16": Peer(
        "flowvec, OpenVINO bfloat16", "flowvec", (),
        {"load": {"provider": "openvino", "compute": "bfloat16"}}, _BUDGETS, "bundle",
    ),
    "flowvec-openvino-float32": Peer(
        "flowvec, OpenVINO float32", "flowvec", (),
        {"load": {"provider": "openvino", "compute": "float32"}}, _BUDGETS, "bundle",
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
        without=("torchvision",),  # it needs another torch
    ),
    "st-onnx": Peer(
        "sentence-transformers 5.7, ONNX Runtime", "sentence-transformers",
        ("sentence-transformers==5.7.0", "optimum-onnx==0.1.0", "onnxruntime==1.31.1",
         "transformers==4.57.6", _TORCH),
        {"backend": "onnx", "model_kwargs": {"provider": "CPUExecutionProvider"}},
        form="older",
    ),
    "fastembed": Peer("fastembed", "fastembed", ("fastembed==0.9.1",), {}, _SIZES, "onnx"),
    "infinity": Peer(
        "infinity, torch float32", "infinity", ("infinity-emb[torch]==0.0.78", _TORCH),
        form="older", gathers=True,
    ),
}  # fmt: skip

STATIC_FORM, MODEL2VEC_FORM = "static", "model2vec"
_MODEL2VEC = ("model2vec==0.10.0",)

# Peers of static embedders only.
STATIC: dict[str, Peer] = {
    "st-static": Peer(
        "sentence-transformers, StaticEmbedding", "sentence-transformers", _ST,
        {"dtype": "float32"}, _STATIC_SIZES, STATIC_FORM,
    ),
    "model2vec": Peer(
        "model2vec", "model2vec", _MODEL2VEC, {"parallel": False}, _STATIC_SIZES, MODEL2VEC_FORM
    ),
    "model2vec-parallel": Peer(
        "model2vec, batches in parallel", "model2vec", _MODEL2VEC, {"parallel": True},
        _STATIC_SIZES, MODEL2VEC_FORM,
    ),
}  # fmt: skip

# PyLate pins a torch for an index that is not raced. It runs with the torch of the others.
_PYLATE = (
    "sentence-transformers==5.3.0", "transformers==5.3.0", "datasets==5.2.0", "accelerate==1.15.0",
    "pandas==3.1.1", "ujson==6.1.0", _TORCH,
)  # fmt: skip

# Peers of multi-vector encoders only.
LATE: dict[str, Peer] = {
    "pylate-float32": Peer(
        "PyLate, torch float32", "pylate", _PYLATE, {"dtype": "float32"}, _SIZES, "pylate",
        unchecked=("pylate==1.6.0",),
    ),
    "pylate-bfloat16": Peer(
        "PyLate, torch bfloat16", "pylate", _PYLATE, {"dtype": "bfloat16"}, _SIZES, "pylate",
        unchecked=("pylate==1.6.0",),
    ),
    "fastembed": Peer("fastembed", "fastembed", ("fastembed==0.9.1",), {}, _SIZES, "tokens"),
}  # fmt: skip


def suited(peers: Sequence[Peer], forms: Forms) -> list[Peer]:
    """The peers without those of static embedders, if the model is not one."""
    return [peer for peer in peers if peer not in STATIC.values() or peer.form in forms.paths]
