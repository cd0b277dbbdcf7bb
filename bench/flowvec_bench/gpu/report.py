"""The report of a run on a GPU: JSON with everything, Markdown to read."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from flowvec.files import write_file
from flowvec_bench.gpu.runner import Record
from flowvec_bench.gpu.stand_in import SAID

__all__ = ["summary", "write_report"]

# What flowvec should reach, as a multiple of the best peer's texts per second.
_TARGETS = {"sentences": 1.5, "passages": 1.2}


def write_report(records: Sequence[Record], folder: Path, *, stand_in: bool) -> None:
    """Write `report.json` and `report.md`.

    Args:
        records: of the steps, in their order.
        folder: where to write.
        stand_in: whether the CPU provider ran under CUDA's name; then both files say so.
    """
    whole: dict[str, Any] = {"steps": [asdict(record) for record in records]}
    if stand_in:
        whole = {"stand_in": SAID, **whole}
    write_file(folder / "report.json", json.dumps(whole, indent=1).encode())
    lines = ["# flowvec on a GPU", ""]
    if stand_in:
        lines += [f"**{SAID}**", ""]
    lines += _steps(records)
    for record in records:
        if record.rows:
            lines += ["", f"## {record.step}", "", *_section(record, records, stand_in=stand_in)]
    write_file(folder / "report.md", ("\n".join(lines) + "\n").encode())


def summary(records: Sequence[Record]) -> str:
    """One line: how many steps are done, and how many checks passed."""
    done = sum(record.status == "done" for record in records)
    checks = [row["passed"] for record in records for row in record.rows]
    passed, failed = checks.count(True), checks.count(False)
    return (
        f"{done} of {len(records)} steps done; {passed} checks passed, {failed} failed, "
        f"{sum(record.seconds for record in records):.0f} s"
    )


def _steps(records: Sequence[Record]) -> Iterator[str]:
    yield summary(records) + "."
    yield ""
    yield from _table(
        ("step", "status", "seconds", "reason"),
        [(r.step, r.status, f"{r.seconds:.0f}", _one_line(r.reason)) for r in records],
    )


def _section(record: Record, records: Sequence[Record], *, stand_in: bool) -> Iterator[str]:
    timed = [row for row in record.rows if "round" in row["figures"]]
    others = [row for row in record.rows if "round" not in row["figures"]]
    yield from _table(
        ("what", "passed", "figures", "note"),
        [(row["what"], _passed(row["passed"]), _figures(row["figures"]), _one_line(row["note"]))
         for row in others],
    )  # fmt: skip
    if timed:
        yield ""
        # What a stand-in reaches says nothing about a GPU.
        yield from _race(record, timed, None if stand_in else _matrix_rate(records))
        if not stand_in:
            yield from _target(record, timed)
    if record.step == "tokenizing" and not stand_in:
        yield from _cores_needed(record, records)


def _race(record: Record, timed: list[dict[str, Any]], tflops: float | None) -> Iterator[str]:
    """Medians of the rounds."""
    rounds = _rounds(timed)
    flops = next(
        (r["figures"]["flops_per_token"] for r in record.rows if r["what"] == "texts"), None
    )
    rates = _texts_per_second(timed)
    peers = [rate for name, rate in rates.items() if not name.startswith("flowvec")]
    cells = []
    for name, rows in rounds.items():
        tokens = median(f["tokens_per_second"] for f in rows)
        share = f"{tokens * flops / tflops / 1e10:.1f} %" if tflops and flops else "-"
        times = f"{rates[name] / max(peers):.2f}" if peers else "-"
        cells.append((name, str(rows[0]["size"]), f"{rates[name]:,.0f}", f"{tokens:,.0f}",
                      share, times, str(len(rows))))  # fmt: skip
    yield from _table(
        ("contender", "size", "texts/s", "tokens/s", "of the matrix rate", "of the best peer",
         "rounds"), cells
    )  # fmt: skip


def _target(record: Record, timed: list[dict[str, Any]]) -> Iterator[str]:
    """Whether flowvec is as much faster than the best peer as it should be."""
    rates = _texts_per_second(timed)
    peers = [rate for name, rate in rates.items() if not name.startswith("flowvec")]
    target = next((t for kind, t in _TARGETS.items() if kind in record.step), None)
    own = [rate for name, rate in rates.items() if name.startswith("flowvec")]
    if target and own and peers:
        word = "reached" if max(own) >= target * max(peers) else "not reached"
        yield ""
        yield f"Target {target} times the best peer: {word} ({max(own) / max(peers):.2f})."


def _rounds(timed: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    rounds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in timed:
        rounds[row["what"]].append(row["figures"])
    return rounds


def _texts_per_second(timed: list[dict[str, Any]]) -> dict[str, float]:
    return {
        name: median(f["texts_per_second"] for f in rows) for name, rows in _rounds(timed).items()
    }


def _cores_needed(record: Record, records: Sequence[Record]) -> Iterator[str]:
    """How many cores tokenize as fast as the graph alone computes batches of 32 tokens."""
    graph = [
        row["figures"]["tokens_per_second"]
        for other in records if other.step == "run-graph-minilm-l6"
        for row in other.rows if row["what"].endswith(" x 32")
    ]  # fmt: skip
    if graph:
        enough = [row["what"] for row in record.rows
                  if row["figures"].get("tokens_per_second", 0) >= max(graph)]  # fmt: skip
        found = f"{enough[0]} tokenize as fast" if enough else "no number of cores is enough"
        yield ""
        yield f"MiniLM-L6's graph alone takes {max(graph):,.0f} tokens/s: {found}."


def _matrix_rate(records: Sequence[Record]) -> float | None:
    for record in records:
        for row in record.rows:
            if "float16_tflops" in row["figures"]:
                return float(row["figures"]["float16_tflops"])
    return None


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


def _passed(passed: bool | None) -> str:
    return "" if passed is None else "yes" if passed else "**no**"


def _figures(figures: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_figure(value)}" for name, value in figures.items())


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.5g}"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())[-400:]
