"""The signs of the node's health besides its kernel log, as one part of the daemon: hardware events, pressure, the health probe,
and the conditions that bcd finds itself (SPEC A2, A5, A6)."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import probe, udev
from agent.collection import Collector
from agent.commands.store import Store
from agent.conditions.watch import Conditions, Node, gpus
from agent.config import Config
from agent.host import Host
from agent.hotplug import Hotplug
from agent.inventory import Inventory
from agent.pressure import Sampler
from agent.sections import Failed, Section
from agent.session import messages as m


@dataclass(frozen=True, slots=True)
class Daemon:
    """What the signs need of the daemon. `want(reason)` adds a trigger, `report()` says that the status is another now."""

    recorded: bool
    collector: Callable[[], Collector]
    host: Callable[[], Host]
    uptime: Callable[[], float]
    config: Callable[[], Config]
    inventory: Callable[[], Inventory | None]
    boot_id: Callable[[], str]
    known: Callable[[], Sequence[pb.Gpu]]
    want: Callable[[str], object]
    report: Callable[[], None]


class Signs:
    """All of them."""

    def __init__(self, daemon: Daemon, data_dir: Path) -> None:
        self._daemon = daemon
        self._sampler = Sampler(daemon.host, time.monotonic)
        connect = None if daemon.recorded else udev.connect
        self._hotplug = Hotplug(daemon.host, daemon.want, connect, time.monotonic)
        self._prober = probe.Prober(
            lambda: daemon.config().probe_interval, self._probe, lambda: gpus(daemon.inventory()), daemon.boot_id, self._probed
        )
        node = Node(
            daemon.host,
            daemon.uptime,
            daemon.config,
            daemon.inventory,
            lambda: self._prober.history,
            lambda: self._failed(data_dir),
        )
        self._conditions = Conditions(node, data_dir, daemon.report)

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in (self._hotplug, self._prober, self._conditions):
                group.create_task(part.run())

    def pressure(self) -> m.Pressure | None:
        """For the report that is being made."""
        return self._sampler.now()

    def conditions(self) -> tuple[m.Condition, ...]:
        """As they were judged last."""
        return self._conditions.current

    def collected(self, before: Inventory | None, now: Inventory) -> None:
        """A collection ended."""
        self._hotplug.collected(now.trigger, before is None or before.digest != now.digest)
        section = gpus(now)
        read = section is not None and not section.HasField("error")
        if read and (before is None or before.ages.get("gpus") != now.ages["gpus"]):
            self._prober.collected()
        self._conditions.look()

    def describe(self) -> Mapping[str, Any]:
        """The last probe, for `bcd status`: `pcieReplays` and `pcieWidth` (lanes now) by GPU, or why there are none."""
        last = self._prober.history.last or probe.Answer()
        uuids = sorted({*last.replays, *last.widths})
        return {
            "skipped": last.skipped or None,
            "error": last.error or None,
            "devices": [
                {"deviceId": uuid, "pcieReplays": last.replays.get(uuid), "pcieWidth": last.widths.get(uuid)} for uuid in uuids
            ],
        }

    async def judged(self) -> None:
        """Waits until there are conditions to report: the receiver takes what is not reported for untrue."""
        await self._conditions.judged()

    def resettle(self) -> None:
        """The settings are others."""
        self._prober.resettle()
        self._conditions.look()

    async def _probe(self) -> Section | Failed:
        outcomes = await self._daemon.collector().run(["probe"], self._daemon.known(), limit=probe.LIMIT)
        return outcomes["probe"]

    def _probed(self, difference: str | None) -> None:
        if difference:
            self._daemon.want("probe")
        self._conditions.look()

    def _failed(self, data_dir: Path) -> frozenset[str]:
        return failed_resets(Store(data_dir / "commands"), self._daemon.boot_id())


def failed_resets(store: Store, boot_id: str) -> frozenset[str]:
    """The UUIDs of GPUs whose last reset in this boot failed."""
    resets = [r for r in store.all() if r.kind == "gpu.reset" and r.boot_id == boot_id and r.began is not None and r.result]
    last = {uuid: record for record in sorted(resets, key=lambda r: r.started) for uuid in record.subjects}
    return frozenset(uuid for uuid, record in last.items() if record.result and record.result.status == "failed")
