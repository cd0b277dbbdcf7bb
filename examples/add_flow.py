"""Adds a flow to a trained model: SBERT + flow, SimCSE + flow.

    python examples/add_flow.py --model sbert-nli/model --corpus wiki.txt --sentences --sts sts \\
        -o sbert-nli-flow
    python examples/add_flow.py --model sbert-nli/model --sts sts -o sbert-nli-flow-target

Without --corpus, the flow is fitted on the sentences of the STS sets, without their scores. Li et
al. 2020 call this "target" (their Table 3). The flow comes after all layers of the model, including
Dense modules. Measure before and after: a flow usually lowers the scores of a model that was
trained for cosine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

import recipe
from flowvec_export import FitSettings, FlowTraining, fit, save_transform
from flowvec_export.fitting.corpus import read_corpus, sample_texts
from flowvec_export.sts import read_sts, sentence_rows

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    model: recipe.Model,
    sts: recipe.Sts,
    out: recipe.Out,
    corpus: Annotated[
        str | None,
        typer.Option(help="Texts like those to encode. Default: the sentences of --sts."),
    ] = None,
    rows: Annotated[int, typer.Option(min=20, help="Texts to draw.")] = 30_000,
    sentences: Annotated[
        bool, typer.Option("--sentences", help="Split every line of the corpus into sentences.")
    ] = False,
    epochs: Annotated[int, typer.Option(min=1, help="Most epochs of the flow.")] = 15,
    seed: recipe.Seed = 0,
) -> None:
    """Fit a flow, export the model with it, and score the bundle without and with it."""
    recipe.check_out(out)
    tasks = read_sts(sts)
    if corpus is None:
        name, texts = "target", sample_texts(sentence_rows(tasks), rows, seed, str(sts))
    else:
        name = Path(corpus).name
        texts = read_corpus(corpus, rows=rows, seed=seed, sentences=sentences)
    started = perf_counter()
    settings = FitSettings(training=FlowTraining(epochs=epochs, seed=seed))
    fitted = fit("flow", model, texts, corpus=name, settings=settings)
    seconds = perf_counter() - started
    with tempfile.TemporaryDirectory(prefix="flowvec-") as folder:
        before = recipe.score_bundle(Path(model), Path(folder) / "bundle", tasks, calibration=())
    out.mkdir(parents=True)
    flow = out / "flow.safetensors"
    save_transform(fitted.transform, fitted.recipe, flow)
    after = recipe.score_bundle(Path(model), out / "bundle", tasks, transform=flow)
    recipe.write_report(
        out,
        before,
        after,
        settings={"model": Path(model).name, "corpus": name, "sentences": sentences, "seed": seed},
        rows=len(texts),
        mean_cosine=fitted.mean_cosine,
        seconds=round(seconds, 1),
    )


if __name__ == "__main__":
    recipe.run_app(app)
