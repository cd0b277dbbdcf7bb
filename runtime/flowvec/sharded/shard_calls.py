"""Calls of the actors of all shards at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from flowvec.errors import (
    ClosedError,
    CollectionError,
    FingerprintMismatchError,
    InputValueError,
    first_line,
)

__all__ = ["ShardCalls"]


class ShardCalls:
    """The actors of a collection's shards.

    Attributes:
        actors: by the shard's name, in the order of the shards; none after `close`.
    """

    def __init__(self, ray: Any, actors: Mapping[str, Any], timeout: float) -> None:
        """Take the actors.

        Args:
            ray: the module.
            actors: Ray's handles of `ShardActor`, by the shard's name.
            timeout: seconds that a shard may take to answer, where a call does not say.
        """
        self._ray = ray
        self._timeout = timeout
        self.actors = dict(actors)

    def __len__(self) -> int:
        return len(self.actors)

    def close(self) -> None:
        """Stop the actors; twice is harmless."""
        actors, self.actors = self.actors, {}
        for actor in actors.values():
            self._ray.kill(actor)

    def check_open(self) -> None:
        """Raise ClosedError after `close`."""
        if not self.actors:
            raise ClosedError("this ShardedSearcher is closed")

    def ask_all(
        self, method: str, arguments: tuple[Any, ...], timeout: float | None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """`ask` of all shards with the same arguments."""
        return self.ask(method, dict.fromkeys(self.actors, arguments), timeout)

    def ask(
        self, method: str, arguments: Mapping[str, tuple[Any, ...]], timeout: float | None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Call a method of several shards at once.

        Args:
            method: its name.
            arguments: of each shard's call, by the shard's name.
            timeout: seconds; None is the one of this object.

        Returns:
            Answers by the shard's name, in the order of the shards, and why others gave none.

        Raises:
            InputTypeError, InputValueError, FingerprintMismatchError: the queries are not valid.
            ClosedError: another thread closed the searcher.
        """
        ray, actors = self._ray, self.actors
        self.check_open()
        shard_of_call = {
            getattr(actors[name], method).remote(*given): name for name, given in arguments.items()
        }
        limit = self._timeout if timeout is None else timeout
        ready, late = ray.wait(list(shard_of_call), num_returns=len(shard_of_call), timeout=limit)
        missing = {shard_of_call[one]: f"no answer within {limit:g} s" for one in late}
        answers: dict[str, Any] = {}
        for one in ready:
            try:
                answers[shard_of_call[one]] = ray.get(one)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, InputValueError | TypeError | FingerprintMismatchError):
                    raise error.cause from None  # the query is not valid, for any shard
                missing[shard_of_call[one]] = first_line(error.cause or error)
            except ray.exceptions.RayError as error:
                missing[shard_of_call[one]] = first_line(error)
        for one in late:
            with suppress(Exception):  # it may have ended by now
                ray.cancel(one)
        if missing:
            self.check_open()
        return {name: answers[name] for name in actors if name in answers}, missing

    def in_order(self, missing: Mapping[str, str]) -> dict[str, str]:
        """Why shards are missing, in the order of the shards."""
        return {name: missing[name] for name in self.actors if name in missing}

    def rows(self, timeout: float) -> int:
        """Rows of all shards.

        Raises:
            CollectionError: a shard does not answer.
        """
        try:
            counts: Iterable[int] = self._ray.get(
                [actor.rows.remote() for actor in self.actors.values()], timeout=max(0.0, timeout)
            )
        except self._ray.exceptions.RayError as error:
            raise CollectionError(f"a shard does not answer: {first_line(error)}") from error
        return sum(counts)
