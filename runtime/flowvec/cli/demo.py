"""`flowvec demo`: embed and search real text with the shipped model."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from flowvec.cli.options import Compute, Json, Provider, print_json
from flowvec.cli.search import shorten
from flowvec.collection.collection import Collection
from flowvec.collection.results import Hit
from flowvec.demo import load_pairs, load_passages
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.jobs import EncodeStatistics

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

_SHOWN = 5
SUGGESTED = "how to dye a rose in many colors"


@app.command(epilog=f'Example: flowvec demo --query "{SUGGESTED}"')
def demo(
    query: Annotated[
        str | None, typer.Option(help="Search for this instead of the built-in queries.")
    ] = None,
    provider: Provider = None,
    compute: Compute = "auto",
    as_json: Json = False,
) -> None:
    """Embed a few hundred Wikipedia passages and find those that answer a query.

    Nothing is downloaded: the model and the passages ship with flowvec.
    """
    passages, pairs = load_passages(), load_pairs()
    seen: list[EncodeStatistics] = []
    with (
        tempfile.TemporaryDirectory(prefix="flowvec-demo-") as folder,
        Encoder.load(
            "mini", provider=provider, compute=cast(Any, compute), on_statistics=seen.append
        ) as encoder,
        Collection.create(Path(folder) / "passages", encoder=encoder) as collection,
    ):
        info = encoder.info()
        encoder.warmup()
        started = time.perf_counter()
        collection.add(
            [passage.id for passage in passages],
            [passage.text for passage in passages],
            [{"title": passage.title} for passage in passages],
        )
        seconds = time.perf_counter() - started
        added = seen[-1]
        queries = [pair.query for pair in pairs] if query is None else [query]
        results = collection.search_batch(queries, k=_SHOWN)
    are_first = [
        any(hit.id == pair.passage for hit in hits)
        for pair, hits in zip(pairs, results, strict=False)
    ]
    if as_json:
        print_json(
            {
                "model": info.name,
                "provider": info.provider,
                "compute": info.compute,
                "passages": len(passages),
                "seconds": seconds,
                "recall_at_5": sum(are_first) / len(are_first) if query is None else None,
                "results": [
                    {"query": q, "hits": [_plain(hit) for hit in hits]}
                    for q, hits in zip(queries, results, strict=True)
                ],
            }
        )
        return
    typer.echo(
        f"{info.name}: {info.dim} dimensions, {info.provider} in {info.compute}, "
        f"{info.streams} streams"
    )
    typer.echo(
        f"{added.texts} passages of {added.tokens / added.texts:.0f} tokens on average embedded "
        f"and indexed in {seconds:.2f} s\n"
    )
    shown = list(zip(queries, results, strict=True))
    for text, hits in shown[::5] if query is None else shown:
        typer.echo(f"? {text}")
        for hit in hits[:3] if query is None else hits:
            typer.echo(f"  {hit.score:.3f}  {_plain(hit)['title']}: {shorten(hit.text or '', 84)}")
        typer.echo()
    if query is None:
        typer.echo(
            f"{sum(are_first)} of {len(are_first)} queries find their passage among the first "
            f"{_SHOWN}."
        )
        typer.echo(f'Try your own:  flowvec demo --query "{SUGGESTED}"')


def _plain(hit: Hit) -> dict[str, Any]:
    return {
        "id": hit.id,
        "score": hit.score,
        "title": (hit.metadata or {}).get("title", ""),
        "text": hit.text,
    }
