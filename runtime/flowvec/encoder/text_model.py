"""What the models that read single texts share: their tokenizer, prompts, and checks of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast, get_args

from flowvec.arguments import choice
from flowvec.compat import override
from flowvec.encoder.loaded_model import LoadedModel
from flowvec.encoder.options import OnEmpty, document_prompt, query_prompt
from flowvec.errors import InputTypeError
from flowvec.sequences import as_list, python_values, refuse_lookalike
from flowvec.tokenizer.tokenizer import Tokenized, Tokenizer, check_texts

__all__ = ["TextModel", "check_iterable", "checked"]


class TextModel(LoadedModel):
    """A bundle loaded on an engine, whose items are single texts."""

    @override
    def _open_tokenizer(self) -> Tokenizer:
        manifest = self._bundle.manifest
        self._tokenizer = Tokenizer(
            self._bundle.tokenizer, manifest.max_length, manifest.max_characters
        )
        return self._tokenizer

    @property
    def query_prompt(self) -> str:
        """Name of the prompt that `encode_query` uses; "" if the bundle has none."""
        return query_prompt(self._bundle.manifest)

    @property
    def document_prompt(self) -> str:
        """Name of the prompt that `encode_document` uses; "" if the bundle has none."""
        return document_prompt(self._bundle.manifest)

    def tokenize(self, texts: str | Iterable[str]) -> Tokenized:
        """Token ids of each text, cut at max_length: the first step of `encode`."""
        items, _ = self.items(texts)
        return self._tokenizer(items)

    def items(
        self, texts: str | Iterable[str], on_empty: OnEmpty = "encode"
    ) -> tuple[list[str], bool]:
        """A call's texts as a checked list, and whether it was a single text.

        Raises:
            InputTypeError: an item is not a str.
            InputValueError: an item is empty, and `on_empty` is `error`.
        """
        refuse_empty = choice("on_empty", on_empty, get_args(OnEmpty)) == "error"
        single = isinstance(texts, str)
        items = [cast(str, texts)] if single else as_list("texts", check_iterable(texts))
        check_texts(items, refuse_empty=refuse_empty)
        return items, single


def check_iterable(texts: object) -> Iterable[Any]:
    """Refuse what is not an iterable of texts in order.

    Raises:
        InputTypeError: it is something else.
    """
    refuse_lookalike("texts", texts)
    if isinstance(texts, bytes | bytearray) or not isinstance(texts, Iterable):
        raise InputTypeError(
            f"texts must be a str or an iterable of str, not {type(texts).__name__}"
        )
    return texts


def checked(texts: Iterable[str], refuse_empty: bool) -> Iterator[str]:
    """Check each text of a stream as it is taken.

    Raises:
        InputTypeError, InputValueError: as `TextModel.items`.
    """
    for i, text in enumerate(python_values(texts)):
        if hasattr(text, "as_py"):  # a scalar of Arrow
            text = text.as_py()
        check_texts((text,), i, refuse_empty=refuse_empty)
        yield text
