"""Chooses the engine of an Encoder: what was asked for, what was tuned, and what is proved here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

from flowvec.arguments import choice, text_or_none, whole_number
from flowvec.bundle.bundle import Bundle
from flowvec.engine.providers import Compute, Device, Engine
from flowvec.engine.selection import choose_engine, tuned_engine
from flowvec.engine.tuned import Tuned, load_tuned
from flowvec.errors import EngineNotProvedError, ProviderUnavailableError

__all__ = ["FOREIGN", "Choice", "EngineRequest"]

# What callers of sentence-transformers and fastembed write.
FOREIGN = {
    "backend": "write provider=",
    "providers": "write provider=",
    "cuda": 'write device="cuda"',
    "dtype": "write compute=",
    "torch_dtype": "write compute=",
    "model_kwargs": "write compute= for its dtype, provider= for its engine",
    "batch_size": "texts are batched by their tokens; leave it out, or give max_batch_tokens=",
    "cache_dir": "set the environment variables FLOWVEC_CACHE and, for downloads, HF_HOME",
    "cache_folder": "set the environment variables FLOWVEC_CACHE and, for downloads, HF_HOME",
    "token": "set the environment variable HF_TOKEN",
    "max_length": "it is part of the bundle: `flowvec export --max-length`",
    "prompts": "they are part of the bundle: `flowvec export --prompt`",
    "default_prompt_name": "it is part of the bundle: `flowvec export --default-prompt`",
}

# More than any machine has cores, and fewer than would exhaust one.
_MAX_THREADS = 4096


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine to try.

    Attributes:
        engine: what runs.
        max_batch_tokens: most padded tokens in a batch; None is the engine's default.
        tuned: when `flowvec tune` measured the settings that are used; None if none of them are.
    """

    engine: Engine
    max_batch_tokens: int | None
    tuned: str | None


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What a caller of `Encoder.load` asks of the engine; None or `auto` leaves it open."""

    device: Device = "auto"
    provider: str | None = None
    compute: Compute = "auto"
    streams: int | None = None
    threads: int | None = None
    max_batch_tokens: int | None = None

    def __post_init__(self) -> None:
        """Check all of it.

        Raises:
            InputTypeError, InputValueError: an argument is not valid.
        """
        choice("device", self.device, get_args(Device))
        choice("compute", self.compute, get_args(Compute))
        text_or_none("provider", self.provider)
        for name, value in (("streams", self.streams), ("threads", self.threads)):
            if value is not None:
                whole_number(name, value, 1, _MAX_THREADS)
        if self.max_batch_tokens is not None:
            whole_number("max_batch_tokens", self.max_batch_tokens)

    def choose(self, bundle: Bundle, refused: Sequence[EngineNotProvedError]) -> Choice:
        """The best engine that is not among those that were refused.

        Args:
            bundle: what it is to run.
            refused: errors of engines that gave wrong vectors on this machine.

        Raises:
            ProviderUnavailableError: no engine fits the request.
        """
        wrong = [(error.provider, error.compute) for error in refused]
        wanted = (self.provider, self.compute, self.streams, self.threads)
        choose = partial(
            choose_engine,
            device=self.device,
            variants=bundle.variants,
            layers=bundle.manifest.layers,
            refused=wrong,
        )
        try:
            engine = choose(*wanted)
        except ProviderUnavailableError:
            if refused:  # its message says more
                raise refused[0] from None
            raise
        tuned = load_tuned(bundle.fingerprint)
        better = None if tuned is None else tuned_engine(tuned, engine, *wanted, choose, wrong)
        if tuned is None or better is None:
            return Choice(engine, self.max_batch_tokens, None)
        tokens = self.max_batch_tokens
        return Choice(
            better, tuned.max_batch_tokens if tokens is None else tokens, self._measured(tuned)
        )

    def _measured(self, tuned: Tuned) -> str | None:
        """When the tuned settings were measured; None if the caller gave all of them."""
        is_used = (
            None in (self.provider, self.max_batch_tokens)
            or self.compute == "auto"
            or (self.streams is None and self.threads is None)
        )
        return tuned.measured if is_used else None
