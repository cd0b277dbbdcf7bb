"""The common parts of reports: tables, machine, versions, the style of charts, writing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flowvec.files import staged_file, write_file

__all__ = [
    "COLOURS",
    "MARKERS",
    "STYLE",
    "bars",
    "machine_line",
    "markdown_table",
    "save_chart",
    "version_lines",
    "write_lines",
]

# Text stays text in the SVG, and equal data give equal bytes.
STYLE: dict[Any, Any] = {"svg.hashsalt": "flowvec", "svg.fonttype": "none", "font.size": 9}

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P")


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1
) -> list[str]:
    """Lines of a Markdown table: the first `texts` columns aligned left, the others right."""
    aligned = "|".join(["---"] * texts + ["---:"] * (len(header) - texts))
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [
        f"| {' | '.join(header)} |",
        f"|{aligned}|",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]


def machine_line(machine: Mapping[str, Any]) -> str:
    """Where and when it was measured, in one sentence."""
    return (
        f"{machine['cpu']} ({', '.join(machine['cpu_features'])}), {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, {machine['system']}, Python {machine['python']}; measured "
        f"{machine['measured']}."
    )


def version_lines(versions: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The versions in each peer's environment, as a list."""
    lines = ["## Versions", ""]
    for name, packages in versions.items():
        if packages:
            listed = ", ".join(f"{package} {version}" for package, version in packages.items())
            lines.append(f"- {name}: {listed}")
    return lines


def write_lines(lines: Iterable[str], path: Path) -> None:
    """Write a page, atomically."""
    write_file(path, ("\n".join(lines) + "\n").encode())


def save_chart(figure: Figure, path: Path) -> None:
    """Write a figure as SVG, atomically. It has no date, so that equal data give equal bytes."""
    with staged_file(path) as staged:
        figure.savefig(staged, format="svg", metadata={"Date": None})


def bars(axis: Axes, values: Mapping[str, float], text: Callable[[float], str], of: str) -> None:
    """A bar for each name, from the top, with its value as text; flowvec's bars have a colour.

    Args:
        axis: where to draw.
        values: values by name; 0 for a missing one.
        text: formats a value.
        of: label of the axis.
    """
    colours = ["#0072b2" if name.startswith("flowvec") else "#999999" for name in values]
    axis.barh(range(len(values)), list(values.values()), color=colours)
    axis.set_yticks(range(len(values)), list(values))
    axis.invert_yaxis()
    axis.set_xlabel(of)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.15)
    for place, value in enumerate(values.values()):
        if value:
            axis.text(value, place, f" {text(value)}", va="center")
