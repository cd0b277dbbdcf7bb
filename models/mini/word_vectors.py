"""Step 3: trains skip-gram vectors of the word pieces, from which step 5 initializes words.

    python models/mini/word_vectors.py

Reads `ids.npy` and `offsets.npy` of step 2 and writes `word_vectors.npy`, float32
(vocabulary, width), and `frequency.npy`, int64 (vocabulary,), to models/mini/work. Pieces that
never occur get the zero vector.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from gensim.models import Word2Vec
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    ids = np.load(args.work / "ids.npy", mmap_mode="r")
    offsets = np.load(args.work / "offsets.npy")
    vocabulary = Tokenizer.from_file(str(args.work / "tokenizer.json")).get_vocab_size()
    np.save(args.work / "frequency.npy", np.bincount(ids, minlength=vocabulary))

    # gensim's fast path reads a text file with one sentence per line, without the interpreter's
    # lock.
    corpus = args.work / "pieces.txt"
    with corpus.open("w") as out:
        for start, stop in pairwise(offsets):
            out.write(" ".join(map(str, ids[start:stop].tolist())) + "\n")

    started = time.perf_counter()
    model = Word2Vec(
        corpus_file=str(corpus),
        vector_size=args.width,
        sg=1,
        window=6,
        negative=5,
        sample=1e-4,
        min_count=1,
        epochs=args.epochs,
        workers=args.workers,
        seed=args.seed,
    )
    vectors = np.zeros((vocabulary, args.width), dtype=np.float32)
    for key, index in model.wv.key_to_index.items():
        vectors[int(key)] = model.wv.vectors[index]
    np.save(args.work / "word_vectors.npy", vectors)
    corpus.unlink()
    print(f"{len(model.wv)} pieces in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
