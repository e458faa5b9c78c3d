"""The daemon's part of the conditions: reads the facts now and then and after each collection or probe, judges, keeps `since`."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.conditions import declared, external, reboot
from agent.conditions.facts import Fabric, Facts, Manager
from agent.conditions.module import Module
from agent.conditions.table import Verdict, judge
from agent.config import Config
from agent.errors import FieldError
from agent.host import Host, write_atomic
from agent.inventory import Inventory
from agent.probe import History
from agent.session.messages import Condition

INTERVAL = 30.0  # seconds between two looks at what tells nobody when it changes
PATIENCE = 10.0  # seconds that the first session waits for the first look
FORMAT = 1
_log = logging.getLogger("bcd.conditions")

Key = tuple[str, str]  # type, device
Since = Mapping[Key, tuple[str, float]]  # status, and the Unix second at which it became that


def with_since(judged: Iterable[tuple[str, Verdict]], before: Since, now: float) -> tuple[Condition, ...]:
    """The verdicts as conditions: `since` stays while the status does."""
    conditions = []
    for kind, verdict in judged:
        status, since = before.get((kind, verdict.device_id), ("", now))
        since = since if status == verdict.status else now
        conditions.append(Condition(kind, verdict.status, since, verdict.reason, verdict.message, verdict.device_id))
    return tuple(conditions)


@dataclass(frozen=True, slots=True)
class Node:
    """What the daemon tells of the node when it is asked. `failed_resets`: UUIDs of GPUs whose reset failed in this boot."""

    host: Callable[[], Host]
    uptime: Callable[[], float]
    config: Callable[[], Config]
    inventory: Callable[[], Inventory | None]
    history: Callable[[], History]
    failed_resets: Callable[[], Collection[str]]


class Conditions:
    """One long-running part of the daemon. `changed()` is called when the conditions have become others."""

    def __init__(self, node: Node, data_dir: Path, changed: Callable[[], None]) -> None:
        self._node = node
        self._changed = changed
        self._file = data_dir / "conditions.json"
        self._declared = declared.Directory(data_dir / "conditions.d")
        self._fabric, self._module, self._pods = Fabric(), Module(), external.PodResources()
        self._wake = asyncio.Event()
        self._since: Since = load(self._file)
        self._judged = asyncio.Event()
        self.current: tuple[Condition, ...] = ()

    def look(self) -> None:
        """Something has changed: a collection or a probe ended, the settings are others."""
        self._wake.set()

    async def judged(self) -> None:
        """Waits for the first look, but not for long (VPD is slow, others that are asked may not answer)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._judged.wait()

    async def run(self) -> None:
        """For ever."""
        self._declared.make()
        while True:
            self._wake.clear()
            try:
                await self._look()
            except FieldError as error:  # a recorded host that is no longer one
                _log.error("the conditions cannot be judged: %s", error)
            self._judged.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL):
                    await self._wake.wait()

    async def _look(self) -> None:
        config = self._node.config()
        mps = await external.mps_error(config.tools_mps_control, config.mps_pipe_directory) if config.mps_enabled else None
        pods = await self._pods.error(config.kubernetes_socket) if config.kubernetes_worker else ""
        facts = await asyncio.to_thread(self._facts, config, mps, pods)  # VPD is slow, /proc may be large
        now = time.time()
        conditions = with_since((*judge(facts), *self._declared.read(now)), self._since, now)
        if conditions != self.current:
            for condition in _news(self.current, conditions):
                _log.info("%s is %s%s", condition.type, condition.status, f": {condition.message}" if condition.message else "")
            self.current = conditions
            self._changed()
            self._keep({(c.type, c.device_id): (c.status, c.since) for c in conditions})

    def _facts(self, config: Config, mps: str | None, pods: str) -> Facts:
        node, inventory = self._node, self._node.inventory()
        host = node.host()
        section = gpus(inventory)
        return Facts(
            uptime=node.uptime(),
            gpus=section,
            failed=next((f for f in inventory.failed if f.name == "gpus"), None) if inventory else None,
            manager=self._manager(host, inventory, section),
            history=node.history(),
            probes=config.probe_interval > 0,
            waiting=reboot.read(host, self._module, self._failed_resets(section)),
            managed_by=external.managers(host, config.host_managed_marker),
            mps_error=mps,
            kubernetes=self._kubernetes(host, config, pods) if config.kubernetes_worker else None,
        )

    def _failed_resets(self, section: pb.GpusSection | None) -> Collection[str]:
        """Asked for where a GPU waits for one only: it takes reading the commands' records."""
        return self._node.failed_resets() if any(reboot.mig_waits(gpu) for gpu in (section.gpus if section else ())) else ()

    def _manager(self, host: Host, inventory: Inventory | None, section: pb.GpusSection | None) -> Manager | None:
        package = None
        for other in inventory.sections if inventory else ():
            if other.name == "os":
                package = pb.OsSection.FromString(other.data).fabric_manager_version or None
        return self._fabric.manager(host, host.boot_id(), section, package)

    def _kubernetes(self, host: Host, config: Config, pods: str) -> external.Kubernetes:
        return external.Kubernetes(pods, *external.foreign_paths(host, config.kubernetes_resources))

    def _keep(self, since: Since) -> None:
        """On disk: a restart of bcd is no change of a condition."""
        if since == self._since:
            return
        self._since = since
        entries = [{"type": kind, "deviceId": device, "status": s, "since": at} for (kind, device), (s, at) in since.items()]
        try:
            write_atomic(self._file, json.dumps({"format": FORMAT, "conditions": entries}, indent=1).encode() + b"\n")
        except OSError as error:
            _log.warning("cannot write %s: %s: after a restart, conditions begin anew", self._file, error.strerror)


def gpus(inventory: Inventory | None) -> pb.GpusSection | None:
    """The inventory's `gpus`; None when it is missing."""
    for section in inventory.sections if inventory else ():
        if section.name == "gpus":
            return pb.GpusSection.FromString(section.data)
    return None


def load(path: Path) -> Since:
    """What `Conditions` kept; {} when there is nothing, or nothing that can be read."""
    try:
        value = json.loads(path.read_bytes())
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']!r}")
        return {(str(e["type"]), str(e["deviceId"])): (str(e["status"]), float(e["since"])) for e in value["conditions"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("%s is damaged, conditions begin anew: %s", path, error)
        return {}


def _news(before: Collection[Condition], now: Collection[Condition]) -> list[Condition]:
    """Those whose status is another; that a condition does not hold is no news in the beginning."""
    old = {(c.type, c.device_id): c.status for c in before}
    return [c for c in now if c.status != old.get((c.type, c.device_id), "false")]
