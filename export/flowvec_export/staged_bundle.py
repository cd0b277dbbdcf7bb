"""Steps of an export that are the same for every kind of bundle, on a folder without a manifest."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import onnx
import tokenizers

from flowvec import Bundle
from flowvec.bundle.bundle import record_file
from flowvec.bundle.manifest import INPUTS, REFERENCES
from flowvec.bundle.onnx_file import rows_read_by
from flowvec.encoder.proof import make_bundle_references
from flowvec.engine.onnxruntime_session import Session
from flowvec.engine.providers import CPU, Engine
from flowvec.errors import BundleError, EngineError, ExportError

__all__ = ["computable", "opset_of", "tokens_without_row", "with_file", "with_references"]

logger = logging.getLogger(__name__)


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
        ExportError: the graph does not run, or no text can be computed, because a special token has
            no row in the embedding table.
    """
    _check_tokens(bundle)
    try:
        references = make_bundle_references(bundle, Session(bundle, Engine(CPU, "float32", 1)))
    except (BundleError, EngineError) as error:
        raise ExportError(f"the graph does not run: {error}") from error
    (bundle.path / REFERENCES).write_bytes(references.to_bytes())
    return with_file(bundle, REFERENCES)


def tokens_without_row(bundle: Bundle) -> dict[int, str]:
    """Tokens of a bundle's tokenizer for which its graph has no row, by their ids, ascending.

    They are tokens that were added to the tokenizer without resizing the model's embedding table.
    """
    rows = rows_read_by(bundle.model, INPUTS[0])
    if rows is None:
        return {}
    ids = tokenizers.Tokenizer.from_file(str(bundle.tokenizer)).get_vocab(with_added_tokens=True)
    return dict(sorted((id, token) for token, id in ids.items() if id >= rows))


def computable(bundle: Bundle, texts: Sequence[str]) -> list[str]:
    """Texts without tokens that the graph has no row for."""
    missing = tokens_without_row(bundle)
    if not missing:
        return list(texts)
    tokenizer = tokenizers.Tokenizer.from_file(str(bundle.tokenizer))
    return [text for text in texts if missing.keys().isdisjoint(tokenizer.encode(text).ids)]


def _check_tokens(bundle: Bundle) -> None:
    """Warn of tokens without a row, and refuse those that are part of every text or batch."""
    missing = tokens_without_row(bundle)
    if not missing:
        return
    manifest = bundle.manifest
    late = manifest.late_interaction
    tokenizer = tokenizers.Tokenizer.from_file(str(bundle.tokenizer))
    needed = {manifest.pad_id, *tokenizer.encode("").ids, *tokenizer.encode("", "").ids}
    if late is not None and late.expansion_token is not None:
        needed.add(late.expansion_token)
    named = ", ".join(f"{token!r} (id {id})" for id, token in list(missing.items())[:5])
    if len(missing) > 5:
        named += f" and {len(missing) - 5} more"
    if needed & missing.keys():
        always = ", ".join(f"{missing[id]!r} (id {id})" for id in sorted(needed & missing.keys()))
        raise ExportError(
            f"the embedding table of {manifest.source} has no row for {always}, which every text "
            "or batch has: resize the table, train it and save the model again"
        )
    logger.warning(
        "the embedding table of %s has no row for %s: a text with such a token is refused. Resize "
        "the table and train it, or remove the tokens from the tokenizer",
        manifest.source,
        named,
    )
