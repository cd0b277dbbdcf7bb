"""Recommends one of several measured poolings and transforms, or none."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["NONE", "OWN", "TRANSFORMS", "WORD_VECTORS", "Candidate", "advise"]

NONE = "none"
OWN = "own"
WORD_VECTORS = "word vectors"

# The compared transforms by name: a method of `fit` and a preset of its flow.
TRANSFORMS: dict[str, tuple[str, str]] = {
    "standardise": ("standardise", "wide"),
    "all-but-the-top": ("all-but-the-top", "wide"),
    "beta-gamma": ("beta-gamma", "wide"),
    "soft-zca": ("soft-zca", "wide"),
    "whitening": ("whitening", "wide"),
    "flow-released": ("flow", "released"),
    "flow": ("flow", "wide"),
    "pca+flow": ("pca+flow", "wide"),
}

# Fewest points that a transform must gain.
_WORTHWHILE = 1.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One pooling with one transform; figures are means over the seeds.

    Attributes:
        pooling: as for `export`; `own` for a source's own pooling and Dense layers.
        transform: a name from `TRANSFORMS`, or `none`.
        seeds: number of fits; 1 without a transform.
        dim: length of a vector.
        sts: Spearman x 100 by name of the figure, see `figure_names`.
        sts_deviation: standard deviation of each over the seeds.
        sts_by_seed: figures of each seed.
        mean_cosine: mean cosine of all pairs of STS sentences.
        uniformity: uniformity of the STS sentences.
        alignment: alignment of the pairs with gold > 4 of all tasks.
        added_microseconds: time of the transform alone for a batch of 32 vectors, one thread.
        bits_per_dim: bits per dimension of a flow on held-out corpus vectors; else None.
    """

    pooling: str
    transform: str
    seeds: int
    dim: int
    sts: dict[str, float]
    sts_deviation: dict[str, float]
    sts_by_seed: list[dict[str, float]]
    mean_cosine: float
    uniformity: float
    alignment: float | None
    added_microseconds: float
    bits_per_dim: float | None


def advise(candidates: Sequence[Candidate], encoder_only: bool = False) -> tuple[str, int, str]:
    """The deciding figure, the recommended candidate, and the reasons.

    Args:
        candidates: measured candidates.
        encoder_only: whether poolings other than `own` were measured without the source's own
            steps.

    A transform must gain one point, and twice its standard deviation, because it makes the model
    slower and thresholds must be set again. Averaged word vectors are shown for comparison only:
    flowvec does not export them.
    """
    names = list(candidates[0].sts)
    dev = [name for name in names if name.endswith(" dev")]
    deciding = dev or [name for name in names if not name.endswith(" wmean")]
    chosen_on = " and ".join(dev) if dev else "the mean of all sets"

    def value(candidate: Candidate) -> float:
        return statistics.fmean(candidate.sts[name] for name in deciding)

    def spread(candidate: Candidate) -> float:
        return 2 * statistics.fmean(candidate.sts_deviation[name] for name in deciding)

    usable = [i for i, c in enumerate(candidates) if c.pooling != WORD_VECTORS]
    order = sorted(usable, key=lambda i: -value(candidates[i]))
    plain = [i for i in order if candidates[i].transform == NONE]
    as_it_is = [i for i in plain if candidates[i].pooling == OWN]
    # The best candidate without a transform.
    base_index = (as_it_is or plain)[0]
    base = candidates[base_index]

    def worth_it(candidate: Candidate) -> bool:
        least = _WORTHWHILE if candidate.transform == NONE else max(_WORTHWHILE, spread(candidate))
        return value(candidate) - value(base) >= least

    best_index = next((i for i in order if worth_it(candidates[i])), base_index)
    best, top = candidates[best_index], candidates[order[0]]
    notes = (
        []
        if dev
        else ["The choice was made on the scored sets themselves, so its gain is overestimated."]
    )
    if best.transform != NONE and best.seeds == 1:
        notes.append("One seed: its spread was not measured.")
    averages = [c for c in candidates if c.pooling == WORD_VECTORS]
    if averages and value(averages[0]) > value(best):
        notes.append(f"Averaged word vectors alone have {value(averages[0]):.1f}.")
    if best is base:
        why = "nothing scores higher"
        if top is not base:
            why = (
                f"{_label(top)} gives {value(top) - value(base):+.1f}, too little or too uncertain"
            )
        advice = f"Take no transform: {_label(base)} has {value(base):.1f} on {chosen_on}; {why}."
        return chosen_on, base_index, " ".join([advice, *notes])
    gain = f"{value(best) - value(base):+.1f} points over {_label(base)}"
    advice = f"Take {_label(best)}: {value(best):.1f} on {chosen_on}, {gain}."
    if best.transform != NONE:
        method, preset = TRANSFORMS[best.transform]
        options = "" if best.pooling == OWN else f" --pooling {best.pooling}"
        options += " --encoder-only" if encoder_only and best.pooling != OWN else ""
        options += f" --preset {preset}" if "flow" in method and preset != "wide" else ""
        notes.append(
            f"Fit it with `flowvec fit {method}{options}`, confirm it on data of your own, and "
            "set thresholds on its scores again."
        )
    return chosen_on, best_index, " ".join([advice, *notes])


def _label(candidate: Candidate) -> str:
    if candidate.transform == NONE:
        return f"{candidate.pooling} as it is"
    return f"{candidate.pooling} with {candidate.transform}"
