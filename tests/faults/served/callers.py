"""A caller who knows what must come back, and what all callers saw."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.served.wire import Cut, NotBegun, Reply, Wire
from tests.faults.served.world import World

__all__ = ["Caller", "Kind", "Tally"]


@dataclass
class Tally:
    """What was seen, of all callers.

    Attributes:
        kinds: requests by kind.
        statuses: answers by status.
        wrong: what no answer may be; the first of each sort in words.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add_wrong(self, sort: str, about: object) -> None:
        self.wrong[sort] += 1
        if self.wrong[sort] <= 5:
            self.examples.append(f"{sort}: {about!r:.400}")

    @property
    def requests(self) -> int:
        return sum(self.kinds.values())


Kind = Callable[["Caller"], Awaitable[None]]


class Caller:
    """One caller: texts, rows and a connection of its own.

    Attributes:
        rows: texts of its rows that the server acknowledged, by id, as numbers of texts.
    """

    def __init__(self, number: int, world: World, port: int, tally: Tally, seed: int) -> None:
        self.number, self.world, self.tally = number, world, tally
        self.wire = Wire(port)
        self.draw = random.Random(f"{seed} {number}")
        self.rows: dict[int, int] = {}
        self._asked = 0

    # --- asking ---------------------------------------------------------------------------------

    async def run(self, kind: str, what: Kind) -> None:
        """One request of a kind, or the few that belong together."""
        self.tally.kinds[kind] += 1
        try:
            await what(self)
        except (NotBegun, Cut) as error:
            self.tally.add_wrong(type(error).__name__, f"{kind}: {error}")

    async def ask(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Reply | None:
        """The answer of a request, if it is 200; other documented ones are counted."""
        self._asked += 1
        name = f"{self.number}-{self._asked}"
        method = "GET" if body is None else "POST"
        given = {"x-request-id": name} | (headers or {})
        reply = await self.wire.ask(method, path, body, given)
        self.tally.statuses[str(reply.status)] += 1
        if reply.headers.get("x-request-id") != name:
            self.tally.add_wrong("the answer to another request", (path, reply.headers))
        if reply.status == 200:
            return reply
        self.check_refusal(path, reply, is_hurried="x-request-timeout-ms" in given)
        return None

    def check_refusal(self, path: str, reply: Reply, *, is_hurried: bool) -> None:
        """Refuse an answer that is neither 200 nor documented for a request without a fault."""
        headers = reply.headers
        documented = {
            429: "retry-after-ms" in headers,
            503: "retry-after" in headers,
            504: is_hurried and headers.get("x-should-retry") == "false",
        }
        if not documented.get(reply.status, False):
            self.tally.add_wrong(f"status {reply.status}", (path, headers, reply.body[:200]))

    # --- checking -------------------------------------------------------------------------------

    def some(self, most: int = 5) -> list[int]:
        """Numbers of a few texts."""
        return self.draw.choices(range(len(self.texts)), k=self.draw.randint(1, most))

    @property
    def texts(self) -> list[str]:
        return self.world.texts[self.number]

    def check_vectors(self, which: list[int], given: Any, dim: int | None = None) -> None:
        wrong = self.world.difference(self.number, which, given, dim)
        if wrong:
            self.tally.add_wrong("an answer of the wrong caller", (self.number, which, wrong))

    def check(self, is_right: bool, about: object) -> None:
        if not is_right:
            self.tally.add_wrong("another answer than expected", (self.number, about))
