"""Files for browsers, under a strict content security policy."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass

from flowvec.server.answer import Answer, Header
from flowvec.server.request import Request

__all__ = ["POLICY", "StaticFile", "read_file", "sent"]

# Pages load nothing from elsewhere and run no inline script. Charts set styles by script, which a
# policy does not concern; `data:` is for an icon.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_KINDS = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "txt": b"text/plain; charset=utf-8",
}
_HEADERS: list[Header] = [
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
]


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file's bytes, plain and compressed, its content type and entity tag."""

    plain: bytes
    compressed: bytes
    kind: bytes
    tag: bytes


def read_file(content: bytes, name: str) -> StaticFile:
    """A file of a name, whose ending says its type."""
    kind = _KINDS[name.rpartition(".")[2]]
    tag = b'"' + hashlib.sha256(content).hexdigest()[:20].encode() + b'"'
    return StaticFile(content, gzip.compress(content, 9, mtime=0), kind, tag)


def sent(file: StaticFile, request: Request) -> Answer:
    """A file as an answer: compressed if the client takes that, and empty if it has it."""
    headers = [*_HEADERS, (b"etag", file.tag), (b"vary", b"accept, accept-encoding")]
    if request.header(b"if-none-match") == file.tag.decode():
        return Answer(b"", 304, file.kind, headers)
    if "gzip" in (request.header(b"accept-encoding") or ""):
        return Answer(file.compressed, 200, file.kind, [*headers, (b"content-encoding", b"gzip")])
    return Answer(file.plain, 200, file.kind, headers)
