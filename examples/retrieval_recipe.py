"""The common parts of the recipes for searches: options, training and the table of figures."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from datasets import disable_progress_bars
from torch import nn
from transformers import PrinterCallback

from flowvec_bench.quality.retrieval import RetrievalScore
from flowvec_bench.reports.tables import format_figure, format_table

Corpus = Annotated[Path, typer.Option(help="A file with one paragraph per line.")]
Retrieval = Annotated[
    Path | None, typer.Option(help="A folder in BEIR's layout, or a folder of such folders.")
]
Paragraphs = Annotated[int, typer.Option("--paragraphs", min=4, help="Paragraphs to use.")]
TakenOut = Annotated[
    float,
    typer.Option(min=0, max=1, help="Share of the sentences taken out of their paragraphs."),
]
RerankFrom = Annotated[
    int, typer.Option(min=1, help="Hits that are reranked in the retrieval sets.")
]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is trained; see the options of the recipes."""

    batch_size: int
    learning_rate: float
    warmup: float
    bf16: bool
    seed: int


def train(
    trainer: Callable[..., Any], arguments: Callable[..., Any], steps: int, settings: Settings,
    **parts: Any,
) -> list[float]:  # fmt: skip
    """Train with a trainer of sentence-transformers, and return about ten mean losses.

    Args:
        trainer: its class.
        arguments: the class of its arguments.
        steps: number of steps; the learning rate falls to zero over them.
        settings: how it is trained.
        parts: what the trainer is made of besides: `model`, `train_dataset`, `loss`.
    """
    if not sys.stderr.isatty():
        disable_progress_bars()
    with tempfile.TemporaryDirectory(prefix="flowvec-") as folder:
        run = trainer(
            args=arguments(
                output_dir=folder,
                max_steps=steps,
                per_device_train_batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
                warmup_steps=round(steps * settings.warmup),
                bf16=settings.bf16,
                use_cpu=not torch.cuda.is_available(),
                seed=settings.seed,
                save_strategy="no",
                report_to="none",
                logging_steps=max(1, steps // 10),
                disable_tqdm=not sys.stderr.isatty(),
                dataloader_pin_memory=torch.cuda.is_available(),
            ),
            **parts,
        )
        run.remove_callback(PrinterCallback)
        run.train()
    return [round(entry["loss"], 4) for entry in run.state.log_history if "loss" in entry]


def without_dropout(model: nn.Module) -> None:
    """Set all dropout to 0, since no text is seen twice."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def write_report(out: Path, scores: Sequence[RetrievalScore], **facts: Any) -> None:
    """Write `report.json`, and print the figures of all sets and systems."""
    report = facts | {"retrieval": [asdict(score) for score in scores]}
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if scores:
        typer.echo(table(scores))


def table(scores: Sequence[RetrievalScore]) -> str:
    """The figures of all sets and systems."""
    rows = [
        (
            score.dataset,
            score.system,
            format_figure(score.ndcg_at_10, 4),
            format_figure(score.mrr_at_10, 4),
            format_figure(score.milliseconds, 1),
        )
        for score in scores
    ]
    return format_table(("set", "system", "nDCG@10", "MRR@10", "ms a query"), rows, texts=2)
