"""Bytes that no client sends: broken requests, bodies and numbers."""

from __future__ import annotations

import json
import random
from typing import Any

__all__ = ["odd_body", "odd_request"]

NUMBERS = [
    "0", "-0", "-1", "1e999", "-1e999", "1e-999", "NaN", "Infinity", "-Infinity", "00", "01", "1.",
    ".5", "+1", "0x10", "9" * 400, "-" + "9" * 400, "18446744073709551616", "2147483648",
    "-9223372036854775809", "9223372036854775807", "1e308", "3.4028236e38", "1e39", "true", "null",
]  # fmt: skip
STRINGS = [
    '""', '"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"\\uffff"', '"\\x"',
    '"' + "a" * 5000 + '"',
    '"a cat"', '"\\ud83d\\ude00"', '"\t"', '"\r\n"', '"\u202e\u0301\u0301"', "'a'", '"a', '"mini"',
    '"notes"', '"$id"', '"base64"', '"AAAA"', '"*"', '"%s%n"', '"../../etc/passwd"',
]  # fmt: skip
HEADERS = [
    b"content-length: -1", b"content-length: 5\r\ncontent-length: 6", b"content-length: 1e3",
    b"content-length: 99999999999999999999999999", b"content-length: 0x5", b"content-length: ",
    b"transfer-encoding: chunked\r\ncontent-length: 5", b"transfer-encoding: gzip, chunked",
    b"transfer-encoding: identity", b"transfer-encoding: chunked, chunked", b"expect: 100-continue",
    b"upgrade: websocket\r\nconnection: upgrade", b"upgrade: h2c\r\nconnection: upgrade",
    b"connection: close", b"content-encoding: gzip", b"content-type: text/plain",
    b"content-type: application/json; charset=utf-16", b"authorization: Bearer \xff\xfe",
    b"authorization: ", b"x-api-key: \x00", b"x-request-id: \xe9\xe9",
    b"x-request-id: " + b"i" * 999,
    b"x-request-timeout-ms: 1e999", b"x-request-timeout-ms: nan", b"x-request-timeout-ms: -5",
    b"x-request-timeout-ms: 1_000", b"x-stainless-read-timeout: \xff", b"origin: null",
    b"origin: http://evil.example", b"host: evil.example", b"host: [::1", b"host: ", b" folded: x",
    b"no colon", b": no name", b"x" * 3000 + b": y", b"cookie: " + b"c" * 9000, b"range: bytes=0-1",
    b"x: a\rb", b"x: \x01", b"te: trailers", b"accept: text/html", b"accept-encoding: \xff",
]  # fmt: skip

CHUNK_ENDS = [
    b"0\r\nx: y\r\n\r\n", b"-1\r\n\r\n", b"zz\r\n\r\n", b"", b"ffffffffffffffffff\r\n",
    b"5;ext=\xff\r\nabcde\r\n0\r\n\r\n", b"2\r\nabc\r\n0\r\n\r\n", b"\r\n", b"0\n\n",
]  # fmt: skip


def _value(draw: random.Random, depth: int = 0) -> str:
    kind = draw.random()
    if kind < 0.35 or depth > 3:
        return draw.choice(NUMBERS)
    if kind < 0.75:
        return draw.choice(STRINGS)
    items = [_value(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    if kind < 0.88:
        return f"[{','.join(items)}]"
    return "{" + ",".join(f"{draw.choice(STRINGS)}:{item}" for item in items) + "}"


def odd_body(draw: random.Random, valid: dict[str, Any]) -> bytes:
    """A body that resembles a valid one, or nothing."""
    kind = draw.random()
    if kind < 0.55:  # a few fields with another value, as text, since not all of it is JSON
        fields = {json.dumps(name): json.dumps(value) for name, value in valid.items()}
        for _ in range(draw.randint(1, 2)):
            name = draw.choice([*fields, draw.choice(STRINGS)])
            fields[name] = _value(draw)
        text = "{" + ",".join(f"{name}:{value}" for name, value in fields.items()) + "}"
        return text.encode("utf-8", "surrogatepass")
    body = json.dumps(valid).encode()
    if kind < 0.75:  # bytes that are changed, lost or doubled
        at = draw.randrange(len(body))
        piece = draw.choice([b"", draw.randbytes(draw.randint(1, 3)), body[at : at + 9] * 2])
        return body[:at] + piece + body[at + draw.randint(0, 4) :]
    if kind < 0.85:
        depth = draw.choice([10, 500, 1100, 20_000])
        opening = draw.choice([b"[", b'{"a":', b'{"filter":{"not":'])
        return opening * depth
    if kind < 0.9:
        return b'{"inputs":' + b"[" * 900 + b"]" * 900 + b"}"
    return draw.randbytes(draw.randint(0, 300))


def odd_request(draw: random.Random, method: str, path: str, valid: dict[str, Any]) -> bytes:
    """The bytes of a request, of which the body, the headers or all is odd."""
    kind = draw.random()
    if kind < 0.05:
        return draw.randbytes(draw.randint(1, 400)) + b"\r\n\r\n"
    body = odd_body(draw, valid) if draw.random() < 0.8 else json.dumps(valid).encode()
    lines = [f"{method} {path} HTTP/1.1".encode(), b"host: 127.0.0.1"]
    if kind > 0.6:
        lines += draw.sample(HEADERS, draw.randint(1, 2))
        lines[0] = _odd_line(draw, method, path) if draw.random() < 0.4 else lines[0]
    is_chunked = draw.random() < 0.25
    if is_chunked:
        lines.append(b"transfer-encoding: chunked")
        body = _chunks(draw, body)
    else:
        wrong = draw.choice([-1, 1, 50]) if draw.random() < 0.05 else 0
        lines.append(b"content-length: %d" % max(0, len(body) + wrong))
    return b"\r\n".join([*lines, b"", b""]) + body


def _odd_line(draw: random.Random, method: str, path: str) -> bytes:
    other = draw.choice(["PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", ""])
    lines = [
        f"{other} {path} HTTP/1.1",
        f"{method} {path}?{'a=%ff&' * draw.randint(1, 300)} HTTP/1.1",
        f"{method} {path}%00%2e%2e/%c3 HTTP/1.1",
        f"{method} //{path}/../.. HTTP/1.1",
        f"{method} http://other.example{path} HTTP/1.1",
        f"{method} {path}#x HTTP/1.1",
        f"{method} {path} HTTP/9.9",
        f"{method} {path} HTTP/1.0",
        f"{method} {path}",
        f"{method}  {path}  HTTP/1.1",
        f"{method} {path}\x7f\x01\xff HTTP/1.1",
        "PRI * HTTP/2.0\r\n\r\nSM",
    ]
    return draw.choice(lines).encode("latin-1")


def _chunks(draw: random.Random, body: bytes) -> bytes:
    size = draw.choice([1, 7, 1000])
    end = draw.choice(CHUNK_ENDS) if draw.random() < 0.3 else b"0\r\n\r\n"
    return b"".join([*(b"%x\r\n%b\r\n" % (len(p), p) for p in _cut(body[:2000], size)), end])


def _cut(body: bytes, size: int) -> list[bytes]:
    return [body[i : i + size] for i in range(0, len(body), size)]
