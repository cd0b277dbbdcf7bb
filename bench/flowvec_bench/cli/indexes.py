"""`flowvec bench retrieval`: a collection's index compared with others, on equal vectors."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from flowvec.cli.options import MODEL_HELP, Overwrite
from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputValueError
from flowvec.files import staged_file
from flowvec.optional import require
from flowvec.progress import bar, say
from flowvec_bench.cli.options import (
    EXTRAS,
    JsonOut,
    Report,
    about_machine,
    check_corpus,
    check_outputs,
    chosen,
    numbers,
    write_json,
)

if TYPE_CHECKING:
    from flowvec_bench.peers.indexes import IndexRow

__all__ = ["retrieval"]

Floats = npt.NDArray[np.float32]

_NEEDS = ("psutil", "matplotlib")


def retrieval(
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="A file with one paragraph per line (may be .xz); its sentences are embedded."
        ),
    ] = None,
    vectors: Annotated[
        Path | None,
        typer.Option(
            help="Instead of a corpus: float32 vectors (.npy); the last ones are the queries."
        ),
    ] = None,
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "mini",
    rows: Annotated[int, typer.Option(min=100, help="Vectors to search.")] = 100_000,
    queries: Annotated[
        int, typer.Option(min=2, help="More vectors: half choose efforts, half are timed.")
    ] = 4000,
    recall: Annotated[
        str,
        typer.Option(
            help="Recall of the ten nearest that every index must reach; several as .95,.99,.999."
        ),
    ] = "0.95",
    only: Annotated[
        str | None, typer.Option(help="Indexes, for example hnswlib,faiss. Default: all.")
    ] = None,
    m: Annotated[int, typer.Option(min=2, help="M: links per element of the graph.")] = 16,
    ef_construction: Annotated[int, typer.Option(min=10, help="ef while a graph is built.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each index.")] = 5,
    builds: Annotated[int, typer.Option(min=1, help="Timed builds of each index.")] = 1,
    save_vectors: Annotated[
        Path | None, typer.Option(help="Save the corpus's vectors (.npy) for another run.")
    ] = None,
    json_out: JsonOut = None,
    report: Report = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare recall, queries per second, build time and bytes of flowvec's collection and others.

    All search the same vectors on the same cores, each with the least effort that reaches the
    recall. flowvec's rows are on disk with checksums once they are added; the others hold vectors
    in memory and write one file.
    """
    require("flowvec bench retrieval", EXTRAS, *_NEEDS)
    from flowvec_bench.peers.indexes import INDEXES, race_indexes
    from flowvec_bench.reports.indexes import write_index_report

    racers = chosen(only, INDEXES)
    recalls = sorted({*numbers("--recall", recall)})
    if not recalls or not all(0.01 <= one <= 1 for one in recalls):
        raise InputValueError(f"--recall must be from 0.01 to 1, not {recall!r}")
    check_outputs(
        json_out, report, (corpus, vectors, model), overwrite=overwrite,
        other=None if save_vectors is None else _npy(save_vectors),
    )  # fmt: skip
    if (corpus is None) == (vectors is None):
        raise InputValueError("give either --corpus or --vectors")
    if vectors is not None:
        matrix, source = _read(vectors, rows + queries), vectors.name
    else:
        assert corpus is not None
        check_corpus(corpus)
        matrix, source = _embedded(corpus, model, rows + queries), f"{corpus.name} by {model}"
        if save_vectors is not None:
            _save(matrix, save_vectors)
    from flowvec.machine import available_cores

    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        result = race_indexes(
            racers,
            matrix[:rows],
            matrix[rows:],
            Path(temporary),
            available_cores(),
            recalls=recalls,
            m=m,
            ef_construction=ef_construction,
            rounds=rounds,
            builds=builds,
            on_step=say,
        )
    typer.echo(_table(result))
    record = about_machine(
        "retrieval", vectors=source, rows=rows, queries=queries, dim=matrix.shape[1],
        recall=recalls, m=m, ef_construction=ef_construction, rounds=rounds, builds=builds,
        indexes=[asdict(row) for row in result],
    )  # fmt: skip
    write_json(record, json_out)
    if report is not None:
        write_index_report(result, record, report)


def _save(matrix: Floats, path: Path) -> None:
    """Save vectors atomically; like `np.save`, it adds .npy to a name without it."""
    with staged_file(_npy(path)) as staged, staged.open("wb") as file:
        np.save(file, matrix)


def _npy(path: Path) -> Path:
    return path if path.name.endswith(".npy") else path.with_name(f"{path.name}.npy")


def _read(path: Path, count: int) -> Floats:
    try:
        matrix: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise InputValueError(f"cannot read {path}: {error}") from None
    if not isinstance(matrix, np.ndarray) or matrix.dtype.kind not in "fiu":
        raise InputValueError(f"{path} is not a single array of real numbers")
    if matrix.ndim != 2 or len(matrix) < count:
        raise InputValueError(
            f"{path} has the shape {matrix.shape}; --rows and --queries need {count} vectors"
        )
    return _unit(np.array(matrix[:count], dtype=np.float32))


def _embedded(corpus: Path, model: str, count: int) -> Floats:
    """Unit vectors of `count` different sentences."""
    from flowvec_bench.texts import natural_sentences

    texts = islice(_different(natural_sentences(corpus)), count)
    with (
        Encoder.load(model) as encoder,
        bar("encode", count, "texts") as drawn,
    ):
        matrix = np.empty((count, encoder.dim), dtype=np.float32)
        filled = 0
        for vector in encoder.stream(texts):
            matrix[filled] = vector
            filled += 1
            drawn.update()
    if filled < count:
        raise InputValueError(f"{corpus} has only {filled} different sentences, not {count}")
    return _unit(matrix)


def _different(texts: Iterator[str]) -> Iterator[str]:
    seen: set[int] = set()
    for text in texts:
        if (key := hash(text)) not in seen:
            seen.add(key)
            yield text


def _unit(rows: Floats) -> Floats:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(norms).all() or not norms.all():
        raise InputValueError("a vector is zero, or holds NaN or infinity")
    rows /= norms
    return rows


def _table(rows: list[IndexRow]) -> str:
    from flowvec_bench.reports.indexes import HEADER, cells
    from flowvec_bench.reports.tables import format_table

    return format_table(HEADER, [cells(row) for row in rows], texts=1)
