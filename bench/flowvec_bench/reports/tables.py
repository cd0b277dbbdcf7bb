"""Plain tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["format_figure", "format_table"]


def format_figure(value: float | None, digits: int = 2) -> str:
    """A figure with a number of decimals; `-` if there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Aligned columns: the first `texts` to the left, figures to the right."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            f"{cell:{'<' if i < texts else '>'}{width}}"
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
