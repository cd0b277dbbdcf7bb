"""Reads a directory's tokenizer with transformers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers

from flowvec.errors import ExportError, first_line
from flowvec_export.assembly.token_parity import OwnTokens
from flowvec_export.sources.files import without_marks
from flowvec_export.sources.tokenizer import lower_cased
from flowvec_export.trust import Trust

__all__ = ["load_tokenizer", "own_tokens", "own_tokens_of", "quiet_transformers"]

logger = logging.getLogger(__name__)


def load_tokenizer(folder: Path, origin: str, marks: dict[str, Any], trust: Trust) -> Any:
    """transformers' tokenizer of a directory.

    Raises:
        ExportError: transformers cannot load it, or it is written in Python.
    """
    try:
        with quiet_transformers(), without_marks(folder) as readable:
            fast: Any = _tokenizer_class(marks).from_pretrained(
                readable, trust_remote_code=trust.remote_code, local_files_only=True
            )
    except Exception as error:  # transformers raises many types
        # Without tokenizer.json it is made of other files, and the message does not say so.
        reason = first_line(error)
        if not (folder / "tokenizer.json").is_file():
            reason = f"{folder / 'tokenizer.json'} is missing ({reason.rstrip(': ')})"
        raise ExportError(f"transformers cannot load {origin}: {reason}") from error
    if getattr(fast, "backend_tokenizer", None) is None:
        raise ExportError(
            f"{origin} has no tokenizer that `tokenizers` can read: transformers' "
            f"{type(fast).__name__} is written in Python"
        )
    return fast


def own_tokens(fast: Any, *, lower_case: bool) -> OwnTokens:
    """How transformers' tokenizer reads a text or a pair.

    Args:
        fast: the tokenizer; it is changed if texts are lower-cased first.
        lower_case: whether sentence-transformers lower-cases texts first.
    """
    if lower_case:
        fast.backend_tokenizer.normalizer = lower_cased(fast.backend_tokenizer.normalizer)

    def ids(text: str, second: str | None) -> list[int]:
        # As a batch: alone, an empty second text counts as none.
        with quiet_transformers():
            made: list[list[int]] = fast([text], None if second is None else [second])["input_ids"]
        return made[0]

    return ids


def own_tokens_of(
    folder: Path, origin: str, marks: dict[str, Any], *, lower_case: bool
) -> OwnTokens | None:
    """How transformers reads a text with a directory's tokenizer; None if it cannot load it.

    Args:
        folder: the directory.
        origin: name of the source, for messages.
        marks: content of tokenizer_config.json.
        lower_case: whether sentence-transformers lower-cases texts first.
    """
    try:
        fast = load_tokenizer(folder, origin, marks, Trust())
    except ExportError as error:
        logger.info("the tokenizer is not compared with transformers': %s", error)
        return None
    return own_tokens(fast, lower_case=lower_case)


def _tokenizer_class(marks: dict[str, Any]) -> Any:
    """The class that reads the tokenizer: only tokenizer.json if transformers lacks its class.

    Transformers 5 writes a class name that transformers 4 does not have.
    """
    name = str(marks.get("tokenizer_class"))
    if name == "TokenizersBackend" and not hasattr(transformers, name):
        return transformers.PreTrainedTokenizerFast
    return transformers.AutoTokenizer


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' loading report and progress bars off the terminal."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        transformers.logging.enable_progress_bar()
