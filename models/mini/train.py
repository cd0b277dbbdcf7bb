"""Step 5: trains word vectors and word weights contrastively; an interrupted run continues.

    python models/mini/train.py

A text's vector is the weighted sum of its words' vectors, L2-normalized. All forms of a word share
one vector and one weight. A word's vector is initialized with a random direction, plus its WordNet
relatives, plus its skip-gram vector; its weight with SIF's. Then it is trained with InfoNCE and
in-batch negatives, over four kinds of pairs (`corpus.PairSource`). Writes `state.pt` and, at the
end, `trained.npz` (vectors float32 (words, width), weights float32 (words,)) to models/mini/work.

Scores on STS-B dev and on a search in held-out paragraphs are printed during training; neither is
trained on.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from corpus import Corpus, PairSource, Texts
from scipy import sparse
from tokenizers import Tokenizer
from torch import Tensor, nn

from flowvec_export.sts import read_sts, spearman

HERE = Path(__file__).resolve().parent
Floats = npt.NDArray[np.floating[Any]]
MIX = {"neighbour": 0.2, "passage": 0.35, "drop": 0.3, "wordnet": 0.15}
RELATIONS = ("synonym", "hypernym", "similar", "derivation")


class WordModel(nn.Module):
    """Vectors and weights of words: token ids -> unit vectors, float32 (texts, width)."""

    def __init__(self, group: Tensor, vectors: Tensor, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("group", group)
        self.vectors = nn.Parameter(vectors)
        self.log_weights = nn.Parameter(weights.log())

    def forward(self, texts: Texts) -> Tensor:
        ids, offsets = (torch.from_numpy(part) for part in texts)
        words = self.group[ids]
        total = nn.functional.embedding_bag(
            words,
            self.vectors,
            offsets,
            per_sample_weights=self.log_weights.exp()[words],
            mode="sum",
        )
        return nn.functional.normalize(total, dim=1)


def unit(rows: Floats) -> Floats:
    """Rows scaled to length 1; zero rows stay zero."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def soft_zca(rows: Floats, eps: float) -> tuple[Floats, Floats]:
    """Mean (width,) and matrix (width, width) of the soft-ZCA whitening of rows."""
    values, basis = np.linalg.eigh(np.cov(rows, rowvar=False, dtype=np.float64))
    return rows.mean(0), basis @ np.diag((values + eps * values.mean()) ** -0.5) @ basis.T


def sif_weights(frequency: Floats, a: float) -> Floats:
    """a / (a + p) of each word of frequency p (Arora et al. 2017)."""
    return a / (a + frequency / frequency.sum())


def initial_model(
    work: Path, corpus: Corpus, width: int, related: float, meaning: float, seed: int
) -> WordModel:
    """The initial model: random directions, WordNet's relations, step 3's skip-gram vectors."""
    words = np.load(work / "words.npz")
    group = words["group"]
    count = int(group.max()) + 1
    pieces = np.load(work / "frequency.npy").astype(np.float64)
    frequency = np.bincount(group, pieces, count)
    weights = sif_weights(frequency, a=3e-4)

    rng = np.random.default_rng(seed)
    identity = unit(rng.normal(size=(count, width)))
    vectors = identity.copy()
    for relation in RELATIONS:
        left, right = words[relation].T
        edges = sparse.csr_matrix((np.ones(len(left)), (left, right)), shape=(count, count))
        edges = ((edges + edges.T) > 0).astype(np.float64)
        # Scaled, so that a word with many relations is not nearer to each of them.
        scale = sparse.diags(np.maximum(np.asarray(edges.sum(1)).ravel(), 1) ** -0.5)
        vectors += related * (scale @ edges @ scale @ identity)
    vectors = unit(vectors)

    if meaning:
        skip_gram = np.load(work / "word_vectors.npy")
        used = np.zeros((count, skip_gram.shape[1]))
        np.add.at(used, group, skip_gram * pieces[:, None])
        used /= np.maximum(frequency, 1)[:, None]
        ids, offsets = corpus.sentences(rng.choice(len(corpus), 20_000, replace=False))
        means = np.add.reduceat((used * weights[:, None])[group[ids]], offsets)
        means /= np.diff(offsets, append=len(ids))[:, None]
        used = used @ soft_zca(means, eps=0.3)[1]
        used = unit(used - used.mean(0))
        # An orthogonal map, which keeps the angles between skip-gram vectors.
        size = max(width, used.shape[1]), min(width, used.shape[1])
        turn = np.linalg.qr(rng.normal(size=size))[0]
        vectors += meaning * used @ (turn.T if width >= used.shape[1] else turn)
    return WordModel(
        torch.from_numpy(group),
        torch.from_numpy(vectors.astype(np.float32)),
        torch.from_numpy(weights.astype(np.float32)),
    )


class Watch:
    """Scores a model in training: STS-B dev, and a search of sentences for their paragraphs."""

    def __init__(self, sts: Path, tokenizer: Tokenizer, corpus: Corpus) -> None:
        pairs = read_sts(sts)[0].subsets["dev"]
        self.gold = pairs.gold
        texts = [*pairs.left, *pairs.right]
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        lengths = [len(e.ids) for e in encodings]
        self.pairs: Texts = (
            np.concatenate([np.asarray(e.ids, dtype=np.int64) for e in encodings]),
            np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64),
        )
        rng = np.random.default_rng(9)
        long = rng.permutation(np.flatnonzero(corpus.held_out & (corpus.last - corpus.first > 3)))
        # One sentence per paragraph, because two would search for nearly the same text.
        _, index = np.unique(corpus.first[long], return_index=True)
        chosen = rng.permutation(long[index])[:12_000]
        self.queries = corpus.sentences(chosen[:2000])
        self.passages = corpus.rest_of_paragraph(chosen)

    @torch.no_grad()
    def __call__(self, model: WordModel) -> dict[str, float]:
        vectors = model(self.pairs)
        half = len(self.gold)
        cosine = (vectors[:half] * vectors[half:]).sum(1).numpy()
        scores = model(self.queries) @ model(self.passages).T
        correct = scores.diagonal()[:, None]
        rank = (scores > correct).sum(1) + 1
        return {
            "STS-B dev": spearman(cosine, self.gold),
            "MRR@10": 100 * float(torch.where(rank <= 10, 1 / rank, 0.0).mean()),
        }


def info_nce(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """Symmetric InfoNCE over cosines; the other rows of the batch are the negatives."""
    logits = a @ b.T / temperature
    target = torch.arange(len(a))
    cross_entropy = nn.functional.cross_entropy
    return (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--sts", type=Path, default=Path("../shared/data/sts/STSB"))
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--related", type=float, default=0.5, help="weight of WordNet's relations")
    parser.add_argument("--meaning", type=float, default=0.6, help="weight of skip-gram's vectors")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float, default=1e-2, help="in standard deviations")
    parser.add_argument("--temperature", type=float, default=0.05)
    parser.add_argument("--save-every", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(2)
    corpus = Corpus.load(args.work)
    words = np.load(args.work / "words.npz")
    source = PairSource(corpus, words["ids"], words["offsets"], words["pairs"])
    watch = Watch(args.sts, Tokenizer.from_file(str(args.work / "tokenizer.json")), corpus)
    model = initial_model(args.work, corpus, args.width, args.related, args.meaning, args.seed)

    spread = float(model.vectors.detach().std())
    optimizer = torch.optim.Adam(
        [
            {"params": [model.vectors], "lr": args.learning_rate * spread},
            {"params": [model.log_weights], "lr": 2e-3},
        ],
        betas=(0.9, 0.98),
    )
    warmup = min(50, args.steps // 2)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / (warmup + 1), (args.steps - step) / (args.steps - warmup)),
    )
    rng = np.random.default_rng(args.seed)
    state_file, done, seconds = args.work / "state.pt", 0, 0.0
    options = {key: value for key, value in vars(args).items() if key not in ("work", "sts")}
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        if state["options"] != options:
            raise SystemExit(
                f"{state_file} is from a run with other options ({state['options']}): move it away"
            )
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        done, seconds = state["step"], state["seconds"]
        rng.bit_generator.state = state["rng"]
        print(f"resumed at step {done}")
    else:
        print(f"before training: {watch(model)}", flush=True)

    kinds, shares = list(MIX), list(MIX.values())
    losses: dict[str, list[float]] = {kind: [] for kind in kinds}
    started = time.perf_counter() - seconds
    for step in range(done + 1, args.steps + 1):
        kind = kinds[rng.choice(len(kinds), p=shares)]
        left, right = source.draw(kind, args.batch, rng)
        loss = info_nce(model(left), model(right), args.temperature)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses[kind].append(loss.item())
        if step % args.save_every == 0 or step == args.steps:
            seconds = time.perf_counter() - started
            recent = {k: round(float(np.mean(v[-50:])), 3) for k, v in losses.items() if v}
            scores = {name: round(score, 2) for name, score in watch(model).items()}
            print(f"{step} loss {recent} {scores} {seconds:.0f} s", flush=True)
            torch.save(
                {
                    "options": options,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(),
                    "rng": rng.bit_generator.state,
                    "step": step,
                    "seconds": seconds,
                },
                state_file.with_suffix(".new"),
            )
            state_file.with_suffix(".new").replace(state_file)
    np.savez(
        args.work / "trained.npz",
        vectors=model.vectors.detach().numpy(),
        weights=model.log_weights.detach().exp().numpy(),
    )


if __name__ == "__main__":
    main()
