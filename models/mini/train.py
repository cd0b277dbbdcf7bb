"""Step 3: contrastive training of the encoder, resumable.

    python models/mini/train.py --steps 3200

A three-layer BERT starts from the word vectors of step 2 and learns, by InfoNCE with in-batch
negatives, that these belong together:

- `neighbour`: two sentences of a paragraph at most two apart;
- `dropout`: a sentence and itself under another dropout mask (unsupervised SimCSE);
- `passage`: a sentence and the rest of its paragraph.

The vector is Dense(mean of the last layer). Dense starts as the soft-ZCA whitening of the means of
wiki sentences, so that the common direction is gone from the first step on. STS-B dev chooses the
checkpoint; no STS sentence is ever trained or fitted on.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import BertConfig, BertModel

HERE = Path(__file__).resolve().parent
CLS, SEP = 2, 3


class Encoder(nn.Module):
    """BERT, masked mean, Dense: token ids (batch, sequence) -> vectors (batch, width)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def pool(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Masked mean of the last layer, float32 (batch, width)."""
        hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        weights = mask.unsqueeze(-1).float()
        return (hidden * weights).sum(1) / weights.sum(1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.dense(self.pool(ids, mask).to(self.dense.weight.dtype))


@dataclass
class Corpus:
    """Token ids of all sentences and the paragraph that each belongs to."""

    ids: np.ndarray
    offsets: np.ndarray
    first: np.ndarray  # the first sentence of each sentence's paragraph
    last: np.ndarray  # one past the last

    @classmethod
    def load(cls, work: Path) -> Corpus:
        paragraph = np.load(work / "paragraph.npy")
        starts = np.flatnonzero(np.diff(paragraph, prepend=-1))
        ends = np.append(starts[1:], len(paragraph))
        counts = ends - starts
        return cls(
            np.load(work / "ids.npy"),
            np.load(work / "offsets.npy"),
            np.repeat(starts, counts),
            np.repeat(ends, counts),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def tokens(self, start: int, stop: int, limit: int) -> np.ndarray:
        """Ids of sentences start..stop, cut at `limit` and framed by [CLS] and [SEP]."""
        body = self.ids[self.offsets[start] : self.offsets[stop]][: limit - 2]
        return np.concatenate(([CLS], body, [SEP])).astype(np.int64)


def pad(rows: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Right-pad id rows: ids and mask, int64 (batch, sequence)."""
    ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


Pair = tuple[np.ndarray, np.ndarray]


def make_pair(corpus: Corpus, kind: str, rng: np.random.Generator) -> Pair:
    """Draw one training pair of the kind."""
    while True:
        i = int(rng.integers(len(corpus)))
        first, last = int(corpus.first[i]), int(corpus.last[i])
        if kind == "dropout":
            row = corpus.tokens(i, i + 1, 64)
            if len(row) >= 6:
                return row, row
        elif kind == "neighbour":
            j = i + int(rng.integers(1, 3))
            if j < last:
                return corpus.tokens(i, i + 1, 64), corpus.tokens(j, j + 1, 64)
        elif last - first >= 3:
            others = (first, i) if i - first > last - i - 1 else (i + 1, last)
            return corpus.tokens(i, i + 1, 64), corpus.tokens(*others, 192)


def batches(corpus: Corpus, batch: int, seed: int) -> Iterator[tuple[str, list[Pair]]]:
    """Yield batches of one kind, of similar lengths (less padding, harder negatives)."""
    rng = np.random.default_rng(seed)
    kinds = {"neighbour": (0.5, batch), "dropout": (0.3, batch), "passage": (0.2, batch // 2)}
    while True:
        kind = str(rng.choice(list(kinds), p=[share for share, _ in kinds.values()]))
        size, pool = kinds[kind][1], 16
        pairs = [make_pair(corpus, kind, rng) for _ in range(pool * size)]
        pairs.sort(key=lambda p: max(len(p[0]), len(p[1])))
        for k in rng.permutation(pool)[:4]:
            yield kind, pairs[k * size : (k + 1) * size]


def info_nce(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """Symmetric InfoNCE over cosine, the other rows of the batch as negatives."""
    a, b = nn.functional.normalize(a, dim=1), nn.functional.normalize(b, dim=1)
    logits = a @ b.T / temperature
    target = torch.arange(len(a))
    cross_entropy = nn.functional.cross_entropy
    return (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2


@torch.no_grad()
def embed(model: Encoder, rows: list[np.ndarray], raw: bool = False) -> np.ndarray:
    """Vectors of id rows in evaluation mode, float32 (rows, width), input order."""
    model.eval()
    out = np.empty((len(rows), model.bert.config.hidden_size), dtype=np.float32)
    order = np.argsort([len(r) for r in rows])
    for start in range(0, len(rows), 128):
        index = order[start : start + 128]
        ids, mask = pad([rows[i] for i in index])
        out[index] = (model.pool(ids, mask) if raw else model(ids, mask)).float().numpy()
    model.train()
    return out


class StsDev:
    """Spearman x 100 of cosine with the gold scores of STS-B dev."""

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        with path.open(encoding="utf-8") as lines:
            rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
        self.gold = [float(r[0]) for r in rows]
        texts = [r[1] for r in rows] + [r[2] for r in rows]
        self.rows = [np.asarray(e.ids[:256]) for e in tokenizer.encode_batch_fast(texts)]

    def __call__(self, model: Encoder, raw: bool = False) -> float:
        vectors = embed(model, self.rows, raw)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        half = len(self.gold)
        cosine = (vectors[:half] * vectors[half:]).sum(1)
        return 100 * float(spearmanr(cosine, self.gold).statistic)


def soft_zca(vectors: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Matrix (width, width) and bias (width,) of the soft-ZCA whitening of row vectors."""
    mean = vectors.mean(0, dtype=np.float64)
    values, basis = np.linalg.eigh(np.cov(vectors, rowvar=False, dtype=np.float64))
    matrix = basis @ np.diag((values + eps * values.mean()) ** -0.5) @ basis.T
    return matrix.astype(np.float32), (-matrix @ mean).astype(np.float32)


def initialise(model: Encoder, corpus: Corpus, work: Path) -> None:
    """Word vectors as token embeddings, quiet layers, Dense as soft-ZCA of sentence means."""
    vectors = np.load(work / "word_vectors.npy")
    vectors -= vectors.mean(0)
    embeddings = model.bert.embeddings
    scale = torch.from_numpy(vectors / (vectors.std() + 1e-9))
    with torch.no_grad():
        embeddings.word_embeddings.weight.copy_(scale)
        embeddings.word_embeddings.weight[:5].normal_(std=0.1)
        embeddings.position_embeddings.weight.normal_(std=0.05)
        embeddings.token_type_embeddings.weight.zero_()
        for layer in model.bert.encoder.layer:
            layer.attention.output.dense.weight.mul_(0.3)
            layer.output.dense.weight.mul_(0.3)
        chosen = np.random.default_rng(0).choice(len(corpus), 20_000, replace=False)
        pooled = embed(model, [corpus.tokens(i, i + 1, 64) for i in chosen], raw=True)
        matrix, bias = soft_zca(pooled, eps=0.05)
        model.dense.weight.copy_(torch.from_numpy(matrix))
        model.dense.bias.copy_(torch.from_numpy(bias))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--sts", type=Path, default=Path("../shared/data/sts/STSB/dev.tsv"))
    parser.add_argument("--steps", type=int, default=3200)
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument("--learning-rate", type=float, default=4e-4)
    parser.add_argument("--temperature", type=float, default=0.05)
    parser.add_argument("--evaluate-every", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(2)
    corpus = Corpus.load(args.work)
    tokenizer = Tokenizer.from_file(str(args.work / "tokenizer.json"))
    config = BertConfig(
        **json.loads((HERE / "config.json").read_text()), attn_implementation="eager"
    )
    model = Encoder(config)
    dev = StsDev(args.sts, tokenizer)

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.01)
    warmup = max(1, args.steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min((s + 1) / warmup, max(0.02, (args.steps - s) / (args.steps - warmup))),
    )
    state_file = args.work / "state.pt"
    step, best, seconds = 0, -1.0, 0.0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        step, best, seconds = state["step"], state["best"], state["seconds"]
        torch.set_rng_state(state["rng"])
        print(f"resumed at step {step}")
    else:
        initialise(model, corpus, args.work)
        print(f"initialised: STS-B dev raw mean {dev(model, raw=True):.2f}, dense {dev(model):.2f}")

    model.train()
    # A resumed run draws new pairs rather than replaying the stream up to here.
    stream = batches(corpus, args.batch, args.seed + step)
    begun, tokens, losses = time.perf_counter() - seconds, 0, []
    while step < args.steps:
        kind, pairs = next(stream)
        sides = [pad([p[k] for p in pairs]) for k in (0, 1)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pooled = [model.pool(*side) for side in sides]
        a, b = (model.dense(p) for p in pooled)
        loss = info_nce(a, b, args.temperature)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        step += 1
        tokens += sum(ids.numel() for ids, _ in sides)
        losses.append(loss.item())
        if step % 20 == 0:
            rate = tokens / (time.perf_counter() - begun - seconds)
            print(f"{step} {kind} loss {np.mean(losses[-20:]):.3f} {rate:.0f} tokens/s", flush=True)
        if step % args.evaluate_every == 0 or step == args.steps:
            seconds_now = time.perf_counter() - begun
            score, raw = dev(model), dev(model, raw=True)
            print(f"step {step}: STS-B dev {score:.2f} raw mean {raw:.2f} {seconds_now:.0f} s")
            if score > best:
                best = score
                torch.save(model.state_dict(), args.work / "best.pt")
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(),
                    "rng": torch.get_rng_state(),
                    "step": step,
                    "best": best,
                    "seconds": seconds_now,
                },
                state_file,
            )


if __name__ == "__main__":
    main()
