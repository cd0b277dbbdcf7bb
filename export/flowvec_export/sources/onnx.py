"""Reads a given ONNX graph as a source, for example one from Optimum.

Only `onnx` is needed to read and check it. It gives token vectors, which are then pooled, or
finished sentence vectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import tokenizers
from onnx import TensorProto, inliner
from onnx.external_data_helper import load_external_data_for_model

from flowvec.compat import override
from flowvec.errors import ExportError, first_line
from flowvec_export.assembly.draft import LOGITS, Draft, PairDraft, Weights, check_steps
from flowvec_export.assembly.from_onnx import (
    PooledOutput,
    draft_of_graph,
    draft_of_pair_graph,
)
from flowvec_export.graph.proto import all_graphs, all_nodes, normalize_domain
from flowvec_export.layers.names import OFFSET_POSITIONS, parse_pooling
from flowvec_export.sources.base import (
    AS_EXPORTED,
    Source,
    bounded_length,
    model_name,
    plain_tokenizer,
    read_licence,
    read_tokenizer,
)
from flowvec_export.sources.cross_encoder import AboutPairs, PairSource
from flowvec_export.sources.files import check_tokenizer, inside, read_json
from flowvec_export.sources.token_types import gives_token_types

if TYPE_CHECKING:
    from flowvec_export.transforms import Transform

__all__ = ["OnnxPairs", "OnnxSource", "find_graph", "read_graph", "read_pair_graph"]

# Names of outputs in graphs of Optimum, sentence-transformers and similar tools.
_TOKENS = ("last_hidden_state", "token_embeddings")
_SENTENCE = "sentence_embedding"
_POOLER = "pooler_output"
# Poolings of the last layer's vectors.
_OF_TOKENS = ("mean", "cls", "max", "mean_sqrt_len", "weighted_mean", "last_token")
_IDS, _MASK, _TYPES = "input_ids", "attention_mask", "token_type_ids"
# The limit of Protobuf, and so of a graph in one file.
_MAX_BYTES = (1 << 31) - 1
# The first with every operator that pooling takes (CumSum).
_MIN_OPSET = 11
# A model of 48 layers has about 5,000.
_MOST_NODES = 500_000
_DEEPEST_CALLS = 100


@dataclass(slots=True, kw_only=True)
class OnnxSource(Source):
    """An ONNX graph with its tokenizer and configuration.

    Attributes:
        proto: the graph, its weights inside.
        tokens: name of its output of token vectors, float (batch, sequence, width), if any.
        sentence: name of its output of sentence vectors, float (batch, dim), if any.
        pooler: name of its output of the checkpoint's pooler, if any.
        widths: length of the vectors of each of these outputs.
    """

    proto: onnx.ModelProto
    tokens: str | None
    sentence: str | None
    pooler: str | None
    widths: dict[str, int]

    def modes(self, pooling: str | None) -> tuple[str, ...] | None:
        """The pooling modes to attach; None if the graph's own sentence vector is used.

        Raises:
            ExportError: the graph does not give what this pooling needs.
        """
        name = pooling or self.pooling
        if self.sentence is not None and (name is None or (pooling is None and not self.tokens)):
            return None
        modes = parse_pooling(name or "mean")
        for mode in modes:
            if mode == "pooler":
                if self.pooler is None:
                    raise ExportError(f"{self.origin} gives no {_POOLER}; choose another pooling")
            elif mode not in _OF_TOKENS:
                raise ExportError(
                    f"{self.origin} gives the vectors of its last layer alone, and {mode} needs "
                    "others; export its checkpoint"
                )
            elif self.tokens is None:
                raise ExportError(
                    f"{self.origin} gives {_SENTENCE} and no token vectors, so it is pooled "
                    "already: leave the pooling out"
                )
        return modes

    @property
    @override
    def is_finished(self) -> bool:
        return self.tokens is None and self.sentence is not None

    def outputs(self, pooling: str | None) -> list[PooledOutput]:
        """The outputs of the graph that a pooling uses.

        Raises:
            ExportError: as for `modes`.
        """
        modes = self.modes(pooling)
        if modes is None:
            return [self._output(self.sentence, None)]
        return [
            self._output(self.pooler, None) if mode == "pooler" else self._output(self.tokens, mode)
            for mode in modes
        ]

    def _output(self, name: str | None, mode: str | None) -> PooledOutput:
        assert name is not None, "`modes` takes only outputs that the graph has"
        return PooledOutput(name, self.widths[name], mode)

    @override
    def draft(
        self,
        length: int,
        pooling: str | None,
        added: Sequence[Transform],
        normalize: bool | None,
        weights: Weights,
    ) -> Draft:
        steps = [*self.transforms, *added]
        check_steps(steps, self.pooled_width(pooling))
        if normalize is None:
            # A finished sentence vector stays as it is.
            plain = self.modes(pooling) is not None or bool(steps)
            normalize = plain if self.normalize is None else self.normalize
        return draft_of_graph(
            self.proto,
            self.outputs(pooling),
            steps,
            normalize=normalize,
            weights=weights,
            pooling=self.pooling_name(pooling),
            vocabulary=self.vocabulary,
            length=length,
            origin=self.origin,
        )

    @override
    def pooled_width(self, pooling: str | None) -> int:
        return sum(output.width for output in self.outputs(pooling))

    @override
    def pooling_name(self, pooling: str | None) -> str:
        modes = self.modes(pooling)
        return AS_EXPORTED if modes is None else "+".join(modes)

    @override
    def keep_encoder_only(self) -> None:
        Source.keep_encoder_only(self)
        if self.tokens is not None:
            self.sentence = None

    @override
    def sha256(self) -> str:
        """SHA-256 (hex) of the graph and of the layers that follow it."""
        digest = hashlib.sha256(self.proto.SerializeToString(deterministic=True))
        for place, module in enumerate(self.transforms):
            for name, tensor in sorted(module.state_dict().items()):
                digest.update(f"{place} {name} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().float().contiguous().numpy().tobytes())
        return digest.hexdigest()


@dataclass(slots=True, kw_only=True)
class OnnxPairs(PairSource):
    """An ONNX graph of a cross-encoder, as Optimum exports it.

    Attributes:
        proto: the graph, its weights inside.
        inputs: names of the inputs that it keeps; token types become zeros if the tokenizer
            does not give them.
    """

    proto: onnx.ModelProto
    inputs: tuple[str, ...]

    @override
    def draft(self, weights: Weights) -> PairDraft:
        return draft_of_pair_graph(
            self.proto,
            self.inputs,
            len(self.about.head.labels),
            weights=weights,
            origin=self.origin,
        )


def find_graph(root: Path) -> Path | None:
    """The graph of a directory that Optimum or sentence-transformers wrote, if it has one."""
    return next(
        (root / name for name in ("model.onnx", "onnx/model.onnx") if (root / name).is_file()), None
    )


def read_graph(
    graph: Path, root: Path, folder: Path, origin: str, settings: dict[str, Any]
) -> OnnxSource:
    """Read an ONNX file; `folder` has its configuration and tokenizer, `root` the whole model.

    Raises:
        ExportError: a file is missing or outside the directory, or the graph is not supported.
    """
    config = read_json(folder / "config.json")
    marks = check_tokenizer(folder)
    special = read_json(folder / "special_tokens_map.json", missing_ok=True) or {}
    loaded = read_tokenizer(folder / "tokenizer.json")
    if "left" in (marks.get("truncation_side"), (loaded.truncation or {}).get("direction")):
        raise ExportError(f"{origin} cuts long texts on the left, which is not supported")
    tokenizer = plain_tokenizer(loaded, lower_case=bool(settings.get("do_lower_case")))
    proto = _load(graph)
    widths = _widths(proto, origin, config)
    pad_id = _pad_id(config, marks | special, tokenizer)
    vocabulary = _count(config, "vocab_size", 2, origin)
    layers = _count(config, "num_hidden_layers", 0, origin)
    limit = settings.get("max_seq_length") or marks.get("model_max_length")
    return OnnxSource(
        name=model_name(root, origin),
        origin=origin,
        tokenizer=tokenizer,
        pad_id=pad_id,
        max_length=bounded_length(origin, limit, _positions(config, pad_id)),
        vocabulary=tokenizer.get_vocab_size() if vocabulary is None else vocabulary,
        layers=layers,
        licence=read_licence(root),
        proto=proto,
        tokens=next((name for name in _TOKENS if name in widths), None),
        sentence=_SENTENCE if _SENTENCE in widths else None,
        pooler=_POOLER if _POOLER in widths else None,
        widths=widths,
    )


def read_pair_graph(graph: Path, root: Path, folder: Path, about: AboutPairs) -> OnnxPairs:
    """Read an ONNX file of a cross-encoder; arguments as `read_graph`.

    Raises:
        ExportError: a file is missing or outside the directory, or the graph is not supported.
    """
    origin = about.origin
    config = read_json(folder / "config.json")
    marks = check_tokenizer(folder)
    special = read_json(folder / "special_tokens_map.json", missing_ok=True) or {}
    loaded = read_tokenizer(folder / "tokenizer.json")
    if "left" in (marks.get("truncation_side"), (loaded.truncation or {}).get("direction")):
        raise ExportError(f"{origin} cuts long texts on the left, which is not supported")
    tokenizer = plain_tokenizer(loaded, lower_case=about.lower_case)
    proto = _load(graph)
    _check_operators(proto, origin)
    _check_inputs(proto, origin)
    outputs = {value.name: value for value in proto.graph.output}
    if LOGITS not in outputs:
        raise ExportError(
            f"{origin} gives {', '.join(outputs)}; it should give {LOGITS}, as Optimum's task "
            "text-classification does"
        )
    width = outputs[LOGITS].type.tensor_type.shape.dim[-1].dim_value
    labels = len(about.head.labels)
    if width not in (0, labels):  # 0: the graph does not say
        raise ExportError(f"{origin} gives {width} logits, and names {labels} labels")
    pad_id = _pad_id(config, marks | special, tokenizer)
    vocabulary = _count(config, "vocab_size", 2, origin)
    takes_types = any(value.name == _TYPES for value in proto.graph.input)
    with_types = takes_types and gives_token_types(marks, config, origin)
    return OnnxPairs(
        name=model_name(root, origin),
        about=about,
        tokenizer=tokenizer,
        pad_id=pad_id,
        max_length=bounded_length(
            origin,
            about.max_length or marks.get("model_max_length"),
            _positions(config, pad_id),
        ),
        vocabulary=tokenizer.get_vocab_size() if vocabulary is None else vocabulary,
        layers=_count(config, "num_hidden_layers", 0, origin),
        licence=read_licence(root),
        proto=proto,
        inputs=(_IDS, _MASK, _TYPES) if with_types else (_IDS, _MASK),
    )


def _load(path: Path) -> onnx.ModelProto:
    """Read a graph, with the weights that it keeps in other files of its directory."""
    if (size := path.stat().st_size) > _MAX_BYTES:
        raise ExportError(f"{path} has {size / 1e9:.1f} GB; a graph holds 2 GiB")
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf raises its own types
        raise ExportError(f"cannot read {path}: {first_line(error)}") from None
    for tensor in _external(proto):
        fields = {entry.key: entry.value for entry in tensor.external_data}
        if not all(fields.get(key, "0").isdecimal() for key in ("offset", "length")):
            raise ExportError(f"{path} does not say where the weights of {tensor.name} are")
        data = inside(path.parent, fields.get("location", ""))
        if not data.is_file():
            raise ExportError(f"{data} is missing; it holds weights of {path.name}")
        # Without a length, the rest of the file is read.
        stored = fields.get("length") or data.stat().st_size - int(fields.get("offset") or 0)
        size += max(_bytes_of(tensor), int(stored))
        if size > _MAX_BYTES:
            raise ExportError(f"{path} has more weights than the 2 GiB that a graph holds")
    try:
        load_external_data_for_model(proto, str(path.parent))
        if proto.functions:
            _check_functions(proto)
            proto = inliner.inline_local_functions(proto)
        normalize_domain(proto)
        onnx.checker.check_model(proto)
    except Exception as error:  # onnx raises many types
        raise ExportError(f"{path} is not a valid graph: {first_line(error)}") from None
    if any(graph.sparse_initializer for graph in all_graphs(proto)):
        raise ExportError(f"{path} has sparse weights, which are not supported")
    return proto


def _is_quantized(node: onnx.NodeProto) -> bool:
    return any(part in node.op_type for part in ("Quantize", "Integer", "QLinear", "MatMulNBits"))


def _check_functions(proto: onnx.ModelProto) -> None:
    """Refuse functions whose expansion has too many nodes.

    Raises:
        ExportError: there would be more nodes than any model has, or a function calls itself.
    """
    functions = {(f.domain, f.name): f for f in proto.functions}
    sizes: dict[tuple[str, str], int] = {}

    def nodes_of(nodes: Iterable[onnx.NodeProto], calling: frozenset[tuple[str, str]]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in calling:
                raise ExportError(f"the function {node.op_type} calls itself")
            if key in functions and key not in sizes:
                if len(calling) == _DEEPEST_CALLS:
                    raise ExportError(f"functions call each other more than {_DEEPEST_CALLS} deep")
                sizes[key] = nodes_of(functions[key].node, calling | {key})
            total += sizes.get(key, 1)
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    total += nodes_of(graph.node, calling)
            if total > _MOST_NODES:
                raise ExportError(f"its functions expand to more than {_MOST_NODES:,} nodes")
        return total

    nodes_of(proto.graph.node, frozenset())


def _external(proto: onnx.ModelProto) -> list[TensorProto]:
    """Tensors stored in other files, including those of nodes and of nested graphs."""
    tensors: list[TensorProto] = []
    for graph in all_graphs(proto):
        tensors += graph.initializer
    for node in all_nodes(proto):
        for attribute in node.attribute:
            tensors += [attribute.t, *attribute.tensors]
    return [tensor for tensor in tensors if tensor.data_location == TensorProto.EXTERNAL]


def _bytes_of(tensor: TensorProto) -> int:
    count = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    for length in tensor.dims:
        count *= length
    return count


def _widths(proto: onnx.ModelProto, origin: str, config: dict[str, Any]) -> dict[str, int]:
    """Length of the vectors of each usable output; raises ExportError if the graph is not
    usable."""
    _check_operators(proto, origin)
    _check_inputs(proto, origin)
    widths: dict[str, int] = {}
    rank = dict.fromkeys(_TOKENS, 3) | {_SENTENCE: 2, _POOLER: 2}
    for value in onnx.shape_inference.infer_shapes(proto).graph.output:
        dims = value.type.tensor_type.shape.dim
        if len(dims) != rank.get(value.name):
            continue
        # If the graph does not say, the configuration does; but only for token vectors, since later
        # layers may change the length.
        width = dims[-1].dim_value or (config.get("hidden_size") if len(dims) == 3 else None)
        if not isinstance(width, int) or width < 1:
            raise ExportError(f"{origin} does not say how long the vectors of {value.name} are")
        widths[value.name] = width
    if not widths:
        outputs = ", ".join(value.name for value in proto.graph.output)
        raise ExportError(
            f"{origin} gives {outputs}; it should give {', '.join(_TOKENS)} or {_SENTENCE}, as "
            "Optimum's task feature-extraction does"
        )
    return widths


def _check_operators(proto: onnx.ModelProto, origin: str) -> None:
    """Check that the graph is in standard operators of float32."""
    foreign = {node.domain for node in all_nodes(proto)} - {""}
    if quantized := sorted({node.op_type for node in all_nodes(proto) if _is_quantized(node)}):
        raise ExportError(
            f"{origin} is quantized ({', '.join(quantized[:3])}); export the float32 graph, from "
            "which flowvec makes its own variants in 8 bits"
        )
    if foreign:
        raise ExportError(
            f"{origin} uses operators of {', '.join(sorted(foreign))}; export it without "
            "optimization or quantization, which are specific to one engine"
        )
    opset = max(entry.version for entry in proto.opset_import if entry.domain == "")
    if opset < _MIN_OPSET:
        raise ExportError(f"{origin} is of opset {opset}; at least {_MIN_OPSET} is needed")


def _check_inputs(proto: onnx.ModelProto, origin: str) -> None:
    """Check that the graph takes token ids and a mask of any shape, and no unknown input."""
    weights = {init.name for init in proto.graph.initializer}
    inputs = {value.name: value for value in proto.graph.input if value.name not in weights}
    if missing := [name for name in (_IDS, _MASK) if name not in inputs]:
        raise ExportError(f"{origin} has no input {', '.join(missing)}")
    if other := sorted(inputs.keys() - {_IDS, _MASK, _TYPES}):
        raise ExportError(f"{origin} needs the input {', '.join(other)}, which is not supported")
    for name, value in inputs.items():
        tensor = value.type.tensor_type
        if tensor.elem_type not in (TensorProto.INT64, TensorProto.INT32):
            raise ExportError(f"{origin} takes {name} as another type than int32 or int64")
        dims = tensor.shape.dim
        if len(dims) != 2 or any(dim.HasField("dim_value") for dim in dims):
            shape = [dim.dim_value or dim.dim_param or "?" for dim in dims]
            raise ExportError(
                f"{origin} takes {name} of the shape {shape}; export it with free axes for batch "
                "and sequence"
            )


def _count(config: dict[str, Any], name: str, least: int, origin: str) -> int | None:
    """A number in the configuration; None if it is not there."""
    size = config.get(name)
    if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
        raise ExportError(f"{origin} has the {name} {size!r}, which is not a whole number")
    if size is not None and size < least:
        raise ExportError(f"{origin} has the {name} {size}; it must be at least {least}")
    return size


def _pad_id(config: dict[str, Any], marks: dict[str, Any], tokenizer: tokenizers.Tokenizer) -> int:
    """The padding token's id, from the tokenizer or the configuration."""
    token = marks.get("pad_token")
    if isinstance(token, dict):
        token = token.get("content")
    pad_id = tokenizer.token_to_id(token) if isinstance(token, str) else config.get("pad_token_id")
    return pad_id if isinstance(pad_id, int) and pad_id >= 0 else 0


def _positions(config: dict[str, Any], pad_id: int) -> int | None:
    """Most tokens of a text by the position table; None without such a table."""
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int):
        return None
    return positions - (pad_id + 1 if config.get("model_type") in OFFSET_POSITIONS else 0)
