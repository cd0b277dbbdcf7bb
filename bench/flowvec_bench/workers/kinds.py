"""Serves one engine that makes sparse vectors, or a vector for each token, in one process.

It runs in a peer's environment without flowvec, so it imports flowvec only for flowvec's own
engine. Texts are encoded as documents. Commands, see `lines.py`:

    {"do": "load", "engine": "...", "model": "...", "options": {"kind": "sparse", ...}}
    {"do": "encode", "texts": "texts.json", "batch_size": 32, "save": "vectors.npy" or null}
    {"do": "end"}

What is saved is float32 (numbers, columns), row by row of the texts: of sparse vectors the text's
number, the token id and the weight; of vectors of tokens the text's number and the vector.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if not (TYPE_CHECKING or __package__):
    # Run as a file, where flowvec is not installed: Python searches this file's folder.
    import lines
    from lines import override
else:
    from flowvec.compat import override
    from flowvec_bench.workers import lines

__all__ = ["main"]

Floats = npt.NDArray[np.float32]


class Engine(ABC):
    """The base class of all engines."""

    @abstractmethod
    def encode(self, texts: list[str], batch_size: int | None) -> Any:
        """Vectors of texts as the library returns them; None leaves the batch size to it."""

    @abstractmethod
    def table(self, vectors: Any) -> Floats:
        """Vectors as they are saved."""


class SentenceTransformers(Engine):
    """The base class of sentence-transformers' engines."""

    options: dict[str, Any]

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(options["threads"])
        dtype = getattr(torch, options["dtype"])
        self.model: Any = self.opened(model, {"torch_dtype": dtype}, options)

    @abstractmethod
    def opened(self, model: str, kwargs: dict[str, Any], options: dict[str, Any]) -> Any:
        """The model."""

    @override
    def encode(self, texts: list[str], batch_size: int | None) -> Any:
        kwargs = {} if batch_size is None else {"batch_size": batch_size}
        return self.model.encode_document(texts, show_progress_bar=False, **kwargs)


class SentenceTransformersSparse(SentenceTransformers):
    """sentence-transformers' SparseEncoder."""

    @override
    def opened(self, model: str, kwargs: dict[str, Any], options: dict[str, Any]) -> Any:
        from sentence_transformers import SparseEncoder

        opened = SparseEncoder(model, device="cpu", model_kwargs=kwargs)
        opened.max_seq_length = options["max_length"]
        return opened

    @override
    def table(self, vectors: Any) -> Floats:
        matrix = vectors.coalesce()
        rows, terms = matrix.indices().numpy()
        return _table(rows, terms[:, None], matrix.values().float().numpy()[:, None])


class SentenceTransformersMultiVector(SentenceTransformers):
    """sentence-transformers' MultiVectorEncoder; a document's length is the model's own."""

    @override
    def opened(self, model: str, kwargs: dict[str, Any], options: dict[str, Any]) -> Any:
        from sentence_transformers import MultiVectorEncoder

        return MultiVectorEncoder(model, device="cpu", model_kwargs=kwargs)

    @override
    def table(self, vectors: Any) -> Floats:
        return _tokens([vector.float().numpy() for vector in vectors])


class PylateMultiVector(SentenceTransformers):
    """PyLate's ColBERT; lengths are the model's own."""

    @override
    def opened(self, model: str, kwargs: dict[str, Any], options: dict[str, Any]) -> Any:
        from pylate import models

        return models.ColBERT(model, device="cpu", model_kwargs=kwargs)

    @override
    def encode(self, texts: list[str], batch_size: int | None) -> Any:
        kwargs = {} if batch_size is None else {"batch_size": batch_size}
        return self.model.encode(texts, is_query=False, show_progress_bar=False, **kwargs)

    @override
    def table(self, vectors: Any) -> Floats:
        return _tokens(vectors)


class FastembedMultiVector(Engine):
    """fastembed's LateInteractionTextEmbedding, on a directory with an ONNX file.

    It has names of models only. Under that of ColBERT it reads any directory of such a model.
    """

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from fastembed import LateInteractionTextEmbedding

        self.model: Any = LateInteractionTextEmbedding(
            "colbert-ir/colbertv2.0", specific_model_path=model, threads=options["threads"]
        )

    @override
    def encode(self, texts: list[str], batch_size: int | None) -> Any:
        kwargs = {} if batch_size is None else {"batch_size": batch_size}
        return list(self.model.embed(texts, **kwargs))

    @override
    def table(self, vectors: Any) -> Floats:
        return _tokens(vectors)


class FlowvecSparse(Engine):
    """flowvec's SparseEncoder; `batch_size` is its budget of padded tokens."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from flowvec import SparseEncoder

        self.model = SparseEncoder.load(model, **options["load"])
        info = self.model.info()
        self.about = {"runs": f"{info.provider} in {info.compute} ({info.proof})"}

    @override
    def encode(self, texts: list[str], batch_size: int | None) -> Any:
        return self.model.encode_document(texts, max_batch_tokens=batch_size)

    @override
    def table(self, vectors: Any) -> Floats:
        rows = np.repeat(np.arange(len(vectors)), vectors.active_dims)
        return _table(rows, vectors.indices[:, None], vectors.values[:, None])


class FlowvecMultiVector(Engine):
    """flowvec's MultiVectorEncoder; `batch_size` is its budget of padded tokens."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from flowvec import MultiVectorEncoder

        self.model = MultiVectorEncoder.load(model, **options["load"])
        info = self.model.info()
        self.about = {"runs": f"{info.provider} in {info.compute} ({info.proof})"}

    @override
    def encode(self, texts: list[str], batch_size: int | None) -> Any:
        return self.model.encode_document(texts, max_batch_tokens=batch_size)

    @override
    def table(self, vectors: Any) -> Floats:
        return _tokens(vectors)


ENGINES: dict[tuple[str, str], Any] = {
    ("sentence-transformers", "sparse"): SentenceTransformersSparse,
    ("sentence-transformers", "multi-vector"): SentenceTransformersMultiVector,
    ("pylate", "multi-vector"): PylateMultiVector,
    ("fastembed", "multi-vector"): FastembedMultiVector,
    ("flowvec", "sparse"): FlowvecSparse,
    ("flowvec", "multi-vector"): FlowvecMultiVector,
}


def _table(*columns: npt.NDArray[Any]) -> Floats:
    return np.column_stack(columns).astype(np.float32)


def _tokens(vectors: list[Floats]) -> Floats:
    rows = np.repeat(np.arange(len(vectors)), [len(vector) for vector in vectors])
    return _table(rows, np.concatenate(vectors))


def main() -> None:
    """Serve commands until the end."""
    texts: dict[str, list[str]] = {}

    def make(command: dict[str, Any]) -> Any:
        options = command["options"]
        return ENGINES[command["engine"], options["kind"]](command["model"], options)

    def work(engine: Any, command: dict[str, Any]) -> dict[str, Any]:
        path = command["texts"]
        if path not in texts:
            texts[path] = json.loads(Path(path).read_text(encoding="utf-8"))
        started = time.perf_counter()
        vectors = engine.encode(texts[path], command["batch_size"])
        seconds = time.perf_counter() - started
        if command["save"]:
            np.save(command["save"], engine.table(vectors))
        return {"seconds": seconds}

    lines.serve(make, work)


if __name__ == "__main__":
    main()
