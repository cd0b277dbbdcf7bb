"""A race of filtered searches as tables, and as a Markdown report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowvec_bench.peers.filters import FilterRow
from flowvec_bench.reports.parts import machine_line, markdown_table, version_lines, write_lines
from flowvec_bench.reports.tables import format_figure

__all__ = ["HEADER", "cells", "write_filter_report"]

HEADER = (
    "case", "collection", "recall@10", "p50 ms", "p99 ms", "first ms", "searches", "writes/s",
    "write p50 ms",
)  # fmt: skip


def cells(rows: Sequence[FilterRow]) -> Iterator[tuple[str, ...]]:
    """The cells of each line: the collections of one case together."""
    names = list(dict.fromkeys(case.case for row in rows for case in row.cases))
    for name in names:
        for row in rows:
            for case in row.cases:
                if case.case == name:
                    yield (
                        name, row.name, f"{case.recall:.3f}", f"{case.p50:.2f}", f"{case.p99:.2f}",
                        f"{case.first:.2f}", str(case.queries), f"{case.writes_per_second:.1f}",
                        format_figure(case.write_p50),
                    )  # fmt: skip
    for row in rows:
        if row.error:
            yield ("stopped", row.name, row.error[:80], *[""] * (len(HEADER) - 3))


def write_filter_report(rows: Sequence[FilterRow], record: Mapping[str, Any], path: Path) -> None:
    """Write `path`."""
    built = [
        (row.name, format_figure(row.build_seconds, 0),
         "-" if row.resident_mib is None else str(row.resident_mib))
        for row in rows
    ]  # fmt: skip
    lines = [
        "# Filtered searches, compared with other embedded collections",
        "",
        machine_line(record["machine"]),
        "",
        f"{record['rows']:,} rows of {record['dim']} dimensions, in clusters (seed "
        f"{record['seed']}). {record['timed']} queries, {record['rate']:g} a second if the "
        "collection is fast enough, while another thread of the same process adds "
        f"{record['writes']:g} rows a second. Cosine, ten nearest. Each collection runs in its own "
        "process with all cores, with an index over each field if it has such indexes, and in each "
        f"case with the fastest of its settings that finds {record['recall']:.0%} of the ten "
        f"nearest eligible rows on {record['tried']} other queries. A case ends after "
        f"{record['seconds']:g} s. Qdrant's local mode has no index: it compares all rows, and "
        "looks at the fields of all of them in Python. LanceDB's `optimize` runs before each case "
        "and is not timed.",
        "",
        "The number is the share of the rows that meet the filter. `random` does not depend on the "
        "vectors; `near` are rows on the queries' side, `far` those on the other side; `tenant` is "
        "another filter for each query. `first` is the first search with a filter.",
        "",
        *markdown_table(HEADER, list(cells(rows)), texts=2),
        "",
        *markdown_table(("collection", "build s", "resident MiB"), built),
        "",
        *version_lines({row.name: row.versions for row in rows}),
    ]
    write_lines(lines, path)
