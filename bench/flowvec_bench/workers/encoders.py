"""Serves one engine that embeds texts, in one process.

It runs in a peer's environment without flowvec, so it imports flowvec only for flowvec's own
engine. Commands, see `lines.py`:

    {"do": "load", "engine": "...", "model": "...", "options": {...}}
    {"do": "encode", "texts": "texts.json", "batch_size": 32, "save": "vectors.npy" or null}
    {"do": "load-test", "texts": "texts.json", "batch_size": 32, "seconds": 3, "callers": 64}
    {"do": "load-test", ... with "rate": 50, "seed": 0 instead of "callers"}
    {"do": "pairs", "texts": "texts.json", "batch_size": 32, "top_k": 1000}
    {"do": "end"}
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if not (TYPE_CHECKING or __package__):
    # Run as a file, where flowvec is not installed: Python searches this file's folder.
    import lines
    import load
    from lines import override
else:
    from flowvec.compat import override
    from flowvec_bench.workers import lines, load

__all__ = ["main"]

Floats = npt.NDArray[np.float32]


class Engine(ABC):
    """The base class of all engines."""

    @abstractmethod
    def encode(self, texts: list[str], batch_size: int | None) -> Floats:
        """Unit vectors of texts; None leaves the batch size to the library."""

    @abstractmethod
    def closed(self, callers: int, texts: list[str], seconds: float, size: int | None) -> load.Load:
        """Run a number of callers, who send one text after another."""

    @abstractmethod
    def open(
        self, moments: list[float], texts: list[str], wait: float, size: int | None
    ) -> load.Load:
        """Send one text at each time."""

    def pairs(self, texts: list[str], top_k: int, size: int | None) -> list[list[float]]:
        """The most similar pairs: score and both indices."""
        raise NotImplementedError


class Blocking(Engine):
    """An engine that computes one call at a time; other callers wait in a queue."""

    @override
    def closed(self, callers: int, texts: list[str], seconds: float, size: int | None) -> load.Load:
        return load.closed_loop(lambda t: self.encode([t], size), callers, texts, seconds)

    @override
    def open(
        self, moments: list[float], texts: list[str], wait: float, size: int | None
    ) -> load.Load:
        return load.open_loop(lambda t: self.encode([t], size), moments, texts, wait)


class SentenceTransformers(Blocking):
    """sentence-transformers on torch, OpenVINO or ONNX Runtime."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import sentence_transformers
        import torch

        torch.set_num_threads(options["threads"])
        arguments: dict[str, Any] = {"device": "cpu"}
        backend = options.get("backend", "torch")
        if backend == "torch":
            arguments["model_kwargs"] = {"torch_dtype": getattr(torch, options["dtype"])}
        else:
            arguments["backend"] = backend
            arguments["model_kwargs"] = options.get("model_kwargs", {})
        self.model: Any = sentence_transformers.SentenceTransformer(model, **arguments)
        first: Any = self.model[0]
        if type(first).__name__ == "StaticEmbedding":  # it has no limit to set
            first.tokenizer.enable_truncation(options["max_length"])
        else:
            self.model.max_seq_length = options["max_length"]

    @override
    def encode(self, texts: list[str], batch_size: int | None) -> Floats:
        kwargs = {} if batch_size is None else {"batch_size": batch_size}
        vectors: Floats = self.model.encode(
            texts, show_progress_bar=False, normalize_embeddings=True, **kwargs
        )
        return vectors

    @override
    def pairs(self, texts: list[str], top_k: int, size: int | None) -> list[list[float]]:
        from sentence_transformers.util import paraphrase_mining

        kwargs: dict[str, Any] = {} if size is None else {"batch_size": size}
        # As many neighbours per text as pairs in total, so that no pair is missed. Version 5 counts
        # each pair twice and returns half of what was requested, so twice as many are requested.
        mined: list[list[float]] = paraphrase_mining(
            self.model, texts, show_progress_bar=False, max_pairs=2 * top_k,
            top_k=min(top_k, 100), **kwargs,
        )  # fmt: skip
        return mined[:top_k]


class Model2Vec(Blocking):
    """model2vec, one batch after another or several at a time."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        # The tokenizer's threads, which model2vec itself turns off where batches are parallel.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        os.environ.setdefault("RAYON_NUM_THREADS", str(options["threads"]))
        from model2vec import StaticModel

        self.parallel = bool(options["parallel"])
        self.model: Any = StaticModel.from_pretrained(model)
        # What the table was trained with, if sentence-transformers wrote it.
        if self.model.config.get("counts_unknown"):
            self.model.unk_token_id = None
        if not self.model.config.get("cuts_characters", True):
            self.model.median_token_length = 1 << 20

    @override
    def encode(self, texts: list[str], batch_size: int | None) -> Floats:
        kwargs = {} if batch_size is None else {"batch_size": batch_size}
        vectors: Floats = self.model.encode(
            texts, normalize=True, use_multiprocessing=self.parallel, multiprocessing_threshold=1,
            **kwargs,
        )  # fmt: skip
        return vectors


class FastEmbed(Blocking):
    """fastembed with a custom model, from an ONNX file."""

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

    @override
    def encode(self, texts: list[str], batch_size: int | None) -> Floats:
        kwargs = {} if batch_size is None else {"batch_size": batch_size}
        return np.stack(list(self.model.embed(texts, **kwargs)))


class Infinity(Engine):
    """infinity's engine in its own process, as in a service."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import torch
        from infinity_emb import AsyncEmbeddingEngine, EngineArgs

        torch.set_num_threads(options["threads"])
        self.loop = asyncio.new_event_loop()
        self.arguments: dict[str, Any] = {
            "model_name_or_path": model,
            "engine": "torch",
            "device": "cpu",
            "dtype": "float32",
            "model_warmup": False,
            "bettertransformer": False,
        }
        self.make: Any = lambda size: AsyncEmbeddingEngine.from_args(
            EngineArgs(batch_size=size, **self.arguments)
        )
        # By batch size: starting an engine takes longer than most passes.
        self.engines: dict[int, Any] = {}

    def _with_batch_size(self, batch_size: int | None) -> Any:
        size = batch_size or 32
        if size not in self.engines:
            self.engines[size] = self.make(size)
            self.loop.run_until_complete(self.engines[size].astart())
        return self.engines[size]

    @override
    def encode(self, texts: list[str], batch_size: int | None) -> Floats:
        engine = self._with_batch_size(batch_size)
        vectors, _ = self.loop.run_until_complete(engine.embed(sentences=texts))
        return np.asarray(vectors, dtype=np.float32)

    @override
    def closed(self, callers: int, texts: list[str], seconds: float, size: int | None) -> load.Load:
        embed = self._with_batch_size(size).embed
        return self.loop.run_until_complete(
            load.closed_loop_async(lambda t: embed(sentences=[t]), callers, texts, seconds)
        )

    @override
    def open(
        self, moments: list[float], texts: list[str], wait: float, size: int | None
    ) -> load.Load:
        embed = self._with_batch_size(size).embed
        return self.loop.run_until_complete(
            load.open_loop_async(lambda t: embed(sentences=[t]), moments, texts, wait)
        )


class Flowvec(Engine):
    """flowvec; `batch_size` is its budget of padded tokens."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from flowvec import Encoder

        settings = dict(options["load"])
        if options.get("one_at_a_time"):
            settings |= {"streams": 1, "threads": options["threads"]}
        self.encoder = Encoder.load(model, **settings)
        info = self.encoder.info()
        self.about = {"runs": f"{info.provider} in {info.compute} ({info.proof})"}

    @override
    def encode(self, texts: list[str], batch_size: int | None) -> Floats:
        vectors: Floats = self.encoder.encode(
            texts, max_batch_tokens=batch_size, normalize_embeddings=True
        )
        return vectors

    @override
    def closed(self, callers: int, texts: list[str], seconds: float, size: int | None) -> load.Load:
        if callers == 1:  # calls the Encoder, as one caller would
            return load.closed_loop(self.encoder.encode, 1, texts, seconds)

        async def work() -> load.Load:
            async with self._shared(size) as model:
                return await load.closed_loop_async(model.encode, callers, texts, seconds)

        return asyncio.run(work())

    @override
    def open(
        self, moments: list[float], texts: list[str], wait: float, size: int | None
    ) -> load.Load:

        async def work() -> load.Load:
            async with self._shared(size) as model:
                return await load.open_loop_async(model.encode, moments, texts, wait)

        return asyncio.run(work())

    @override
    def pairs(self, texts: list[str], top_k: int, size: int | None) -> list[list[float]]:
        # With the Encoder's own batch size.
        from flowvec import most_similar_pairs

        mined = most_similar_pairs(texts, encoder=self.encoder, top_k=top_k)
        return [[pair.score, pair.left, pair.right] for pair in mined]

    def _shared(self, size: int | None) -> Any:
        from flowvec import AsyncEncoder

        # Never refuses a call, so that all peers answer the same calls.
        return AsyncEncoder(self.encoder, max_waiting=1 << 20, max_batch_tokens=size)


ENGINES: dict[str, Any] = {
    "sentence-transformers": SentenceTransformers,
    "model2vec": Model2Vec,
    "fastembed": FastEmbed,
    "infinity": Infinity,
    "flowvec": Flowvec,
}


def _encode(engine: Any, texts: list[str], command: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    vectors = engine.encode(texts, command["batch_size"])
    seconds = time.perf_counter() - started
    if command["save"]:
        np.save(command["save"], np.asarray(vectors, dtype=np.float32))
    return {"seconds": seconds}


def _pairs(engine: Any, texts: list[str], command: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    mined = engine.pairs(texts, command["top_k"], command["batch_size"])
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "pairs": [[float(s), int(i), int(j)] for s, i, j in mined]}


def _load_test(engine: Any, texts: list[str], command: dict[str, Any]) -> dict[str, Any]:
    seconds, size = command["seconds"], command["batch_size"]
    if "callers" in command:
        measured = engine.closed(command["callers"], texts, seconds, size)
    else:
        moments = load.arrivals(command["rate"], seconds, command["seed"])
        measured = engine.open(moments, texts, seconds, size)
    waits = [round(wait, 6) for wait in measured.waits]
    return {"waits": waits, "seconds": measured.seconds, "unanswered": measured.unanswered}


WORKS: dict[str, Any] = {"encode": _encode, "load-test": _load_test, "pairs": _pairs}


def main() -> None:
    """Serve commands until the end."""
    texts: dict[str, list[str]] = {}

    def make(command: dict[str, Any]) -> Any:
        return ENGINES[command["engine"]](command["model"], command["options"])

    def work(engine: Any, command: dict[str, Any]) -> dict[str, Any]:
        path = command["texts"]
        if path not in texts:
            texts[path] = json.loads(Path(path).read_text(encoding="utf-8"))
        answer: dict[str, Any] = WORKS[command["do"]](engine, texts[path], command)
        return answer

    lines.serve(make, work)


if __name__ == "__main__":
    main()
