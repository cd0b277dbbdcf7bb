"""Fields of a row: which are read, and which are kept."""

from __future__ import annotations

from dataclasses import replace

from flowvec.texts.window import Fields


def test_fields_beside_the_id_are_named_once() -> None:
    fields = Fields(id="key", keep=("key", "n", "n"))
    assert (fields.named, fields.beside_id) == (("key", "n"), ("n",))
    assert replace(fields, id=None).beside_id == ("key", "n")
