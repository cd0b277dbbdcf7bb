"""What `flowvec serve` opens."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from flowvec import Encoder

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server.command import demo_collection


def test_the_demo_has_the_passages_with_fields(mini: Encoder) -> None:
    with ExitStack() as stack:
        demo = demo_collection(mini, stack)
        assert len(demo) == 320
        (hit,) = demo.search("a mouse for research", k=1)
        assert hit.metadata is not None
        assert hit.metadata["title"] == "Genetically modified mouse"
        assert demo.count({"words": {">": 20}}) > 100
        folder = Path(demo.info().path)
    assert not folder.exists()
