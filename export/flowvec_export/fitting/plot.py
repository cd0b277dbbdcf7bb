"""Plots a flow's fit: bits per dimension by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flowvec.errors import InputValueError
from flowvec.files import staged_file
from flowvec.optional import require
from flowvec_export.fitting.flow import Epoch
from flowvec_export.transforms.file import Recipe

__all__ = ["check_plot", "draw_learning_curve"]

_SUFFIXES = (".svg", ".png", ".pdf")


def check_plot(path: Path) -> None:
    """Raise InputValueError or MissingDependencyError if this plot could not be drawn."""
    if path.suffix not in _SUFFIXES:
        raise InputValueError(f"a plot is one of {', '.join(_SUFFIXES)}, not {path.name}")
    require("a plot", "cpu,export,bench", "matplotlib")


def draw_learning_curve(history: Sequence[Epoch], recipe: Recipe, path: Path) -> None:
    """Draw bits per dimension on training and held-out vectors by epoch.

    Raises:
        InputValueError: the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    # Equal fits give equal files.
    with matplotlib.rc_context({"svg.hashsalt": "flowvec", "svg.fonttype": "none"}):
        from matplotlib import pyplot as plt
        from matplotlib.ticker import MaxNLocator

        figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
        epochs = [epoch.epoch for epoch in history]
        # These two colours differ in the common forms of colour blindness.
        axes.plot(epochs, [e.train for e in history], "o-", color="#0072B2", label="training")
        axes.plot(epochs, [e.held_out for e in history], "s-", color="#D55E00", label="held out")
        best = min(history, key=lambda epoch: epoch.held_out)
        axes.annotate(
            f"kept: {best.held_out:.3f}",
            (best.epoch, best.held_out),
            textcoords="offset points",
            xytext=(-6, 14),
            ha="right",
        )
        axes.set_xlabel("epoch")
        axes.set_ylabel("bits per dimension (lower is better)")
        axes.set_title(f"{recipe.method} on {recipe.pooling} vectors of {recipe.source}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        try:
            dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
            with staged_file(path) as staged:
                figure.savefig(
                    staged, format=path.suffix[1:], dpi=150, metadata=dated.get(path.suffix)
                )
        except OSError as error:
            raise InputValueError(f"cannot write {path}: {error.strerror or error}") from None
        finally:
            plt.close(figure)
