"""Compares edit distance with cosine and gold scores: does cosine follow spelling?

Li et al. (2020), "On the sentence embeddings from pre-trained language models", the section on
lexical and semantic similarity: BERT's cosines follow edit distance far more than human scores do,
especially among pairs that people find similar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein

from flowvec_export.sts import StsPairs, StsTask, pair_cosines, spearman

__all__ = ["ALL_PAIRS", "LexicalRow", "edit_distances", "measure_lexical"]

ALL_PAIRS = "all pairs"
_ALIKE = 4.0


@dataclass(frozen=True, slots=True)
class LexicalRow:
    """Spearman x 100 of the normalized edit distance with gold and with cosines.

    Attributes:
        task: name of a task, or `all pairs` for all tasks together.
        pairs: "all", or "gold > 4" for pairs that people find similar.
        count: number of pairs, including pairs of equal sentences.
        gold: with the human scores; None for fewer than two pairs, or if one side is constant.
        cosine: with the cosines of each model, by name; None as for gold. The further below gold's,
            the more a model follows spelling.
    """

    task: str
    pairs: str
    count: int
    gold: float | None
    cosine: dict[str, float | None]


def edit_distances(pairs: StsPairs) -> npt.NDArray[np.float64]:
    """Levenshtein distance in characters / length of the longer sentence; float64 (pairs,).

    0 for equal sentences, 1 if every character changes.
    """
    return np.array(
        [
            Levenshtein.normalized_distance(a, b)
            for a, b in zip(pairs.left, pairs.right, strict=True)
        ],
        dtype=np.float64,
    )


def measure_lexical(
    tasks: Sequence[StsTask],
    rows: Mapping[str, int],
    vectors: Mapping[str, npt.NDArray[np.floating[Any]]],
) -> list[LexicalRow]:
    """The table: each task, then all pairs together if there are several tasks.

    Args:
        tasks: as `read_sts` returns them.
        rows: row of each sentence, as `sentence_rows` returns it.
        vectors: (sentences, dim) of each model, by its name.
    """
    table: list[LexicalRow] = []
    everything: list[StsPairs] = []
    for task in tasks:
        subsets = list(task.subsets.values())
        everything += subsets
        table += _rows(task.name, subsets, rows, vectors)
    if len(tasks) > 1:
        table += _rows(ALL_PAIRS, everything, rows, vectors)
    return table


def _rows(
    name: str,
    subsets: Sequence[StsPairs],
    rows: Mapping[str, int],
    vectors: Mapping[str, npt.NDArray[np.floating[Any]]],
) -> list[LexicalRow]:
    gold = np.concatenate([pairs.gold for pairs in subsets])
    edits = np.concatenate([edit_distances(pairs) for pairs in subsets])
    cosines = {
        model: np.concatenate([pair_cosines(pairs, rows, matrix) for pairs in subsets])
        for model, matrix in vectors.items()
    }
    scopes = {"all": np.ones(len(gold), dtype=bool), f"gold > {_ALIKE:g}": gold > _ALIKE}
    return [
        LexicalRow(
            task=name,
            pairs=scope,
            count=int(chosen.sum()),
            gold=_correlation(edits[chosen], gold[chosen]),
            cosine={m: _correlation(edits[chosen], c[chosen]) for m, c in cosines.items()},
        )
        for scope, chosen in scopes.items()
    ]


def _correlation(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float | None:
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return spearman(a, b)
