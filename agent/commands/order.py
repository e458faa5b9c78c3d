"""What a command is handed (how it may end: agent/errors.py). The values that the table, the runner and the commands share."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.config import Config
from agent.errors import Failed
from agent.holds import Holds
from agent.host import Host

Payload = Mapping[str, Any]


class AfterCrash(Enum):
    """What becomes of a command that was running when bcd died."""

    AGAIN = "again"  # its repeat runs again
    INTERRUPTED = "interrupted"  # failed/Interrupted
    BY_BOOT = "by-boot"  # another boot: succeeded; the same: its repeat runs again


class Order(Protocol):
    """One command that runs: its payload, and its record on disk."""

    @property
    def id(self) -> str:
        """The command's id."""

    @property
    def payload(self) -> Payload:
        """The payload, a JSON object."""

    @property
    def boot_id(self) -> str:
        """Of the boot in which it started."""

    def begin(self, subjects: Iterable[str], spacing: float) -> None:
        """The effect comes next: on disk first. Raises Refused (RateLimited) within `spacing` seconds of another on a subject."""

    def keep(self, **facts: Any) -> None:
        """Facts that whoever tidies up after a crash needs: on disk when this returns."""


class Node(Protocol):
    """What commands may use of the daemon; `agent.commands.node` is the real one."""

    @property
    def config(self) -> Config:
        """The settings in force."""

    @property
    def host(self) -> Host:
        """The host, a recorded one as it is now."""

    @property
    def boot_id(self) -> str:
        """This boot's."""

    def program(self, name: str) -> str:
        """The path of a program of `tools.*`. Raises Failed (NotInstalled)."""

    def holds(self) -> Holds:
        """Who holds GPUs, as of now."""

    def gpus(self) -> Sequence[pb.Gpu]:
        """The GPUs of the last collection; before it, those remembered."""

    async def read_gpus(self) -> Sequence[pb.Gpu]:
        """The GPUs as a new worker finds them. Raises FieldError when NVML does not answer."""

    def quiet(self) -> AbstractAsyncContextManager[object]:
        """While it is held, no child of bcd has a GPU open."""

    async def refresh(self) -> Payload:
        """Collects everything, and waits for the offer's result. Raises Failed."""

    async def diagnose(self, expected_gpus: int | None) -> Payload:
        """The checks of `diag.nvml`: `passed`, and each with result and reason. Raises FieldError when they cannot run."""

    async def repaired(self, devices: Iterable[str]) -> None:
        """These GPUs were reset and are healthy: their faults are dropped and a collection starts."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of command: seconds it may take, what it does, and what becomes of it when bcd dies meanwhile.

    `alone`: no other such command runs beside it. `tidy` puts right what an interrupted one left behind.
    """

    limit: Callable[[Payload], float]
    run: Callable[[Order, Node], Awaitable[Payload]]
    after_crash: AfterCrash
    alone: bool = False
    tidy: Callable[[Mapping[str, Any], Node], Awaitable[None]] | None = None


def text(payload: Payload, key: str) -> str:
    """A text that the payload must have. Raises Failed (BadPayload)."""
    value = payload.get(key)
    if not isinstance(value, str) or not value:
        raise bad(key, value, "a text")
    return value


def bad(key: str, value: object, expected: str) -> Failed:
    """The failure of a payload that is not as it should be."""
    return Failed("BadPayload", f"{key} is {value!r}; expected {expected}")
