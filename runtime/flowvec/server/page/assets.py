"""Files of the page, under a strict content security policy."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template

from flowvec.server.answer import Answer, Header
from flowvec.server.answer_types import Status
from flowvec.server.described import described
from flowvec.server.health import health
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.version import __version__

__all__ = ["FOLDER", "POLICY", "file", "home"]

FOLDER = resources.files("flowvec.server.page") / "static"
# The page loads nothing from elsewhere and runs no inline script. Charts set styles by script,
# which a policy does not concern; `data:` is for an icon.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_KINDS = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".txt": b"text/plain; charset=utf-8",
}
_HEADERS: list[Header] = [
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
]


@dataclass(frozen=True, slots=True)
class _File:
    """A file's bytes, plain and compressed, its content type and entity tag."""

    plain: bytes
    compressed: bytes
    kind: bytes
    tag: bytes


@described(Status)
async def home(served: Served, request: Request) -> Answer:
    """The page for a browser; for probes of the base URL, what `/health` says."""
    if not (served.settings.page and "text/html" in (request.header(b"accept") or "")):
        return await health(served, request)
    settings = served.settings
    made = _page(needs_key=settings.keys is not None, may_write=settings.page_may_write)
    return _sent(made, request)


async def file(served: Served, request: Request) -> Answer:
    """A file of the page.

    Raises:
        Refusal: there is none of that name.
    """
    name = request.parameters["file"]
    found = _files().get(name)
    if found is None:
        raise Refusal("not_found", f"the page has no file {name!r:.100}")
    return _sent(found, request)


def _sent(found: _File, request: Request) -> Answer:
    headers = [*_HEADERS, (b"etag", found.tag), (b"vary", b"accept, accept-encoding")]
    if request.header(b"if-none-match") == found.tag.decode():
        return Answer(b"", 304, found.kind, headers)
    if "gzip" in (request.header(b"accept-encoding") or ""):
        return Answer(found.compressed, 200, found.kind, [*headers, (b"content-encoding", b"gzip")])
    return Answer(found.plain, 200, found.kind, headers)


@cache
def _files() -> dict[str, _File]:
    """All files but the page itself, by path."""
    folders = [("", FOLDER), ("vendor/", FOLDER / "vendor")]
    return {
        prefix + each.name: _read(each.read_bytes(), each.name)
        for prefix, folder in folders
        for each in folder.iterdir()
        if each.is_file() and each.name != "index.html"
    }


@cache
def _page(*, needs_key: bool, may_write: bool) -> _File:
    """The page itself, which knows of the server what its script needs at once."""
    text = (FOLDER / "index.html").read_text(encoding="utf-8")
    filled = Template(text).substitute(
        version=__version__, needs_key=int(needs_key), may_write=int(may_write)
    )
    return _read(filled.encode(), "index.html")


def _read(content: bytes, name: str) -> _File:
    kind = _KINDS["." + name.rpartition(".")[2]]
    tag = b'"' + hashlib.sha256(content).hexdigest()[:20].encode() + b'"'
    return _File(content, gzip.compress(content, 9, mtime=0), kind, tag)
