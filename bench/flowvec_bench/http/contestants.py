"""What is measured: servers over sockets, and the same work inside a process."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.compat import override
from flowvec_bench.http.processes import ServerProcess
from flowvec_bench.peers.runner import Runner

__all__ = ["Contestant", "InProcess", "Level", "Loads", "Served"]

Floats = npt.NDArray[np.float32]
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Loads:
    """The texts of a run, in files of a folder: of one caller (`one`), and of all other loads."""

    folder: Path

    @classmethod
    def write(
        cls, folder: Path, texts: Sequence[Sequence[str]], short: Sequence[Sequence[str]]
    ) -> Loads:
        """Write the texts of each call, for callers and arrivals, and for one caller."""
        for stem, groups in (("calls", texts), ("short", short)):
            flat = [text for group in groups for text in group]
            content = {f"{stem}.json": list(map(list, groups)), f"{stem}-flat.json": flat}
            for name, value in content.items():
                (folder / name).write_text(json.dumps(value), encoding="utf-8")
        return cls(folder)

    def groups(self, load: str) -> Path:
        """A list of texts for each call."""
        return self._file(load, ".json")

    def flat(self, load: str) -> Path:
        """The same texts in one list."""
        return self._file(load, "-flat.json")

    def vectors(self, load: str) -> Path:
        """The right vectors of all texts, as .npy."""
        return self._file(load, ".npy")

    def _file(self, load: str, end: str) -> Path:
        return self.folder / f"{'short' if load == 'one' else 'calls'}{end}"


@dataclass(frozen=True, slots=True)
class Level:
    """A load: `one` caller with a short text, `callers`, or a `rate` of arrivals per second.

    Attributes:
        load: the kind of load.
        level: callers, or arrivals per second.
        within: seconds for which an answer to the last arrival is awaited at least.
    """

    load: str
    level: float
    within: float = 0.0

    def command(self, seconds: float, seed: int) -> dict[str, Any]:
        """What workers are told."""
        if self.load == "rate":
            patience = max(seconds, self.within)
            return {"rate": self.level, "seed": seed, "seconds": seconds, "patience": patience}
        return {"callers": int(self.level), "seconds": seconds}


class Contestant(ABC):
    """Something that answers calls."""

    name: str

    @abstractmethod
    def vectors(self, loads: Loads, load: str) -> Floats:
        """The vectors of all texts of a kind of load, (texts, dim)."""

    @abstractmethod
    def test(self, loads: Loads, level: Level, seconds: float, seed: int) -> Answer:
        """Put a load on it, and return what `http_load.py` says of it."""

    @abstractmethod
    def pause(self) -> None:
        """Take nothing from the others."""

    @abstractmethod
    def resume(self) -> None:
        """Get ready to be measured."""

    @abstractmethod
    def end(self) -> None:
        """End what it started."""


class Served(Contestant):
    """A server, which `load` calls from another process."""

    def __init__(
        self,
        name: str,
        load: Runner,
        target: dict[str, Any],
        process: ServerProcess | None = None,
    ) -> None:
        """A server that answers.

        Args:
            name: name in reports.
            load: the load generator.
            target: where calls are sent, see `http_load.py`.
            process: its process, if it was started for the run.
        """
        self.name = name
        self.target = target
        self.load = load
        self._process = process

    @override
    def vectors(self, loads: Loads, load: str) -> Floats:
        save = loads.folder / "answered.npy"
        texts = str(loads.groups(load))
        self.load.ask(do="vectors", target=self.target, texts=texts, save=str(save))
        vectors: Floats = np.load(save)
        return vectors

    @override
    def test(self, loads: Loads, level: Level, seconds: float, seed: int) -> Answer:
        return self.load.ask(
            do="load-test",
            target=self.target,
            texts=str(loads.groups(level.load)),
            vectors=str(loads.vectors(level.load)),
            **level.command(seconds, seed),
        )

    @override
    def pause(self) -> None:
        if self._process is not None:
            self._process.pause()

    @override
    def resume(self) -> None:
        if self._process is not None:
            self._process.resume()

    @override
    def end(self) -> None:
        if self._process is not None:
            self._process.end()


class InProcess(Contestant):
    """flowvec's Encoder and AsyncEncoder without a server: the callers are in its process."""

    name = "in process"

    def __init__(self, runner: Runner) -> None:
        """`runner` has loaded the model."""
        self._runner = runner

    @override
    def vectors(self, loads: Loads, load: str) -> Floats:
        return self._runner.vectors(loads.flat(load), None)

    @override
    def test(self, loads: Loads, level: Level, seconds: float, seed: int) -> Answer:
        command = level.command(seconds, seed)
        file = str(loads.groups(level.load))
        warm = {**command, "seconds": 0.3}
        self._runner.ask(do="load-test", texts=file, batch_size=None, **warm)
        answer = self._runner.ask(do="load-test", texts=file, batch_size=None, **command)
        return {
            "statuses": {},
            "wrong": 0,
            "lost": 0,
            "processor": None,
            "min_cosine": 1.0,
        } | answer

    def test_beside(
        self, loads: Loads, level: Level, seconds: float, client: Runner, load: Mapping[str, float]
    ) -> Answer:
        """As `test`, while the load generator does what it did against a server.

        Args:
            loads: the texts.
            level: the load.
            seconds: duration.
            client: the load generator.
            load: its `rate` of calls, `share` of a core, and bytes of an `answer`.
        """
        with ThreadPoolExecutor(1) as executor:
            beside = executor.submit(
                client.ask,
                do="beside",
                texts=str(loads.groups(level.load)),
                seconds=seconds + 0.5,
                **load,
            )
            answer = self.test(loads, level, seconds, 0)
            return answer | {"processor": beside.result()["processor"]}

    @override
    def pause(self) -> None:
        """Its threads wait by themselves."""

    @override
    def resume(self) -> None:
        """It is ready."""

    @override
    def end(self) -> None:
        self._runner.end()
