"""Step 5: STS-B dev of the bundle beside plain baselines, in one run.

    python models/mini/evaluate.py

Baselines are fitted on wiki sentences alone: TF-IDF weights on 200,000 of them, word frequencies on
all, the whitening on 40,000. No STS sentence is fitted on. Writes models/mini/evaluation.json.
"""

from __future__ import annotations

import argparse
import csv
import json
from itertools import islice
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer
from tokenizers import Tokenizer

from flowvec import Encoder
from flowvec_bench.texts import natural_sentences

HERE = Path(__file__).resolve().parent


def read_pairs(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    """First sentences, second sentences and gold scores of an STS file."""
    with path.open(encoding="utf-8") as lines:
        rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [r[1] for r in rows], [r[2] for r in rows], np.array([float(r[0]) for r in rows])


def spearman(a: np.ndarray, b: np.ndarray, gold: np.ndarray) -> float:
    """Spearman x 100 of cosine with gold."""
    a = a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-12)
    b = b / np.maximum(np.linalg.norm(b, axis=1, keepdims=True), 1e-12)
    return round(100 * float(spearmanr((a * b).sum(1), gold).statistic), 1)


class WordVectors:
    """Averages of the word-piece vectors of step 2, plain or weighted by frequency (SIF)."""

    def __init__(self, work: Path, weighted: bool) -> None:
        self.tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
        self.vectors = np.load(work / "word_vectors.npy")
        frequency = np.load(work / "frequency.npy") / np.load(work / "frequency.npy").sum()
        if weighted:
            self.vectors = self.vectors * (1e-3 / (1e-3 + frequency))[:, None]

    def __call__(self, texts: list[str]) -> np.ndarray:
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        zero = np.zeros(self.vectors.shape[1], dtype=np.float32)
        return np.stack([self.vectors[e.ids].mean(0) if e.ids else zero for e in encodings])


def whiten(sample: np.ndarray, eps: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Mean and soft-ZCA matrix of row vectors."""
    values, basis = np.linalg.eigh(np.cov(sample, rowvar=False))
    return sample.mean(0), basis @ np.diag((values + eps * values.mean()) ** -0.5) @ basis.T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--bundle", default="mini")
    parser.add_argument("--text", type=Path, default=Path("../shared/data/text/wiki.txt.xz"))
    parser.add_argument("--sts", type=Path, default=Path("../shared/data/sts/STSB/dev.tsv"))
    args = parser.parse_args()
    first, second, gold = read_pairs(args.sts)
    wiki = list(islice(natural_sentences(args.text), 200_000))
    table: dict[str, float] = {}

    tfidf = TfidfVectorizer(sublinear_tf=True).fit(wiki)
    a, b = (tfidf.transform(side) for side in (first, second))
    cosine = np.asarray(a.multiply(b).sum(1)).ravel()  # rows come normalised
    table["TF-IDF"] = round(100 * float(spearmanr(cosine, gold).statistic), 1)

    plain, sif = WordVectors(args.work, weighted=False), WordVectors(args.work, weighted=True)
    table["averaged word vectors"] = spearman(plain(first), plain(second), gold)
    mean, matrix = whiten(sif(wiki[:40_000]))
    table["SIF-weighted, whitened word vectors"] = spearman(
        (sif(first) - mean) @ matrix, (sif(second) - mean) @ matrix, gold
    )
    with Encoder.load(args.bundle, provider="cpu") as encoder:
        table["mini"] = spearman(encoder.encode(first), encoder.encode(second), gold)
        fingerprint = encoder.fingerprint

    for name, score in table.items():
        print(f"{name:38}{score:6.1f}")
    result = {"set": "STS-B dev", "metric": "Spearman x 100", "fingerprint": fingerprint}
    (HERE / "evaluation.json").write_text(json.dumps(result | {"scores": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
