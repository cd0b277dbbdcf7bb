"""Checks of arguments, before any long work. Each error names the argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowvec.arguments import flag, path_of, text_or_none, whole_number
from flowvec.errors import InputTypeError, InputValueError
from flowvec.sequences import as_list
from flowvec.texts.places import check_apart, check_new
from flowvec.tokenizer.tokenizer import check_texts
from flowvec_export.trust import Trust

__all__ = [
    "check_callback",
    "check_instance",
    "check_output",
    "check_source",
    "encodable_text",
    "prompts_of",
    "sequence_of",
    "texts_of",
]


def check_source(
    source: object,
    *,
    pooling: object = None,
    max_length: object = None,
    encoder_only: object = False,
    trust: object = None,
) -> None:
    """Check the arguments about the source that `export` and `fit` share.

    Raises:
        InputTypeError: one of them has the wrong type.
        InputValueError: one of them has a value that is not valid.
    """
    path_of("source", source)
    encodable_text("pooling", pooling)
    if max_length is not None:
        # Only the type: the source checks the bounds.
        whole_number("max_length", max_length, least=-(1 << 31))
    flag("encoder_only", encoder_only)
    if trust is None:
        return
    if not isinstance(trust, Trust):
        raise InputTypeError(f"trust must be a Trust, not {type(trust).__name__}")
    flag("trust.remote_code", trust.remote_code)
    flag("trust.pickle", trust.pickle)


def check_output(
    path: Path | None, inputs: Iterable[str | Path | None] = (), *, overwrite: bool = False
) -> None:
    """Check an output file before any long work.

    Args:
        path: the file; None is no file.
        inputs: files and folders that are read; None, and names of models on the hub, are ignored.
        overwrite: whether a file that exists may be replaced.

    Raises:
        InputValueError: it could not be written, exists, or is or is in an input.
    """
    if path is None:
        return
    check_apart(path, inputs)
    check_new(path, overwrite=overwrite)
    parent = path.absolute().parent
    if not parent.is_dir():
        raise InputValueError(f"there is no directory {parent}")
    if path.is_dir():
        raise InputValueError(f"{path} is a directory")
    if not os.access(parent, os.W_OK):
        raise InputValueError(f"cannot write to {parent}")


def check_instance(name: str, value: object, kind: type[Any]) -> None:
    """Raise InputTypeError unless a value is of a class."""
    if not isinstance(value, kind):
        raise InputTypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")


def check_callback(name: str, value: object) -> None:
    """Raise InputTypeError unless a value is None or a function."""
    if value is not None and not callable(value):
        raise InputTypeError(f"{name} must be a function, not {type(value).__name__}")


def encodable_text(name: str, value: object) -> str | None:
    """A text that UTF-8 can encode, or None.

    Raises:
        InputTypeError: it is neither.
        InputValueError: it holds a lone surrogate.
    """
    text = text_or_none(name, value)
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise InputValueError(f"{name} holds a lone surrogate: {text!r}") from None
    return text


def texts_of(name: str, values: Any) -> list[str]:
    """Texts as a list.

    Raises:
        InputTypeError: they are not texts.
    """
    texts = as_list(name, values)
    check_texts(texts)
    return texts


def prompts_of(prompts: object) -> dict[str, str]:
    """Prompts by name; None means no prompts.

    Raises:
        InputTypeError: they are not a mapping from text to text.
    """
    if prompts is None:
        return {}
    if not isinstance(prompts, Mapping):
        raise InputTypeError(f"prompts must be texts by name, not {type(prompts).__name__}")
    for name, prompt in prompts.items():
        if not isinstance(name, str) or not isinstance(prompt, str):
            raise InputTypeError(f"prompts must be texts by name; {name!r} is {prompt!r:.40}")
        encodable_text("a prompt's name", name)
        encodable_text("a prompt", prompt)
    return dict(prompts)


def sequence_of(name: str, values: Any, kind: type[Any]) -> Sequence[Any]:
    """A sequence of objects of one class.

    Raises:
        InputTypeError: it is not a sequence, or holds an object of another class.
    """
    items = as_list(name, values)
    for value in items:
        check_instance(f"each of {name}", value, kind)
    return items
