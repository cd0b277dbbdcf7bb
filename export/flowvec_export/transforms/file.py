"""Reads and writes a fitted transform: one safetensors file with its recipe in the header.

The format, version 1. The header's `__metadata__` has one key, `flowvec`, whose value is a JSON
object: `format_version` (1), `kind` and `config` (arguments of `build_transform`) and `recipe`. The
tensors are the transform's `state_dict`, float32, all of them and no others. Equal transforms with
equal recipes are equal bytes. Nothing in the file is ever run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save

from flowvec.arguments import flag, path_of
from flowvec.errors import ExportError, InputTypeError, InputValueError, first_line
from flowvec.files import lfs_advice, write_file
from flowvec.texts.places import check_new
from flowvec_export.transforms import Transform, build_transform

__all__ = ["FORMAT_VERSION", "Recipe", "load_transform", "save_transform"]

FORMAT_VERSION = 1
_KEY = "flowvec"
# Entries of a configuration that are the length of a tensor's axis.
_SIZES = ("dim", "in_dim", "out_dim", "width", "k")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a transform was fitted, to repeat it and to refuse it for another model.

        >>> transform, recipe = load_transform("whitening.safetensors")
        >>> recipe.method, recipe.pooling, recipe.rows
        ('whitening', 'mean', 1140)

    Attributes:
        method: what was fitted, e.g. `flow` or `flow+whitening`.
        source: name of the checkpoint.
        source_sha256: SHA-256 of the checkpoint's weights and the layers before the transform.
        pooling: its pooling.
        max_length: most tokens of a text during fitting.
        corpus: file name of the corpus.
        rows: texts fitted on.
        held_out_rows: texts that were only used for measuring.
        seed: seed of the sample and the training.
        settings: the method's own settings.
        results: measurements, e.g. bits per dimension on held-out rows.
        encoder_only: fitted without the source's own Dense layers.
        flowvec: the version that fitted it.
    """

    method: str
    source: str
    source_sha256: str
    pooling: str
    max_length: int
    corpus: str
    rows: int
    held_out_rows: int
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    encoder_only: bool = False
    flowvec: str = ""


def save_transform(
    transform: Transform, recipe: Recipe | None, path: str | Path, *, overwrite: bool = False
) -> None:
    """Write a transform and its recipe, atomically.

        >>> save_transform(Identity(4), None, "saved.safetensors")

    Args:
        transform: the transform.
        recipe: how it was fitted; None if it was not.
        path: a .safetensors file.
        overwrite: replace a file that exists.

    Raises:
        InputTypeError: an argument is of another type.
        InputValueError: the name does not end in .safetensors, the file exists or cannot be
            written, or the transform holds NaN or infinity.
    """
    target = path_of("path", path)
    if not isinstance(transform, Transform):
        raise InputTypeError(f"transform must be a Transform, not {type(transform).__name__}")
    if recipe is not None and not isinstance(recipe, Recipe):
        raise InputTypeError(f"recipe must be a Recipe or None, not {type(recipe).__name__}")
    if target.suffix != ".safetensors":
        raise InputValueError(f"a transform is a .safetensors file, not {target.name}")
    check_new(target, overwrite=flag("overwrite", overwrite))
    tensors = {
        # Copied, since a part that is used twice in a composition is stored twice.
        name: tensor.detach().to(torch.float32, copy=True).contiguous()
        for name, tensor in transform.state_dict().items()
    }
    if bad := [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]:
        raise InputValueError(f"the transform holds NaN or infinity in {', '.join(bad)}")
    header = {
        "format_version": FORMAT_VERSION,
        "kind": transform.kind,
        "config": transform.config(),
        "recipe": None if recipe is None else asdict(recipe),
    }
    try:
        # Not `save_file`: only the owner can read its files.
        write_file(target, save(tensors, {_KEY: json.dumps(header, sort_keys=True)}))
    except OSError as error:
        raise InputValueError(f"cannot write {target}: {error.strerror or error}") from None


def load_transform(path: str | Path) -> tuple[Transform, Recipe | None]:
    """Read a transform and its recipe.

        >>> save_transform(Identity(4), None, "identity.safetensors")
        >>> transform, recipe = load_transform("identity.safetensors")
        >>> transform.in_dim, recipe
        (4, None)

    Raises:
        ExportError: there is no such file, or it is not a transform of this format, whole and
            finite.
    """
    target = path_of("path", path)
    if target.is_dir():
        raise ExportError(f"{target} is a directory, not a transform that `flowvec fit` wrote")
    if advice := lfs_advice(target):
        raise ExportError(advice)
    try:
        with safetensors.safe_open(target, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise ExportError(f"cannot read the transform {target}: {first_line(error)}") from None
    header = _header(metadata, target)
    transform = _build(header["kind"], header["config"], tensors, target)
    _check_tensors(transform, tensors, target)
    transform.load_state_dict(tensors, assign=True)
    for parameter in transform.parameters():
        parameter.requires_grad_(False)
    return transform.eval(), _recipe(header["recipe"], target)


def _header(metadata: dict[str, str], path: Path) -> dict[str, Any]:
    if _KEY not in metadata:
        raise ExportError(f"{path} is not a transform that `flowvec fit` wrote")
    try:
        header = json.loads(metadata[_KEY])
    except (ValueError, RecursionError) as error:
        raise ExportError(f"the header of {path} is not JSON: {error}") from None
    if not isinstance(header, dict) or header.get("format_version") != FORMAT_VERSION:
        version = header.get("format_version") if isinstance(header, dict) else None
        raise ExportError(
            f"{path} has format_version {version!r}; this flowvec reads {FORMAT_VERSION}"
        )
    if missing := {"kind", "config", "recipe"} - header.keys():
        raise ExportError(f"the header of {path} lacks {', '.join(sorted(missing))}")
    if not isinstance(header["kind"], str) or not isinstance(header["config"], dict):
        raise ExportError(f"the header of {path} names no transform")
    return header


def _build(
    kind: str, config: dict[str, Any], tensors: dict[str, torch.Tensor], path: Path
) -> Transform:
    """A transform of this configuration without memory for its tensors."""
    try:
        _check_config(kind, config, tensors)
        # Only shapes: the file's tensors bring the memory.
        with torch.device("meta"):
            transform = build_transform(kind, config)
        # The format has neither defaults nor numbers as texts.
        if transform.config() != config:
            raise ExportError(f"the configuration of a {kind} is not complete")
    except ExportError as error:
        raise ExportError(f"{path} cannot be used: {error}") from None
    except RecursionError:
        raise ExportError(
            f"{path} cannot be used: its compositions are nested too deeply"
        ) from None
    return transform


def _check_config(kind: str, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Refuse sizes that the file's tensors do not have, before memory is allocated."""
    axes = {length for tensor in tensors.values() for length in tensor.shape}
    for part_kind, part in _parts(kind, config):
        for name, value in part.items():
            if name in _SIZES and (type(value) is not int or value < 1):
                raise ExportError(f"{name} of the {part_kind} is {value!r}")
            # An identity has no tensors, and takes no memory.
            if name in _SIZES and part_kind != "identity" and value not in axes:
                raise ExportError(f"no tensor has the {name} {value!r} of the {part_kind}")
            if isinstance(value, float) and not math.isfinite(value):
                raise ExportError(f"{name} of the {part_kind} is {value}")
        if part_kind == "flow":
            _check_flow(part, tensors)


def _check_flow(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Check a flow's sizes: its steps and permutations need memory before its tensors do."""
    counts: list[Any] = [config.get(name) for name in ("dim", "levels", "depth", "seed")]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ExportError("dim, levels, depth and seed of a flow must be whole numbers")
    dim, levels, depth, _ = counts
    stored = sum(tensor.numel() for tensor in tensors.values())
    if levels * depth > len(tensors) or dim * depth > stored:
        raise ExportError(f"a flow of {levels} levels of depth {depth} has more tensors")


def _parts(kind: str, config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and configuration of a transform and, if it is a composition, of its parts."""
    yield kind, config
    parts = config.get("parts", ())
    for part in parts if isinstance(parts, list) else ():
        if (
            isinstance(part, dict)
            and isinstance(part.get("kind"), str)
            and isinstance(part.get("config"), dict)
        ):
            yield from _parts(part["kind"], part["config"])
        else:
            raise ExportError("a composition holds something that is not a transform")


def _check_tensors(transform: Transform, tensors: dict[str, torch.Tensor], path: Path) -> None:
    wanted = transform.state_dict()
    if wanted.keys() != tensors.keys():
        other = sorted(wanted.keys() ^ tensors.keys())
        raise ExportError(f"{path} has other tensors than a {transform.kind}: {', '.join(other)}")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != torch.float32:
            raise ExportError(
                f"{path} has {name} as {tensor.dtype} {tuple(tensor.shape)}, where float32 "
                f"{tuple(wanted[name].shape)} belongs"
            )
        if not torch.isfinite(tensor).all():
            raise ExportError(f"{path} has NaN or infinity in {name}")


def _recipe(raw: Any, path: Path) -> Recipe | None:
    if raw is None:
        return None
    if not isinstance(raw, dict) or raw.keys() != {f.name for f in fields(Recipe)}:
        raise ExportError(f"the recipe in {path} has other fields than this flowvec knows")
    kinds: dict[type, tuple[str, ...]] = {
        str: ("method", "source", "source_sha256", "pooling", "corpus", "flowvec"),
        int: ("max_length", "rows", "held_out_rows", "seed"),
        dict: ("settings", "results"),
        bool: ("encoder_only",),
    }
    if not all(type(raw[name]) is kind for kind, names in kinds.items() for name in names):
        raise ExportError(f"the recipe in {path} has values of the wrong type")
    return Recipe(**raw)
