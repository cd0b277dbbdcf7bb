"""Options of the calls that encode, and the check that turns them into a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict, get_args

import numpy as np
import numpy.typing as npt

from flowvec.arguments import choice, flag, text_or_none, whole_number
from flowvec.bundle.manifest import Manifest
from flowvec.encoder.jobs import EncodeJob
from flowvec.encoder.postprocess import PRECISIONS, Postprocess, Precision
from flowvec.errors import InputValueError
from flowvec.spelled import Spelled

__all__ = [
    "FOREIGN",
    "CallOptions",
    "EncodeOptions",
    "OnEmpty",
    "Truncation",
    "check_options",
    "document_prompt",
    "prompt_text",
    "query_prompt",
]

Truncation = Literal["truncate", "error"]
OnEmpty = Literal["encode", "error"]

# What callers of sentence-transformers, fastembed and SimCSE write.
FOREIGN = {
    "batch_size": "texts are batched by their tokens; leave it out, or give max_batch_tokens=",
    "convert_to_numpy": "vectors are numpy arrays; leave it out",
    "convert_to_tensor": "vectors are numpy arrays; torch.from_numpy(vectors) is a tensor",
    "return_numpy": "vectors are numpy arrays; leave it out",
    "prompt": "put it before each text, or name a prompt of the bundle by prompt_name=",
    "normalize": "write normalize_embeddings=",
    "normalize_to_unit": "write normalize_embeddings=",
    "device": "the engine is chosen by Encoder.load(device=)",
    "output_value": "a text gives one vector; there are no others",
    "max_length": "it is part of the bundle; leave it out",
    "parallel": "an Encoder uses all cores; leave it out",
    "pool": "an Encoder uses all cores; leave it out",
    "num_workers": "an Encoder uses all cores; leave it out",
}

_QUERY_PROMPTS = ("query",)
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


class EncodeOptions(TypedDict, total=False):
    """Options of every call that encodes texts; `Encoder.encode` says what they mean.

    >>> options: EncodeOptions = {"precision": "binary", "truncation": "error"}
    >>> Encoder.load("mini").encode("A man is eating.", **options).shape
    (48,)
    """

    prompt_name: str | None
    normalize_embeddings: bool | None
    precision: Precision
    truncate_dim: int | None
    truncation: Truncation
    on_empty: OnEmpty


class CallOptions(EncodeOptions, total=False):
    """All that `Encoder.encode` accepts."""

    max_batch_tokens: int | None
    show_progress_bar: bool | None


def check_options(
    manifest: Manifest,
    ranges: Callable[[], npt.NDArray[np.float32]],
    *,
    prompt_name: str | None,
    normalize_embeddings: bool | None,
    precision: Precision,
    truncate_dim: int | None,
    truncation: Truncation,
    on_empty: OnEmpty,
    max_batch_tokens: int,
    fills_streams: bool,
) -> EncodeJob:
    """Check a call's options before any text is touched.

    Args:
        manifest: the bundle's manifest.
        ranges: reads the bundle's ranges for 8-bit vectors.
        prompt_name: as for `Encoder.encode`.
        normalize_embeddings: as for `Encoder.encode`.
        precision: as for `Encoder.encode`.
        truncate_dim: as for `Encoder.encode`.
        truncation: as for `Encoder.encode`.
        on_empty: as for `Encoder.encode`.
        max_batch_tokens: most padded tokens in a batch.
        fills_streams: take smaller batches if that keeps all streams busy.

    Raises:
        InputTypeError, InputValueError: an option is not valid, or the bundle does not support it.
    """
    choice("truncation", truncation, get_args(Truncation))
    choice("on_empty", on_empty, get_args(OnEmpty))
    choice("precision", precision, PRECISIONS)
    must_normalize = _must_normalize(manifest, normalize_embeddings)
    if truncate_dim is not None:
        truncate_dim = whole_number("truncate_dim", truncate_dim, 1, manifest.dim)
    if precision in ("int8", "uint8") and must_normalize:
        raise InputValueError(
            f"precision {precision!r} cannot be used with normalize_embeddings=True: the bundle's "
            "8-bit ranges are those of its own vectors, which it does not normalize"
        )
    return EncodeJob(
        prompt=prompt_text(manifest, prompt_name),
        postprocess=Postprocess(
            dim=manifest.dim,
            normalize=must_normalize,
            truncate_dim=truncate_dim,
            renormalize=must_normalize or manifest.normalised,
            precision=precision,
            ranges=ranges() if precision in ("int8", "uint8") else None,
        ),
        max_batch_tokens=whole_number("max_batch_tokens", max_batch_tokens),
        refuse_long=truncation == "error",
        refuse_empty=on_empty == "error",
        shared_out=fills_streams,
    )


def query_prompt(manifest: Manifest) -> str:
    """Name of the prompt for queries; "" if the bundle has none."""
    return _first_prompt(manifest, _QUERY_PROMPTS)


def document_prompt(manifest: Manifest) -> str:
    """Name of the prompt for documents; "" if the bundle has none."""
    return _first_prompt(manifest, _DOCUMENT_PROMPTS)


def _first_prompt(manifest: Manifest, names: tuple[str, ...]) -> str:
    # "" means no prompt: the bundle's default prompt is not for queries or documents.
    return next((name for name in names if manifest.prompts.get(name)), "")


def prompt_text(manifest: Manifest, name: str | None) -> str:
    """The prompt of a name; None is the bundle's default, and "" is no prompt.

    Raises:
        InputTypeError, InputValueError: there is no such prompt.
    """
    name = manifest.default_prompt_name if text_or_none("prompt_name", name) is None else name
    if not name:
        return ""
    if name not in manifest.prompts:
        if not manifest.prompts:
            raise InputValueError(
                "the bundle has no prompts; leave prompt_name out",
                Spelled(", or call encode_query", ""),
            )
        names = ", ".join(sorted(manifest.prompts))
        raise InputValueError(f"the bundle has no prompt {name!r}; it has {names}")
    return manifest.prompts[name]


def _must_normalize(manifest: Manifest, normalize_embeddings: bool | None) -> bool:
    if normalize_embeddings is not None:
        normalize_embeddings = flag("normalize_embeddings", normalize_embeddings)
    if normalize_embeddings is False and manifest.normalised:
        raise InputValueError(
            "normalize_embeddings=False is not possible: this bundle normalizes inside its graph; "
            "export the model with --no-normalize"
        )
    return bool(normalize_embeddings) and not manifest.normalised
