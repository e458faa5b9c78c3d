"""The daemon as commands see it (order.Node): what they may ask of it, put together from its parts."""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import holds, program
from agent.collection import Collector
from agent.commands.order import Payload
from agent.config import Config
from agent.diagnosis import diagnose
from agent.errors import FieldError
from agent.holds import Holds
from agent.host import Host
from agent.inventory import Inventory
from agent.kernel_log import Look
from agent.session.messages import Condition

DIAGNOSING = 50.0  # seconds for the worker: a driver that hangs is a verdict, within the command's own limit
RELEASES = "KubernetesReleasesUnreadable"  # the condition that makes every GPU count as held


class NoGpus(FieldError):
    """The GPUs could not be read."""


@dataclass(frozen=True, slots=True)
class DaemonNode:
    """The daemon's parts. Functions, where what they give changes while it runs."""

    recorded: bool
    collector: Collector
    get_config: Callable[[], Config]
    get_host: Callable[[], Host]
    get_boot_id: Callable[[], str]
    inventory: Callable[[], Inventory | None]  # of this boot
    known: Callable[[], Sequence[pb.Gpu]]  # GPUs remembered
    conditions: Callable[[], Iterable[Condition]]
    look: Callable[[], Look]  # what the kernel log said
    drop: Callable[[Iterable[str]], Awaitable[None]]  # the faults of these GPUs
    want: Callable[[str], object]  # a collection, for this reason
    refresh_all: Callable[[], Awaitable[Payload]]

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self.get_config()

    @property
    def host(self) -> Host:
        """The host, a recorded one as it is now."""
        return self.get_host()

    @property
    def boot_id(self) -> str:
        """This boot's."""
        return self.get_boot_id()

    def program(self, name: str) -> str:
        """The path of a program of `tools.*`."""
        return program.find(str(getattr(self.config, f"tools_{name}")), self.recorded)

    def holds(self) -> Holds:
        """The holds on disk; when Kubernetes' releases cannot be read, every GPU is held too."""
        found = holds.read(self.config.data_dir / "holds", self.boot_id, time.time())
        unread = [c for c in self.conditions() if c.type == RELEASES and c.status != "false"]
        return replace(found, unreadable=(*found.unreadable, *((c.type, c.message or "Kubernetes' releases") for c in unread)))

    def gpus(self) -> Sequence[pb.Gpu]:
        """The GPUs of the last collection; those remembered while this boot's are not known."""
        inventory = self.inventory()
        for section in inventory.sections if inventory else ():
            if section.name == "gpus":
                return pb.GpusSection.FromString(section.data).gpus
        return self.known()

    async def read_gpus(self) -> Sequence[pb.Gpu]:
        """The GPUs in a new worker. Raises NoGpus."""
        collected = await self.collector.collect(["gpus"], self.known())
        for failed in collected.failed:
            raise NoGpus(f"the GPUs cannot be read: {failed.reason}: {failed.message}")
        section = pb.GpusSection.FromString(collected.sections[0].data)
        if section.HasField("error"):
            raise NoGpus(f"NVML does not answer: {section.error.reason}: {section.error.message}")
        return section.gpus

    def quiet(self) -> AbstractAsyncContextManager[object]:
        """While it is held, no child of bcd has a GPU open."""
        return self.collector.quiet()

    async def refresh(self) -> Payload:
        """Collects everything, and waits for the offer's result."""
        return await self.refresh_all()

    async def diagnose(self, expected_gpus: int | None) -> Payload:
        """The checks of `diag.nvml`."""
        limit = min(self.config.collect_limit, DIAGNOSING)
        found = await diagnose(self.collector, self.look(), known=self.known(), expected=expected_gpus, limit=limit)
        return found.told()

    async def repaired(self, devices: Iterable[str]) -> None:
        """These GPUs are healthy after a reset: their faults are dropped, and a collection starts."""
        await self.drop(devices)
        self.want("reset")
