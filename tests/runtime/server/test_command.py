"""What `flowvec serve` opens."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from flowvec import Encoder
from flowvec.errors import InputValueError

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server.command import ServeOptions, check_port, demo_collection, serve
from flowvec.server.settings import Settings


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


def options_with(host: str, port: int) -> ServeOptions:
    """Of a server whose model does not exist, so that loading it would be another error."""
    return ServeOptions(
        models=["./nowhere"], rerankers=[], collections=[], host=host, port=port, health_port=None,
        grace=1.0, ready_delay=0.0, key_file=None, allow_hosts=[], is_insecure=True,
        is_demo=False, engine={},
    )  # fmt: skip


def test_a_port_that_cannot_be_opened_is_an_error_before_models_are_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = f"^port {port} of 127.0.0.1 is in use: give another --port$"
        with pytest.raises(InputValueError, match=message):
            serve(options_with("127.0.0.1", port), Settings())
    with pytest.raises(OSError, match="assign"):
        serve(options_with("192.0.2.1", 0), Settings())


def test_a_free_port_is_not_an_error() -> None:
    for host in ("127.0.0.1", "localhost"):
        check_port(host, 0)
