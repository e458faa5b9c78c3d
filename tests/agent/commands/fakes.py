"""A node for commands, with nothing behind it: GPUs, holds and programs as a test says. Programs are shell scripts that note how
they were called."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import program
from agent.commands.order import Payload
from agent.config import COMMAND_KINDS, Config
from agent.errors import FieldError
from agent.holds import Holds
from agent.host import Host


@dataclass
class FakeNode:
    """What order.Node asks for. `readings`: what each new worker finds, in order; the last one again and again."""

    path: Path
    config: Config = field(default_factory=lambda: Config(commands_allow=COMMAND_KINDS, reset_pause=()))
    boot_id: str = "boot-1"
    known: Sequence[pb.Gpu] = ()
    readings: list[Sequence[pb.Gpu] | FieldError] = field(default_factory=list)
    held: Holds = field(default_factory=Holds)
    healed: list[str] = field(default_factory=list)
    answer: Payload = field(default_factory=dict)
    asked: list[Any] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def host(self) -> Host:
        root = self.path / "root"
        (root / "proc").mkdir(parents=True, exist_ok=True)
        return Host(root)

    def program(self, name: str) -> str:
        return program.find(str(self.path / name), recorded=True)

    def script(self, name: str, body: str = "exit 0") -> None:
        """Program `name` is this shell script; its arguments are noted in `calls`."""
        file = self.path / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.path}/calls\n{body}\n')
        file.chmod(0o755)

    def calls(self) -> list[str]:
        """The programs that ran, with their arguments."""
        noted = self.path / "calls"
        return noted.read_text().splitlines() if noted.exists() else []

    def holds(self) -> Holds:
        return self.held

    def gpus(self) -> Sequence[pb.Gpu]:
        return self.known

    async def read_gpus(self) -> Sequence[pb.Gpu]:
        assert not self.lock.locked(), "a new worker while the node is to be quiet"
        found = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if isinstance(found, FieldError):
            raise found
        return found

    def quiet(self) -> AbstractAsyncContextManager[object]:
        return self.lock

    async def refresh(self) -> Payload:
        return self.answer

    async def diagnose(self, expected_gpus: int | None) -> Payload:
        self.asked.append(expected_gpus)
        return self.answer

    async def repaired(self, devices: Iterable[str]) -> None:
        self.healed += devices


@dataclass
class FakeOrder:
    """What order.Order asks for."""

    payload: Payload = field(default_factory=dict)
    id: str = "cmd_1"
    boot_id: str = "boot-1"
    begun: list[tuple[tuple[str, ...], float]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def begin(self, subjects: Iterable[str], spacing: float) -> None:
        self.begun.append((tuple(subjects), spacing))

    def keep(self, **facts: Any) -> None:
        self.facts |= facts
