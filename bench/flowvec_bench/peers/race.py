"""The race: every row in a process of its own, all in one run, in turn, on the same texts."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flowvec.errors import FlowvecError, InputValueError
from flowvec_bench.peers.environments import Environment, PeerEnvironmentError, make_environment
from flowvec_bench.peers.roster import Peer

__all__ = ["LEAST_COSINE", "Race", "Row", "Runner", "race"]

# A row whose vectors are further from the first row's is void: it computes something else.
LEAST_COSINE = 0.999

_WORKER = Path(__file__).with_name("worker.py")
_SHOWN = (
    "flowvec", "onnxruntime", "openvino", "torch", "transformers", "sentence-transformers",
    "optimum", "optimum-intel", "optimum-onnx", "fastembed", "infinity-emb",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One row of one kind of texts.

    Attributes:
        name: of the peer.
        texts: kind of texts.
        batch_size: the best of those tried; None is the library's own.
        texts_per_second: at the median of the rounds.
        seconds: of each round.
        min_cosine: to the first row's vectors, the smallest.
        ratio: texts a second of the first row over this one's, the median over the rounds.
        versions: of the packages that matter.
        error: why there are no figures, else None.
    """

    name: str
    texts: str
    batch_size: int | None
    texts_per_second: float | None
    seconds: list[float]
    min_cosine: float | None
    ratio: float | None
    versions: dict[str, str]
    error: str | None

    @property
    def void(self) -> bool:
        """Whether its vectors are others than the first row's."""
        return self.min_cosine is None or not self.min_cosine >= LEAST_COSINE


@dataclass(frozen=True, slots=True)
class Race:
    """What `race` gives: rows by kind of texts, in the order of the peers."""

    kinds: dict[str, int]
    rounds: int
    rows: list[Row]


class PeerError(FlowvecError, RuntimeError):
    """A peer failed."""


class Runner:
    """A peer's process."""

    def __init__(self, peer: Peer, environment: Environment, model: str, options: Any) -> None:
        self.peer = peer
        self.process = subprocess.Popen(
            [str(environment.python), str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self.ask(do="load", engine=peer.engine, model=model, options=options)
        except PeerError:
            self.end()
            raise

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for its answer.

        Raises:
            PeerError: the peer raised, or its process has ended.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError as error:
            line = ""
            reason = str(error)
        else:
            reason = "its process has ended"
        answer: dict[str, Any] = json.loads(line) if line else {"error": reason}
        if "error" in answer:
            raise PeerError(f"{self.peer.name}: {answer['error']}")
        return answer

    def encode(self, texts: Path, batch_size: int | None, save: Path | None = None) -> float:
        """Seconds for one pass."""
        answer = self.ask(
            do="encode", texts=str(texts), batch_size=batch_size, save=save and str(save)
        )
        return float(answer["seconds"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.communicate()


def race(
    peers: Sequence[Peer],
    models: Mapping[str, Path],
    options: Mapping[str, Any],
    texts: Mapping[str, Sequence[str]],
    folder: Path,
    *,
    rounds: int = 5,
    on_step: Callable[[str], object] | None = None,
) -> Race:
    """Time peers side by side.

    Each chooses its batch size on a quarter of the texts first, and is warm then; rounds go through
    all peers in turn, so that a moment in which the machine is slow hits all of them.

    Args:
        peers: the first is what the others are compared with, in vectors and in speed.
        models: where each form of the model lies, see `Peer.form`.
        options: what an engine must know of the model (`max_length`, `dim`, `threads`).
        texts: by kind.
        folder: for texts and vectors on the way.
        rounds: timed passes.
        on_step: called with a line of text before each step.

    Raises:
        InputValueError: no peers, no texts or no rounds.
        FlowvecError: the first peer fails.
    """
    if not peers or not texts or not all(texts.values()) or rounds < 1:
        raise InputValueError("there must be peers, texts and rounds")
    say = on_step or (lambda _: None)
    files: dict[str, tuple[Path, Path]] = {}
    for kind, items in texts.items():
        whole, part = folder / f"{kind}.json", folder / f"{kind}-part.json"
        whole.write_text(json.dumps(list(items)), encoding="utf-8")
        part.write_text(json.dumps(list(items[: max(1, len(items) // 4)])), encoding="utf-8")
        files[kind] = (whole, part)
    runners: dict[str, Runner] = {}
    versions: dict[str, dict[str, str]] = {}
    errors: dict[str, str] = {}
    sizes: dict[tuple[str, str], int | None] = {}
    cosines: dict[tuple[str, str], float] = {}
    first: dict[str, npt.NDArray[np.float32]] = {}
    times: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        for number, peer in enumerate(peers):
            say(f"preparing {peer.name}")
            try:
                environment = make_environment(peer.requirements, peer.without, say)
                versions[peer.name] = {
                    name: environment.versions[name]
                    for name in _SHOWN
                    if name in environment.versions
                }
                runner = stack.enter_context(
                    Runner(peer, environment, str(models[peer.form]), {**options, **peer.options})
                )
                for kind, (whole, part) in files.items():
                    sizes[peer.name, kind] = _best_size(runner, part)
                    save = folder / f"{number}-{kind}.npy"
                    runner.encode(whole, sizes[peer.name, kind], save)
                    vectors = np.load(save)
                    save.unlink()
                    first.setdefault(kind, vectors)
                    cosines[peer.name, kind] = _least_cosine(first[kind], vectors)
            except (PeerError, PeerEnvironmentError) as error:
                if not number:
                    raise
                say(str(error))
                errors[peer.name] = str(error)
            else:
                runners[peer.name] = runner
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for name, runner in list(runners.items()):
                for kind, (whole, _) in files.items():
                    try:
                        taken = runner.encode(whole, sizes[name, kind])
                    except PeerError as error:
                        if name == peers[0].name:
                            raise
                        errors[name] = str(error)
                        runners.pop(name, None)
                        break
                    times.setdefault((name, kind), []).append(taken)
    rows = [
        _row(peer, kind, len(items), peers[0].name, times, sizes, cosines, versions, errors)
        for kind, items in texts.items()
        for peer in peers
    ]
    return Race({kind: len(items) for kind, items in texts.items()}, rounds, rows)


def _best_size(runner: Runner, texts: Path) -> int | None:
    """The fastest batch size, the best of two passes each after one to warm up."""
    sizes = runner.peer.batch_sizes
    if len(sizes) == 1:
        return sizes[0]
    taken: dict[int | None, float] = {}
    for size in sizes:
        runner.encode(texts, size)
        taken[size] = min(runner.encode(texts, size) for _ in range(2))
    return min(taken, key=lambda size: taken[size])


def _least_cosine(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    if a.shape != b.shape:
        return float("nan")
    left, right = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(((left * right).sum(axis=1) / norms).min())


def _row(
    peer: Peer, kind: str, count: int, first: str,
    times: Mapping[tuple[str, str], list[float]], sizes: Mapping[tuple[str, str], int | None],
    cosines: Mapping[tuple[str, str], float], versions: Mapping[str, dict[str, str]],
    errors: Mapping[str, str],
) -> Row:  # fmt: skip
    key = (peer.name, kind)
    seconds = [] if peer.name in errors else times.get(key, [])
    base = times.get((first, kind), [])
    ratios = [mine / other for mine, other in zip(seconds, base, strict=False)]
    return Row(
        name=peer.name,
        texts=kind,
        batch_size=sizes.get(key),
        texts_per_second=count / statistics.median(seconds) if seconds else None,
        seconds=[round(second, 4) for second in seconds],
        min_cosine=cosines.get(key),
        ratio=statistics.median(ratios) if ratios else None,
        versions=versions.get(peer.name, {}),
        error=errors.get(peer.name),
    )
