"""A map as one HTML file, which opens without a server and without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.collection.collection import Collection
from flowvec.errors import InputValueError
from flowvec.projection.collection_map import MapFrame
from flowvec.projection.colours import PointColours, point_colours

__all__ = ["check_fields", "map_page"]

# Files of the page's folder that make up the script, in order.
_SCRIPTS = ("colours.js", "cells.js", "drawing.js", "scatter.js", "walk.js", "map_file.js")
_READ = 4096
_TEXT_CHARACTERS = 300

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="content-security-policy" content="default-src 'none'; \
script-src 'sha256-{script_hash}'; style-src 'sha256-{style_hash}'; img-src data:; \
base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="map"></div>
<script type="application/json" id="data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def map_page(
    collection: Collection,
    frame: MapFrame,
    *,
    title: str,
    fields: Sequence[str] = (),
    has_texts: bool = False,
) -> str:
    """The HTML of a map: positions, ids, and what else was asked for.

    Args:
        collection: open.
        frame: the last one of `map_frames`.
        title: is shown above the map.
        fields: of the metadata, to colour points by.
        has_texts: include the beginnings of texts. Without it, the file holds none.

    Raises:
        InputValueError: a field's name cannot be used, or no row on the map has a value in it.
    """
    data: dict[str, Any] = {
        "title": title,
        "total": frame.total,
        "positions": _base64(frame.positions.astype("<f4")),
        "fields": {},
    }
    with collection._access.reading():
        for name in fields:
            found = _colours(collection, frame.labels, name)
            data["fields"][name] = {**found.described(), "codes": _base64(found.codes)}
        data["ids"], texts = _rows(collection, frame.labels, has_texts)
    if has_texts:
        data["texts"] = texts
    style, script = _style(), _script()
    return _PAGE.format(
        title=_escaped(title),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=_inert(data),
    )


def check_fields(collection: Collection, frame: MapFrame, fields: Sequence[str]) -> None:
    """Check that points can be coloured by fields, before a long layout.

    Raises:
        InputValueError: as of `map_page`.
    """
    with collection._access.reading():
        for name in fields:
            _colours(collection, frame.labels, name)


def _colours(collection: Collection, labels: npt.NDArray[np.int64], field: str) -> PointColours:
    values = collection._store.field_values(field, labels)
    if len(labels) and not values:
        raise InputValueError(
            f"no row on the map has a text, number or flag in the field {field!r}"
        )
    return point_colours(values, labels)


def _rows(
    collection: Collection, labels: npt.NDArray[np.int64], has_texts: bool
) -> tuple[list[int | str | None], list[str | None]]:
    """Ids and beginnings of texts, None for rows that are gone; inside `reading`."""
    ids: list[int | str | None] = []
    texts: list[str | None] = []
    for start in range(0, len(labels), _READ):
        part = labels[start : start + _READ].tolist()
        if not has_texts:
            id_by_label = collection._store.ids_of(part)
            ids += [id_by_label.get(label) for label in part]
            continue
        items = collection._store.read(part)
        for label in part:
            item = items.get(label)
            ids.append(None if item is None else item.id)
            texts.append(None if item is None else (item.text or "")[:_TEXT_CHARACTERS])
    return ids, texts


def _base64(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _inert(data: Any) -> str:
    """JSON that ends no script, whatever its texts hold."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _read(name: str) -> str:
    # By its path: importing the server would need what [serve] installs.
    return (resources.files("flowvec") / "server/page/static" / name).read_text(encoding="utf-8")


def _style() -> str:
    return _read("map_file.css")


def _script() -> str:
    """The modules as one, without what they import from and export to each other."""
    joined = "\n".join(map(_read, _SCRIPTS))
    return re.sub(r"^import .*$|^export (?=const|function|class)", "", joined, flags=re.MULTILINE)
