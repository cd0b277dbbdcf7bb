"""Pre-trains a small BERT with masked language modelling only; an interrupted run continues.

    python models/mini/prepare.py --tokenizer models/backbone/checkpoint/tokenizer.json \\
        --out models/backbone/work
    python models/backbone/train.py --steps 6750 --decay-steps 2000

A row is a sequence of whole sentences of one paragraph. As in BERT, 15 % of its tokens are
predicted (80 % of them masked, 10 % replaced, 10 % kept). The learning rate warms up, stays
constant, and falls to zero over the last `--decay-steps` steps. The data of a step depends only on
the seed and the step, so an interrupted run continues where it stopped, and `--steps` can be chosen
while the rate is still constant. Writes models/backbone/work/state.pt every `--save-every` steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

HERE = Path(__file__).resolve().parent
CLS, SEP, MASK, SPECIAL = 2, 3, 4, 5
# The batches of a pool are cut from rows sorted by length, so that there is little padding.
POOL = 16
# The last sentences. None is trained on, except those of the paragraph at the boundary.
HELD_OUT = 20_000


class Rows:
    """Sequences of sentences, as batches of (ids, mask, positions to predict, their tokens)."""

    def __init__(self, work: Path, tokens: int, limit: int, vocabulary: int) -> None:
        self.ids = np.load(work / "ids.npy")
        self.offsets = np.load(work / "offsets.npy")
        paragraph = np.load(work / "paragraph.npy")
        starts = np.flatnonzero(np.diff(paragraph, prepend=-1))
        ends = np.append(starts[1:], len(paragraph))
        self.last = np.repeat(ends, ends - starts)
        self.tokens, self.limit, self.vocabulary = tokens, limit, vocabulary
        self.trained = len(paragraph) - HELD_OUT

    def row(self, i: int, wanted: int) -> np.ndarray:
        """Sentence i and the next ones of its paragraph that fit into `wanted` tokens."""
        start, stop = self.offsets[i], i + 1
        while stop < self.last[i] and self.offsets[stop + 1] - start <= wanted - 2:
            stop += 1
        body = self.ids[start : self.offsets[stop]][: self.limit - 2]
        return np.concatenate(([CLS], body, [SEP])).astype(np.int64)

    def pool(self, seed: int, first: int, stop: int) -> list[list[np.ndarray]]:
        """POOL batches of rows of sentences first..stop, of similar lengths within a batch."""
        rng = np.random.default_rng(seed)
        rows: list[np.ndarray] = []
        size = 0
        while size < POOL * self.tokens:
            # Single sentences, because these will be embedded; longer rows teach context.
            wanted = int(rng.choice([16, 64, self.limit], p=[0.3, 0.3, 0.4]))
            rows.append(self.row(int(rng.integers(first, stop)), wanted))
            size += len(rows[-1])
        rows.sort(key=len)
        bounds = np.searchsorted(
            np.cumsum([len(r) for r in rows]), self.tokens * np.arange(1, POOL)
        )
        edges = [0, *(int(b) for b in bounds), len(rows)]
        batches = [rows[a:b] for a, b in itertools.pairwise(edges)]
        rng.shuffle(batches)  # type: ignore[arg-type]
        return batches

    def masked(self, rows: list[np.ndarray], seed: list[int]) -> tuple[Tensor, ...]:
        """Ids and mask, int64 (rows, sequence), flat positions to predict and their tokens."""
        rng = np.random.default_rng(seed)
        ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
        mask = np.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
        flat = ids.reshape(-1)
        candidates = np.flatnonzero(flat >= SPECIAL)
        chosen = rng.choice(candidates, max(1, round(0.15 * len(candidates))), replace=False)
        targets = flat[chosen].copy()
        kind = rng.random(len(chosen))
        flat[chosen[kind < 0.8]] = MASK
        replaced = chosen[(kind >= 0.8) & (kind < 0.9)]
        flat[replaced] = rng.integers(SPECIAL, self.vocabulary, len(replaced))
        return tuple(torch.from_numpy(a) for a in (ids, mask, chosen, targets))


def mlm_loss(model: BertForMaskedLM, batch: tuple[Tensor, ...]) -> Tensor:
    """Cross entropy at the chosen positions; the head runs only on these."""
    ids, mask, chosen, targets = batch
    hidden = model.bert(input_ids=ids, attention_mask=mask).last_hidden_state
    logits = model.cls(hidden.reshape(-1, hidden.shape[-1])[chosen])
    return nn.functional.cross_entropy(logits.float(), targets)


@torch.no_grad()
def held_out_loss(model: BertForMaskedLM, rows: Rows) -> float:
    """Mean masked-language loss over a fixed set of held-out rows, in nats per token."""
    model.eval()
    batches = rows.pool(12345, rows.trained, rows.trained + HELD_OUT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [mlm_loss(model, rows.masked(b, [12345, i])).item() for i, b in enumerate(batches)]
    model.train()
    return float(np.mean(losses))


def rate(step: int, steps: int, warmup: int, decay: int) -> float:
    """Factor of the peak learning rate: it rises, stays constant and falls to zero."""
    return max(0.0, min((step + 1) / warmup, 1.0, (steps - step) / decay))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prepared", type=Path, default=HERE / "work")
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--steps", type=int, default=6750)
    parser.add_argument("--decay-steps", type=int, default=2000)
    parser.add_argument("--warmup-steps", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens per batch")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--save-every", type=int, default=250)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    config = BertConfig(
        **json.loads((HERE / "config.json").read_text()), attn_implementation="eager"
    )
    model = BertForMaskedLM(config).train()
    rows = Rows(args.prepared, args.tokens, config.max_position_embeddings, config.vocab_size)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=args.learning_rate,
        betas=(0.9, 0.98),
        fused=True,
    )
    state_file, step, tokens, seconds = args.work / "state.pt", 0, 0, 0.0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, tokens, seconds = state["step"], state["tokens"], state["seconds"]
        print(f"resumed at step {step}", flush=True)

    started, losses, batches = time.perf_counter() - seconds, [], []
    while step < args.steps:
        if not batches or step % POOL == 0:
            batches = rows.pool(args.seed + 1_000_003 * (1 + step // POOL), 0, rows.trained)
        batch = rows.masked(batches[step % POOL], [args.seed, step])
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * rate(
                step, args.steps, args.warmup_steps, args.decay_steps
            )
        torch.manual_seed(args.seed + step)  # dropout also depends only on the step
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mlm_loss(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        tokens += int(batch[1].sum())
        losses.append(loss.item())
        now = time.perf_counter() - started
        if step % 50 == 0:
            print(
                f"{step} loss {np.mean(losses[-50:]):.3f} {tokens / now:.0f} tokens/s", flush=True
            )
        if step % args.save_every == 0 or step == args.steps:
            held_out = held_out_loss(model, rows)
            print(
                f"step {step}: held out {held_out:.3f}, {tokens:,} tokens, {now:.0f} s", flush=True
            )
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step, "tokens": tokens, "seconds": now}, state_file)


if __name__ == "__main__":
    main()
