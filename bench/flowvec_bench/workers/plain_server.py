"""A server as people write it: FastAPI and sentence-transformers, `POST /embed` like TEI's.

    python plain_server.py MODEL PORT MAX_LENGTH DTYPE BATCH_SIZE

A batch size of 0 leaves everything to the libraries: a `def` route on FastAPI's threads, and lists
of numbers that FastAPI encodes. Otherwise the model runs in `DTYPE`, warmed up, one call at a time
on all cores, and orjson encodes the vectors. It runs in an environment without flowvec.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["main"]


def main(model: str, port: str, max_length: str, dtype: str, batch_size: str) -> None:
    """Serve until the process is ended."""
    import torch
    import uvicorn
    from fastapi import Body, FastAPI
    from sentence_transformers import SentenceTransformer

    arguments: dict[str, Any] = {
        "device": "cpu",
        "model_kwargs": {"torch_dtype": getattr(torch, dtype)},
    }
    encoder: Any = SentenceTransformer(model, **arguments)
    if type(encoder[0]).__name__ != "StaticEmbedding":
        encoder.max_seq_length = int(max_length)
    app = FastAPI()

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    if batch_size == "0":
        inputs = Body(embed=True)

        @app.post("/embed")
        def embed(inputs: list[str] = inputs) -> list[list[float]]:
            rows: list[list[float]] = encoder.encode(inputs, show_progress_bar=False).tolist()
            return rows

    else:
        _tuned(app, encoder, int(batch_size))
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


def _tuned(app: Any, encoder: Any, batch_size: int) -> None:
    import asyncio

    import orjson
    from fastapi import Body, Response

    engine = ThreadPoolExecutor(1)  # calls that run at once would fight for the cores
    inputs = Body(embed=True)

    def encode(texts: list[str]) -> bytes:
        vectors = encoder.encode(
            texts, batch_size=batch_size, show_progress_bar=False, normalize_embeddings=True
        )
        return orjson.dumps(vectors, option=orjson.OPT_SERIALIZE_NUMPY)

    encode(["warm"] * batch_size)

    async def embed(inputs: list[str] = inputs) -> Any:
        loop = asyncio.get_running_loop()
        body = await loop.run_in_executor(engine, encode, inputs)
        return Response(body, media_type="application/json")

    app.post("/embed")(embed)


if __name__ == "__main__":
    main(*sys.argv[1:])
