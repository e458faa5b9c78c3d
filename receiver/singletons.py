"""Work that one receiver at a time does for all of them: hygiene, remediation (SPEC B6, B8, B10).

Each singleton has a lease (receiver/store/leases.py), renewed by a heartbeat. Its holder works every `every` seconds, and at once
when it is woken by a notification on `channel`. The work may take several transactions: each is fenced, so what a receiver that
has lost the lease would still write is refused. What cannot wait until a long work is through has a work beside it, `soon`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from receiver.store import leases
from receiver.store.database import NO_ANSWER, Connection, Pool, transact
from receiver.store.leases import Lease, LeaseLost

T = TypeVar("T")
Worked = Callable[[str, str, float, object], None]
LOG = logging.getLogger("receiver.singletons")


class Run(Protocol):
    """Runs a function of a transaction in a transaction of its own, fenced by the lease, and answers what it does.

    One that loses a race is run again, so it changes nothing but the database. Raises LeaseLost, and what the database raises.
    """

    def __call__(self, work: Callable[[Connection], T]) -> T:
        """Runs it."""


@dataclass(frozen=True, slots=True)
class Singleton:
    """A kind of work. `work` is called in a thread of its own; `channel`: notifications on it wake the work.

    `soon`, in a thread of its own too, is called with what notifications name, and otherwise every `soon_every` seconds: those
    with a payload wake it instead.
    """

    name: str
    every: float
    work: Callable[[Run], object]
    channel: str = ""
    soon: Callable[[Run, frozenset[str]], object] | None = None
    soon_every: float = 2.0


def while_true(work: Callable[[Connection], bool]) -> Callable[[Run], None]:
    """Work of one transaction after the other, as long as each answers that there is more."""

    def rounds(run: Run) -> None:
        while run(work):
            pass

    return rounds


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Waits until it is set, at most so long; whether it is. (Python 3.11's wait_for() may lose a cancellation.)"""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def _named(soon: Callable[[Run, frozenset[str]], object], names: frozenset[str], run: Run) -> object:
    return soon(run, names)


class Singletons:
    """The singletons of one receiver. `holder`: its name, which no other receiver ever has. `gap`: see leases.beat.

    `worked` is told of each piece of work: whose, how it ended, its seconds, its answer.
    """

    def __init__(
        self,
        pool: Pool,
        holder: str,
        kinds: Sequence[Singleton],
        gap: timedelta,
        seconds: float = leases.SECONDS,
        worked: Worked = lambda *_: None,
    ) -> None:
        self.pool = pool
        self.holder = holder
        self.kinds = kinds
        self.gap = gap
        self.seconds = seconds
        self.worked = worked
        self.held: dict[str, Lease] = {}
        self.woken = {kind.name: asyncio.Event() for kind in kinds}
        self.hurried = {kind.name: asyncio.Event() for kind in kinds if kind.soon}
        self.named: dict[str, set[str]] = {name: set() for name in self.hurried}
        self.threads = ThreadPoolExecutor(len(kinds) + len(self.hurried) + 1, "singleton")

    @property
    def channels(self) -> Mapping[str, Callable[[str], None]]:
        """What to do when a notification comes, by channel."""
        return {kind.channel: partial(self._wake, kind.name) for kind in self.kinds if kind.channel}

    def wake_all(self) -> None:
        """Notifications may have been missed."""
        for event in self.woken.values():
            event.set()

    async def run_forever(self) -> None:
        """Until it is cancelled. A database that does not answer is asked again; anything else that goes wrong is raised."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._heartbeat())
            for kind in self.kinds:
                tasks.create_task(self._tend(kind))
                if kind.soon is not None:
                    tasks.create_task(self._hurry(kind, kind.soon))

    async def stop(self) -> None:
        """Waits for the transactions in progress, then lets the leases go. To be called once `run_forever` is cancelled."""
        self.held.clear()
        await asyncio.to_thread(self.threads.shutdown, wait=True, cancel_futures=True)
        try:
            await asyncio.to_thread(transact, self.pool, lambda tx: leases.release(tx, self.holder), 1.0)
        except NO_ANSWER:
            return  # they end by themselves

    async def beat(self) -> None:
        """Says that this receiver serves, takes the leases that are free, and renews its own. A new one wakes its work."""
        try:
            held = await self._in_thread(partial(transact, self.pool, self._take))
        except NO_ANSWER:  # gateway/jobs.py says so
            return
        new = [name for name, lease in held.items() if self.held.get(name) != lease]
        self.held = held
        for name in new:
            LOG.info("took a lease", extra={"singleton": name, "token": held[name].token})
            self.woken[name].set()

    def _take(self, tx: Connection) -> dict[str, Lease]:
        leases.beat(tx, self.gap)
        taken = {kind.name: leases.take(tx, kind.name, self.holder, self.seconds) for kind in self.kinds}
        at_work = {name: self.held[name] for name, lease in taken.items() if lease is None and name in self.held}
        return {**at_work, **{name: lease for name, lease in taken.items() if lease is not None}}

    async def _heartbeat(self) -> None:
        while True:
            await self.beat()
            await asyncio.sleep(min(self.seconds / 3, self.gap.total_seconds() / 4))

    async def _tend(self, kind: Singleton) -> None:
        woken = self.woken[kind.name]
        while True:
            await set_within(woken, kind.every)
            woken.clear()
            await self._work(kind, kind.work)

    async def _hurry(self, kind: Singleton, soon: Callable[[Run, frozenset[str]], object]) -> None:
        hurried = self.hurried[kind.name]
        while True:
            await set_within(hurried, kind.soon_every)
            hurried.clear()
            names, self.named[kind.name] = frozenset(self.named[kind.name]), set()
            await self._work(kind, partial(_named, soon, names))

    async def _work(self, kind: Singleton, work: Callable[[Run], object]) -> None:
        lease = self.held.get(kind.name)
        if lease is None:
            return
        began, outcome, answer = time.monotonic(), "done", None
        try:
            answer = await self._in_thread(partial(work, partial(self._fenced, lease)))
        except LeaseLost as error:
            outcome = "lost"
            LOG.warning("lost a lease", extra={"singleton": kind.name, "reason": str(error)})
            if self.held.get(kind.name) == lease:
                del self.held[kind.name]
        except NO_ANSWER as error:
            outcome = "unanswered"
            LOG.debug("not done", extra={"singleton": kind.name, "reason": " ".join(str(error).split())})
        self.worked(kind.name, outcome, time.monotonic() - began, answer)

    def _fenced(self, lease: Lease, work: Callable[[Connection], T]) -> T:
        def fenced(tx: Connection) -> T:
            leases.fence(tx, lease, self.seconds)
            return work(tx)

        if self.held.get(lease.name) != lease:  # this receiver stops
            raise LeaseLost(f"the lease on {lease.name} is let go")
        return transact(self.pool, fenced)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    def _wake(self, name: str, payload: str) -> None:
        if payload and name in self.hurried:
            self.named[name].add(payload)
            self.hurried[name].set()
        else:
            self.woken[name].set()
