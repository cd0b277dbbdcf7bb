"""How long a search takes that reranks by stored token vectors, and by vectors that it makes.

    python bench/token_vectors.py --texts wiki.txt.xz --tokenizer bert-base-uncased [--rows 2000]

The model has MiniLM-L6's shape and random weights, with 128 numbers for a token. Rows are
paragraphs. Each query is searched in turn without reranking, with made vectors, with float16 and
with signs. Prints one JSON object: bytes of a row, and median milliseconds of a search with
`rerank_from` hits. Needs the extras [cpu], [export] and [bench].
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from flowvec import Collection, Encoder, MultiVectorEncoder
from flowvec_bench.peers.kinds import opened_kind
from flowvec_bench.texts import read_paragraphs

_QUERIES = 40


def main() -> None:
    """Fill three collections, search them in turn, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rerank-from", type=int, default=50)
    arguments = parser.parse_args()
    paragraphs = list(islice(read_paragraphs(arguments.texts), arguments.rows + _QUERIES))
    texts, rest = paragraphs[: arguments.rows], paragraphs[arguments.rows :]
    queries = [" ".join(text.split()[:12]) for text in rest]
    figures: dict[str, Any] = {"rows": len(texts), "rerank_from": arguments.rerank_from}
    with (
        opened_kind("multi-vector", "minilm-l6", arguments.tokenizer, None) as (forms, folder),
        MultiVectorEncoder.load(forms.paths["bundle"]) as model,
        Encoder.load("mini") as mini,
    ):
        figures["compute"] = model.info().compute
        collections = {}
        for name in ("made", "float16", "signs"):
            collections[name] = Collection.create(folder / name, encoder=mini)
            collections[name].add(range(len(texts)), texts)
            if name != "made":
                size = collections[name].token_vectors_size(model, dtype=name)  # type: ignore[arg-type]
                collections[name].add_token_vectors(model, dtype=name)  # type: ignore[arg-type]
                info = collections[name].info()
                figures[f"{name}_bytes_a_row"] = round(info.token_bytes / info.token_rows)
                figures[f"{name}_estimate"] = round(size.bytes / info.token_bytes, 3)
        times: dict[str, list[float]] = {"search_only": [], **{name: [] for name in collections}}
        for query in [queries[0], *queries]:  # the first one warms up
            times["search_only"].append(_timed(collections["made"], query, None, 0))
            for name, collection in collections.items():
                times[name].append(_timed(collection, query, model, arguments.rerank_from))
        for name, its in times.items():
            figures[f"{name}_ms"] = round(float(np.median(its[1:])), 1)
        for collection in collections.values():
            collection.close()
    print(json.dumps(figures, indent=2))


def _timed(
    collection: Collection, query: str, model: MultiVectorEncoder | None, rerank_from: int
) -> float:
    start = time.perf_counter()
    collection.search(query, 10, rerank=model, rerank_from=rerank_from or 10)
    return 1e3 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
