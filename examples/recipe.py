"""The common parts of all recipes: options, initial model, training, bundle and scores.

A recipe reads its data, calls `begin`, builds a loss, calls `train`, and ends with `finish`. It
writes a directory with `model` (sentence-transformers), `bundle` (flowvec) and `report.json`.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import typer
from datasets import Dataset, disable_progress_bars
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from torch import nn
from transformers import PrinterCallback, set_seed

from encoders import POOLINGS, load_model, save_model
from flowvec import Encoder
from flowvec.errors import FlowvecError, InputValueError
from flowvec_bench.reports.tables import format_figure, format_table
from flowvec_export import export
from flowvec_export.sts import StsScore, StsTask, read_sts, score_sts
from training_data import Columns

Model = Annotated[
    str,
    typer.Option(
        help="A Hugging Face name, or a directory of a BERT-family encoder or of a "
        "sentence-transformers model."
    ),
]
Train = Annotated[Path, typer.Option("--train", help="A .tsv with a header, or .jsonl.")]
Sts = Annotated[
    Path,
    typer.Option(help="A folder of TSV files (score sentence1 sentence2), or of such folders."),
]
Out = Annotated[Path, typer.Option("-o", "--out", help="The directory to create.")]
Epochs = Annotated[float, typer.Option(help="Passes over the data.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Stop after this number of steps.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Rows per step.")]
LearningRate = Annotated[float, typer.Option(help="Highest learning rate.")]
Warmup = Annotated[
    float,
    typer.Option(
        min=0, max=1, help="Share of the steps in which the learning rate rises to its maximum."
    ),
]
MaxLength = Annotated[int, typer.Option(min=3, help="Most tokens of a text during training.")]
PoolingMode = Annotated[
    str | None,
    typer.Option(
        "--pooling",
        help="mean, cls or max. Default: the model's own, or mean for a plain encoder.",
    ),
]
Bfloat16 = Annotated[
    bool, typer.Option("--bf16", help="Compute in bfloat16 where this is safe (autocast).")
]
Seed = Annotated[
    int, typer.Option(min=0, max=2**32 - 1, help="Seed of weights, dropout and order.")
]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one run; see the options above."""

    model: str
    sts: Path
    out: Path
    epochs: float
    steps: int | None
    batch_size: int
    learning_rate: float
    warmup: float
    max_length: int
    bf16: bool
    seed: int


@dataclass(frozen=True, slots=True)
class Training:
    """Figures of a training: rows of data, steps, seconds, and about ten mean losses in order."""

    rows: int
    steps: int
    seconds: float
    losses: list[float]


@dataclass(slots=True)
class Run:
    """A run in progress: the model, the STS tasks, and the scores so far."""

    settings: Settings
    model: SentenceTransformer
    tasks: list[StsTask]
    before: list[StsScore]
    training: Training | None = None


def run_app(app: typer.Typer) -> None:
    """Run a recipe's command line: a user's mistake is one line on stderr and exit code 2."""
    try:
        app()
    except FlowvecError as error:
        typer.echo(f"{Path(sys.argv[0]).name}: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        typer.echo(f"{Path(sys.argv[0]).name}: {error}", err=True)
        sys.exit(1)


def begin(settings: Settings, pooling: str | None) -> Run:
    """Check the settings, load the model in float32 and score it as it is.

    Raises:
        InputValueError: the output exists, a setting is out of range, or there is no such model.
    """
    check_out(settings.out)
    if pooling is not None and pooling not in POOLINGS:
        raise InputValueError(f"pooling must be one of {', '.join(POOLINGS)}, not {pooling!r}")
    for name in ("epochs", "learning_rate"):
        if not 0 < getattr(settings, name) < math.inf:
            raise InputValueError(f"{name} must be above 0, but is {getattr(settings, name)}")
    tasks = read_sts(settings.sts)
    set_seed(settings.seed)
    model = load_model(settings.model, pooling)
    if settings.max_length > model.max_seq_length:
        raise InputValueError(
            f"max_length is {settings.max_length}, but {settings.model} takes "
            f"{model.max_seq_length} tokens"
        )
    with tempfile.TemporaryDirectory(prefix="flowvec-") as folder:
        save_model(model, Path(folder) / "model")
        before = score_bundle(
            Path(folder) / "model", Path(folder) / "bundle", tasks, calibration=()
        )
    return Run(settings, model, tasks, before)


def check_out(out: Path) -> None:
    """Refuse a directory that exists or cannot be created, before any long work."""
    if out.exists():
        raise InputValueError(f"{out} exists; choose another name")
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputValueError(f"cannot write to {parent}")


def train(run: Run, model: SentenceTransformer, loss: nn.Module, columns: Columns) -> None:
    """Train with the library's trainer: Adam, linear warm-up and decay, gradients clipped at 1.

    The model's token limit is lowered during training.
    """
    settings = run.settings
    if not sys.stderr.isatty():
        disable_progress_bars()
    data = Dataset.from_dict(columns)
    batches = math.ceil(len(data) / settings.batch_size)
    steps = settings.steps or max(1, math.ceil(batches * settings.epochs))
    limit, model.max_seq_length = model.max_seq_length, settings.max_length
    started = perf_counter()
    with tempfile.TemporaryDirectory(prefix="flowvec-") as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            num_train_epochs=settings.epochs,
            max_steps=steps,
            per_device_train_batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            weight_decay=0.0,
            warmup_steps=round(steps * settings.warmup),
            lr_scheduler_type="linear",
            bf16=settings.bf16,
            use_cpu=settings.bf16 and not torch.cuda.is_available(),
            seed=settings.seed,
            data_seed=settings.seed,
            save_strategy="no",
            report_to="none",
            logging_steps=max(1, steps // 10),
            disable_tqdm=not sys.stderr.isatty(),
            dataloader_pin_memory=torch.cuda.is_available(),
        )
        trainer = SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=data, loss=loss
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    run.training = Training(
        rows=len(data),
        steps=steps,
        seconds=round(perf_counter() - started, 1),
        losses=[round(entry["loss"], 4) for entry in trainer.state.log_history if "loss" in entry],
    )
    typer.echo(f"{run.training}", err=True)
    model.max_seq_length = limit
    model.eval()


def finish(run: Run, model: SentenceTransformer, **options: Any) -> None:
    """Write the model, its bundle and the report, and print the scores before and after.

    `options` are the recipe's own options, for the report.
    """
    out = run.settings.out
    settings = asdict(run.settings) | options | {"model": Path(run.settings.model).name}
    save_model(model, out / "model")
    after = score_bundle(out / "model", out / "bundle", run.tasks)
    write_report(
        out,
        run.before,
        after,
        settings={k: v for k, v in settings.items() if k not in ("sts", "out")},
        training=asdict(run.training) if run.training else None,
    )


def score_bundle(
    source: Path, out: Path, tasks: Sequence[StsTask], **options: Any
) -> list[StsScore]:
    """Export a model, and score the bundle in float32 on the CPU provider."""
    bundle = export(source, out, **options)
    with Encoder.load(bundle.path, provider="cpu", compute="float32") as encoder:
        return score_sts(tasks, encoder.encode)


def write_report(
    out: Path, before: Sequence[StsScore], after: Sequence[StsScore], **facts: Any
) -> None:
    """Write `report.json`, and print Spearman x 100 before and after."""
    packages = ("flowvec", "sentence-transformers", "transformers", "torch")
    report = facts | {
        "before": [asdict(score) for score in before],
        "after": [asdict(score) for score in after],
        "packages": {name: version(name) for name in packages},
    }
    text = json.dumps(report, indent=2, default=str) + "\n"
    (out / "report.json").write_text(text, encoding="utf-8")
    lines = []
    for old, new in zip(before, after, strict=True):
        parts = [(name, old.subsets[name], new.subsets[name]) for name in old.subsets]
        parts += [("all", old.all, new.all), ("wmean", old.wmean, new.wmean)]
        lines += [(old.task, part, format_figure(a), format_figure(b)) for part, a, b in parts]
    typer.echo(format_table(("task", "part", "before", "after"), lines, texts=2))
    typer.echo(f"{out / 'bundle'} is the bundle, {out / 'model'} the model.")
