"""`flowvec bench pairs`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flowvec_bench.common import (
    Corpus,
    JsonOut,
    Seed,
    about_machine,
    check_corpus,
    chosen,
    require,
    sample,
    say,
    write_json,
)
from flowvec_bench.peer_commands import NEEDS, NEEDS_FOR_PEERS, Name, Tokenizer

__all__ = ["pairs"]

# Those that have such a task of their own.
_ABLE = ("flowvec", "sentence-transformers")


def pairs(
    model: Annotated[
        str,
        typer.Argument(
            help="minilm-l6 or bert-base (random weights), or the directory of a "
            "sentence-transformers model."
        ),
    ],
    corpus: Corpus,
    tokenizer: Tokenizer = None,
    only: Annotated[
        str | None, typer.Option(help="Peers, as st-default,st-openvino; without it all.")
    ] = None,
    count: Annotated[int, typer.Option(min=2, help="Sentences to compare.")] = 10_000,
    top_k: Annotated[int, typer.Option(min=1, help="Pairs to find.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each.")] = 3,
    seed: Seed = 0,
    name: Name = None,
    json_out: JsonOut = None,
) -> None:
    """Seconds to find the most alike of all pairs of sentences, from raw text, beside peers."""
    require("pairs", *NEEDS, *NEEDS_FOR_PEERS)
    from flowvec.machine import available_cores
    from flowvec_bench.peers.forms import check_model, opened_forms
    from flowvec_bench.peers.pairs import race_pairs
    from flowvec_bench.peers.report import check_outputs
    from flowvec_bench.peers.roster import FLOWVEC, PEERS
    from flowvec_bench.tables import format_table
    from flowvec_bench.texts import natural_sentences

    known = {key: peer for key, peer in {**FLOWVEC, **PEERS}.items() if peer.engine in _ABLE}
    racers = chosen(only, known)
    check_model(model, tokenizer)
    check_corpus(corpus)
    check_outputs(json_out, None)
    texts = sample(natural_sentences(corpus), count, seed)
    with opened_forms(model, tokenizer, None, racers) as (forms, folder):
        options = {
            "max_length": forms.max_length, "dim": forms.dim, "threads": available_cores(),
        }  # fmt: skip
        rows = race_pairs(
            racers, forms.paths, options, texts, folder, top_k=top_k, rounds=rounds, on_step=say()
        )
    lines = [
        (
            row.name,
            "" if row.median is None else f"{row.median:.2f}",
            "" if row.shared is None else f"{row.shared:.3f}",
            (row.error or ("void: other pairs" if row.void else ""))[:80],
        )
        for row in rows
    ]
    typer.echo(f"the {top_k} most alike pairs of {count} sentences, from raw text")
    typer.echo(format_table(("peer", "seconds", "same pairs", ""), lines, texts=1))
    about = about_machine(
        "pairs", model=name or Path(model).name, corpus=corpus.name, seed=seed, count=count,
        top_k=top_k, rows=[asdict(row) for row in rows],
    )  # fmt: skip
    write_json(about, json_out)
