"""A bcd of its real parts (identity, traces, session) without collectors: it can be copied, killed at any moment, and cloned."""

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent import identity
from agent.config import Config
from agent.identity import Certificate, Identity
from agent.membership import Membership
from agent.session import machine
from agent.session import messages as m
from agent.session.stream import Link
from receiver.authority import key_pem
from tests.receiver.tls import Node


def keep(data_dir: Path, node: Node, *servers: str) -> None:
    """What `bcd join` leaves."""
    data_dir.mkdir(exist_ok=True)
    ends = node.not_after.timestamp()
    kept = Certificate(",".join(servers), node.certificate, key_pem(node.key).decode(), node.server_ca, ends - 30 * 86_400, ends)
    identity.write(data_dir, Identity(node.node_id, kept))


@dataclass
class Bcd:
    """One run of bcd on a machine that was booted as `boot`."""

    data_dir: Path
    boot: str
    server: str = ""
    epochs: list[int] = field(default_factory=list)  # of its sessions
    ends: list[str] = field(default_factory=list)  # why the gateway ended them
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = replace(Config(), data_dir=self.data_dir, server=self.server)
        self.member = Membership(lambda: config, lambda: self.link.reconnect())
        self.link = Link(self.member.access, self._hello, m.Status, self._noted)
        self.news = asyncio.Event()

    def start(self) -> None:
        """Runs it."""
        self.tasks = [asyncio.create_task(self.link.run()), asyncio.create_task(self.member.run())]

    async def kill(self) -> None:
        """Ends it where it stands; nothing more is kept."""
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def until(self, count: int, timeout: float = 20.0) -> None:
        """Until it has begun so many sessions."""
        async with asyncio.timeout(timeout):
            while len(self.epochs) < count:
                self.news.clear()
                await self.news.wait()

    def _hello(self) -> m.Hello:
        trace = self.member.trace
        return m.Hello(
            daemon_version="0.1.0",
            boot_id=self.boot,
            instance_id=trace.now.instance,
            previous_instance_id=trace.previous,
            previous_epoch=trace.now.epoch,
        )

    def _noted(self, note: machine.Output) -> None:
        self.member.heed(note)
        if isinstance(note, machine.Welcomed):
            self.epochs.append(note.epoch)
        elif isinstance(note, machine.Close) and note.end:
            self.ends.append(note.end.reason)
        self.news.set()
