"""`flowvec search`: the nearest rows of a collection."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from flowvec.cli.index import encoder_of
from flowvec.cli.options import Compute, Json, Provider, ShardTimeout, print_json
from flowvec.cli.rerankers import load_reranker
from flowvec.cli.rows import Where, parsed_filter
from flowvec.collection.collection import Collection
from flowvec.collection.reranking import RERANK_FROM
from flowvec.collection.results import Hit
from flowvec.encoder.encoder import Encoder
from flowvec.errors import CollectionError, InputValueError
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.reranker.reranker import Reranker
from flowvec.sharded import ShardedHits, ShardedSearcher, is_sharded, shards_model
from flowvec.sharded.manifest import read_manifest as read_shards
from flowvec.sparse.encoder import SparseEncoder
from flowvec.texts.urls import is_url, shown

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(epilog='Example: flowvec search ./notes "how do plants make food" -k 5')
def search(
    place: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="The collection's directory, or the URL of one in shards."
        ),
    ],
    query: Annotated[str, typer.Argument(help="The text to search for.")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many rows to show.")] = 10,
    condition: Where = None,
    hybrid: Annotated[
        bool, typer.Option("--hybrid", help="Rank by words as well as by vectors.")
    ] = False,
    prefix: Annotated[
        bool, typer.Option("--prefix", help="With --hybrid: the last word may be a beginning.")
    ] = False,
    vector_weight: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Share of the vectors in --hybrid, 0 to 1 (0.5)."),
    ] = None,
    sparse_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The sparse encoder of the collection's sparse vectors: rank by them alone, or "
            "with --hybrid by them as well.",
        ),
    ] = None,
    sparse_weight: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="Share of the sparse vectors in --hybrid (that of the words)."
        ),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare every row: slower, but misses none.")
    ] = False,
    min_score: Annotated[
        float | None,
        typer.Option(help="Leave out rows with a lower score; at most 1 with --hybrid."),
    ] = None,
    rerank: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A reranker, or the bundle of a multi-vector encoder, that sorts the best rows "
            "again.",
        ),
    ] = None,
    rerank_from: Annotated[
        int, typer.Option(min=1, help="How many rows --rerank reads.")
    ] = RERANK_FROM,
    offset: Annotated[
        int, typer.Option(min=0, help="Skip the best rows: -k 10 --offset 10 is the second page.")
    ] = 0,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", help="Of rows with the same value of a field show only the best."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The bundle, if it has moved since the collection was created."),
    ] = None,
    provider: Provider = None,
    compute: Compute = "auto",
    timeout: ShardTimeout = 10.0,
    as_json: Json = False,
) -> None:
    """Print the rows of a collection nearest to a text, best first.

    With --json, a list of rows; of a collection in shards, an object with `hits`, `partial` and
    `missing`: the shards that did not answer, and why.
    """
    wanted = parsed_filter(condition)
    if prefix and not hybrid:
        raise InputValueError("--prefix is for the words of a hybrid search: add --hybrid")
    if vector_weight is not None and not hybrid:
        raise InputValueError("--vector-weight is for a hybrid search: add --hybrid")
    if sparse_weight is not None and not (hybrid and sparse_model is not None):
        raise InputValueError("--sparse-weight needs --hybrid and --sparse-model")
    ranked: dict[str, Any] = {"filter": wanted, "min_score": min_score, "offset": offset}
    options: dict[str, Any] = {
        **ranked,
        "hybrid": hybrid,
        "vector_weight": vector_weight,
        "sparse_weight": sparse_weight,
        "exact": exact,
        "prefix": prefix,
        "group_by": group_by,
        "rerank_from": rerank_from,
    }
    in_shards = is_url(place) or is_sharded(place)
    by_sparse_alone = sparse_model is not None and not hybrid
    if by_sparse_alone and (
        rerank is not None or group_by is not None or exact or model is not None
    ):
        raise InputValueError(
            "a search by sparse vectors alone has no --rerank, --group-by, --exact and --model: "
            "add --hybrid"
        )
    if in_shards:
        if sparse_model is not None and read_shards(place).sparse_model is None:
            typer.echo(
                f"{shown(place)} was built without sparse vectors: flowvec index --engine ray "
                "with --sparse-model makes them",
                err=True,
            )
        if hybrid and sparse_model is None:
            _tell_unused(shown(place), is_unused=read_shards(place).sparse_model is not None)
        bundle = model or shards_model(place)
        with (
            nullcontext()
            if by_sparse_alone
            else Encoder.load(bundle, provider=provider, compute=cast(Any, compute)) as encoder,
            _sparse_encoder(sparse_model) as sparse_encoder,
            _reranker(rerank, provider, compute) as reranker,
            ShardedSearcher(
                place, encoder=encoder, sparse_encoder=sparse_encoder, timeout=timeout
            ) as searcher,
        ):
            if by_sparse_alone:
                found = searcher.search_sparse(query, k, **ranked)
            else:
                found = searcher.search(query, k, rerank=reranker, **options)
            answered = searcher.shards - len(found.missing)
        _show_sharded(found, place, answered=answered, as_json=as_json)
        return
    directory = Path(place)
    if sparse_model is not None:
        _check_has_sparse(directory)
    if sparse_model is not None and by_sparse_alone:
        with (
            SparseEncoder.load(sparse_model) as sparse,
            Collection.open(directory, sparse_encoder=sparse) as collection,
        ):
            hits = collection.search_sparse(query, k, **ranked)
        _show(hits, as_json=as_json)
        return
    with (
        encoder_of(directory, model, provider, compute) as encoder,
        _sparse_encoder(sparse_model) as sparse_encoder,
        Collection.open(directory, encoder=encoder, sparse_encoder=sparse_encoder) as collection,
        _reranker(rerank, provider, compute) as reranker,
    ):
        if hybrid and sparse_model is None:
            _tell_unused(str(directory), is_unused=collection.info().sparse_rows > 0)
        hits = collection.search(query, k, rerank=reranker, **options)
    _show(hits, as_json=as_json)


def _show_sharded(found: ShardedHits, place: str, *, answered: int, as_json: bool) -> None:
    """Print the hits of a collection in shards, and name on stderr the shards that are missing."""
    for name, reason in found.missing.items():
        typer.echo(f"{name} is missing: {reason}", err=True)
    if found.missing and not answered:
        raise CollectionError(f"no shard of {shown(place)} could be searched")
    if as_json:
        print_json(
            {
                "hits": _plain(found.hits[0]),
                "partial": found.partial,
                "missing": found.missing,
            }
        )
    else:
        _show(found.hits[0], as_json=False)


def _check_has_sparse(directory: Path) -> None:
    with Collection.open(directory) as collection:
        if collection.info().sparse_rows == 0:
            raise InputValueError(
                f"{directory} has no sparse vectors: flowvec index with --sparse-model makes them"
            )


def _tell_unused(place: str, *, is_unused: bool) -> None:
    """Say that a hybrid search leaves out the sparse vectors that there are."""
    if is_unused:
        typer.echo(
            f"{place} has sparse vectors, which are not searched without --sparse-model", err=True
        )


def _sparse_encoder(model: str | None) -> AbstractContextManager[SparseEncoder | None]:
    return nullcontext() if model is None else SparseEncoder.load(model)


def _reranker(
    model: str | None, provider: str | None, compute: str
) -> AbstractContextManager[Reranker | MultiVectorEncoder | None]:
    return nullcontext() if model is None else load_reranker(model, provider, compute)


def _show(hits: list[Hit], *, as_json: bool) -> None:
    if as_json:
        print_json(_plain(hits))
        return
    if not hits:
        typer.echo("no rows")
    for hit in hits:
        shown = hit.text
        if shown is None and hit.metadata is not None:  # vectors may have no texts
            shown = json.dumps(hit.metadata, ensure_ascii=False)
        typer.echo(f"{hit.score:7.4f}  {hit.id}  {shorten(shown or '')}")


def _plain(hits: list[Hit]) -> list[dict[str, Any]]:
    return [{k: v for k, v in asdict(hit).items() if k != "vector"} for hit in hits]


def shorten(text: str, width: int = 100) -> str:
    """A text on one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
