"""`flowvec doctor`: what is installed, which engines run, and what is wrong."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from flowvec.cli.options import Json, print_json
from flowvec.cli.report import examine

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(epilog="Example: flowvec doctor --json")
def doctor(
    bundle: Annotated[
        str | None,
        typer.Argument(
            help="The bundle to compare engines on; without it the models that ship with flowvec."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print versions, providers, processor, and which engines are proved on this machine.

    Exits with 1 if something is wrong.
    """
    report = examine(bundle)
    if as_json:
        print_json(asdict(report))
    else:
        typer.echo(f"flowvec {report.flowvec}, Python {report.python}, {report.system}")
        typer.echo(
            f"processor   {report.cpu}; {', '.join(report.cpu_features) or 'features unknown'}"
        )
        typer.echo(f"cores       {report.cores_available} usable of {report.cores_total}")
        for name, version in report.packages.items():
            typer.echo(f"{name:28}  {version or 'not installed'}")
        for provider, reason in report.providers.items():
            typer.echo(f"{provider:28}  {'runs' if reason is None else reason}")
        if report.engine is not None:
            engine = report.engine
            typer.echo(
                f"by default: {engine.provider} in {engine.compute}, {engine.streams} streams"
            )
        typer.echo(f"models that ship: {', '.join(report.models) or 'none'}")
        for proof in report.proofs:
            typer.echo(f"{proof.model} on {proof.provider} in {proof.compute}: {proof.text}")
        for problem in report.problems:
            typer.echo(f"PROBLEM: {problem}")
        if not report.problems:
            typer.echo("no problems found")
    if report.problems:
        raise typer.Exit(1)
