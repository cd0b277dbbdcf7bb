"""Step 7: compares the bundle with plain baselines in one run: STS, retrieval and isotropy.

    python models/mini/evaluate.py
    python models/mini/evaluate.py --first ../first/runtime/flowvec/models/mini --final

Without `--final`, STS-B dev is the only STS set that is read: settings may be chosen on it, and not
on the others. Baselines are fitted on Wikipedia sentences only: TF-IDF weights on 200,000 of them,
word frequencies on all, the whitening on 40,000. `--first` is another bundle to compare with, such
as the first `mini`, which `git worktree add ../first 500c76a` restores. Writes
models/mini/evaluation.json and prints its tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.feature_extraction.text import TfidfVectorizer
from tokenizers import Tokenizer
from train import sif_weights, soft_zca, unit

from flowvec import Encoder
from flowvec.vectors import top_k
from flowvec_bench.quality.beir import RetrievalSet, read_retrieval
from flowvec_bench.quality.isotropy import measure_isotropy
from flowvec_bench.quality.retrieval import score_run
from flowvec_bench.quality.searching import search_bm25, search_encoder, search_hybrid
from flowvec_bench.texts import natural_sentences
from flowvec_export.sts import positive_pairs, read_sts, sentence_rows, spearman

HERE = Path(__file__).resolve().parent
YEARS = (12, 13, 14)
Floats = npt.NDArray[np.floating[Any]]
Embed = Callable[[list[str]], Floats]
Cosines = Callable[[list[str], list[str]], Floats]


class WordVectors:
    """Averages the skip-gram vectors of step 3, plain or weighted by frequency (SIF)."""

    def __init__(self, work: Path, *, weighted: bool) -> None:
        self.tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
        self.vectors = np.load(work / "word_vectors.npy")
        if weighted:
            self.vectors = (
                self.vectors * sif_weights(np.load(work / "frequency.npy"), 1e-3)[:, None]
            )

    def __call__(self, texts: list[str]) -> Floats:
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        zero = np.zeros(self.vectors.shape[1], dtype=np.float32)
        return np.stack([self.vectors[e.ids].mean(0) if e.ids else zero for e in encodings])


def whitened(embed: Embed, sample: list[str]) -> Embed:
    """An encoder followed by a soft-ZCA whitening that was fitted on a sample."""
    mean, matrix = soft_zca(embed(sample), eps=0.05)
    return lambda texts: (embed(texts) - mean) @ matrix


def cosines_of(embed: Embed) -> Cosines:
    """Cosine of each pair of texts."""

    def cosines(left: list[str], right: list[str]) -> Floats:
        return (unit(embed(left)) * unit(embed(right))).sum(1)

    return cosines


def tfidf_cosines(wiki: list[str]) -> Cosines:
    """Cosine of TF-IDF rows, which are sparse and already normalized."""
    weights = TfidfVectorizer(sublinear_tf=True).fit(wiki)

    def cosines(left: list[str], right: list[str]) -> Floats:
        both = weights.transform(left).multiply(weights.transform(right))
        return np.asarray(both.sum(1)).ravel()

    return cosines


def rank(embed: Embed, dataset: RetrievalSet) -> list[list[int]]:
    """The first hundred documents of each query by cosine."""
    queries, documents = unit(embed(dataset.queries)), unit(embed(dataset.documents))
    ranking: list[list[int]] = top_k(queries, documents, 101, "cosine")[0].tolist()
    return ranking


def print_table(
    title: str, columns: Sequence[str], rows: Mapping[str, Mapping[str, object]]
) -> None:
    """Print a table in Markdown."""
    print(f"\n| {title} | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, figures in rows.items():
        print(f"| {name} | {' | '.join(str(figures.get(column, '')) for column in columns)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--bundle", default="mini")
    parser.add_argument("--first", type=Path, help="another bundle, for example the first mini")
    parser.add_argument("--text", type=Path, default=Path("../shared/data/text/wiki.txt.xz"))
    parser.add_argument("--sts", type=Path, default=Path("../shared/data/sts"))
    parser.add_argument("--retrieval", type=Path, default=Path("../shared/data/retrieval"))
    parser.add_argument("--final", action="store_true", help="all STS sets, not only STS-B dev")
    parser.add_argument("--out", type=Path, default=HERE / "evaluation.json")
    args = parser.parse_args()
    benchmark = read_sts(args.sts / "STSB")[0]
    sets = {"STS-B dev": [benchmark.subsets["dev"]]}
    if args.final:
        sets["STS-B test"] = [benchmark.subsets["test"]]
        for task in read_sts(args.sts):
            if task.name != "STSB":
                sets[task.name] = list(task.subsets.values())
    wiki = list(islice(natural_sentences(args.text), 200_000))

    word_vectors = WordVectors(args.work, weighted=False)
    systems: dict[str, Embed] = {
        "averaged word vectors": word_vectors,
        "SIF-weighted, whitened word vectors": whitened(
            WordVectors(args.work, weighted=True), wiki[:40_000]
        ),
    }
    bundles = {"the first mini": args.first} if args.first else {}
    bundles["mini"] = args.bundle
    encoders = {
        name: Encoder.load(bundle, provider="cpu", compute="float32")
        for name, bundle in bundles.items()
    }
    systems |= {name: encoder.encode for name, encoder in encoders.items()}

    similarities = {"TF-IDF": tfidf_cosines(wiki)}
    similarities |= {name: cosines_of(embed) for name, embed in systems.items()}
    sts: dict[str, dict[str, float]] = {}
    for name, cosines in similarities.items():
        sts[name] = {
            label: spearman(
                np.concatenate([cosines(pairs.left, pairs.right) for pairs in subsets]),
                np.concatenate([pairs.gold for pairs in subsets]),
            )
            for label, subsets in sets.items()
        }
        if args.final:
            sts[name]["mean of STS12-14"] = float(np.mean([sts[name][f"STS{y}"] for y in YEARS]))
    sts = {n: {label: round(value, 1) for label, value in s.items()} for n, s in sts.items()}
    print_table("Spearman x 100, all pairs", list(sts["mini"]), sts)

    retrieval: dict[str, dict[str, float]] = {}
    for dataset in read_retrieval(args.retrieval):
        rankings = {"averaged word vectors": rank(word_vectors, dataset)}
        rankings |= {name: search_encoder(e, dataset).ranking for name, e in encoders.items()}
        rankings["BM25 (bm25s)"] = search_bm25(dataset).ranking
        rankings |= {f"{n}, hybrid": search_hybrid(e, dataset).ranking for n, e in encoders.items()}
        for name, ranking in rankings.items():
            score = score_run(dataset, name, ranking)
            retrieval.setdefault(name, {})[dataset.name] = round(score.ndcg_at_10, 3)
    print_table("nDCG@10", list(retrieval["mini"]), retrieval)

    isotropy: dict[str, dict[str, object]] = {}
    rows = sentence_rows([benchmark])
    for name, embed in systems.items():
        figures = measure_isotropy(
            embed(wiki[:20_000]),
            sentences=embed(list(rows)),
            positives=positive_pairs([benchmark], rows),
        )
        isotropy[name] = {
            "mean cosine": round(figures.mean_cosine, 3),
            "IsoScore": round(figures.isoscore, 3),
            "effective rank": f"{figures.effective_rank:.0f} of {figures.dim}",
            "uniformity": round(figures.uniformity, 2),
            "alignment": round(figures.alignment or 0.0, 2),
        }
    print_table("isotropy", list(isotropy["mini"]), isotropy)

    fingerprint = encoders["mini"].fingerprint
    for encoder in encoders.values():
        encoder.close()
    result = {"fingerprint": fingerprint, "sts": sts, "retrieval": retrieval, "isotropy": isotropy}
    args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
