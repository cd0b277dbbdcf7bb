"""A search service over one collection; docs/operate.md explains it.

uvicorn --app-dir examples service:app --workers 3 --timeout-graceful-shutdown 10
gunicorn --chdir examples service:app -k asgi -w 3 --graceful-timeout 10
"""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from flowvec import AsyncCollection, ClosedError, Encoder, FlowvecError, OverloadedError

PATH = os.environ.get("NOTES_PATH", "notes")
MODEL = os.environ.get("NOTES_MODEL", "mini")
STREAMS = int(os.environ.get("NOTES_STREAMS", "1"))  # cores / workers
SECONDS = float(os.environ.get("NOTES_SECONDS", "10"))  # the deadline of a request
logger = logging.getLogger("service")
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s: %(message)s")


class Note(BaseModel):
    id: str
    text: Annotated[str, Field(max_length=10_000)]
    metadata: dict[str, Any] | None = None


class Query(BaseModel):
    query: Annotated[str, Field(max_length=10_000)]
    k: Annotated[int, Field(ge=1, le=100)] = 10
    filter: dict[str, Any] | None = None
    hybrid: bool = False


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with Encoder.load(MODEL, streams=STREAMS, threads=1) as encoder:
        async with AsyncCollection.open_or_create(PATH, encoder=encoder, max_waiting=500) as notes:
            await notes.prepare()
            app.state.notes = notes
            logger.info("ready: %d notes", await notes.count())
            yield
            logger.info("closing: %s", notes.statistics())
    logger.info("closed")


app = FastAPI(title="Notes", lifespan=lifespan)


def collection(request: Request) -> AsyncCollection:
    return request.app.state.notes


Notes = Annotated[AsyncCollection, Depends(collection)]


@app.exception_handler(FlowvecError)
async def refuse(request: Request, error: FlowvecError) -> JSONResponse:
    if isinstance(error, ValueError | TypeError):  # the caller's
        return JSONResponse({"detail": str(error)}, 422)
    if isinstance(error, OverloadedError | ClosedError):
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})
    if isinstance(error, TimeoutError):  # the deadline, or the turn to write
        return JSONResponse({"detail": str(error)}, 504)
    logger.error("%s %s", request.method, request.url.path, exc_info=error)
    return JSONResponse({"detail": "internal error"}, 500)


@app.exception_handler(RequestValidationError)
async def refuse_body(request: Request, error: RequestValidationError) -> JSONResponse:
    # FastAPI's own answer repeats the input, which may be a text that UTF-8 cannot encode.
    faults = [{"loc": fault["loc"], "msg": fault["msg"]} for fault in error.errors()]
    return JSONResponse({"detail": faults}, 422)


@app.get("/health")
async def health() -> dict[str, int]:
    return {"process": os.getpid()}


@app.get("/ready")
async def ready(notes: Notes) -> dict[str, int]:
    return {"notes": await notes.count(timeout=1)}


@app.post("/search")
async def search(query: Query, notes: Notes) -> list[dict[str, Any]]:
    options = query.model_dump(exclude={"query"})
    return [asdict(hit) for hit in await notes.search(query.query, timeout=SECONDS, **options)]


@app.post("/notes")
async def add(rows: Annotated[list[Note], Field(max_length=1000)], notes: Notes) -> dict[str, int]:
    ids, texts = [row.id for row in rows], [row.text for row in rows]
    metadata = [row.metadata for row in rows]
    return asdict(await notes.add(ids, texts, metadata, timeout=SECONDS))


@app.get("/notes/{id}")
async def get(id: str, notes: Notes) -> dict[str, Any]:
    (row,) = await notes.get([id], timeout=SECONDS)
    if row is None:
        raise HTTPException(404, f"there is no note {id!r}")
    return {"id": row.id, "text": row.text, "metadata": row.metadata}


@app.delete("/notes/{id}")
async def delete(id: str, notes: Notes) -> dict[str, int]:
    return {"deleted": await notes.delete([id], timeout=SECONDS)}
