"""`flowvec bench pairs`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flowvec.cli.options import Overwrite
from flowvec.optional import require
from flowvec.progress import say
from flowvec_bench.cli.options import (
    EXTRAS,
    Corpus,
    JsonOut,
    Report,
    Seed,
    check_corpus,
    check_outputs,
    chosen,
    sample,
    write_json,
)
from flowvec_bench.cli.peer_options import (
    NEEDS,
    NEEDS_FOR_PEERS,
    MaxLength,
    Model,
    Name,
    Only,
    Tokenizer,
    about_race,
    options_of,
)

__all__ = ["pairs"]


def pairs(
    model: Model,
    corpus: Corpus,
    tokenizer: Tokenizer = None,
    only: Only = None,
    count: Annotated[int, typer.Option(min=2, help="Sentences to compare.")] = 10_000,
    top_k: Annotated[int, typer.Option(min=1, help="Pairs to find.")] = 1000,
    max_length: MaxLength = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each peer.")] = 3,
    seed: Seed = 0,
    name: Name = None,
    json_out: JsonOut = None,
    report: Report = None,
    overwrite: Overwrite = False,
) -> None:
    """Seconds from raw text to the most similar pairs of sentences, compared with peers."""
    require("flowvec bench pairs", EXTRAS, *NEEDS, *NEEDS_FOR_PEERS)
    from flowvec_bench.peers.model_forms import check_model, opened_forms
    from flowvec_bench.peers.pairs import pair_peers, race_pairs
    from flowvec_bench.reports.pairs import HEADER, cells, write_pair_report
    from flowvec_bench.reports.tables import format_table
    from flowvec_bench.texts import natural_sentences

    racers = chosen(only, pair_peers())
    check_model(model, tokenizer)
    check_corpus(corpus)
    check_outputs(json_out, report, (model, corpus, tokenizer), overwrite=overwrite)
    texts = sample(natural_sentences(corpus), count, seed)
    with opened_forms(model, tokenizer, max_length, racers) as (forms, folder):
        rows = race_pairs(
            racers, forms.paths, options_of(forms), texts, folder,
            top_k=top_k, rounds=rounds, on_step=say,
        )  # fmt: skip
    typer.echo(f"the {top_k} most similar pairs of {count} sentences, from raw text")
    typer.echo(format_table(HEADER, [cells(row) for row in rows], texts=1))
    record = about_race("pairs", name or Path(model).name, forms, corpus, seed) | {
        "count": count, "top_k": top_k, "rounds": rounds, "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    write_json(record, json_out)
    if report is not None:
        write_pair_report(rows, record, report)
