"""The tables of docs/benchmarks.md, made from the results of `bench/results`.

A table stands between two comments, `<!-- results: NAME -->` and `<!-- end of results -->`. In a
checkout, `python -m flowvec_bench.reports.page` writes all of them anew, each from the newest
result of its kind, with the date, the machine and the report below it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowvec.files import write_file
from flowvec_bench.peers.race import Row
from flowvec_bench.reports.parts import markdown_table

__all__ = ["TABLES", "Result", "main", "newest", "page_with_tables"]

_TABLE = re.compile(
    r"(?P<begin><!-- results: (?P<name>[\w-]+) -->\n)(?P<old>.*?)(?P<end><!-- end of results -->)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Result:
    """A result file: its kind (the name without the date), its record and its report."""

    kind: str
    record: Mapping[str, Any]
    report: Path

    @property
    def date(self) -> str:
        """The day on which it was measured."""
        return str(self.record["machine"]["measured"])[:10]

    @property
    def machine(self) -> str:
        """The machine in a few words."""
        machine = self.record["machine"]
        return f"{machine['cpu']}, {machine['cores']} cores, {machine['cpu_features'][-1]}"


Results = Mapping[str, Result]
Lines = list[str]


def newest(folder: Path) -> dict[str, Result]:
    """The newest result of each kind. Files are called `DATE-KIND.json`.

    Args:
        folder: the folder of results. A result's report is the `.md` beside it, or itself.
    """
    results = {}
    for path in sorted(folder.glob("????-??-??-*.json")):
        report = path.with_suffix(".md")
        record = json.loads(path.read_text(encoding="utf-8"))
        kind = path.stem[11:]
        results[kind] = Result(kind, record, report if report.exists() else path)
    return results


def page_with_tables(page: str, results: Results, link: Callable[[Path], str]) -> str:
    """A page with all its tables made anew.

    Args:
        page: Markdown with the comments around its tables.
        results: what `newest` found.
        link: a report's address, as seen from the page.

    Raises:
        KeyError: a table or a result that does not exist.
    """

    def table(match: re.Match[str]) -> str:
        kinds, make = TABLES[match["name"]]
        chosen = {kind: results[kind] for kind in kinds}
        made = [line.replace("| ", "|").replace(" |", "|") for line in make(chosen)]
        lines = [*made, "", _sources(list(chosen.values()), link)]
        return match["begin"] + "\n".join(lines) + "\n" + match["end"]

    return _TABLE.sub(table, page)


def _sources(results: Sequence[Result], link: Callable[[Path], str]) -> str:
    """Where and when the results were measured, with links to their reports."""
    by_machine: dict[str, list[str]] = {}
    for result in results:
        source = f"[{result.kind}, {result.date}]({link(result.report)})"
        by_machine.setdefault(result.machine, []).append(source)
    return "; ".join(f"{machine}: {', '.join(listed)}" for machine, listed in by_machine.items())


def _number(value: float | None) -> str:
    """About three digits, with commas; empty if there is no value."""
    if value is None:
        return ""
    for limit, digits in ((10, 2), (20, 1)):
        if 0 < value < limit:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}"


def _races(results: Results) -> Lines:
    """Peers by row, and a column for each model and kind of text; the tau where it has one."""
    columns = [(result, text) for result in results.values() for text in result.record["kinds"]]
    columns = [column for column in columns if column[1] != "sts"]
    cells: dict[str, dict[int, str]] = {}
    for place, (result, text) in enumerate(columns):
        for row in (Row(**row) for row in result.record["rows"] if row["texts"] == text):
            if "version before" in row.name or row.texts_per_second is None:
                continue
            tau = row.quality.get("kendall_tau")
            cell = _number(row.texts_per_second) + ("" if tau is None else f" ({tau:.2f})")
            cells.setdefault(row.name, {})[place] = "void" if row.void else cell
    titles = {"natural": "sentences", "long": "passages"}
    header = [
        f"{result.record['model'].removeprefix('minilm-l6, ')}: {titles.get(text, text)}"
        for result, text in columns
    ]
    names = sorted(cells, key=lambda name: not name.startswith("flowvec"))
    rows = [[name, *(cells[name].get(i, "") for i in range(len(columns)))] for name in names]
    return markdown_table(["library", *header], rows)


def _latency(results: Results) -> Lines:
    (result,) = results.values()
    rows = [row for row in result.record["rows"] if row["load"] == "callers"]
    levels = sorted({row["level"] for row in rows})
    lines = []
    for name in dict.fromkeys(row["name"] for row in rows if "version before" not in row["name"]):
        by_level = {row["level"]: row for row in rows if row["name"] == name}
        waits = [f"{by_level[n]['p50']:.1f}, {by_level[n]['p99']:.1f}" for n in levels]
        lines.append([name, *waits, _number(by_level[levels[-1]]["per_second"])])
    callers = [f"{level:g} caller{'s' * (level > 1)}" for level in levels]
    return markdown_table(["p50, p99 in ms", *callers, f"answers/s, {callers[-1]}"], lines)


def _http(results: Results) -> Lines:
    lines = []
    for result in results.values():
        record = result.record
        most = max(record["callers"])
        rows = {(row["name"], row["load"], row["level"]): row for row in record["rows"]}
        for name in dict.fromkeys(row["name"] for row in record["rows"]):
            if name.startswith("in process,"):
                continue
            share = record["ratios"][name].get(str(most))
            lines.append([
                f"{record['model']}: {name}",
                f"{rows[name, 'one', 1]['p50']:.1f}",
                _number(rows[name, "callers", most]["texts_per_second"]),
                "" if share is None or name == "in process" else f"{share:.0%}",
                _number(record["best"].get(name)),
            ])  # fmt: skip
    titles = ["1 caller: p50 ms", "many callers: texts/s", "of in process", "texts/s in time"]
    return markdown_table(["server", *titles], lines)


def _indexes(results: Results) -> Lines:
    (result,) = results.values()
    targets: list[float] = result.record["recall"]
    by_name: dict[str, dict[float, dict[str, Any]]] = {}
    for row in result.record["indexes"]:
        by_name.setdefault(row["name"], {})[row["target"]] = row
    lines = []
    for name, rows in by_name.items():
        figures = [rows[one][key] for key in ("per_second", "single_p50") for one in targets]
        size = max(rows[one]["bytes"] or 0 for one in targets)
        figures += [rows[targets[0]]["build_seconds"], size / (1 << 20) if size else None]
        lines.append([name, *map(_number, figures)])
    titles = [f"{title} at {one:g}" for title in ("queries/s", "one, ms") for one in targets]
    return markdown_table(["index", *titles, "build s", "MiB"], lines)


_CASES = {
    "none": "all: no filter",
    "random 0.9": "90 %, at random",
    "random 0.1": "10 %, at random",
    "far 0.1": "10 %, far from the query",
    "random 0.01": "1 %, at random",
    "tenant 0.001": ".1 %, another filter each time",
}


def _filters(results: Results) -> Lines:
    columns = {
        f"{collection['name']}, {result.record['rows']:,}": {
            case["case"]: case for case in collection["cases"]
        }
        for result in results.values()
        for collection in result.record["collections"]
    }
    lines = [
        [title, *(_number(cases[case]["p50"]) for cases in columns.values())]
        for case, title in _CASES.items()
    ]
    worst = [_number(max(case["p99"] for case in cases.values())) for cases in columns.values()]
    return markdown_table(["rows that pass", *columns], [*lines, ["largest p99 of all", *worst]])


_BATCHING = {
    "none": "32 in input order",
    "characters": "32 sorted by characters",
    "tokens": "a limit of padded tokens, sorted by tokens",
}


def _batching(results: Results) -> Lines:
    (result,) = results.values()
    rows = result.record["results"]
    lines = [
        [
            _BATCHING[row["batching"]],
            _number(row["texts_per_second"]),
            f"{row['padding']:.1%}",
            f"{row['texts_per_second'] / rows[0]['texts_per_second']:.1f}",
        ]
        for row in rows
    ]
    return markdown_table(["batches of", "texts/s", "padding", "times"], lines)


_SETS = ("STSB dev", "STSB test", "STS12 wmean", "STS13 wmean", "STS14 wmean")


def _transforms(results: Results) -> Lines:
    lines = [
        [
            result.kind.removeprefix("compare-"),
            candidate["pooling"],
            candidate["transform"],
            *(f"{candidate['sts'][name]:.1f}" for name in _SETS),
            f"{candidate['mean_cosine']:.2f}",
            f"{candidate['added_microseconds']:.0f}",
        ]
        for result in results.values()
        for candidate in result.record["candidates"]
        if candidate["pooling"] != "cls"
    ]
    header = ["model", "pooling", "transform", *_SETS, "mean cosine", "added us"]
    return markdown_table(header, lines, texts=3)


# The kinds of results of each table, and what makes it.
TABLES: Mapping[str, tuple[tuple[str, ...], Callable[[Results], Lines]]] = {
    "encoding": (("peers-all-MiniLM-L6-v2", "peers-bert-base", "peers-mini"), _races),
    "kinds": (("rerankers-minilm-l6", "sparse-minilm-l6", "multi-vector-minilm-l6"), _races),
    "latency": (("latency-minilm-l6",), _latency),
    "http": (("http-minilm-l6", "http-mini"), _http),
    "search": (("retrieval-100k",), _indexes),
    "filters": (("filters-100k", "filters-1m"), _filters),
    "batching": (("smart-batching-backbone",), _batching),
    "transforms": (
        ("compare-backbone", "compare-all-MiniLM-L6-v2", "compare-mini"),
        _transforms,
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables of a page anew."""
    parser = argparse.ArgumentParser(
        prog="python -m flowvec_bench.reports.page", description="Write a page's tables anew."
    )
    parser.add_argument("page", type=Path, nargs="?", default=Path("docs/benchmarks.md"))
    parser.add_argument("--results", type=Path, default=Path("bench/results"))
    given = parser.parse_args(arguments)
    page = given.page.read_text(encoding="utf-8")
    folder = given.page.resolve().parent

    def link(report: Path) -> str:
        return Path(os.path.relpath(report, folder)).as_posix()

    write_file(given.page, page_with_tables(page, newest(given.results), link).encode())


if __name__ == "__main__":
    main()
