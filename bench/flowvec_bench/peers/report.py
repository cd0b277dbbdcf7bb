"""A race as a Markdown report with a chart beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from flowvec.errors import InputValueError
from flowvec_bench.peers.race import Race

__all__ = ["check_outputs", "write_peer_report"]


def check_outputs(json_out: Path | None, report: Path | None) -> None:
    """Before any long work.

    Raises:
        InputValueError: a file could not be written.
    """
    for path in (json_out, report):
        if path is None:
            continue
        if not path.absolute().parent.is_dir():
            raise InputValueError(f"there is no directory {path.absolute().parent}")
        if path.is_dir():
            raise InputValueError(f"{path} is a directory")
    if report is not None and report.suffix != ".md":
        raise InputValueError(f"a report is a .md file, not {report.name}")


def write_peer_report(result: Race, found: Mapping[str, Any], path: Path) -> None:
    """Write `path` and, beside it, a chart of the same name in SVG."""
    machine = found["machine"]
    lines = [
        f"# {found['model']} beside its peers",
        "",
        f"{machine['cpu']} ({', '.join(machine['cpu_features'])}), {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, {machine['system']}, Python {machine['python']}; measured "
        f"{machine['measured']}.",
        "",
        f"Texts of {found['corpus']}, seed {found['seed']}, cut at {found['max_length']} tokens. "
        "Same weights, same texts, one run; each peer in a process and an environment of its own, "
        "at the best of its batch sizes; texts a second at the median of "
        f"{result.rounds} rounds in turn, tokenizing included. "
        '"Slower by" is the median over the rounds.',
        "",
        f"![texts a second]({path.with_suffix('.svg').name})",
        "",
    ]
    for kind, count in result.kinds.items():
        lines += [
            f"## {kind}: {count} texts",
            "",
            "| peer | batch | texts/s | slower by | min cosine |",
            "|---|---|---|---|---|",
        ]
        for row in (row for row in result.rows if row.texts == kind):
            if row.texts_per_second is None:
                lines.append(f"| {row.name} | | did not run: {row.error} | | |")
                continue
            batch = "own" if row.batch_size is None else str(row.batch_size)
            void = " (void)" if row.void else ""
            lines.append(
                f"| {row.name} | {batch} | {row.texts_per_second:.0f} | "
                f"{row.ratio or 0:.2f} | {row.min_cosine:.5f}{void} |"
            )
        lines.append("")
    lines += ["## Versions", ""]
    seen: dict[str, str] = {}
    for row in result.rows:
        versions = ", ".join(f"{name} {version}" for name, version in row.versions.items())
        seen.setdefault(row.name, versions)
    lines += [f"- {name}: {versions}" for name, versions in seen.items() if versions]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    _draw(result, path.with_suffix(".svg"))


def _draw(result: Race, path: Path) -> None:
    """A bar for each peer that ran, by kind of text."""
    kinds = list(result.kinds)
    ran = [row for row in result.rows if row.texts_per_second is not None and not row.void]
    names = list(dict.fromkeys(row.name for row in ran))
    style: Any = {"svg.hashsalt": "flowvec", "svg.fonttype": "none", "font.size": 9}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(5.2 * len(kinds), 0.42 * len(names) + 1.1), layout="constrained")
        axes = figure.subplots(1, len(kinds), squeeze=False, sharey=True)
        for axis, kind in zip(axes[0], kinds, strict=True):
            values = {row.name: row.texts_per_second for row in ran if row.texts == kind}
            widths = [values.get(name) or 0.0 for name in names]
            colours = ["#0072b2" if name.startswith("flowvec") else "#999999" for name in names]
            axis.barh(range(len(names)), widths, color=colours)
            axis.set_yticks(range(len(names)), names)
            axis.set_xlabel("texts a second")
            axis.set_title(f"{kind} ({result.kinds[kind]} texts)", fontsize=10)
            axis.spines[["top", "right"]].set_visible(False)
            axis.margins(x=0.15)
            for place, width in enumerate(widths):
                if width:
                    axis.text(width, place, f" {width:.0f}", va="center")
        axes[0][0].invert_yaxis()
        figure.savefig(path, metadata={"Date": None})
