"""The routes by which a load test asks for vectors: what is sent, and what a right answer is."""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.compat import override
from flowvec_bench.workers.http_client import Call

__all__ = ["ROUTES", "Route", "call_of"]

Floats = npt.NDArray[np.float32]

# Bytes of an answer besides its numbers: a constant part, and one for each vector.
_MOST_FRAME, _MOST_ITEM = 4096, 256
# Bytes of a number in decimal digits, with its comma.
_LEAST_DIGITS, _MOST_DIGITS = 2, 28


class Route(ABC):
    """A route."""

    path: str

    @abstractmethod
    def body(self, texts: Sequence[str], model: str) -> dict[str, Any]:
        """The body that asks for the vectors of texts; `model` may be empty."""

    @abstractmethod
    def vectors(self, body: bytes) -> Floats:
        """The vectors of an answer, (texts, dim)."""

    def sizes(self, texts: int, dim: int) -> tuple[int, int]:
        """The smallest and the largest body of a right answer, in bytes."""
        numbers = texts * dim
        return _LEAST_DIGITS * numbers, _MOST_DIGITS * numbers + _MOST_ITEM * texts + _MOST_FRAME


class _OpenAi(Route):
    """OpenAI's, with vectors in base64, as its client asks for them."""

    path = "/v1/embeddings"

    @override
    def body(self, texts: Sequence[str], model: str) -> dict[str, Any]:
        named = {"model": model} if model else {}
        return {**named, "input": list(texts), "encoding_format": "base64"}

    @override
    def vectors(self, body: bytes) -> Floats:
        items = sorted(json.loads(body)["data"], key=lambda item: item["index"])
        return np.array([_row(item["embedding"]) for item in items], np.float32)

    @override
    def sizes(self, texts: int, dim: int) -> tuple[int, int]:
        digits = 4 * -(-4 * dim // 3)
        # A server that does not know base64 sends decimal digits.
        return min(digits, 2 * dim) * texts, super().sizes(texts, dim)[1]


def _row(embedding: str | list[float]) -> Any:
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding), "<f4")
    return embedding


class _Tei(Route):
    """Text Embeddings Inference's: a list of lists of numbers."""

    path = "/embed"

    @override
    def body(self, texts: Sequence[str], model: str) -> dict[str, Any]:
        return {"inputs": list(texts)}

    @override
    def vectors(self, body: bytes) -> Floats:
        return np.array(json.loads(body), np.float32)


ROUTES: Mapping[str, Route] = {"openai": _OpenAi(), "tei": _Tei()}


def call_of(target: Mapping[str, Any], texts: Sequence[str], dim: int) -> Call:
    """The call that asks a server for the vectors of texts.

    Args:
        target: `host`, `port`, `route`, `path`, `model` and `headers`.
        texts: at least one.
        dim: length of a vector; 0 if it is not known, for a call whose answer may have any size.
    """
    route = ROUTES[target["route"]]
    body = json.dumps(route.body(texts, target["model"])).encode()
    headers = {
        "Host": f"{target['host']}:{target['port']}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **target["headers"],
    }
    lines = [f"POST {target['path']} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
    content = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
    return Call(content, *(route.sizes(len(texts), dim) if dim else (0, 1 << 40)))
