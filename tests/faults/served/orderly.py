"""Requests of every route without a fault, and what must come back."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import orjson

from tests.faults.served.callers import Caller, Kind
from tests.faults.served.world import NEAR

__all__ = ["ORDERLY"]

# Rows of a caller: its own ids, from its number times this.
IDS = 1000
_ROWS = 40


# --- vectors --------------------------------------------------------------------------------------


async def openai(caller: Caller) -> None:
    which, encoding = caller.some(), caller.draw.choice(["float", "base64"])
    dim = caller.draw.choice([None, None, 64])
    body: dict[str, Any] = {"model": "mini", "input": [caller.texts[i] for i in which]}
    body |= {"encoding_format": encoding} | ({"dimensions": dim} if dim else {})
    path = caller.draw.choice(["/v1/embeddings", "/embeddings"])
    if reply := await caller.ask(path, body):
        data = reply.json()["data"]
        caller.check([item["index"] for item in data] == list(range(len(which))), "index")
        vectors = [item["embedding"] for item in data]
        if encoding == "base64":
            vectors = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in vectors]
        caller.check_vectors(which, vectors, dim)


async def stream(caller: Caller) -> None:
    """Lines of texts, whose vectors come in order while more texts come."""
    which = caller.some() * 8
    lines = b"".join(orjson.dumps({"id": i, "text": caller.texts[i]}) + b"\n" for i in which)
    if reply := await caller.ask("/v1/embed-stream", lines):
        rows = [orjson.loads(line) for line in reply.body.splitlines()]
        caller.check([row.get("id") for row in rows] == which, ("lines of a stream", rows[-1:]))
        caller.check_vectors(which, [row.get("embedding", []) for row in rows])


async def tei(caller: Caller) -> None:
    which = caller.some()
    path = caller.draw.choice(["/embed", "/", "/invocations"])
    if reply := await caller.ask(path, {"inputs": [caller.texts[i] for i in which]}):
        caller.check_vectors(which, reply.json())


async def many(caller: Caller) -> None:
    """More texts than a batch holds."""
    which = caller.some() * 60
    if reply := await caller.ask("/embed", {"inputs": [caller.texts[i] for i in which]}):
        caller.check_vectors(which, reply.json())


async def similarity(caller: Caller) -> None:
    which = caller.some()
    texts = {"source_sentence": caller.texts[0], "sentences": [caller.texts[i] for i in which]}
    if reply := await caller.ask("/similarity", {"inputs": texts}):
        first, others = (caller.world.vectors_of(caller.number, of) for of in ([0], which))
        caller.check(np.allclose(reply.json(), others @ first[0], atol=NEAR), "similarity")


async def tokens(caller: Caller) -> None:
    ids = caller.world.tokens[caller.number]
    if reply := await caller.ask("/tokenize", {"inputs": caller.texts[0]}):
        caller.check([piece["id"] for piece in reply.json()[0]] == ids, "tokens")
    if reply := await caller.ask("/decode", {"ids": ids}):
        caller.check(reply.json() == [caller.texts[0]], ("decoded", reply.json()))


async def cohere(caller: Caller) -> None:
    which = caller.some()
    body = {"model": "mini", "texts": [caller.texts[i] for i in which], "input_type": "clustering"}
    types = ["float", caller.draw.choice(["int8", "uint8", "binary", "ubinary", "base64"])]
    if reply := await caller.ask("/v2/embed", body | {"embedding_types": types}):
        given = reply.json()["embeddings"]
        caller.check(given.keys() == set(types), "types")
        caller.check_vectors(which, given["float"])


async def ollama(caller: Caller) -> None:
    which = caller.some()
    body = {"model": "mini:latest", "input": [caller.texts[i] for i in which]}
    if reply := await caller.ask("/api/embed", body):
        caller.check_vectors(which, reply.json()["embeddings"])
    body = {"model": "mini", "prompt": caller.texts[which[0]]}
    if reply := await caller.ask("/api/embeddings", body):
        caller.check_vectors(which[:1], [reply.json()["embedding"]])


# --- scores ---------------------------------------------------------------------------------------


async def rerank(caller: Caller) -> None:
    which = sorted(set(caller.some()))
    texts = [caller.texts[i] for i in which]
    path, field = caller.draw.choice(
        [("/rerank", "texts"), ("/rerank", "documents"), ("/v1/rerank", "documents"),
         ("/v2/rerank", "documents")]
    )  # fmt: skip
    body = {"query": caller.texts[0], field: texts, "return_text": True, "return_documents": True}
    if reply := await caller.ask(path, body):
        answer = reply.json()
        rows = answer if field == "texts" else answer["results"]
        scores = {row["index"]: row.get("score", row.get("relevance_score")) for row in rows}
        said = {row["index"]: row.get("text") or row["document"]["text"] for row in rows}
        caller.check(said == dict(enumerate(texts)), "documents of others")
        expected = caller.world.scores[caller.number, which]
        given = [scores.get(i, np.nan) for i in range(len(which))]
        caller.check(np.allclose(given, expected, atol=NEAR), ("scores", given, expected))


async def predict(caller: Caller) -> None:
    which = caller.some()
    pairs = [[caller.texts[0], caller.texts[i]] for i in which]
    if reply := await caller.ask("/predict", {"inputs": pairs}):
        scores = [labels[0]["score"] for labels in reply.json()]
        expected = caller.world.scores[caller.number, which]
        caller.check(np.allclose(scores, expected, atol=NEAR), ("labels", scores, expected))


# --- a collection ---------------------------------------------------------------------------------


async def add(caller: Caller) -> None:
    """Rows of texts, or of vectors, some of which replace others."""
    which = caller.some()
    rows: list[dict[str, Any]] = []
    is_vectors = caller.draw.random() < 0.5
    for i, row in zip(which, caller.draw.sample(range(_ROWS), len(which)), strict=True):
        new = {"id": caller.number * IDS + row, "text": caller.texts[i]}
        vector = caller.world.vectors[caller.number, i].tolist()
        rows.append(
            new
            | {"metadata": {"caller": caller.number}}
            | ({"vector": vector} if is_vectors else {})
        )
    if reply := await caller.ask("/v1/collections/notes/rows", {"rows": rows}):
        caller.check(reply.json()["rows"] == len(rows), ("added", reply.json()))
        caller.rows |= {row["id"]: i for row, i in zip(rows, which, strict=True)}


async def delete(caller: Caller) -> None:
    ids = caller.draw.sample(sorted(caller.rows), min(2, len(caller.rows)))
    if reply := await caller.ask("/v1/collections/notes/rows/delete", {"ids": ids}):
        caller.check(reply.json()["deleted"] == len(ids), ("deleted", ids, reply.json()))
        for each in ids:
            del caller.rows[each]


async def search(caller: Caller) -> None:
    """The caller's own rows, best first, each with its true score."""
    (which, *_) = caller.some()
    body = {"query": caller.texts[which], "k": 5, "filter": {"caller": caller.number}}
    if reply := await caller.ask("/v1/collections/notes/search", body):
        hits = reply.json()["hits"]
        query = caller.world.vectors[caller.number, which]
        scores = caller.world.vectors[caller.number] @ query
        owned = {each: float(scores[i]) for each, i in caller.rows.items()}
        best = sorted(owned.values(), reverse=True)[:5]
        caller.check(all(hit["id"] in owned for hit in hits), ("rows of others", hits))
        given = [hit["score"] for hit in hits]
        caller.check(
            len(given) == len(best) and np.allclose(given, best, atol=NEAR), ("hits", given, best)
        )


async def rows(caller: Caller) -> None:
    """Exactly the rows that were acknowledged, with their texts and vectors."""
    notes = "/v1/collections/notes/rows"
    mine = {"caller": caller.number}
    if reply := await caller.ask(f"{notes}/count", {"filter": mine}):
        caller.check(reply.json()["count"] == len(caller.rows), ("count", reply.json()))
    body = {"filter": mine, "limit": 100, "with_vectors": True}
    if reply := await caller.ask(f"{notes}/list", body):
        listed = {row["id"]: row for row in reply.json()["rows"]}
        texts = {each: row["text"] for each, row in listed.items()}
        caller.check(texts == {each: caller.texts[i] for each, i in caller.rows.items()}, "rows")
        which = [caller.rows[each] for each in listed if each in caller.rows]
        if which and len(which) == len(listed):
            caller.check_vectors(which, [row["vector"] for row in listed.values()])
    ids = [*caller.rows, -caller.number - 1]
    if reply := await caller.ask(f"{notes}/get", {"ids": ids}):
        got = [row and row["text"] for row in reply.json()["rows"]]
        caller.check(got == [*(caller.texts[i] for i in caller.rows.values()), None], "get")
    changes = {"ids": list(caller.rows), "changes": {"seen": caller.draw.random()}}
    if reply := await caller.ask(f"{notes}/update", changes):
        caller.check(reply.json()["updated"] == len(caller.rows), ("update", reply.json()))


async def about(caller: Caller) -> None:
    """Routes that say something of the server."""
    path = caller.draw.choice(
        ["/", "/ready", "/health", "/ping", "/info", "/metrics", "/v1/models", "/v1/models/mini",
         "/v1/collections", "/v1/collections/notes", "/v1/collections/notes/fields", "/page/app.js",
         "/api/version", "/openapi.json"]
    )  # fmt: skip
    await caller.ask(path)


async def hurried(caller: Caller) -> None:
    """A deadline that may pass: the vectors, or 504."""
    which = caller.some() * 40
    headers = {"x-request-timeout-ms": str(caller.draw.choice([1, 3, 10, 100]))}
    if reply := await caller.ask("/embed", {"inputs": [caller.texts[i] for i in which]}, headers):
        caller.check_vectors(which, reply.json())


# How often of each kind, and what it does.
ORDERLY: dict[str, tuple[int, Kind]] = {
    "openai": (20, openai),
    "stream": (5, stream),
    "tei": (20, tei),
    "many": (2, many),
    "similarity": (5, similarity),
    "tokens": (5, tokens),
    "cohere": (8, cohere),
    "ollama": (8, ollama),
    "rerank": (4, rerank),
    "predict": (2, predict),
    "add": (6, add),
    "delete": (3, delete),
    "search": (8, search),
    "rows": (2, rows),
    "about": (5, about),
    "hurried": (4, hurried),
}
