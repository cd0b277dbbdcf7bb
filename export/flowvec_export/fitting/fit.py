"""`fit`: fits a transform on a checkpoint's vectors of a corpus, and records how."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flowvec import __version__
from flowvec.arguments import flag, number, whole_number
from flowvec.errors import InputTypeError, InputValueError
from flowvec.progress import say
from flowvec_export.arguments import (
    check_callback,
    check_instance,
    check_source,
    encodable_text,
    texts_of,
)
from flowvec_export.fitting.corpus import embed_raw
from flowvec_export.fitting.flow import Epoch, FlowTraining, fit_flow
from flowvec_export.sources.load import read_source
from flowvec_export.transforms import (
    PRESETS,
    AllButTheTop,
    BetaGammaWhitening,
    Compose,
    Flow,
    FlowShape,
    Moments,
    Rotation,
    SoftZCA,
    Standardise,
    Transform,
    Whitening,
)
from flowvec_export.transforms.file import Recipe
from flowvec_export.transforms.flow import MIN_ROWS
from flowvec_export.trust import Trust

__all__ = [
    "METHODS",
    "FitSettings",
    "Fitted",
    "fit",
    "fit_transform",
    "held_out_rows",
    "mean_cosine",
    "parse_method",
    "results_of",
    "split",
]

Floats = npt.NDArray[np.float32]

METHODS = (
    "flow",
    "whitening",
    "soft-zca",
    "standardise",
    "all-but-the-top",
    "beta-gamma",
    "pca",
    "rotation",
)
# Held out from fitting: a twentieth, within these bounds.
_HELD_OUT = 20
_LEAST_HELD_OUT, _MOST_HELD_OUT = 10, 10_000


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Settings of the methods of `fit`; each method uses its own.

        >>> settings = FitSettings(k=8)
        >>> fitted = fit("whitening", "my-checkpoint", sentences, settings=settings)
        >>> fitted.transform.out_dim
        8

    Attributes:
        k: directions that whitening, beta-gamma and pca keep; None keeps all that are not null.
        eps: eps of soft-zca, in units of the mean variance.
        beta: beta of beta-gamma.
        gamma: gamma of beta-gamma.
        top: directions that all-but-the-top removes; None is dim / 100.
        shape: sizes of the flow.
        training: how the flow is trained.
    """

    k: int | None = None
    eps: float = 0.05
    beta: float = 1.0
    gamma: float = 0.5
    top: int | None = None
    shape: FlowShape = PRESETS["wide"]
    training: FlowTraining = field(default_factory=FlowTraining)

    def check(self, parts: Sequence[str], dim: int | None = None) -> None:
        """Check the settings that these methods use.

        Args:
            parts: the methods.
            dim: length of the vectors; None if it is not known yet.

        Raises:
            InputTypeError: a setting has the wrong type.
            InputValueError: a setting is out of range, or does not fit `dim`.
        """
        for name in ("k", "top"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name))
        for name in ("eps", "beta", "gamma"):
            number(name, getattr(self, name))
        check_instance("shape", self.shape, FlowShape)
        check_instance("training", self.training, FlowTraining)
        used = self.used_by(parts)
        if not 0.0 <= used.get("eps", 0.0) < math.inf:
            raise InputValueError(f"eps must not be negative, but is {self.eps}")
        for name in ("beta", "gamma"):
            if not 0.0 <= used.get(name, 0.0) <= 1.0:
                raise InputValueError(f"{name} must be from 0 to 1, but is {used[name]}")
        if used.get("k") is not None and dim is not None and used["k"] > dim:
            raise InputValueError(f"k is {used['k']}, but there are {dim} dimensions")
        if used.get("top") is not None and dim is not None and used["top"] >= dim:
            raise InputValueError(f"top is {used['top']}, but there are {dim} dimensions")
        if "flow" in parts:
            # A step before the flow may drop dimensions, so the flow checks them again.
            self.shape.check(dim)
            self.training.check()

    def used_by(self, parts: Sequence[str]) -> dict[str, Any]:
        """The settings that these methods use, for the recipe."""
        used: dict[str, Any] = {}
        for part in parts:
            if part in ("whitening", "beta-gamma", "pca", "rotation"):
                used["k"] = self.k
            if part == "soft-zca":
                used["eps"] = self.eps
            elif part == "beta-gamma":
                used |= {"beta": self.beta, "gamma": self.gamma}
            elif part == "all-but-the-top":
                used["top"] = self.top
            elif part == "flow":
                used |= {"shape": asdict(self.shape), "training": asdict(self.training)}
        return used


@dataclass(frozen=True, slots=True)
class Fitted:
    """What `fit` returns.

        >>> fitted = fit("soft-zca", "my-checkpoint", sentences)
        >>> before, after = fitted.mean_cosine
        >>> after < before
        True

    Attributes:
        transform: the fitted transform.
        recipe: how it was fitted.
        history: bits per dimension by epoch; empty without a flow.
        mean_cosine: mean cosine of all pairs of held-out texts, before and after.
        tuned: the source was trained for cosine similarity; see `Source`.
    """

    transform: Transform
    recipe: Recipe
    history: list[Epoch]
    mean_cosine: tuple[float, float]
    tuned: bool


def parse_method(name: str) -> tuple[str, ...]:
    """Split `pca+flow+whitening` into its parts, which are fitted in that order.

    Raises:
        InputTypeError: it is not a text.
        InputValueError: a part is unknown, comes twice, or `rotation` is not before a flow.
    """
    if not isinstance(name, str):
        raise InputTypeError(f"method must be a text, not {type(name).__name__}")
    parts = tuple(name.split("+"))
    for part in parts:
        if part not in METHODS:
            raise InputValueError(f"method {part!r} is unknown; choose from {', '.join(METHODS)}")
        if parts.count(part) > 1:
            raise InputValueError(f"{part} comes twice in {name!r}")
    if "rotation" in parts and parts[parts.index("rotation") + 1 :][:1] != ("flow",):
        raise InputValueError("a rotation is learned with the flow behind it: rotation+flow")
    return parts


def fit(
    method: str,
    source: str | Path,
    texts: Sequence[str],
    *,
    corpus: str = "texts",
    pooling: str | None = None,
    max_length: int | None = None,
    encoder_only: bool = False,
    trust: Trust | None = None,
    settings: FitSettings | None = None,
    show_progress_bar: bool | None = None,
    on_step: Callable[[str], object] | None = say,
    on_epoch: Callable[[Epoch], object] | None = None,
) -> Fitted:
    """Fit a transform on the pooled vectors of texts.

    The vectors are computed once, by flowvec's own runtime; torch trains on them.

        >>> fitted = fit("whitening", "my-checkpoint", sentences, pooling="mean")
        >>> save_transform(fitted.transform, fitted.recipe, "whitening-of-mine.safetensors")

    Args:
        method: one of `METHODS`, or several joined by `+`.
        source: as for `export`.
        texts: distinct texts like those that will be encoded, shuffled; a twentieth is held out.
        corpus: their name, for the recipe.
        pooling: as for `export`.
        max_length: as for `export`.
        encoder_only: as for `export`.
        trust: what the source may do besides being read as data; None allows nothing.
        settings: settings of the method.
        show_progress_bar: show one while embedding; None shows one on a terminal for long work.
        on_step: called with a line of text before each step; by default it goes to standard
            error. None is silent.
        on_epoch: called after each epoch of a flow.

    Raises:
        InputTypeError: an argument has the wrong type.
        InputValueError: an unknown method, a setting out of range, or too few texts for it.
        ExportError: the source cannot be exported.
        NonFiniteError: a vector holds NaN or infinity. The message names the text.
        DivergedError: the flow became NaN or infinite.
    """
    check_source(
        source, pooling=pooling, max_length=max_length, encoder_only=encoder_only, trust=trust
    )
    texts = texts_of("texts", texts)
    encodable_text("corpus", corpus)
    if show_progress_bar is not None:
        flag("show_progress_bar", show_progress_bar)
    check_callback("on_step", on_step)
    check_callback("on_epoch", on_epoch)
    settings = FitSettings() if settings is None else settings
    check_instance("settings", settings, FitSettings)
    parts = parse_method(method)
    # Before any long work.
    settings.check(parts)
    held_out_rows(len(texts), parts)
    checkpoint = read_source(source, encoder_only=encoder_only, trust=trust)
    settings.check(parts, checkpoint.width(pooling))
    recipe = Recipe(
        method=method,
        source=checkpoint.name,
        source_sha256=checkpoint.sha256(),
        pooling=checkpoint.pooling_name(pooling),
        max_length=checkpoint.checked_length(max_length),
        corpus=corpus,
        rows=len(texts) - held_out_rows(len(texts)),
        held_out_rows=held_out_rows(len(texts)),
        seed=settings.training.seed,
        settings=settings.used_by(parts),
        results={},
        encoder_only=encoder_only,
        flowvec=__version__,
    )
    tuned = checkpoint.tuned
    del checkpoint  # as large as the model, and not needed for fitting
    raw = embed_raw(
        source,
        texts,
        pooling=pooling,
        max_length=max_length,
        encoder_only=encoder_only,
        trust=trust,
        show_progress_bar=show_progress_bar,
        on_step=on_step,
    )
    train, held_out = split(raw)
    if on_step is not None:
        on_step(f"fitting {method} on {len(train)} vectors, {len(held_out)} held out")
    transform, history = fit_transform(parts, train, held_out, settings, on_epoch)
    with torch.no_grad():
        after = transform(torch.from_numpy(held_out)).numpy()
    cosines = (mean_cosine(held_out), mean_cosine(after))
    recipe = replace(recipe, results=results_of(history, cosines))
    return Fitted(transform, recipe, history, cosines, tuned)


def held_out_rows(count: int, parts: Sequence[str] = ()) -> int:
    """How many of `count` texts to hold out: a twentieth, 10 to 10,000.

    Raises:
        InputValueError: too few are left for these parts of a method.
    """
    held_out = min(max(count // _HELD_OUT, _LEAST_HELD_OUT), _MOST_HELD_OUT)
    least = MIN_ROWS if "flow" in parts else _LEAST_HELD_OUT
    if count - held_out < least:
        raise InputValueError(
            f"{'+'.join(parts) or 'fitting'} needs at least {least} different texts to fit on, but "
            f"{max(0, count - held_out)} of {count} are left: {held_out} are held out"
        )
    return held_out


def split(vectors: Floats) -> tuple[Floats, Floats]:
    """Vectors to fit on and vectors held out: the last `held_out_rows`.

    Raises:
        InputValueError: fewer than 20 rows.
    """
    held_out = held_out_rows(len(vectors))
    return vectors[:-held_out], vectors[-held_out:]


def results_of(history: Sequence[Epoch], cosines: tuple[float, float]) -> dict[str, Any]:
    """The measured figures, for the recipe."""
    results: dict[str, Any] = {"mean_cosine": [round(c, 4) for c in cosines]}
    if history:
        results["bits_per_dim"] = [
            [e.epoch, round(e.train, 4), round(e.held_out, 4)] for e in history
        ]
    return results


def fit_transform(
    parts: Sequence[str],
    train: Floats,
    held_out: Floats,
    settings: FitSettings,
    on_epoch: Callable[[Epoch], object] | None = None,
) -> tuple[Transform, list[Epoch]]:
    """Fit the parts in order, each on the output of the part before it.

    Args:
        parts: parts of a method, see `parse_method`.
        train: float32 (rows, dim), shuffled.
        held_out: float32 (rows, dim).
        settings: settings of the parts.
        on_epoch: called after each epoch of a flow.

    Returns:
        The transform, and a flow's history or an empty list.

    Raises:
        InputValueError: too few rows, NaN or infinity in them, a setting out of range.
        DivergedError: the flow became NaN or infinite.
    """
    fitted: list[Transform] = []
    history: list[Epoch] = []
    rotation: Rotation | None = None
    for part in parts:
        if part == "flow":
            # A learned rotation is trained together with the flow, on vectors before the rotation.
            dim = train.shape[1] if rotation is None else rotation.out_dim
            with torch.random.fork_rng(devices=[]):  # the training initializes the weights again
                flow = Flow(dim, settings.shape)
            history = fit_flow(flow, train, held_out, settings.training, rotation, on_epoch)
            fitted += [flow] if rotation is None else [rotation, flow]
            rotation = None
        elif part == "rotation":
            rotation = Rotation.fit(Moments.of(train), settings.k, learned=True)
            continue
        else:
            fitted.append(_fit_linear(part, Moments.of(train), settings))
        if part != parts[-1]:
            train, held_out = (_apply(fitted, part, rows) for rows in (train, held_out))
    transform = fitted[0] if len(fitted) == 1 else Compose(fitted)
    return transform.eval(), history


def _fit_linear(part: str, moments: Moments, settings: FitSettings) -> Transform:
    if part == "whitening":
        return Whitening.fit(moments, settings.k)
    if part == "soft-zca":
        return SoftZCA.fit(moments, settings.eps)
    if part == "standardise":
        return Standardise.fit(moments)
    if part == "all-but-the-top":
        return AllButTheTop.fit(moments, settings.top)
    if part == "beta-gamma":
        return BetaGammaWhitening.fit(moments, settings.beta, settings.gamma, settings.k)
    return Rotation.fit(moments, settings.k)


@torch.no_grad()
def _apply(fitted: list[Transform], part: str, rows: Floats) -> Floats:
    """Rows after the transforms of one part."""
    last = fitted[-2:] if part == "flow" and _follows_learned(fitted) else fitted[-1:]
    blocks = []
    for start in range(0, len(rows), 8192):
        block = torch.from_numpy(rows[start : start + 8192])
        for transform in last:
            block = transform(block)
        blocks.append(block.numpy())
    return np.concatenate(blocks)


def _follows_learned(fitted: list[Transform]) -> bool:
    return len(fitted) > 1 and isinstance(fitted[-2], Rotation) and fitted[-2].learned


def mean_cosine(vectors: Floats) -> float:
    """Mean cosine over all pairs of different rows, float (rows, dim), of at least two."""
    unit = vectors.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    n = len(unit)
    return float((np.square(unit.sum(axis=0)).sum() - n) / (n * (n - 1)))
