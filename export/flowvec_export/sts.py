"""Semantic textual similarity: Spearman x 100 of cosine with human scores, both aggregations.

Over the subsets of a year, `all` is the correlation over all pairs concatenated (SBERT, SimCSE) and
`wmean` the size-weighted mean of the subsets' correlations (BERT-flow, whitening). One system can
differ by 20 points between the two, so both are always reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowvec.errors import InputValueError
from flowvec.files import lfs_advice
from flowvec.texts.encodings import OtherEncodingError, check_encoding

__all__ = [
    "Embed",
    "StsPairs",
    "StsScore",
    "StsTask",
    "pair_cosines",
    "positive_pairs",
    "read_sts",
    "score_sts",
    "score_vectors",
    "sentence_rows",
    "spearman",
]

Vectors = npt.NDArray[np.floating]
Embed = Callable[[list[str]], npt.NDArray[np.float32]]

_HEADER = ["score", "sentence1", "sentence2"]


@dataclass(frozen=True, slots=True)
class StsPairs:
    """Sentence pairs with human scores: `gold` float64 (pairs,), and the texts `left` and
    `right`."""

    gold: npt.NDArray[np.float64]
    left: list[str]
    right: list[str]

    def __len__(self) -> int:
        return len(self.left)


@dataclass(frozen=True, slots=True)
class StsTask:
    """One folder of pairs: its name, and its files by name without `.tsv`, sorted."""

    name: str
    subsets: dict[str, StsPairs]


@dataclass(frozen=True, slots=True)
class StsScore:
    """Spearman's correlations x 100 of one task.

    Attributes:
        task: the folder's name.
        subsets: the score of each file.
        pairs: how many pairs each file has.
        all: the score over all pairs of all files concatenated (SBERT, SimCSE).
        wmean: the mean of the files' scores weighted by their pairs (BERT-flow, whitening).
    """

    task: str
    subsets: dict[str, float]
    pairs: dict[str, int]
    all: float
    wmean: float


def read_sts(folder: str | Path) -> list[StsTask]:
    """Read a folder of TSV files (one task), or a folder of such folders (tasks sorted by name).

    A file is UTF-8 with the header `score sentence1 sentence2`, tabs between, no quoting.

    Raises:
        InputValueError: there is no such folder, it has no files, or a file is not as above, has
            fewer than two pairs or the same score for all. The message names file and line.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputValueError(f"{folder} is not a directory of STS files")
    subset_files = sorted(root.glob("*.tsv"))
    if subset_files:
        return [_read_task(root.resolve().name, subset_files)]
    folders = {path: sorted(path.glob("*.tsv")) for path in sorted(root.iterdir()) if path.is_dir()}
    tasks = [_read_task(path.name, files) for path, files in folders.items() if files]
    if not tasks:
        raise InputValueError(f"{folder} holds no .tsv file, and no directory with one")
    return tasks


def _read_task(name: str, files: Sequence[Path]) -> StsTask:
    return StsTask(name, {path.name.removesuffix(".tsv"): _read_pairs(path) for path in files})


def _read_pairs(path: Path) -> StsPairs:
    if advice := lfs_advice(path):
        raise InputValueError(advice)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputValueError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        check_encoding(data)
    except OtherEncodingError as error:
        raise InputValueError(f"{path} {error}") from None
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        raise InputValueError(f"{path} is empty")
    gold: list[float] = []
    left: list[str] = []
    right: list[str] = []
    for number, line in enumerate(lines, 1):
        fields = _fields(line, f"{path}, line {number}", header=number == 1)
        if number == 1:
            continue
        gold.append(_score(fields[0], f"{path}, line {number}"))
        left.append(fields[1])
        right.append(fields[2])
    if len(gold) < 2:
        raise InputValueError(f"{path} has {len(gold)} pairs; a correlation needs at least 2")
    if min(gold) == max(gold):
        raise InputValueError(
            f"{path}, lines 2 to {len(lines)}: every score is {gold[0]:g}, so nothing can "
            "correlate with it"
        )
    return StsPairs(np.array(gold, dtype=np.float64), left, right)


def _fields(line: bytes, where: str, *, header: bool) -> list[str]:
    # csv with QUOTE_NONE would do the same, but lose the line number of wrong bytes.
    try:
        text = line.rstrip(b"\r").decode("utf-8-sig" if header else "utf-8")
    except UnicodeDecodeError as error:
        raise InputValueError(f"{where} is not UTF-8: {error}") from None
    fields = text.split("\t")
    if header and fields != _HEADER:
        raise InputValueError(f"{where} must be the header {' '.join(_HEADER)}, with tabs between")
    if len(fields) != len(_HEADER):
        raise InputValueError(f"{where} has {len(fields)} columns instead of {len(_HEADER)}")
    return fields


def _score(text: str, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = float("nan")
    if not np.isfinite(score):
        raise InputValueError(f"{where}: the score {text!r} is not a number")
    return score


def sentence_rows(tasks: Sequence[StsTask]) -> dict[str, int]:
    """Each distinct sentence of all tasks, in order of first appearance, with its row number."""
    rows: dict[str, int] = {}
    for task in tasks:
        for pairs in task.subsets.values():
            for sentence in (*pairs.left, *pairs.right):
                rows.setdefault(sentence, len(rows))
    return rows


def pair_cosines(
    pairs: StsPairs, rows: Mapping[str, int], vectors: Vectors
) -> npt.NDArray[np.float64]:
    """Cosine of the two sentences of each pair.

    Args:
        pairs: the pairs.
        rows: row of `vectors` by sentence, as `sentence_rows` returns it.
        vectors: (sentences, dim), normalized or not.

    Returns:
        float64 (pairs,); 0 if a vector is zero.
    """
    left = np.asarray(vectors[[rows[s] for s in pairs.left]], dtype=np.float64)
    right = np.asarray(vectors[[rows[s] for s in pairs.right]], dtype=np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    dots = np.einsum("ij,ij->i", left, right)
    cosines: npt.NDArray[np.float64] = np.divide(dots, norms, where=norms > 0, out=dots * 0.0)
    return cosines


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Spearman's rank correlation x 100, ties by their mean rank; 0 if one side is constant."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0  # scipy would give NaN
    from scipy.stats import spearmanr  # half a second, which not every export needs

    return 100.0 * float(spearmanr(x, y).statistic)


def score_vectors(
    tasks: Sequence[StsTask], rows: Mapping[str, int], vectors: Vectors
) -> list[StsScore]:
    """Score a matrix of sentence vectors, so that several can be scored without encoding again.

    Args:
        tasks: as `read_sts` returns them.
        rows: row of `vectors` by sentence, as `sentence_rows` returns it.
        vectors: (sentences, dim), normalized or not.

    Returns:
        One score per task, in order.

    Raises:
        InputValueError: the matrix does not have one row per sentence.
    """
    if vectors.ndim != 2 or len(vectors) != len(rows):
        raise InputValueError(
            f"there are {len(rows)} sentences, but vectors of shape {vectors.shape}"
        )
    return [_score_task(task, rows, vectors) for task in tasks]


def _score_task(task: StsTask, rows: Mapping[str, int], vectors: Vectors) -> StsScore:
    cosines = {name: pair_cosines(pairs, rows, vectors) for name, pairs in task.subsets.items()}
    scores = {name: spearman(cosines[name], pairs.gold) for name, pairs in task.subsets.items()}
    sizes = {name: len(pairs) for name, pairs in task.subsets.items()}
    gold = np.concatenate([pairs.gold for pairs in task.subsets.values()])
    return StsScore(
        task=task.name,
        subsets=scores,
        pairs=sizes,
        all=spearman(np.concatenate(list(cosines.values())), gold),
        wmean=sum(scores[name] * sizes[name] for name in scores) / sum(sizes.values()),
    )


def score_sts(tasks: Sequence[StsTask], embed: Embed) -> list[StsScore]:
    """Score an encoder: `embed` is called once, with the distinct sentences of all tasks.

    Args:
        tasks: as `read_sts` returns them.
        embed: texts to float32 (texts, dim), for example `Encoder.encode`.

    Returns:
        One score per task, in order.
    """
    rows = sentence_rows(tasks)
    return score_vectors(tasks, rows, embed(list(rows)))


def positive_pairs(
    tasks: Sequence[StsTask], rows: Mapping[str, int], above: float = 4.0
) -> npt.NDArray[np.int64]:
    """Rows of the pairs with human scores above 4 of 5, over which alignment is measured.

    Pairs of equal sentences are kept, as SimCSE keeps them.

    Returns:
        int64 (pairs, 2), in the order of the files.
    """
    positives = [
        (rows[left], rows[right])
        for task in tasks
        for pairs in task.subsets.values()
        for score, left, right in zip(pairs.gold, pairs.left, pairs.right, strict=True)
        if score > above
    ]
    return np.array(positives, dtype=np.int64).reshape(-1, 2)
