"""Files of the viewer."""

from __future__ import annotations

from functools import cache
from importlib import resources

from flowvec.server.answer import Answer
from flowvec.server.described import described
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.static_files import StaticFile, read_file, sent

__all__ = ["FOLDER", "file", "page"]

FOLDER = resources.files("flowvec.server.viewer") / "static"


@described(str, kind="text/html")
async def page(served: Served, request: Request) -> Answer:
    """This document for a browser: routes and their fields, which can be tried."""
    return sent(_files()["viewer.html"], request)


async def file(served: Served, request: Request) -> Answer:
    """A file of the viewer.

    Raises:
        Refusal: there is none of that name.
    """
    name = request.parameters["file"]
    if name not in _files():
        raise Refusal("not_found", f"the viewer has no file {name!r:.100}")
    return sent(_files()[name], request)


@cache
def _files() -> dict[str, StaticFile]:
    """All files, by name."""
    return {each.name: read_file(each.read_bytes(), each.name) for each in FOLDER.iterdir()}
