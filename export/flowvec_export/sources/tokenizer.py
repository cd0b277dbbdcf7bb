"""Reads the tokenizer of a source."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import normalizers

from flowvec.errors import ExportError, first_line
from flowvec_export.sources.files import require_content

__all__ = ["lower_cased", "plain_tokenizer", "read_tokenizer", "refuse_left"]


def plain_tokenizer(source: tokenizers.Tokenizer, *, lower_case: bool) -> tokenizers.Tokenizer:
    """A copy without truncation and padding, which lower-cases first if requested."""
    tokenizer = tokenizers.Tokenizer.from_str(source.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if lower_case:
        tokenizer.normalizer = lower_cased(tokenizer.normalizer)
    return tokenizer


def lower_cased(normalizer: normalizers.Normalizer | None) -> normalizers.Normalizer:
    """A normalizer that lower-cases a text first, as sentence-transformers does."""
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()]
    if normalizer is not None:
        steps.append(normalizer)
    return normalizers.Sequence(steps)


def read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """Read `tokenizer.json` alone; `read_with_settings` applies the files beside it.

    Raises:
        ExportError: it is missing, or is not a tokenizer.
    """
    if not path.is_file():
        raise ExportError(
            f"{path} is missing; transformers' AutoTokenizer.from_pretrained(...) writes it with "
            "save_pretrained(...)"
        )
    require_content(path)
    try:
        return tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8-sig"))
    except Exception as error:  # tokenizers raises plain Exception
        raise ExportError(f"cannot read {path}: {first_line(error)}") from None


def refuse_left(origin: str, *sides: str | None) -> None:
    """Refuse a tokenizer that cuts long texts on the left.

    Args:
        origin: name of the source, for messages.
        sides: on which side each of its files says that it cuts.

    Raises:
        ExportError: one is `left`.
    """
    if "left" in sides:
        raise ExportError(f"{origin} cuts long texts on the left, which is not supported")
