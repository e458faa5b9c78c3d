"""A session without a host, over real gRPC: connects, offers the sections it is given, reports what it is told to.

    async with FakeDaemon(target) as daemon:
        await daemon.connect()
        result = await daemon.offer({"os": encode(pb.OsSection(hostname="gpu-1"))})

Also the unit of the fleet simulator: one asyncio task a node, no thread, no file.
"""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, NoReturn, Self

import grpc
from bettercompute.agent.v1 import session_pb2 as pb
from bettercompute.agent.v1 import session_pb2_grpc
from bettercompute.contract.sections import SECTIONS, digest, section_hash
from google.protobuf.timestamp_pb2 import Timestamp

from receiver.ids import mint

CHUNK = 1 << 20
WAIT = 10.0  # seconds for an answer
Bodies = Mapping[str, bytes]


def stamp(moment: datetime | None = None) -> Timestamp:
    """`moment`, or now, as protobuf has it."""
    stamp = Timestamp()
    stamp.FromDatetime(moment or datetime.now(UTC))
    return stamp


class Over(Exception):
    """The stream is over. `end` is the gateway's SessionEnd if it sent one, `code` the stream's gRPC status."""

    def __init__(self, end: pb.SessionEnd | None, code: grpc.StatusCode | None, details: str) -> None:
        super().__init__(f"{end} {code} {details}")
        self.end = end
        self.code = code
        self.details = details


@dataclass
class FakeDaemon:
    """One node. Nothing is sent that was not asked for: no heartbeat, no offer of its own."""

    target: str
    node_id: str = field(default_factory=lambda: mint("node"))
    boot_id: str = field(default_factory=lambda: secrets.token_hex(16))
    protocol_version: str = "0.3"
    daemon_version: str = "0.1.0"
    credentials: grpc.ChannelCredentials | None = None  # of a node that has joined; None: nothing is encrypted
    chunk: int = CHUNK
    epoch: int | None = None
    seq: int = 0
    sent_bytes: int = 0  # of sections
    welcome: pb.Welcome = field(default_factory=pb.Welcome)
    conditions: dict[tuple[str, str], pb.Condition] = field(default_factory=dict)
    pressure: pb.Pressure | None = None
    skew: float = 0.0  # seconds that its clock is ahead
    digest: str = ""
    missing: dict[str, str] = field(default_factory=dict)
    collected_at: datetime | None = None

    # ---- the stream

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def open(self, metadata: tuple[tuple[str, str], ...] | None = None) -> None:
        """Opens the stream and says nothing."""
        if self.credentials is None:
            self.channel = grpc.aio.insecure_channel(self.target)
        else:
            self.channel = grpc.aio.secure_channel(self.target, self.credentials)
        named = (("bc-node-id", self.node_id),) if self.credentials is None else ()
        given = named if metadata is None else metadata
        self.call = session_pb2_grpc.AgentServiceStub(self.channel).Session(metadata=given)

    async def connect(self, *drivers: pb.Driver) -> pb.Welcome:
        """Opens the stream, says Hello, answers the Welcome. Raises Over when there is none."""
        await self.open()
        await self.send(hello=self.hello(*drivers))
        self.welcome = (await self.receive()).welcome
        self.epoch, self.seq = self.welcome.epoch, 0
        return self.welcome

    def hello(self, *drivers: pb.Driver) -> pb.Hello:
        """What connect() says."""
        return pb.Hello(
            protocol_version=self.protocol_version,
            daemon_version=self.daemon_version,
            boot_id=self.boot_id,
            instance_id=f"{id(self):x}",
            previous_epoch=self.epoch,
            sent_at=stamp(),
            drivers=drivers,
            digest=self.digest,
        )

    async def send(self, **message: object) -> None:
        """Sends one message: `send(hello=...)`."""
        try:
            await self.call.write(pb.SessionRequest(**message))  # type: ignore[arg-type]
        except (asyncio.InvalidStateError, grpc.RpcError):
            await self._over(None)

    async def receive(self) -> pb.SessionResponse:
        """The gateway's next message. Raises Over at the end of the stream, or with its SessionEnd."""
        try:
            message = await asyncio.wait_for(self.call.read(), WAIT)
        except grpc.RpcError:
            await self._over(None)
        if not isinstance(message, pb.SessionResponse):  # grpc.aio.EOF
            await self._over(None)
        if message.HasField("session_end"):
            await self._over(message.session_end)
        return message

    async def _over(self, end: pb.SessionEnd | None) -> NoReturn:
        code = details = None
        with contextlib.suppress(asyncio.TimeoutError):
            code = await asyncio.wait_for(self.call.code(), WAIT)
            details = await self.call.details()
        raise Over(end, code, details or "")

    async def close(self) -> None:
        """Hangs up."""
        if hasattr(self, "call"):
            self.call.cancel()
            await self.channel.close()

    # ---- inventory

    async def offer(self, bodies: Bodies, missing: Mapping[str, str] | None = None) -> pb.InventoryResult:
        """Offers these sections, sends what is asked for, answers the result."""
        await self.send(inventory_offer=self.offer_of(bodies, missing or {}))
        while True:
            message = await self.receive()
            if message.HasField("inventory_result"):
                return message.inventory_result
            if message.inventory_request.sections:
                await self.send_sections(message.inventory_request.digest, bodies, message.inventory_request.sections)

    def offer_of(self, bodies: Bodies, missing: Mapping[str, str]) -> pb.InventoryOffer:
        """The offer of these sections; the digest and the missing ones are reported from now on."""
        hashes = {name: section_hash(body) for name, body in bodies.items()}
        self.digest, self.missing, self.collected_at = digest(hashes), dict(missing), datetime.now(UTC)
        return pb.InventoryOffer(
            digest=self.digest,
            sections=[
                pb.SectionOffer(name=name, schema_version=_version(name), hash=hashes[name], size=len(bodies[name]))
                for name in sorted(bodies)
            ],
            missing=self._missing(),
            collected_at=stamp(self.collected_at),
            boot_id=self.boot_id,
            trigger="boot",
        )

    async def dealt_with(self) -> None:
        """Back when the gateway has done what all messages before asked for: the next is an offer that needs no database."""
        await self.send(inventory_offer=pb.InventoryOffer(digest="of nothing"))
        while not (await self.receive()).HasField("inventory_result"):
            pass

    async def send_sections(self, of: str, bodies: Bodies, names: Iterable[str]) -> None:
        """Sends the bytes of the sections in chunks."""
        for name in names:
            body = bodies[name]
            starts = range(0, max(len(body), 1), self.chunk)
            for start in starts:
                data = body[start : start + self.chunk]
                self.sent_bytes += len(data)
                chunk = pb.InventorySections(digest=of, name=name, data=data, last=start == starts[-1])
                await self.send(inventory_sections=chunk)

    # ---- commands

    async def command(self) -> pb.Command:
        """The next command; what comes before it is passed over."""
        while not (message := await self.receive()).HasField("command"):
            pass
        return message.command

    async def finish(self, command_id: str, status: str = "succeeded", reason: str = "", **payload: object) -> str:
        """Says how a command ended; answers the id of the acknowledgement. `status` as in COMMAND_STATUS_..., lower case."""
        result = pb.CommandResult(
            id=command_id,
            status=pb.CommandStatus.Value(f"COMMAND_STATUS_{status.upper()}"),
            reason=reason,
            payload_json=json.dumps(payload),
        )
        await self.send(command_result=result)
        while not (message := await self.receive()).HasField("command_ack"):
            pass
        return message.command_ack.id

    # ---- status

    async def report(self) -> None:
        """Sends a status report that says what is set now."""
        self.seq += 1
        await self.send(status_report=self.status())

    def status(self) -> pb.StatusReport:
        """What report() sends."""
        return pb.StatusReport(
            seq=self.seq,
            sent_at=stamp(datetime.now(UTC) + timedelta(seconds=self.skew)),
            digest=self.digest,
            collected_at=stamp(self.collected_at) if self.collected_at else None,
            missing=self._missing(),
            conditions=[self.conditions[key] for key in sorted(self.conditions)],
            pressure=self.pressure,
            kernel_log=pb.KernelLog(available=True, complete=True),
        )

    def _missing(self) -> list[pb.MissingSection]:
        return [pb.MissingSection(name=name, error=error) for name, error in sorted(self.missing.items())]

    def set_condition(self, kind: str, raised: bool = True, device_id: str = "", **more: object) -> None:
        """Reports this condition from now on; not raised: no longer. Of a device that is no GPU: `bus_id` without `device_id`."""
        key = (kind, device_id or str(more.get("bus_id", "")))
        self.conditions.pop(key, None)
        if raised:
            self.conditions[key] = pb.Condition(
                type=kind,
                status=pb.CONDITION_STATUS_TRUE,
                device_id=device_id,
                since=stamp(),
                **more,  # type: ignore[arg-type]
            )

    def set_pressure(self, cpu: float = 0.0, memory: float = 0.0, io: float = 0.0, steal: float = 0.0) -> None:
        """Reports this pressure (percent) from now on."""
        self.pressure = pb.Pressure(cpu=cpu, memory=memory, io=io, steal=steal)

    def xid(self, number: int, device_id: str, bus_id: str, count: int = 1, message: str = "") -> None:
        """Reports an XID of a GPU from now on."""
        self.set_condition(f"Xid{number}", device_id=device_id, bus_id=bus_id, count=count, message=message)

    def sxid(self, number: int, bus_id: str, count: int = 1, message: str = "") -> None:
        """Reports an SXid of an NVSwitch from now on."""
        self.set_condition(f"SXid{number}", bus_id=bus_id, count=count, message=message)


def _version(name: str) -> int:
    return SECTIONS[name].schema_version if name in SECTIONS else 1


async def spoken(call: Any, said: Iterable[bytes]) -> grpc.StatusCode | None:
    """A stream that says these, whatever they are; how it ended, None when it did not."""
    try:
        for data in said:
            await call.write(data)
        while await asyncio.wait_for(call.read(), 0.05) is not grpc.aio.EOF:
            pass
    except TimeoutError:
        return None
    except (grpc.RpcError, asyncio.InvalidStateError):
        pass
    code: grpc.StatusCode = await call.code()
    return code


async def until(what: str, probe: Callable[[], object], timeout: float = 10.0) -> None:
    """Waits until `probe()` is true. Raises TimeoutError that names what was waited for."""
    end = time.monotonic() + timeout
    while not probe():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        await asyncio.sleep(0.02)
