"""One engine in one process: reads commands as JSON lines, answers with JSON lines.

Runs in an environment that holds a peer and not flowvec, so it imports nothing of flowvec's unless
it is asked for flowvec itself. Only its own answers go to standard output: libraries' chatter goes
to standard error.

    {"do": "load", "engine": "...", "model": "...", "options": {...}}
    {"do": "encode", "texts": "texts.json", "batch_size": 32, "save": "vectors.npy" or null}
    {"do": "end"}
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["main"]

Floats = npt.NDArray[np.float32]


class SentenceTransformers:
    """sentence-transformers on torch, OpenVINO or ONNX Runtime."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import sentence_transformers
        import torch

        arguments: dict[str, Any] = {"device": "cpu"}
        backend = options.get("backend", "torch")
        if backend == "torch":
            arguments["model_kwargs"] = {"torch_dtype": getattr(torch, options["dtype"])}
        else:
            arguments["backend"] = backend
            arguments["model_kwargs"] = options.get("model_kwargs", {})
        self.model: Any = sentence_transformers.SentenceTransformer(model, **arguments)
        self.model.max_seq_length = options["max_length"]

    def encode(self, texts: list[str], batch_size: int | None) -> Floats:
        """Unit vectors of texts; None leaves the batch size to the library."""
        kwargs = {} if batch_size is None else {"batch_size": batch_size}
        found: Floats = self.model.encode(
            texts, show_progress_bar=False, normalize_embeddings=True, **kwargs
        )
        return found


class FastEmbed:
    """fastembed with a model of one's own, from an ONNX file."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

        name = "flowvec/bench"
        TextEmbedding.add_custom_model(
            model=name,
            pooling=PoolingType.MEAN,
            normalization=True,
            sources=ModelSource(url="https://localhost/none"),
            dim=options["dim"],
            model_file="model.onnx",
        )
        self.model = TextEmbedding(
            name, specific_model_path=model, threads=options["threads"], local_files_only=True
        )

    def encode(self, texts: list[str], batch_size: int | None) -> Floats:
        """Unit vectors of texts; None leaves the batch size to the library."""
        kwargs = {} if batch_size is None else {"batch_size": batch_size}
        return np.stack(list(self.model.embed(texts, **kwargs)))


class Infinity:
    """infinity's engine in its own process, as a service would hold it."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import asyncio

        from infinity_emb import AsyncEmbeddingEngine, EngineArgs

        self.loop = asyncio.new_event_loop()
        self.arguments: dict[str, Any] = {
            "model_name_or_path": model,
            "engine": "torch",
            "device": "cpu",
            "dtype": "float32",
            "lengths_via_tokenize": True,
            "model_warmup": False,
            "bettertransformer": False,
        }
        self.make: Any = lambda size: AsyncEmbeddingEngine.from_args(
            EngineArgs(batch_size=size, **self.arguments)
        )
        self.engine: Any = None
        self.size: int | None = None

    def encode(self, texts: list[str], batch_size: int | None) -> Floats:
        """Unit vectors of texts; None leaves the batch size to the library."""
        size = batch_size or 32
        if self.size != size:
            if self.engine is not None:
                self.loop.run_until_complete(self.engine.astop())
            self.engine, self.size = self.make(size), size
            self.loop.run_until_complete(self.engine.astart())
        vectors, _ = self.loop.run_until_complete(self.engine.embed(sentences=texts))
        return np.asarray(vectors, dtype=np.float32)


class Flowvec:
    """flowvec; batch_size is its budget of tokens."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from flowvec import Encoder

        self.encoder = Encoder.load(model, **options["load"])

    def encode(self, texts: list[str], batch_size: int | None) -> Floats:
        """Unit vectors of texts; None leaves the batch size to the library."""
        found: Floats = self.encoder.encode(
            texts, max_batch_tokens=batch_size, normalize_embeddings=True
        )
        return found


ENGINES: dict[str, Any] = {
    "sentence-transformers": SentenceTransformers,
    "fastembed": FastEmbed,
    "infinity": Infinity,
    "flowvec": Flowvec,
}


def main() -> None:
    """Serve commands until the end."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    engine: Any = None
    texts: dict[str, list[str]] = {}
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "end":
                return
            if command["do"] == "load":
                engine = ENGINES[command["engine"]](command["model"], command["options"])
                answer: dict[str, Any] = {}
            else:
                path = command["texts"]
                if path not in texts:
                    texts[path] = json.loads(Path(path).read_text(encoding="utf-8"))
                begun = time.perf_counter()
                vectors = engine.encode(texts[path], command["batch_size"])
                answer = {"seconds": time.perf_counter() - begun}
                if command["save"]:
                    np.save(command["save"], np.asarray(vectors, dtype=np.float32))
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
