"""`flowvec fit`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowvec.cli.options import Format, Json, Overwrite, TextField, print_json
from flowvec.errors import InputValueError
from flowvec.optional import require
from flowvec.progress import bar
from flowvec_export.arguments import check_output
from flowvec_export.cli.export import NEEDS, Pickle, RemoteCode

if TYPE_CHECKING:
    from flowvec_export.fitting.fit import FitSettings, Fitted
    from flowvec_export.fitting.flow import Epoch

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

_FIXED = (
    "--like-the-paper fixes the method flow and its training; it takes only options for the "
    "texts, the source and the output, such as --pooling, --rows and --seed"
)


@app.command(
    epilog="Example: flowvec fit flow --model ./my-checkpoint --corpus sentences.txt "
    "-o flow.safetensors"
)
def fit(
    context: typer.Context,
    method: Annotated[
        str,
        typer.Argument(
            help="flow, whitening, soft-zca, standardise, all-but-the-top, beta-gamma, pca, or "
            "several joined by + and fitted in that order: pca+flow, rotation+flow, "
            "flow+whitening."
        ),
    ],
    model: Annotated[
        str, typer.Option(help="A Hugging Face name, or a local directory of an encoder.")
    ],
    corpus: Annotated[
        str,
        typer.Option(
            help="Texts like those to encode: txt, jsonl or csv (may be .xz), or - for stdin."
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The .safetensors file to write.")],
    pooling: Annotated[
        str | None, typer.Option(help="As for `flowvec export`. Default: the source's own.")
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Most tokens of a text.")] = None,
    encoder_only: Annotated[
        bool,
        typer.Option(
            "--encoder-only",
            help="Leave out the source's own pooling, Dense layers and normalization.",
        ),
    ] = False,
    rows: Annotated[int, typer.Option(min=1, help="Texts to draw from the corpus.")] = 100_000,
    sentences: Annotated[
        bool, typer.Option("--sentences", help="Split every row of the corpus into sentences.")
    ] = False,
    text_field: TextField = "text",
    file_format: Format = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Seed of the sample and the training.")
    ] = 0,
    k: Annotated[
        int | None,
        typer.Option(help="whitening, beta-gamma, pca, rotation: directions to keep."),
    ] = None,
    eps: Annotated[float, typer.Option(help="soft-zca: eps in units of the mean variance.")] = 0.05,
    beta: Annotated[float, typer.Option(help="beta-gamma: share of the mean to subtract.")] = 1.0,
    gamma: Annotated[
        float, typer.Option(help="beta-gamma: 0 keeps the variances, 1 makes them equal.")
    ] = 0.5,
    top: Annotated[int | None, typer.Option(help="all-but-the-top: directions to remove.")] = None,
    preset: Annotated[str, typer.Option(help="flow: its shape, wide, released or paper.")] = "wide",
    levels: Annotated[int | None, typer.Option(help="flow: levels.")] = None,
    depth: Annotated[int | None, typer.Option(help="flow: couplings per level.")] = None,
    width: Annotated[int | None, typer.Option(help="flow: hidden units of a coupling.")] = None,
    coupling: Annotated[str | None, typer.Option(help="flow: additive or affine.")] = None,
    epochs: Annotated[int | None, typer.Option(help="flow: most epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="flow: vectors per training step.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="flow: initial learning rate.")
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(help="flow: training noise, in units of the mean deviation."),
    ] = None,
    like_the_paper: Annotated[
        bool,
        typer.Option(
            "--like-the-paper",
            help="BERT-flow's released recipe: 3 levels, width 32, one epoch, dropout on, "
            "first_last_mean unless --pooling says otherwise.",
        ),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Also plot the flow's learning curve: .svg, .png or .pdf.")
    ] = None,
    trust_remote_code: RemoteCode = False,
    allow_pickle: Pickle = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Fit a transform on a corpus, for `flowvec export --transform`.

    Vectors are computed once, by flowvec's own runtime. A model that was trained for cosine
    similarity is usually better without a transform: measure it with `flowvec compare`.
    """
    require("flowvec fit", "cpu,export", *NEEDS)
    from flowvec_export.fitting.corpus import read_corpus
    from flowvec_export.fitting.fit import FitSettings, parse_method
    from flowvec_export.fitting.flow import FlowTraining
    from flowvec_export.transforms import PRESETS
    from flowvec_export.transforms.file import save_transform
    from flowvec_export.trust import Trust

    # A branch, not an example script: the option is part of the command and its file is an ordinary
    # transform, so it needs the same options, checks and report as the other methods.
    if like_the_paper:
        allowed = {"method", "model", "corpus", "out", "pooling", "encoder_only", "rows", "seed",
                   "sentences", "text_field", "file_format", "like_the_paper", "plot",
                   "trust_remote_code", "allow_pickle", "overwrite", "as_json"}  # fmt: skip
        used = {p for p in context.params if _was_given(context, p)}
        if method != "flow" or used - allowed:
            raise InputValueError(_FIXED)
    parts = parse_method(method)
    if not like_the_paper:
        _check_given(context, parts)
    _check_files(out, plot, (model, corpus), overwrite, "flow" in parts)
    if preset not in PRESETS:
        raise InputValueError(f"preset must be one of {', '.join(PRESETS)}, not {preset!r}")
    shape = _changed(
        PRESETS[preset], levels=levels, depth=depth, width=width, coupling=coupling, seed=seed
    )
    training = _changed(
        FlowTraining(),
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        noise=noise,
        seed=seed,
    )
    settings = FitSettings(k, eps, beta, gamma, top, shape, training)
    texts = read_corpus(
        corpus,
        rows=rows,
        seed=seed,
        sentences=sentences,
        text_field=text_field,
        file_format=file_format,
    )
    name = "standard input" if corpus == "-" else Path(corpus).name
    name += " (sentences)" if sentences else ""
    common: dict[str, Any] = {
        "corpus": name,
        "pooling": pooling,
        "encoder_only": encoder_only,
        "trust": Trust(trust_remote_code, allow_pickle),
    }
    if like_the_paper:
        fitted = _like_the_paper(model, texts, seed, common)
    else:
        fitted = _fit(method, model, texts, max_length, settings, common)
    save_transform(fitted.transform, fitted.recipe, out, overwrite=overwrite)
    if plot is not None:
        from flowvec_export.fitting.plot import draw_learning_curve

        draw_learning_curve(fitted.history, fitted.recipe, plot)
    _report(fitted, out, as_json)


def _was_given(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


# The methods that each option applies to; other options apply to all.
_METHODS_OF: dict[str, tuple[str, ...]] = {
    "k": ("whitening", "beta-gamma", "pca", "rotation"),
    "eps": ("soft-zca",),
    "beta": ("beta-gamma",),
    "gamma": ("beta-gamma",),
    "top": ("all-but-the-top",),
    **dict.fromkeys(
        ("preset", "levels", "depth", "width", "coupling", "epochs", "batch_size",
         "learning_rate", "noise"),
        ("flow",),
    ),
}  # fmt: skip


def _check_given(context: typer.Context, parts: Sequence[str]) -> None:
    """Refuse options that the method does not use."""
    for option, methods in _METHODS_OF.items():
        if _was_given(context, option) and not set(methods) & set(parts):
            name = option.replace("_", "-")
            raise InputValueError(f"--{name} applies only to {', '.join(methods)}")


def _changed(defaults: Any, **changes: Any) -> Any:
    return replace(defaults, **{name: v for name, v in changes.items() if v is not None})


def _check_files(
    out: Path, plot: Path | None, inputs: Iterable[str], overwrite: bool, has_flow: bool
) -> None:
    """Check the output before any long work."""
    if out.suffix != ".safetensors":
        raise InputValueError(f"a transform is a .safetensors file, not {out.name}")
    for path in (out, plot):
        check_output(path, inputs, overwrite=overwrite)
    if plot is not None:
        from flowvec_export.fitting.plot import check_plot

        check_plot(plot)
        if not has_flow:
            raise InputValueError("only a flow has a learning curve to plot")


def _fit(
    method: str, model: str, texts: list[str], max_length: int | None, settings: FitSettings,
    common: dict[str, Any],
) -> Fitted:  # fmt: skip
    from flowvec_export.fitting.fit import fit as fit_method

    shown = None if "flow" in method.split("+") else False
    with bar("fit", settings.training.epochs, "epochs", shown=shown) as drawn:

        def on_epoch(epoch: Epoch) -> None:
            drawn.update()
            drawn.set_postfix_str(f"{epoch.train:.3f}, held out {epoch.held_out:.3f} bits/dim")

        return fit_method(
            method,
            model,
            texts,
            max_length=max_length,
            settings=settings,
            on_epoch=on_epoch,
            **common,
        )


def _like_the_paper(model: str, texts: list[str], seed: int, common: dict[str, Any]) -> Fitted:
    from flowvec_export.fitting.paper_recipe import fit_like_the_paper

    with bar("fit", len(texts), "texts") as drawn:
        return fit_like_the_paper(
            model,
            texts,
            seed=seed,
            on_batch=drawn.update,
            **common,
        )


def _report(fitted: Fitted, out: Path, as_json: bool) -> None:
    transform, recipe = fitted.transform, fitted.recipe
    if as_json:
        print_json({"out": str(out), "transform": transform.describe(), "recipe": asdict(recipe)})
        return
    typer.echo(f"{out}: {transform.describe()} after {recipe.pooling} pooling of {recipe.source}")
    typer.echo(f"fitted on {recipe.rows} texts of {recipe.corpus}, seed {recipe.seed}")
    if fitted.history:
        best = min(fitted.history, key=lambda epoch: epoch.held_out)
        typer.echo(
            f"held out: {best.held_out:.3f} bits/dim after epoch {best.epoch} "
            f"(initialized: {fitted.history[0].held_out:.3f})"
            if len(fitted.history) > 1
            else f"held out: {best.held_out:.3f} bits/dim"
        )
        if not recipe.method.startswith("flow"):
            typer.echo("(measured on the flow's input: do not compare it with another method's)")
    if recipe.rows < transform.in_dim:
        typer.echo(f"fewer texts than dimensions ({transform.in_dim}): other texts will fit worse")
    before, after = fitted.mean_cosine
    typer.echo(f"mean cosine of held-out pairs: {before:.3f} before, {after:.3f} after")
    if fitted.tuned:
        typer.echo(
            "This model was trained for cosine similarity. A transform usually makes such a model "
            "worse: measure it with `flowvec compare`."
        )
