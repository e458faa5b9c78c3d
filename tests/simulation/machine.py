"""A simulated machine with its bcd: GPUs that fail and are cured, reboots that take their time, commands that run once.

It says what a real bcd would say (tests/fake_daemon.py has the session), in the fleet's time, not this machine's.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

import grpc
from bettercompute.agent.v1 import inventory_pb2 as ipb
from bettercompute.agent.v1 import session_pb2 as pb
from bettercompute.agent.v1 import session_pb2_grpc
from bettercompute.contract.sections import encode
from google.protobuf.message import Message

from tests.fake_daemon import FakeDaemon, Over, stamp
from tests.receiver.builders import gpu, gpus, host

REBOOT, RESET = 180.0, 30.0  # seconds that they take
REBOOTS_APART = 3600.0  # a machine refuses a reboot within so long after the last (SPEC A7)
AGAIN = 0.2  # seconds of a real clock until it connects again


@dataclass(frozen=True, slots=True)
class Ailment:
    """What can be wrong with a GPU: how it shows, and what cures it."""

    xid: int = 0
    lost: bool = False
    pending: bool = False  # a row remap
    cured_by: frozenset[str] = frozenset()


FALLEN = Ailment(xid=79, lost=True, cured_by=frozenset({"node.reboot"}))  # off the bus, and back after a reboot
DEAD = Ailment(xid=79, lost=True)
WORN = Ailment(pending=True, cured_by=frozenset({"node.reboot", "gpu.reset"}))
STUCK = Ailment(pending=True)  # a reset does not help


class Surroundings(Protocol):
    """What a machine needs of its fleet."""

    @property
    def now(self) -> datetime:
        """The fleet's time."""

    def channel(self, number: int) -> grpc.aio.Channel:
        """A connection to some receiver."""

    def effect(self, node_id: str, command_id: str, kind: str, boot_id: str) -> None:
        """A command has its effect now."""


@dataclass
class Machine(FakeDaemon):
    """A node. `live` is its bcd; `tick` is called when the fleet's time went on. `up`: it is not between two boots."""

    fleet: Surroundings = field(kw_only=True)
    number: int = 0
    gpu_count: int = 4
    up: bool = True
    silent: bool = False  # bcd does not connect
    ailments: dict[int, Ailment] = field(default_factory=dict)  # by GPU
    boots: int = 1
    rebooted_at: datetime | None = None
    due: list[tuple[datetime, Callable[[], None]]] = field(default_factory=list)
    started: dict[str, tuple[str, str]] = field(default_factory=dict)  # commands: kind and boot
    results: dict[str, pb.CommandResult] = field(default_factory=dict)
    unacknowledged: set[str] = field(default_factory=set)
    outcomes: list[str] = field(default_factory=list)  # of its offers
    connected: bool = False

    def __post_init__(self) -> None:
        self.writing, self.woken = asyncio.Lock(), asyncio.Event()
        self.boot_id = self._boot()
        self.collect()

    def _boot(self) -> str:
        return f"boot-{self.number}-{self.boots}"

    # ---- what it has

    def uuid(self, index: int) -> str:
        """Of a GPU."""
        return str(gpu(self.number * self.gpu_count + index).uuid)

    def collect(self) -> None:
        """What is there now is what is reported from now on."""
        self.bodies = {**_SHARED, **{name: encode(section) for name, section in self._own().items()}}
        self.offered = self.offer_of(self.bodies, {})
        self.collected_at = self.fleet.now
        self.offered.collected_at.CopyFrom(stamp(self.collected_at))

    def _own(self) -> dict[str, Message]:
        listed = [self._gpu(index) for index in range(self.gpu_count)]
        mac = self.number.to_bytes(3, "big").hex(":")
        return {
            "system": ipb.SystemSection(
                manufacturer="Supermicro",
                serial=f"S{self.number:07d}X",
                product_uuid=f"{self.number:08x}-1234-5678-9abc-def012345678",
            ),
            "nics": ipb.NicsSection(nics=[ipb.Nic(name="ens3f0", permanent_mac=f"b8:3f:d2:{mac}", kind="ethernet")]),
            "gpus": gpus(*listed),
        }

    def _gpu(self, index: int) -> ipb.Gpu:
        ailment = self.ailments.get(index, Ailment())
        state = "lost" if ailment.lost else "ok"
        remap = ipb.RowRemap(pending=ailment.pending)
        return gpu(self.number * self.gpu_count + index, bus_id=_bus_id(index), index=index, state=state, row_remap=remap)

    # ---- what happens to it

    async def fails(self, index: int, ailment: Ailment) -> None:
        """A GPU fails now: bcd reports it at once."""
        self.ailments[index] = ailment
        if ailment.xid:
            kind = f"Xid{ailment.xid}"
            told = self.conditions.get((kind, self.uuid(index)))
            self.xid(ailment.xid, self.uuid(index), _bus_id(index), 1 + (told.count if told else 0), "pid=1, name=python")
        self.collect()
        await self.speak()

    def crash(self, seconds: float = REBOOT) -> None:
        """It is down now, and boots again after so long."""
        self.up, self.connected = False, False
        self.due = [(self.fleet.now + timedelta(seconds=seconds), self.boot)]  # what else was under way is lost
        if hasattr(self, "call"):
            self.call.cancel()

    def boot(self) -> None:
        """It has come up: another boot, in which a reboot has cured what it cures."""
        self.boots, self.up = self.boots + 1, True
        self.boot_id = self._boot()
        self.conditions.clear()
        self._cure("node.reboot", range(self.gpu_count))
        for command_id, (kind, _) in self.started.items():
            if command_id not in self.results:
                self._ended(command_id, *(("succeeded", "") if kind == "node.reboot" else ("failed", "Interrupted")))
        self.collect()
        self.woken.set()

    def _cure(self, by: str, indices: range) -> None:
        for index in indices:
            if by in self.ailments.get(index, Ailment()).cured_by:
                del self.ailments[index]

    async def tick(self) -> None:
        """The fleet's time went on: does what is due, and reports as bcd does every so often."""
        for entry in [one for one in self.due if one[0] <= self.fleet.now]:
            self.due.remove(entry)
            entry[1]()
        await self.speak()

    # ---- its bcd

    async def live(self) -> None:
        """Until it is cancelled: connects, talks, connects again."""
        while True:
            wait = AGAIN
            try:
                if self.up and not self.silent:
                    await self._talk()
                else:
                    await self.woken.wait()
                    wait = 0.0
            except Over as over:
                asked = over.end.retry_after.ToMilliseconds() / 1000 if over.end else 0.0
                wait = max(AGAIN, min(asked, 2.0))
            except (TimeoutError, grpc.RpcError, asyncio.InvalidStateError):
                pass
            except asyncio.CancelledError:  # also of the call: then the machine went down
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
            self.connected = False
            await self.close()
            self.woken.clear()
            await asyncio.sleep(wait)

    async def open(self, metadata: tuple[tuple[str, str], ...] | None = None) -> None:
        """Opens the stream over one of the fleet's connections."""
        stub = session_pb2_grpc.AgentServiceStub(self.fleet.channel(self.number))
        self.call = stub.Session(metadata=(("bc-node-id", self.node_id),))

    async def close(self) -> None:
        """Hangs up; the connection is others' too."""
        if hasattr(self, "call"):
            self.call.cancel()

    async def send(self, **message: object) -> None:
        """One message after the other."""
        async with self.writing:
            await super().send(**message)

    async def _talk(self) -> None:
        await self.connect()
        self.connected = True
        if self.welcome.applied_digest != self.digest:
            await self.send(inventory_offer=self.offered)
        await self.report()
        for command_id in sorted(self.unacknowledged):
            await self.send(command_result=self.results[command_id])
        while True:
            message = await self.call.read()
            if not isinstance(message, pb.SessionResponse):
                await self._over(None)
            kind = message.WhichOneof("message")
            if kind == "session_end":
                await self._over(message.session_end)
            elif kind in HANDLERS:
                await HANDLERS[kind](self, message)

    async def speak(self) -> None:
        """Reports, and says what is not acknowledged, if it is connected: after a reset and the like, what is new is offered."""
        if not self.connected:
            return
        with contextlib.suppress(Over, asyncio.CancelledError, asyncio.InvalidStateError, grpc.RpcError, TimeoutError):
            await self.report()
            for command_id in sorted(self.unacknowledged):
                await self.send(command_result=self.results[command_id])

    async def _asked(self, message: pb.SessionResponse) -> None:
        request = message.inventory_request
        if request.offer:
            await self.send(inventory_offer=self.offered)
        elif request.sections and request.digest == self.offered.digest:
            await self.send_sections(request.digest, self.bodies, request.sections)

    async def _answered(self, message: pb.SessionResponse) -> None:
        self.outcomes.append(pb.InventoryStatus.Name(message.inventory_result.status).removeprefix("INVENTORY_STATUS_").lower())

    async def _acknowledged(self, message: pb.SessionResponse) -> None:
        self.unacknowledged.discard(message.command_ack.id)

    async def _commanded(self, message: pb.SessionResponse) -> None:
        command = message.command
        if command.id not in self.started:
            self.started[command.id] = command.kind, self.boot_id
            if command.HasField("start_within") and command.start_within.ToMilliseconds() <= 0:
                self._ended(command.id, "expired", "NotStarted")
            elif command.kind in EFFECTS:
                EFFECTS[command.kind](self, command.id, json.loads(command.payload_json or "{}"))
            else:
                self._ended(command.id, "failed", "UnsupportedCommand")
        if command.id in self.results:
            await self.send(command_result=self.results[command.id])

    def _ended(self, command_id: str, status: str, reason: str = "", **payload: object) -> None:
        self.results[command_id] = pb.CommandResult(
            id=command_id,
            status=pb.CommandStatus.Value(f"COMMAND_STATUS_{status.upper()}"),
            reason=reason,
            payload_json=json.dumps(payload),
        )
        self.unacknowledged.add(command_id)

    # ---- the effects of commands

    def _reboot(self, command_id: str, payload: Mapping[str, object]) -> None:
        if self.rebooted_at and (self.fleet.now - self.rebooted_at).total_seconds() < REBOOTS_APART:
            self._ended(command_id, "refused", "RateLimited")
            return
        self.fleet.effect(self.node_id, command_id, "node.reboot", self.boot_id)
        self.rebooted_at = self.fleet.now
        self.crash()

    def _reset(self, command_id: str, payload: Mapping[str, object]) -> None:
        index = next((one for one in range(self.gpu_count) if self.uuid(one) == payload.get("deviceId")), None)
        if index is None:
            self._ended(command_id, "failed", "UnknownDevice")
            return
        self.fleet.effect(self.node_id, command_id, "gpu.reset", self.boot_id)
        self.due.append((self.fleet.now + timedelta(seconds=RESET), lambda: self._was_reset(command_id, index)))

    def _was_reset(self, command_id: str, index: int) -> None:
        self._cure("gpu.reset", range(index, index + 1))
        group = [self.uuid(index)]
        if index in self.ailments:
            self._ended(command_id, "failed", "NotHealthyAfterReset", group=group)
            return
        for key in [key for key in self.conditions if key[1] == group[0]]:
            del self.conditions[key]
        self.collect()
        self._ended(command_id, "succeeded", group=group)

    def _diagnose(self, command_id: str, payload: Mapping[str, object]) -> None:
        checks = [{"check": "gpu.count", "result": "fail" if self.ailments else "pass", "reason": "as found"}]
        self._ended(command_id, "succeeded", passed=not self.ailments, checks=checks)

    def _refresh(self, command_id: str, payload: Mapping[str, object]) -> None:
        self.collect()
        self._ended(command_id, "succeeded")


HANDLERS: Mapping[str | None, Callable[[Machine, pb.SessionResponse], Awaitable[None]]] = {
    "inventory_request": Machine._asked,
    "inventory_result": Machine._answered,
    "command": Machine._commanded,
    "command_ack": Machine._acknowledged,
}
EFFECTS: Mapping[str, Callable[[Machine, str, Mapping[str, object]], None]] = {
    "node.reboot": Machine._reboot,
    "gpu.reset": Machine._reset,
    "diag.nvml": Machine._diagnose,
    "inventory.refresh": Machine._refresh,
}
_SHARED = {name: body for name, body in host(0).items() if name not in ("system", "nics", "gpus")}


def _bus_id(index: int) -> str:
    return f"00000000:{0x18 + index:02X}:00.0"
