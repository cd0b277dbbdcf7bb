"""`flowvec tune`: the fastest settings for a bundle on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flowvec.bundle.bundle import class_of
from flowvec.bundle.exported import open_bundle
from flowvec.cli.options import MODEL_HELP, Json, print_json
from flowvec.engine.tuned import forget, save_tuned, why_not_kept
from flowvec.progress import say
from flowvec.tuning import Measured, workload_of
from flowvec.tuning import tune as find

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(epilog="Example: flowvec tune mini")
def tune(
    bundle: Annotated[str, typer.Argument(help=MODEL_HELP)],
    seconds: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="Seconds to measure, without loading.")
    ] = 100.0,
    allow_compute: Annotated[
        bool,
        typer.Option(
            "--allow-compute",
            help="Try other compute types too; vectors and scores differ slightly.",
        ),
    ] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Delete the tuned settings, and measure nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure providers, streams and token budgets, and keep the fastest for `load`.

    The machine should be idle meanwhile. The result is kept in the user's cache (or in the folder
    FLOWVEC_CACHE), for this bundle, an embedder or a reranker, on this machine; arguments of
    `Encoder.load` and `Reranker.load` have precedence.
    """
    loaded = open_bundle(bundle)
    if reset:
        gone = forget(loaded.fingerprint)
        if as_json:
            print_json({"forgotten": gone})
        else:
            typer.echo("forgotten" if gone else "there were no tuned settings")
        return
    if problem := why_not_kept(loaded.fingerprint):
        typer.echo(f"the result cannot be cached: {problem}; it is printed at the end", err=True)
    unit = workload_of(loaded).unit
    steps: dict[str, list[Measured]] = {}

    def show(name: str, measured: Sequence[Measured]) -> None:
        steps[name] = list(measured)
        say("\n".join(_lines(name, measured, unit)))

    tuned = find(loaded, seconds=seconds, allow_compute=allow_compute, on_measured=show)
    kept: Path | None = None
    try:
        kept = save_tuned(loaded.fingerprint, tuned)
    except (OSError, RuntimeError) as error:
        problem = problem or str(error)
    if as_json:
        shown = {name: [asdict(m) for m in measured] for name, measured in steps.items()}
        print_json(
            {"unit": unit, "tuned": asdict(tuned), "steps": shown, "file": kept and str(kept)}
        )
        return
    rates = ", ".join(f"{kind} {rate:.0f}" for kind, rate in tuned.texts_per_second.items())
    typer.echo(
        f"{loaded.manifest.name}: {tuned.provider} in {tuned.compute}, {tuned.streams} streams "
        f"of {tuned.threads} threads, "
        f"{tuned.max_batch_tokens} tokens a batch; {unit}/s: {rates}"
    )
    if kept is not None:
        typer.echo(f"kept in {kept}; `flowvec tune {bundle} --reset` forgets it")
        return
    typer.echo(
        f"not kept ({problem}); pass the settings yourself:\n"
        f"{class_of(loaded)}.load({bundle!r}, provider={tuned.provider!r}, "
        f"compute={tuned.compute!r}, streams={tuned.streams}, threads={tuned.threads}, "
        f"max_batch_tokens={tuned.max_batch_tokens})"
    )


def _lines(name: str, measured: Sequence[Measured], unit: str) -> list[str]:
    lines = [f"{name} ({unit}/s by kind; last, the score: 1.00 is the best in every kind)"]
    for m in measured:
        engine = m.candidate.engine
        rates = "  ".join(f"{kind} {rate:7.0f}" for kind, rate in m.texts_per_second.items())
        what = f"{engine.provider:26} {engine.compute:8} {engine.streams:3} x {engine.threads}"
        budget = f"{m.candidate.max_batch_tokens:6} tokens"
        fused = "  fused attention" if engine.fused_attention else ""
        lines.append(f"  {what} threads {budget}  {rates}  {m.score:.2f}{fused}")
    return lines
