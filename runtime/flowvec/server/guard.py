"""Who may ask: API keys, and pages of other origins in a browser."""

from __future__ import annotations

from collections.abc import Sequence

from flowvec.server.keys import Keys
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request

__all__ = ["LOOPBACK", "PREFLIGHT", "Guard", "is_loopback"]

# Names under which a server on loopback is called.
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    return host in LOOPBACK or host.startswith("127.")


class Guard:
    """Checks a request before anything of its body is read."""

    def __init__(
        self, keys: Keys | None, hosts: Sequence[str] | None, origins: Sequence[str]
    ) -> None:
        """What is allowed; arguments are those of `Settings`."""
        self.keys = keys
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._origins = frozenset(origins)

    def check_origin(self, request: Request) -> None:
        """Refuse what a web page elsewhere makes a browser send.

        A page can point its own name at 127.0.0.1 (DNS rebinding), and its browser then sends that
        name as Host. And a page can send a form to any address, with its Origin.

        Raises:
            Refusal: Host or Origin is not allowed.
        """
        host = request.header(b"host")
        if self._hosts is not None and host is not None and _name_of(host) not in self._hosts:
            raise Refusal(
                "forbidden",
                "this server is not called by the name in Host: allow it with --allow-host",
            )
        origin = request.header(b"origin")
        if origin is None or origin in self._origins:
            return
        if origin.partition("://")[2].lower() != (host or "").lower():
            raise Refusal(
                "forbidden", "pages of this origin may not call: allow it with --allow-origin"
            )

    def check_key(self, request: Request) -> None:
        """Find the request's API key.

        Raises:
            Refusal: there is none, or it is unknown.
        """
        if self.keys is None:
            return
        token = _token_of(request)
        if token is None:
            raise Refusal("unauthorized", "an API key is needed: Authorization: Bearer KEY")
        key = self.keys.find(token)
        if key is None:
            raise Refusal("unauthorized", "the API key is unknown")
        request.key, request.is_admin = key.name, key.is_admin

    def cors_headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        """Headers that let a page of an allowed origin read the answer."""
        origin = request.header(b"origin") if self._origins else None
        if origin is None or origin not in self._origins:
            return []
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", b"x-request-id, retry-after, server-timing"),
            (b"vary", b"origin"),
        ]


PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
    (b"access-control-allow-headers", b"authorization, content-type, x-request-timeout-ms"),
    (b"access-control-max-age", b"3600"),
]


def _name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _token_of(request: Request) -> str | None:
    """The key as OpenAI's, Cohere's and TEI's clients send it, also without the word Bearer."""
    authorization = request.header(b"authorization")
    if authorization:
        scheme, _, rest = authorization.partition(" ")
        return rest.strip() if scheme.lower() == "bearer" else authorization.strip()
    return request.header(b"x-api-key") or request.header(b"api-key")
