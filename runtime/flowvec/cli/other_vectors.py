"""Sparse and token vectors of rows, beside the dense ones, in commands that add rows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import typer

from flowvec.cli.interrupts import stopping
from flowvec.cli.options import counted, size_in_words
from flowvec.collection.collection import Collection
from flowvec.collection.creation import is_collection
from flowvec.errors import FingerprintMismatchError, InputValueError
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.sparse.encoder import SparseEncoder

__all__ = [
    "OtherVectors", "check_sparse_vectors", "check_token_vectors", "make_other_vectors",
    "tell_lacking",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class OtherVectors:
    """What `make_other_vectors` has made.

    Attributes:
        sparse_rows: how many rows got a sparse vector; None if none were asked for.
        token_rows: how many rows got token vectors; None if none were asked for.
        stopped_by: number of the signal that stopped it; None if it is complete.
    """

    sparse_rows: int | None = None
    token_rows: int | None = None
    stopped_by: int | None = None


def check_sparse_vectors(directory: Path, encoder: SparseEncoder) -> None:
    """Refuse a model that did not make the sparse vectors that are stored, before any work.

    Args:
        directory: the collection's; it need not exist.
        encoder: `--sparse-model`.

    Raises:
        InputValueError: another model made them.
    """
    if not is_collection(directory):
        return
    with Collection.open(directory) as collection:
        try:
            collection._checked_sparse_encoder(encoder)
        except FingerprintMismatchError as error:
            raise InputValueError(
                f"{error}. Give that model as --sparse-model, or index into a new collection"
            ) from None


def check_token_vectors(
    directory: Path, encoder: MultiVectorEncoder, dtype: str | None, *, replace: bool
) -> None:
    """Refuse a model or dtype that does not fit the token vectors that are stored, before any work.

    Args:
        directory: the collection's; it need not exist.
        encoder: `--token-model`.
        dtype: `--token-dtype`.
        replace: whether `--replace-token-vectors` is given.

    Raises:
        InputValueError: they do not fit.
    """
    if replace or not is_collection(directory):
        return
    with Collection.open(directory) as collection:
        info, made_by = collection.info(), collection._token_fingerprint()
    if info.token_dtype is None:
        return
    replacing = "--replace-token-vectors makes all of them again"
    if made_by != encoder.fingerprint:
        raise InputValueError(
            f"{directory} has token vectors of the model {info.token_model}, and --token-model is "
            f"another one; {replacing}"
        )
    if dtype not in (None, info.token_dtype):
        raise InputValueError(
            f"{directory} has token vectors stored as {info.token_dtype}, not {dtype}: leave "
            f"--token-dtype out to add to them; {replacing}"
        )


def make_other_vectors(
    directory: Path,
    sparse: SparseEncoder | None,
    tokens: MultiVectorEncoder | None,
    dtype: str | None,
    *,
    replace_tokens: bool,
) -> OtherVectors:
    """Make the sparse and the token vectors that rows lack. The encoders are closed.

    Args:
        directory: the collection's.
        sparse: makes sparse vectors; None makes none.
        tokens: makes token vectors; None makes none.
        dtype: how token vectors are stored; None as those that are there.
        replace_tokens: delete stored token vectors of another model or dtype before.
    """
    sparse_rows = token_rows = None
    if sparse is not None:
        with (
            stopping() as stop,
            sparse,
            Collection.open(directory, sparse_encoder=sparse) as collection,
        ):
            sparse_rows = collection.add_missing_sparse(stop=stop.event)
        if stop.event.is_set():
            return OtherVectors(sparse_rows, None, stop.number)
    if tokens is not None:
        with stopping() as stop, tokens, Collection.open(directory) as collection:
            if replace_tokens:
                _drop_others(collection, tokens, dtype)
            size = collection.token_vectors_size(tokens, dtype=cast(Any, dtype))
            if size.rows:
                typer.echo(
                    f"token vectors of {counted(size.rows, 'row')} take about "
                    f"{size_in_words(size.bytes)} as {size.dtype}",
                    err=True,
                )
            token_rows = collection.add_token_vectors(
                tokens, dtype=cast(Any, dtype), stop=stop.event
            )
        if stop.event.is_set():
            return OtherVectors(sparse_rows, token_rows, stop.number)
    return OtherVectors(sparse_rows, token_rows)


def _drop_others(collection: Collection, encoder: MultiVectorEncoder, dtype: str | None) -> None:
    """Delete token vectors of another model or dtype, so that an interrupted command goes on."""
    stored = collection.info().token_dtype
    is_other = collection._token_fingerprint() != encoder.fingerprint
    if stored is not None and (is_other or dtype not in (None, stored)):
        collection.drop_token_vectors()


def tell_lacking(directory: Path) -> None:
    """Print how many rows lack sparse or token vectors that others have, and what makes them."""
    with Collection.open(directory) as collection:
        info = collection.info()
        sparse, tokens = collection._sparse_lacking(), collection._tokens_lacking()
    lacking: list[str] = []
    options: list[str] = []
    if sparse:
        lacking.append(f"{counted(sparse, 'row')} without sparse vectors")
        options += ["--sparse-model", info.sparse_model or "MODEL"]
    if tokens:
        lacking.append(f"{counted(tokens, 'row')} without token vectors")
        options += ["--token-model", info.token_model or "MODEL"]
    if lacking:
        command = _command(directory, options)
        typer.echo(f"{directory} has {' and '.join(lacking)}: {command} makes them", err=True)


def _command(directory: Path, options: Sequence[str]) -> str:
    return shlex.join(["flowvec", "index", str(directory), *options])
