"""A receiver to which 10,000 nodes come back at once: it admits them at its rate, and they wait as they are told.

The receiver's own bookkeeping and bcd's own waits, over a time that is only counted.
"""

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from agent.session import messages as bcd
from agent.session import reconnect
from receiver.gateway import limits
from receiver.gateway.limits import OverLimit
from receiver.gateway.registry import Registry, Stream

NODES = 10_000
RATE = limits.SESSIONS.most
HELLO = 0.05  # seconds from the stream to its Hello
JOB = 0.02  # seconds that the database takes for one Hello, of so many at a time:
CONNECTIONS = 10
GIVE_UP = 1_800.0


@dataclass
class Storm:
    """What happens, in order of its time. `jitter`: of every wait."""

    jitter: Callable[[], float]
    now: float = 0.0
    due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    number: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    attempts: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)  # by what was said
    begun: list[float] = field(default_factory=list)
    greeting: int = 0  # the most at once
    not_before: dict[str, float] = field(default_factory=dict)  # by node: what the receiver asked for
    database: list[float] = field(default_factory=lambda: [0.0] * CONNECTIONS)  # when each connection is free

    def __post_init__(self) -> None:
        self.registry = Registry(lambda: self.now, self.jitter)

    def at(self, wait: float, what: Callable[[], None]) -> None:
        """`what` happens after `wait` seconds."""
        self.number += 1
        heapq.heappush(self.due, (self.now + wait, self.number, what))

    def run(self) -> None:
        """Until nothing is due any more."""
        while self.due and self.now < GIVE_UP:
            self.now, _, what = heapq.heappop(self.due)
            what()

    def attempt(self, node: str) -> None:
        """bcd opens a stream."""
        assert self.now >= self.not_before.get(node, 0.0), "retryAfter is honoured"
        self.attempts.append(self.now)
        try:
            stream = self.registry.admit(node)
        except OverLimit as error:
            self._back(node, str(error), None)
            return
        self.greeting = max(self.greeting, len(self.registry.greeting))
        self.at(HELLO, lambda: self._hello(stream))

    def _hello(self, stream: Stream) -> None:
        if end := self.registry.overload(stream.node_id):
            self.registry.left(stream, end.reason)
            assert end.retry_after is not None
            self._back(stream.node_id, end.reason, bcd.SessionEnd(end.reason, end.retry_after, end.detail))
            return
        free = self.database.index(min(self.database))
        self.database[free] = max(self.now, self.database[free]) + JOB
        self.at(self.database[free] - self.now, lambda: self._begin(stream))

    def _begin(self, stream: Stream) -> None:
        self.registry.begun(stream, 1, 0)
        self.begun.append(self.now)

    def _back(self, node: str, said: str, end: bcd.SessionEnd | None) -> None:
        self.refused[said] += 1
        self.failures[node] += 1
        if end and end.retry_after:
            self.not_before[node] = self.now + end.retry_after
        self.at(reconnect.delay(end, self.failures[node], self.jitter()), lambda: self.attempt(node))


def windows(moments: list[float], width: float = 1.0) -> Counter[int]:
    """How many there are in each second."""
    return Counter(int(moment / width) for moment in moments)


def long_away(chance: random.Random) -> Iterator[float]:
    """The receiver was away for an hour: every bcd is somewhere in its longest wait."""
    for _ in range(NODES):
        yield reconnect.delay(None, 99, chance.random()) * chance.random()


def drained(chance: random.Random) -> Iterator[float]:
    """Another receiver drains: all its nodes come here."""
    for _ in range(NODES):
        yield reconnect.delay(bcd.SessionEnd("draining"), 1, chance.random())


def at_once(chance: random.Random) -> Iterator[float]:
    """All bcd ask in the same instant: a network that is mended."""
    return iter([0.0] * NODES)


def storm(begin: Callable[[random.Random], Iterator[float]], jitter: Callable[[], float], chance: random.Random) -> Storm:
    """The storm that begins so, to its end."""

    async def main() -> Storm:
        found = Storm(jitter)
        for number, wait in enumerate(begin(chance)):
            found.at(wait, lambda node=f"node-{number}": found.attempt(node))  # type: ignore[misc]
        found.run()
        return found

    return asyncio.run(main())


@pytest.mark.parametrize("begin", [long_away, drained, at_once])
def test_ten_thousand_waiting_nodes_are_admitted_at_the_receivers_rate(
    begin: Callable[[random.Random], Iterator[float]],
) -> None:
    chance = random.Random(11)
    found = storm(begin, chance.random, chance)
    assert len(found.begun) == NODES, "nobody is left outside"
    assert found.begun[-1] < 180, "at 200 a second 10,000 take 50 s at least"
    for done, moment in enumerate(found.begun, 1):
        assert done <= limits.SESSIONS.burst + RATE * moment + 1, "never faster than the rate"
    assert found.greeting <= limits.HANDSHAKES.most
    assert found.refused["overloaded"] > 0
    assert sum(found.refused.values()) == len(found.attempts) - NODES, "each attempt is answered, by one or the other"
    assert sum(found.registry.met.values()) == sum(found.refused.values()), "each refusal is counted"
    later = windows([moment for moment in found.attempts if moment > 5.0])
    assert max(later.values()) < NODES / 10, "they do not come back together"


def test_without_jitter_they_would_come_back_together() -> None:
    """That the test above can fail."""
    found = storm(at_once, lambda: 0.5, random.Random(11))
    assert max(windows([moment for moment in found.attempts if moment > 5.0]).values()) > NODES / 10
