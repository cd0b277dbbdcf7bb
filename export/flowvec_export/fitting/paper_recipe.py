"""Fits a flow by BERT-flow's released recipe, as `flowvec fit flow --like-the-paper` does.

Sentences go through the torch model with dropout on, and the flow is trained on its output: one
epoch, batches of 32, at most 64 tokens, AdamW without bias correction at a constant rate of 1e-3,
weight decay .01, gradients clipped at 1. One thing differs: the ActNorms are initialized from 1,000
sentences with a floor, not from a batch of 32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from flowvec import __version__
from flowvec.arguments import whole_number
from flowvec.encoder.batching import Batch, pad
from flowvec.errors import DivergedError
from flowvec.progress import say
from flowvec_export.arguments import check_callback, check_source, encodable_text, texts_of
from flowvec_export.fitting.fit import Fitted, held_out_rows, mean_cosine, results_of
from flowvec_export.fitting.flow import AdamWithoutCorrection, Epoch
from flowvec_export.layers.backbone import TransformersBackbone
from flowvec_export.sources.load import read_torch_source
from flowvec_export.sources.torch import TorchSource
from flowvec_export.transforms import PRESETS, Flow
from flowvec_export.transforms.file import Recipe
from flowvec_export.transforms.flow import MIN_ROWS
from flowvec_export.trust import Trust

__all__ = ["fit_like_the_paper"]

BATCH_SIZE = 32
MAX_LENGTH = 64
LEARNING_RATE = 1e-3
CLIP = 1.0


def fit_like_the_paper(
    source: str | Path,
    texts: Sequence[str],
    *,
    corpus: str = "texts",
    pooling: str | None = None,
    encoder_only: bool = False,
    trust: Trust | None = None,
    seed: int = 0,
    on_step: Callable[[str], object] | None = say,
    on_batch: Callable[[int], object] | None = None,
) -> Fitted:
    """Fit the released flow with the released recipe.

        >>> fitted = fit_like_the_paper("my-checkpoint", sentences)
        >>> fitted.recipe.method
        'flow'

    Args:
        source: as for `export`.
        texts: at least 1,052 distinct sentences, shuffled; a twentieth, at most 10,000, is held
            out.
        corpus: their name, for the file.
        pooling: as for `export`; None is `first_last_mean`, the authors' "last2avg".
        encoder_only: as for `export`.
        trust: what the source may do besides being read as data; None allows nothing.
        seed: seed of order, dropout and initialization.
        on_step: called with a line of text before each step; by default it goes to standard
            error. None is silent.
        on_batch: called with the number of texts after each batch.

    Raises:
        InputTypeError: an argument has the wrong type.
        InputValueError: too few texts.
        ExportError: the source cannot be read.
        DivergedError: the likelihood became NaN or infinite.
    """
    check_source(source, pooling=pooling, encoder_only=encoder_only, trust=trust)
    texts = texts_of("texts", texts)
    encodable_text("corpus", corpus)
    whole_number("seed", seed, 0)
    check_callback("on_step", on_step)
    check_callback("on_batch", on_batch)
    tell = on_step or (lambda _: None)
    checkpoint = read_torch_source(source, encoder_only=encoder_only, trust=trust)
    modes = pooling or "first_last_mean"
    held_out = held_out_rows(len(texts), ["flow"])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        vectors = _Vectors(checkpoint, modes)
        flow = Flow(vectors.dim, PRESETS["released"])
        train, unseen = texts[:-held_out], texts[-held_out:]
        tell(f"initializing from {MIN_ROWS} sentences, dropout on")
        flow.initialize(torch.cat(list(vectors.batches(train[:MIN_ROWS], dropout=True))))
        tell(f"fitting on {len(train)} sentences, {held_out} held out")
        bits = _one_epoch(flow, vectors.batches(train, dropout=True), on_batch)
        held_out_vectors = torch.cat(list(vectors.batches(unseen, dropout=False)))
    with torch.no_grad():
        history = [Epoch(1, bits, float(flow.bits_per_dim(held_out_vectors).mean()))]
        after = flow(held_out_vectors)
        cosines = (mean_cosine(held_out_vectors.numpy()), mean_cosine(after.numpy()))
    recipe = Recipe(
        method="flow",
        source=checkpoint.name,
        source_sha256=checkpoint.sha256(),
        pooling=modes,
        max_length=vectors.max_length,
        corpus=corpus,
        rows=len(train),
        held_out_rows=held_out,
        seed=seed,
        settings={"like_the_paper": True},
        results=results_of(history, cosines),
        encoder_only=encoder_only,
        flowvec=__version__,
    )
    flow.eval().requires_grad_(False)
    return Fitted(flow, recipe, history, cosines, checkpoint.tuned)


class _Vectors:
    """Computes pooled vectors with the torch model."""

    def __init__(self, source: TorchSource, pooling: str) -> None:
        self.source = source
        self.backbone = TransformersBackbone(source.model)
        self.pooling = source.pool(pooling)
        self.steps = nn.Sequential(*source.transforms)
        self.dim = source.width(pooling)
        self.max_length = min(MAX_LENGTH, source.max_length or MAX_LENGTH)

    @torch.no_grad()
    def batches(self, texts: Sequence[str], dropout: bool) -> Iterator[Tensor]:
        """Vectors of 32 texts at a time, float32 (batch, dim), in order."""
        self.source.model.train(dropout)
        tokenizer = self.source.tokenizer
        tokenizer.enable_truncation(self.max_length)
        try:
            for start in range(0, len(texts), BATCH_SIZE):
                encodings = tokenizer.encode_batch(list(texts[start : start + BATCH_SIZE]))
                ids = [encoding.ids for encoding in encodings]
                batch = Batch(tuple(range(len(ids))), max(map(len, ids)))
                input_ids, mask = (torch.from_numpy(a) for a in pad(ids, batch, self.source.pad_id))
                yield self.steps(self.pooling(self.backbone(input_ids, mask), mask, input_ids))
        finally:
            tokenizer.no_truncation()
            self.source.model.eval()


def _one_epoch(
    flow: Flow, batches: Iterator[Tensor], on_batch: Callable[[int], object] | None
) -> float:
    """Train in place; returns the mean bits per dimension over the epoch."""
    parameters = list(flow.parameters())
    optimizer = AdamWithoutCorrection(parameters, lr=LEARNING_RATE)
    losses: list[float] = []
    for rows in batches:
        loss = flow.bits_per_dim(rows).mean()
        if not torch.isfinite(loss):
            raise DivergedError(f"the flow diverged after {len(losses)} batches")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        losses.append(float(loss.detach()))
        if on_batch is not None:
            on_batch(len(rows))
    return float(np.mean(losses))
