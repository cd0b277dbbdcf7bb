"""Runs a peer's process, and loads several peers."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.errors import FlowvecError
from flowvec_bench.peers.environments import PeerEnvironmentError, make_environment
from flowvec_bench.peers.registry import Peer

__all__ = [
    "ENCODERS",
    "LEAST_COSINE",
    "LEAST_COSINE_8_BIT",
    "Lineup",
    "PeerError",
    "Reference",
    "Results",
    "Runner",
    "least_cosine",
    "lined_up",
]

Results = npt.NDArray[np.float32]

# A row is void if a vector has a smaller cosine to the reference: it computes something else. In 8
# bits vectors are other ones, and are compared with the limit for variants in flowvec_export.
LEAST_COSINE = 0.999
LEAST_COSINE_8_BIT = 0.995

# Longest time of one command: an hour is more than any pass takes.
_MOST_SECONDS = 3600.0
ENCODERS = Path(__file__).parents[1] / "workers" / "encoders.py"
_SHOWN = (
    "flowvec", "onnxruntime", "openvino", "torch", "transformers", "sentence-transformers",
    "hnswlib", "faiss-cpu", "usearch", "numkong", "turbovec", "optimum", "optimum-intel",
    "optimum-onnx", "fastembed", "infinity-emb", "model2vec", "pylate", "lancedb", "chromadb",
    "qdrant-client",
)  # fmt: skip


class PeerError(FlowvecError, RuntimeError):
    """A peer failed."""


class Runner:
    """A peer's process."""

    def __init__(
        self, peer: Peer, python: Path, model: str, options: Any, worker: Path = ENCODERS
    ) -> None:
        self.peer = peer
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self.process = subprocess.Popen(
            [str(python), str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
        )
        try:
            answer = self.ask(do="load", engine=peer.engine, model=model, options=options)
        except PeerError:
            self.end()
            raise
        # What computes the vectors, if the peer says so.
        self.about: dict[str, str] = answer.get("about", {})

    @property
    def is_8_bit(self) -> bool:
        """Whether it says that it computes in 8 bits."""
        return " in int8 " in self.about.get("runs", "")

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for its answer.

        Raises:
            PeerError: the peer raised, or its process has ended.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # A peer that hangs must not block the others.
        watch = threading.Timer(_MOST_SECONDS, self.process.kill)
        watch.start()
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            answer = {"error": f"its process ended; the last line it printed: {self._last_line()}"}
        finally:
            watch.cancel()
        if "error" in answer:
            raise PeerError(f"{self.peer.name}: {answer['error']}")
        return answer

    def _last_line(self) -> str:
        self.stderr.seek(0)
        lines = self.stderr.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:200] if lines else "none"

    def encode(self, texts: Path, batch_size: int | None, save: Path | None = None) -> float:
        """Seconds for one pass."""
        answer = self.ask(
            do="encode", texts=str(texts), batch_size=batch_size, save=save and str(save)
        )
        return float(answer["seconds"])

    def vectors(self, texts: Path, batch_size: int | None) -> npt.NDArray[np.float32]:
        """Its vectors of the texts, float32 (texts, dim)."""
        save = texts.with_suffix(".npy")
        self.encode(texts, batch_size, save)
        vectors: npt.NDArray[np.float32] = np.load(save)
        save.unlink()
        return vectors

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.communicate()
        self.stderr.close()


@dataclass(slots=True)
class Lineup:
    """Peers that are loaded.

    Attributes:
        peers: all requested peers; the others are compared with the first.
        runners: processes of the running peers, by name.
        versions: by peer, versions of the relevant packages, and what computes the vectors if the
            peer says so.
        errors: why the others do not run, by name.
    """

    peers: Sequence[Peer]
    runners: dict[str, Runner] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def each(self, work: Callable[[Runner], object]) -> None:
        """Run `work` for one peer after another; a peer that fails is removed.

        Raises:
            PeerError: the first peer fails.
        """
        for name, runner in list(self.runners.items()):
            try:
                work(runner)
            except PeerError as error:
                self.remove(name, error)

    def remove(self, name: str, error: FlowvecError) -> None:
        """Remove a peer from the run; raises the error if it is the first."""
        if name == self.peers[0].name:
            raise error
        self.errors[name] = str(error)
        if runner := self.runners.pop(name, None):
            runner.end()


@contextmanager
def lined_up(
    peers: Sequence[Peer],
    models: Mapping[str, Path],
    options: Mapping[str, Any],
    say: Callable[[str], object],
    worker: Path = ENCODERS,
) -> Iterator[Lineup]:
    """Load peers, each in its own process and environment; they end with the context.

    Args:
        peers: the peers.
        models: path of each form of the model, see `Peer.form`.
        options: facts about the model for engines (`max_length`, `dim`, `threads`).
        say: called with a line of text before each step.
        worker: the program that serves a peer.

    Raises:
        FlowvecError: the first peer cannot be loaded.
    """
    lineup = Lineup(peers)
    try:
        for peer in peers:
            say(f"loading {peer.name}")
            try:
                if peer.form not in models:
                    raise PeerError(f"{peer.name} does not support this model's layers")
                environment = make_environment(peer.requirements, peer.without, say, peer.unchecked)
                lineup.versions[peer.name] = {
                    name: environment.versions[name]
                    for name in _SHOWN
                    if name in environment.versions
                }
                lineup.runners[peer.name] = Runner(
                    peer,
                    environment.python,
                    str(models[peer.form]),
                    {**options, **peer.options},
                    worker,
                )
                lineup.versions[peer.name] |= lineup.runners[peer.name].about
            except (PeerError, PeerEnvironmentError) as error:
                say(str(error))
                lineup.remove(peer.name, error)
        yield lineup
    finally:
        for runner in lineup.runners.values():
            runner.end()


class Reference:
    """What the results of peers are compared with: those of the first peer that is not in 8 bits.

    Args:
        agreement: how near two peers' results are; 1 is equal.
    """

    def __init__(self, agreement: Callable[[Results, Results], float]) -> None:
        self._agreement = agreement
        self._results: Results | None = None
        self._before: dict[str, Results] = {}
        # By name of a peer.
        self.agreements: dict[str, float] = {}

    def add(self, runner: Runner, results: Results) -> None:
        """Compare a peer's results, or keep them until there is a reference."""
        self._before[runner.peer.name] = results
        if self._results is None and not runner.is_8_bit:
            self._results = results
        if self._results is not None:
            self._compare(self._results)

    def finish(self) -> None:
        """Compare the rest: where all are in 8 bits, with the first of them."""
        if self._results is None and self._before:
            self._compare(next(iter(self._before.values())))

    def _compare(self, reference: Results) -> None:
        for name, results in self._before.items():
            self.agreements[name] = self._agreement(reference, results)
        self._before.clear()


def least_cosine(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    """The smallest cosine of two rows; NaN if the shapes differ."""
    if a.shape != b.shape:
        return float("nan")
    left, right = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(((left * right).sum(axis=1) / norms).min())
