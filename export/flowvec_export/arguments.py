"""Checks of arguments, before any long work. Each error names the argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowvec.arguments import flag, path_of, text_or_none, whole_number
from flowvec.encoder.tokenizer import check_texts
from flowvec.errors import InputTypeError, InputValueError
from flowvec.sequences import as_list
from flowvec_export.trust import Trust

__all__ = ["callback", "check_source", "instance", "prompts_of", "several", "texts_of", "written"]


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
    written("pooling", pooling)
    if max_length is not None:
        whole_number("max_length", max_length, least=-(1 << 31))  # the source knows its bounds
    flag("encoder_only", encoder_only)
    if trust is None:
        return
    if not isinstance(trust, Trust):
        raise InputTypeError(f"trust must be a Trust, not {type(trust).__name__}")
    flag("trust.remote_code", trust.remote_code)
    flag("trust.pickle", trust.pickle)


def instance(name: str, value: object, kind: type[Any]) -> None:
    """Raise InputTypeError unless a value is of a class."""
    if not isinstance(value, kind):
        raise InputTypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")


def callback(name: str, value: object) -> None:
    """Raise InputTypeError unless a value is None or a function."""
    if value is not None and not callable(value):
        raise InputTypeError(f"{name} must be a function, not {type(value).__name__}")


def written(name: str, value: object) -> str | None:
    """A text that can be written to a file, or None.

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
    """Prompts by name; None is none.

    Raises:
        InputTypeError: they are not texts by texts.
    """
    if prompts is None:
        return {}
    if not isinstance(prompts, Mapping):
        raise InputTypeError(f"prompts must be texts by name, not {type(prompts).__name__}")
    for name, prompt in prompts.items():
        if not isinstance(name, str) or not isinstance(prompt, str):
            raise InputTypeError(f"prompts must be texts by name; {name!r} is {prompt!r:.40}")
        written("a prompt's name", name)
        written("a prompt", prompt)
    return dict(prompts)


def several(name: str, values: Any, kind: type[Any]) -> Sequence[Any]:
    """A sequence of objects of one class.

    Raises:
        InputTypeError: it is not one, or holds others.
    """
    items = as_list(name, values)
    for value in items:
        instance(f"each of {name}", value, kind)
    return items
