"""Splits the long texts of a bulk job into chunks, which become rows of a collection.

The chunk n of the row `a` has the id `a#n`, from 0, and the fields `parent` (`a`), `start` and
`end` (characters in the whole text). The number 1 and the text "1" are two ids, so ids that are
texts and look like numbers, or begin with a quotation mark, are quoted: `"1"#0`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from flowvec.collection.collection import Collection
from flowvec.collection.store.rows import Id
from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputValueError
from flowvec.texts.window import Fields, Part, Window, of_rows

__all__ = ["PART_FIELDS", "Splitting", "owner_of", "prefix_of", "stale_parts"]

PART_FIELDS = ("parent", "start", "end")
_PART_ID = re.compile(r"(.*#)(?:0|[1-9][0-9]*)", re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, slots=True)
class Splitting:
    """How texts are split; see `Encoder.split_texts`.

    Attributes:
        max_tokens: most tokens of a chunk.
        overlap: most tokens that a chunk repeats of the one before.
    """

    max_tokens: int
    overlap: int

    @classmethod
    def checked(cls, encoder: Encoder, max_tokens: int, overlap: int, fields: Fields) -> Splitting:
        """Check a caller's options.

        Raises:
            InputTypeError, InputValueError: one is not valid, or a kept field has the name of one
                that chunks have.
        """
        encoder.split_texts((), max_tokens=max_tokens, overlap=overlap)
        for name in PART_FIELDS:
            if name in fields.beside_id:
                raise InputValueError(f"the field {name!r} cannot be kept: chunks have one")
        return cls(max_tokens, overlap)

    def split(self, encoder: Encoder, window: Window, fields: Fields) -> None:
        """Replace the rows of a window by their chunks. A text of white space is one chunk."""
        keys, texts = window.ids(fields), window.texts
        places: list[int] = []
        parts: list[Part] = []
        chunks = encoder.split_texts(texts, max_tokens=self.max_tokens, overlap=self.overlap)
        spans: list[list[tuple[int, int]]] = [[] for _ in texts]
        for chunk in chunks:
            spans[chunk.parent].append((chunk.start, chunk.end))
        for place, (key, text) in enumerate(zip(keys, texts, strict=True)):
            prefix = prefix_of(key)
            for number, (start, end) in enumerate(spans[place] or [(0, len(text))]):
                places.append(place)
                parts.append(Part(f"{prefix}{number}", key, start, end))
        window.texts = [
            texts[place][part.start : part.end] for place, part in zip(places, parts, strict=True)
        ]
        window.numbers = [window.numbers[place] for place in places]
        window.values = {name: of_rows(values, places) for name, values in window.values.items()}
        window.parts = parts


def stale_parts(collection: Collection, window: Window) -> list[Id]:
    """Ids of chunks in a collection that the texts of a window, which may be shorter, have not."""
    parts = window.parts or []
    current = {part.id for part in parts}
    stale: list[Id] = []
    for prefix in dict.fromkeys(prefix_of(part.parent) for part in parts):
        for key in collection.ids({"$id": {"starts with": prefix}}):
            if key not in current and owner_of(key) == prefix:
                stale.append(key)
    return stale


def prefix_of(key: Id) -> str:
    """How the ids of a row's chunks begin."""
    if isinstance(key, str) and (_NUMBER.fullmatch(key) or key.startswith('"')):
        key = json.dumps(key, ensure_ascii=False)
    return f"{key}#"


def owner_of(key: Id) -> Id:
    """What the chunks of one row share: `prefix_of` the row's id. Other ids share it with none."""
    match = _PART_ID.fullmatch(key) if isinstance(key, str) else None
    return key if match is None else match[1]
