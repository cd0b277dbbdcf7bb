"""Serves one engine that scores pairs of texts, in one process.

It runs in a peer's environment without flowvec, so it imports flowvec only for flowvec's own
engine. A text of `texts.json` is a pair [query, document]; the documents of a query follow each
other, and are scored in one call, as a search would. Commands, see `lines.py`:

    {"do": "load", "engine": "...", "model": "...", "options": {...}}
    {"do": "encode", "texts": "pairs.json", "batch_size": 32, "save": "logits.npy" or null}
    {"do": "end"}
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from itertools import groupby
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
    def logits(self, query: str, documents: list[str], batch_size: int | None) -> Floats:
        """Logits of a query with its documents; None leaves the batch size to the library."""


class SentenceTransformers(Engine):
    """sentence-transformers' CrossEncoder on torch, OpenVINO or ONNX Runtime."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import sentence_transformers
        import torch

        torch.set_num_threads(options["threads"])
        self.identity = torch.nn.Identity()
        arguments: dict[str, Any] = {"device": "cpu"}
        backend = options.get("backend", "torch")
        if backend == "torch":
            arguments["model_kwargs"] = {"torch_dtype": getattr(torch, options["dtype"])}
        else:
            arguments["backend"] = backend
            arguments["model_kwargs"] = options.get("model_kwargs", {})
        self.model: Any = sentence_transformers.CrossEncoder(
            model, max_length=options["max_length"], **arguments
        )

    @override
    def logits(self, query: str, documents: list[str], batch_size: int | None) -> Floats:
        kwargs = {} if batch_size is None else {"batch_size": batch_size}
        scores = self.model.predict(
            [(query, document) for document in documents],
            activation_fn=self.identity,
            show_progress_bar=False,
            **kwargs,
        )
        return np.asarray(scores, dtype=np.float32)


class FastEmbed(Engine):
    """fastembed with a custom model, from an ONNX file."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from fastembed.common.model_description import ModelSource
        from fastembed.rerank.cross_encoder import TextCrossEncoder

        name = "flowvec/bench"
        TextCrossEncoder.add_custom_model(
            model=name,
            sources=ModelSource(url="https://localhost/none"),
            model_file="model.onnx",
        )
        self.model = TextCrossEncoder(
            name, specific_model_path=model, threads=options["threads"], local_files_only=True
        )

    @override
    def logits(self, query: str, documents: list[str], batch_size: int | None) -> Floats:
        kwargs = {} if batch_size is None else {"batch_size": batch_size}
        return np.array(list(self.model.rerank(query, documents, **kwargs)), dtype=np.float32)


class Flowvec(Engine):
    """flowvec; `batch_size` is its budget of padded tokens."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from flowvec import Reranker

        self.model = Reranker.load(model, **options["load"])
        info = self.model.info()
        self.about = {"runs": f"{info.provider} in {info.compute} ({info.proof})"}

    @override
    def logits(self, query: str, documents: list[str], batch_size: int | None) -> Floats:
        pairs = [(query, document) for document in documents]
        return self.model.predict(pairs, activation="identity", max_batch_tokens=batch_size)


ENGINES: dict[str, Any] = {
    "sentence-transformers": SentenceTransformers,
    "fastembed": FastEmbed,
    "flowvec": Flowvec,
}


def main() -> None:
    """Serve commands until the end."""
    texts: dict[str, list[tuple[str, list[str]]]] = {}

    def make(command: dict[str, Any]) -> Any:
        return ENGINES[command["engine"]](command["model"], command["options"])

    def work(engine: Any, command: dict[str, Any]) -> dict[str, Any]:
        path = command["texts"]
        if path not in texts:
            pairs = json.loads(Path(path).read_text(encoding="utf-8"))
            groups = groupby(pairs, key=lambda pair: pair[0])
            texts[path] = [(query, [d for _, d in group]) for query, group in groups]
        started = time.perf_counter()
        size = command["batch_size"]
        parts = [engine.logits(query, documents, size) for query, documents in texts[path]]
        seconds = time.perf_counter() - started
        if command["save"]:
            np.save(command["save"], np.concatenate(parts))
        return {"seconds": seconds}

    lines.serve(make, work)


if __name__ == "__main__":
    main()
