"""`flowvec export`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from flowvec.cli.options import Json, print_json
from flowvec.errors import InputValueError
from flowvec.texts.places import check_apart
from flowvec_export.packages import require_packages

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


# A larger sample hardly widens the measured ranges.
_CALIBRATION_ROWS = 5000
NEEDS = ("torch", "transformers", "onnx", "onnxscript", "safetensors", "scipy")


RemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run Python files that come with the checkpoint. They can do anything: read them "
        "first.",
    ),
]
Pickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Read weights that are stored as a pickle.")
]


@app.command(epilog="Example: flowvec export ./my-checkpoint -o ./my-bundle --pooling mean")
def export(
    source: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face name, a local directory of an encoder, a static embedder or an "
            "ONNX graph, or an .onnx file in one."
        ),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The bundle's directory, which is created.")
    ],
    pooling: Annotated[
        str | None,
        typer.Option(
            help="mean, cls, max, mean_sqrt_len, weighted_mean, last_token, pooler, last2_mean, "
            "first_last_mean, or several joined by +. Default: the source's own."
        ),
    ] = None,
    transform: Annotated[
        Path | None,
        typer.Option(help="A file that `flowvec fit` wrote; it goes into the graph."),
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(help="Normalize vectors to length 1. Default: as the source does."),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens of a text. Default: the source's own.")
    ] = None,
    encoder_only: Annotated[
        bool,
        typer.Option(
            "--encoder-only",
            help="Leave out the source's own pooling, Dense layers and normalization.",
        ),
    ] = False,
    name: Annotated[str | None, typer.Option(help="The model's name.")] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TEXT",
            help="A prompt by name, for example `query=query: ` for E5; may be repeated. "
            "It is added to the source's own prompts, and replaces one of the same name.",
        ),
    ] = None,
    default_prompt: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The prompt that is used by default."),
    ] = None,
    weights: Annotated[
        str, typer.Option(help="Storage of the weights: float32, or float16 at half the size.")
    ] = "float32",
    variants: Annotated[
        str | None,
        typer.Option(
            help="More forms of the model, joined by commas: int8-native, int8-openvino and int8 "
            "for CPUs, float16 for GPUs, float32-native for static embedders; or none. Default: "
            "int8-native or float32-native, if flowvec's own engine computes the model."
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Texts like those that will be encoded: they set the ranges of 8-bit vectors, and "
            "variants are compared on them. Default: English sentences of the demo.",
        ),
    ] = None,
    sts: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Sentence pairs with scores (TSV): what each variant loses on them is measured.",
        ),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(
            help="Branch, tag or commit of a Hugging Face name. Default: its main branch."
        ),
    ] = None,
    trust_remote_code: RemoteCode = False,
    allow_pickle: Pickle = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a bundle.")] = False,
    as_json: Json = False,
) -> None:
    """Export a checkpoint, its pooling and its Dense layers as one ONNX graph.

    A cross-encoder becomes a reranker. The graph is compared with its source before the bundle is
    written.
    """
    require_packages(f"flowvec export {source}", source)
    from flowvec_export.build import export as build
    from flowvec_export.fitting.corpus import read_corpus
    from flowvec_export.staged_bundle import tokens_without_row
    from flowvec_export.sts import read_sts

    check_apart(out, (calibration, sts))
    tasks = () if sts is None else read_sts(sts)
    texts = None if calibration is None else read_corpus(calibration, rows=_CALIBRATION_ROWS)
    bundle = build(
        source,
        out,
        pooling=pooling,
        transform=transform,
        normalize=normalize,
        max_length=max_length,
        encoder_only=encoder_only,
        name=name,
        prompts=_parse_prompts(prompt or ()),
        default_prompt_name=default_prompt,
        weights=cast(Any, weights),
        variants=_parse_variants(variants),
        calibration=texts,
        sts=tasks,
        overwrite=overwrite,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
        revision=revision,
    )
    manifest = bundle.manifest
    if as_json:
        print_json(
            {
                "out": str(bundle.path),
                "kind": manifest.kind,
                "name": manifest.name,
                "dim": manifest.dim,
                "max_length": manifest.max_length,
                "pooling": manifest.pooling,
                "transform": manifest.transform,
                "normalised": manifest.normalised,
                "parity": manifest.parity,
                "tokens_without_row": list(tokens_without_row(bundle).values()),
                "fingerprint": bundle.fingerprint,
            }
        )
    elif manifest.head is not None:
        typer.echo(
            f"{bundle.path}: {manifest.name}, a reranker with the labels "
            f"{', '.join(manifest.head.labels)} and the activation {manifest.head.activation}, at "
            f"most {manifest.max_length} tokens; differs from its source by at most "
            f"{manifest.parity['max_relative_error']:.1e}"
        )
    else:
        steps = " -> ".join([manifest.pooling, *manifest.transform])
        typer.echo(
            f"{bundle.path}: {manifest.name}, {steps}, {manifest.dim} dimensions, at most "
            f"{manifest.max_length} tokens; differs from its source by at most "
            f"{manifest.parity['max_relative_error']:.1e}"
        )
    if not as_json:
        for variant in bundle.variants:
            typer.echo(f"{variant}, compared with float32: {_figures(manifest.parity, variant)}")


def _parse_variants(text: str | None) -> Any:
    if text is None:
        return None
    return () if text == "none" else text.split(",")


def _figures(parity: Mapping[str, float], variant: str) -> str:
    """What the comparison of a variant gave, such as `kendall tau 0.976, top 1 0.954`."""
    start = f"{variant}_"
    return ", ".join(
        f"{name.removeprefix(start).replace('_', ' ')} {figure:g}"
        for name, figure in parity.items()
        if name.startswith(start)
    )


def _parse_prompts(lines: Sequence[str]) -> dict[str, str]:
    """Parse prompts written as `NAME=TEXT`; raises InputValueError for anything else."""
    prompts: dict[str, str] = {}
    for line in lines:
        name, sign, text = line.partition("=")
        if not (sign and name.strip()):
            raise InputValueError(f"a prompt is NAME=TEXT, not {line!r}")
        prompts[name.strip()] = text
    return prompts
