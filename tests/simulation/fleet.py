"""A fleet under a test's control: simulated machines, receivers as processes, placement, and time that goes on in steps.

A step: the time goes on, machines do what is due and report, bookings begin and end; then it is waited until the receivers have
heard all machines and have nothing more to do. So however slow this machine is, the fleet's time does not run away from them.
"""

import asyncio
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import psycopg

from receiver.ids import mint
from receiver.store import database as db
from receiver.store.words import jsonb
from tests.end_to_end.processes import Process
from tests.receiver import placement
from tests.receiver.live import ask
from tests.simulation import witness
from tests.simulation.clock import Clock
from tests.simulation.log import Entry
from tests.simulation.machine import Machine

ROOT = Path(__file__).parents[2]
CHANNELS = 4  # connections to each receiver, for all machines
PATIENCE = 180.0  # seconds of a real clock for what a step has to wait for
QUIET = 4  # times in a row, 20 ms apart, that no receiver was found at work
CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]
POOL_ID = "pool_01hf7yat00000000000000000{}"
_BUSY = """SELECT count(*) FROM pg_stat_activity
  WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'"""
_SERVED = "SELECT EXISTS (SELECT FROM serving WHERE beat_at >= %s)"
_UNHEARD = "SELECT count(*) FROM nodes WHERE id = ANY(%s) AND (last_seen IS NULL OR last_seen < %s)"


@dataclass
class Receivers:
    """Processes over one database; each may be killed, and started again."""

    database: str
    base: Path
    settings: tuple[str, ...] = ()
    processes: list[Process] = field(default_factory=list)

    def add(self) -> None:
        """One more."""
        directory = self.base / str(len(self.processes))
        directory.mkdir()
        argv = [sys.executable, "-m", "tests.simulation.receiver_process", self.database, str(directory), *self.settings]
        env = {"PYTHONPATH": str(ROOT)}
        self.processes.append(Process(f"receiver {directory.name}", argv, directory / "log", env))
        self.processes[-1].start()

    def session(self, number: int) -> str:
        """Where machines report."""
        return f"unix:{self.base}/{number}/s"

    def api(self, number: int = 0) -> str:
        """Where operators ask."""
        return f"unix:{self.base}/{number}/a"

    async def ready(self, numbers: Iterable[int]) -> None:
        """Back when these serve."""
        for number in numbers:
            async with grpc.aio.insecure_channel(self.session(number), options=CHANNEL_OPTIONS) as channel:
                await asyncio.wait_for(channel.channel_ready(), PATIENCE)

    async def kill(self, number: int) -> None:
        """Ends one, in the middle of what it does."""
        await asyncio.to_thread(self.processes[number].kill)

    async def suspend(self, number: int, seconds: float) -> None:
        """One does not run for so long, and then goes on as if nothing had been."""
        os.kill(self.processes[number].pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(self.processes[number].pid, signal.SIGCONT)

    async def start(self, number: int) -> None:
        """Starts one again."""
        self.processes[number].start()
        await self.ready([number])

    def check(self) -> None:
        """Raises RuntimeError when one ended by itself."""
        for process in self.processes:
            if process.popen is not None and process.popen.poll() not in (None, -signal.SIGKILL, 0):
                process.running()


class Fleet:
    """Machines and receivers for the length of a `with` block. `rng`: what happens by chance is the same in every run."""

    def __init__(self, database: str, receivers: int = 1, seed: int = 0, **settings: object) -> None:
        self.database = database
        self.rng = random.Random(seed)
        self.count = receivers
        self.settings = tuple(f"{name}={value}" for name, value in settings.items())
        self.machines: list[Machine] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.channels: dict[str, list[grpc.aio.Channel]] = {}
        self.bookings: dict[str, datetime] = {}  # and when they end
        self.names = itertools.count()
        self.demand: tuple[int, float] = (0, 0.0)  # what is booked in each step: atoms, and for how long at most

    async def __aenter__(self) -> Self:
        self.directory = tempfile.TemporaryDirectory(prefix="bc-")
        self.connection: db.Connection = psycopg.connect(self.database, autocommit=True)
        self.clock = Clock(self.connection)
        witness.install(self.connection)
        self.receivers = Receivers(self.database, Path(self.directory.name), self.settings)
        for number in range(self.count):
            self.receivers.add()
            target = self.receivers.session(number)
            self.channels[target] = [grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) for _ in range(CHANNELS)]
        await self.receivers.ready(range(self.count))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for machine in self.machines:
            await machine.close()
        for channel in itertools.chain.from_iterable(self.channels.values()):
            await channel.close()
        for number in range(self.count):
            await self.receivers.kill(number)
        self.connection.close()
        self.directory.cleanup()

    # ---- what machines need of it

    @property
    def now(self) -> datetime:
        """The fleet's time."""
        return self.clock.now

    def channel(self, number: int) -> grpc.aio.Channel:
        """A connection to some receiver: a load balancer stands before them."""
        return self.channels[self.rng.choice(list(self.channels))][number % CHANNELS]

    def effect(self, node_id: str, command_id: str, kind: str, boot_id: str) -> None:
        """A command has its effect now."""
        witness.effect(self.connection, node_id, command_id, kind, boot_id)

    # ---- what there is

    async def pool(self, name: str, count: int, mode: str = "enforce", **policy: Any) -> list[Machine]:
        """A pool, and so many new machines that join it."""
        pool_id = POOL_ID.format(len({one["id"] for one in self.rows("SELECT id FROM pools")}) + 1)
        self.connection.execute(
            "INSERT INTO pools (id, tenant_id, name, mode, policy) VALUES (%s, 'default', %s, %s, %s)",
            [pool_id, name, mode, jsonb(policy)],
        )
        begin = len(self.machines)
        made = [Machine("", fleet=self, number=number, node_id=mint("node")) for number in range(begin, begin + count)]
        with self.connection.cursor() as cursor:  # as a token of the pool does at Join (SPEC B1)
            rows = [(one.node_id, pool_id) for one in made]
            cursor.executemany("INSERT INTO nodes (id, tenant_id, pool_id) VALUES (%s, 'default', %s)", rows)
        self.machines += made
        self.tasks += [asyncio.create_task(one.live()) for one in made]
        return made

    def rows(self, query: str, *arguments: object) -> list[dict[str, Any]]:
        """What the database has."""
        cursor = self.connection.execute(query.encode(), arguments or None)
        names = [one.name for one in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def one(self, query: str, *arguments: object) -> Any:
        """The first column of the first row."""
        row = self.connection.execute(query.encode(), arguments or None).fetchone()
        assert row is not None
        return row[0]

    def log(self) -> list[Entry]:
        """All that was witnessed."""
        return witness.read(self.connection)

    async def api(self, name: str, /, **keys: object) -> dict[str, Any]:
        """What the API answers."""
        return await ask(self.receivers.api(), name, **keys)

    def connected(self) -> float:
        """The share of the machines that are up and have a session."""
        up = self._up()
        return sum(one.connected for one in up) / max(1, len(up))

    def _up(self) -> list[Machine]:
        return [one for one in self.machines if one.up and not one.silent]

    # ---- what happens

    async def step(self, seconds: float = 30.0) -> None:
        """The time goes on."""
        at = self.clock.advance(seconds)
        await asyncio.gather(*(one.tick() for one in self.machines))
        self._end_bookings()
        self.book(*self.demand)
        await self.wait_for("all machines to be heard", lambda: self.one(_UNHEARD, [one.node_id for one in self._up()], at) == 0)
        self.connection.execute("NOTIFY bc_remediation")  # time itself wakes nobody
        await self.rest()

    async def steps(self, count: int, seconds: float) -> None:
        """Steps after each of which some receiver has said that it still serves."""
        for _ in range(count):
            await self.step(seconds)
            await self.wait_for("a receiver to serve", lambda: self.one(_SERVED, self.now))

    async def rest(self) -> None:
        """Back when the receivers have nothing to do."""
        quiet = 0

        def rests() -> bool:
            nonlocal quiet
            quiet = quiet + 1 if self.one(_BUSY) == 0 else 0
            return quiet == QUIET

        await asyncio.sleep(0.05)
        await self.wait_for("the receivers to rest", rests)

    async def until(self, what: str, probe: Callable[[], object], seconds: float = 30.0, most: float = 7200.0) -> None:
        """Steps until `probe()` is true. Raises TimeoutError after `most` seconds of the fleet's time."""
        end = self.now + timedelta(seconds=most)
        while not probe():
            if self.now > end:
                raise TimeoutError(f"after {most:g} s of the fleet's time: no {what}")
            await self.step(seconds)

    async def wait_for(self, what: str, probe: Callable[[], object]) -> None:
        """Waits in real time. Raises TimeoutError."""
        end = time.monotonic() + PATIENCE
        while not probe():
            self.receivers.check()
            for task in self.tasks:
                if task.done():
                    task.result()
            if time.monotonic() > end:
                said = "\n".join(one.tail() for one in self.receivers.processes)
                raise TimeoutError(f"waited {PATIENCE:g} s for {what}: {self.connected():.0%} are connected\n{said}")
            await asyncio.sleep(0.02)

    def book(self, count: int, seconds: float) -> int:
        """Placement books so many atoms, for at most so long; how many it got."""
        booked = 0
        if not count:
            return booked
        with db.dial(self.database) as tx:
            for candidate in placement.find(tx, count):
                name = f"b{next(self.names)}"
                if placement.book(tx, name, candidate):
                    self.bookings[name] = self.now + timedelta(seconds=self.rng.uniform(0, seconds))
                    booked += 1
                tx.commit()
        return booked

    def _end_bookings(self) -> None:
        for name in [name for name, end in self.bookings.items() if end <= self.now]:
            placement.end(self.connection, name)
            del self.bookings[name]
