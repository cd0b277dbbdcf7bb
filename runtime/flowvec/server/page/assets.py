"""Files of the page, under a strict content security policy."""

from __future__ import annotations

from functools import cache
from importlib import resources
from string import Template

from flowvec.server.answer import Answer
from flowvec.server.answer_types import Status
from flowvec.server.described import described
from flowvec.server.health import health
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.static_files import POLICY, StaticFile, read_file, sent
from flowvec.version import __version__

__all__ = ["FOLDER", "POLICY", "file", "home"]

FOLDER = resources.files("flowvec.server.page") / "static"


@described(Status)
async def home(served: Served, request: Request) -> Answer:
    """The page for a browser; for probes of the base URL, what `/health` says."""
    if not (served.settings.page and "text/html" in (request.header(b"accept") or "")):
        return await health(served, request)
    settings = served.settings
    made = _page(needs_key=settings.keys is not None, may_write=settings.page_may_write)
    return sent(made, request)


async def file(served: Served, request: Request) -> Answer:
    """A file of the page.

    Raises:
        Refusal: there is none of that name.
    """
    name = request.parameters["file"]
    found = _files().get(name)
    if found is None:
        raise Refusal("not_found", f"the page has no file {name!r:.100}")
    return sent(found, request)


@cache
def _files() -> dict[str, StaticFile]:
    """All files but the page itself, by path."""
    folders = [("", FOLDER), ("vendor/", FOLDER / "vendor")]
    return {
        prefix + each.name: read_file(each.read_bytes(), each.name)
        for prefix, folder in folders
        for each in folder.iterdir()
        if each.is_file() and each.name != "index.html"
    }


@cache
def _page(*, needs_key: bool, may_write: bool) -> StaticFile:
    """The page itself, which knows of the server what its script needs at once."""
    text = (FOLDER / "index.html").read_text(encoding="utf-8")
    filled = Template(text).substitute(
        version=__version__, needs_key=int(needs_key), may_write=int(may_write)
    )
    return read_file(filled.encode(), "index.html")
