"""Parses requests; one that offers an upgrade is parsed like any other."""

from __future__ import annotations

from typing import Protocol

import httptools

__all__ = ["ParsedRequest", "RequestParser"]


class ParsedRequest(Protocol):
    """What the parser calls, in this order, and the head that it has built.

    Attributes:
        url: the target of the request line.
        headers: names and values.
    """

    url: bytes
    headers: list[tuple[bytes, bytes]]

    def on_message_begin(self) -> None:
        """A request begins."""

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""

    def on_headers_complete(self) -> None:
        """The end of the head."""

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""

    def on_message_complete(self) -> None:
        """The end of the request."""


class RequestParser:
    """httptools' parser, for a server that takes no upgrade.

    A server ignores an offer that it does not take (RFC 9110, section 7.8). httptools ends such a
    request at its head, and takes its body for another protocol. So the head is parsed once more
    without the offer, by a parser that knows nothing of the first; the body and all that follows
    go there. While `should_upgrade` is true, a head is one that will come again.
    """

    def __init__(self, request: ParsedRequest) -> None:
        """Nothing has come yet."""
        self._request = request
        self._begin()

    def _begin(self) -> None:
        parser = httptools.HttpRequestParser(self._request)
        # As uvicorn does: bytes after a request that ends the connection are not its error.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._parser = parser
        self.get_http_version = parser.get_http_version
        self.get_method = parser.get_method
        self.should_keep_alive = parser.should_keep_alive
        self.should_upgrade = parser.should_upgrade

    def feed_data(self, data: bytes) -> None:
        """Parse what has come.

        Raises:
            HttpParserError: it is not HTTP, or asks for a tunnel.
        """
        rest = memoryview(data)
        while True:
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
                head = self._head_without_offer()
                self._begin()
                self._parser.feed_data(head)
            else:
                return

    def _head_without_offer(self) -> bytes:
        method, request = self.get_method(), self._request
        if method == b"CONNECT":
            raise httptools.HttpParserError("this server opens no tunnel")
        line = b"%b %b HTTP/%b\r\n" % (method, request.url, self.get_http_version().encode("ascii"))
        kept = [b"%b: %b\r\n" % header for header in request.headers if header[0] != b"upgrade"]
        return b"".join([line, *kept, b"\r\n"])
