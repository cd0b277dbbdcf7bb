"""Race of `mini` with sentence-transformers' StaticEmbedding and model2vec over the same table.

    python -m pip install sentence-transformers model2vec
    python bench/static_race.py FILE [--texts 40000] [--rounds 5]

FILE holds one paragraph a line (plain text, or `.xz`); its sentences are the texts. The other
libraries get the vectors that `mini`'s graph gives each token, times the token's weight: the mean
of these has the same direction. Every library's vectors are compared with `mini`'s. Each runs at
the best of several batch sizes, in one process, in interleaved rounds; prints medians as JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import tokenizers
from onnx import numpy_helper

from flowvec import Bundle, Encoder
from flowvec.texts.sentences import split_sentences
from flowvec_bench.machine import describe_machine

Floats = npt.NDArray[np.float32]
SIZES = (256, 1024, 4096)


def sentences_of(path: Path) -> Iterator[str]:
    """The sentences of a file."""
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        for line in io.TextIOWrapper(file, encoding="utf-8"):
            yield from split_sentences(line.strip())


def table_of(bundle: Bundle) -> Floats:
    """What the graph gives for each token, times the token's weight; float32 (tokens, dim)."""
    graph = onnx.load(bundle.model).graph
    arrays = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    rows = arrays["backbone.words.int8"][arrays["backbone.words.row_of"]].astype(np.float32)
    assert not arrays["backbone.positions.float16"].any()
    norm = next(node for node in graph.node if node.op_type == "LayerNormalization")
    epsilon = next(a.f for a in norm.attribute if a.name == "epsilon")
    rows -= rows.mean(axis=1, keepdims=True)
    rows /= np.sqrt(rows.var(axis=1, keepdims=True) + epsilon)
    scale, shift = (arrays[f"backbone.embedding_norm.{name}"] for name in ("weight", "bias"))
    weights = next(a for a in arrays.values() if a.shape == (len(rows),) and a.dtype == np.float32)
    return ((rows * scale + shift) * weights[:, np.newaxis]).astype(np.float32)


def racers_of(bundle: Bundle, table: Floats) -> dict[str, Callable[[list[str], int], Any]]:
    """What encodes a list of texts in batches of a size, by name."""
    from model2vec import StaticModel
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

    tokenizer = tokenizers.Tokenizer.from_file(str(bundle.tokenizer))
    encoder = Encoder.load("mini")
    static = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_weights=table), Normalize()], device="cpu"
    )
    config = {"normalize": True}
    model2vec = StaticModel(table, tokenizer, config, normalize=True, max_length=None)
    # An unknown word has a vector here, as in mini and sentence-transformers.
    model2vec.unk_token_id = None
    return {
        f"flowvec ({encoder.engine.provider})": lambda texts, size: encoder.encode(texts),
        "sentence-transformers StaticEmbedding": lambda texts, size: static.encode(
            texts, batch_size=size, show_progress_bar=False
        ),
        "model2vec": lambda texts, size: model2vec.encode(
            texts, batch_size=size, use_multiprocessing=False
        ),
        "model2vec, several processes": lambda texts, size: model2vec.encode(
            texts, batch_size=size, use_multiprocessing=True, multiprocessing_threshold=1
        ),
    }


def main() -> None:
    """Race, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--texts", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    bundle = Bundle.load("mini")
    texts = list(islice(sentences_of(arguments.file), arguments.texts))
    racers = racers_of(bundle, table_of(bundle))
    expected: Floats | None = None
    best: dict[str, int] = {}
    cosines: dict[str, float] = {}
    for name, encode in racers.items():
        taken: dict[int, float] = {}
        for size in SIZES if not name.startswith("flowvec") else SIZES[:1]:
            encode(texts[:2000], size)  # warm up
            started = time.perf_counter()
            vectors = np.asarray(encode(texts[: len(texts) // 4], size), dtype=np.float32)
            taken[size] = time.perf_counter() - started
        best[name] = min(taken, key=taken.__getitem__)
        if expected is None:
            expected = vectors
        cosines[name] = float((vectors * expected).sum(axis=1).min())
    seconds: dict[str, list[float]] = {name: [] for name in racers}
    for _ in range(arguments.rounds):
        for name, encode in racers.items():
            started = time.perf_counter()
            encode(texts, best[name])
            seconds[name].append(time.perf_counter() - started)
    rates = {name: len(texts) / statistics.median(s) for name, s in seconds.items()}
    rows = [
        {"name": name, "texts_per_second": round(rate), "batch_size": best[name],
         "smallest_cosine": round(cosines[name], 6)}
        for name, rate in rates.items()
    ]  # fmt: skip
    print(
        json.dumps(
            {"machine": asdict(describe_machine()), "texts": len(texts), "rows": rows}, indent=1
        )
    )


if __name__ == "__main__":
    main()
