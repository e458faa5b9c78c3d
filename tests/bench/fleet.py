"""One process that plays many nodes over real gRPC: `python -m tests.bench.fleet PLAN.json` (benchmarks of a fleet start it).

The nodes are a recorded host with serials, MACs and UUIDs of their own. Each has a connection of its own (with certificates: a
handshake too), reports each `interval` seconds with jitter and pressure, comes back as bcd does (agent/session/reconnect.py).
What a plan asks for is done when a line of JSON on stdin says so; each is answered by one line of JSON on stdout:

    {"do": "connect"}                       until all have their Welcome: seconds, and when each had it
    {"do": "offer"}                         all offer their inventory: seconds from the first to the last result
    {"do": "live", "seconds": 60}           nothing but heartbeats; some nodes, after theirs, ask for an answer: round trips
    {"do": "saturate", "seconds": 10}       heartbeats without a pause: how many were sent
    {"do": "fail", "nodes": 1500, "within": 1.0}   so many report an Xid 79 within this time: when each was sent
    {"do": "back", "seconds": 90}           until all have a session of another epoch: seconds of each since the first was lost
    {"do": "expected"}                      every condition that the nodes have caused
"""

import asyncio
import contextlib
import itertools
import json
import random
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from bettercompute.agent.v1 import inventory_pb2
from bettercompute.agent.v1 import session_pb2 as pb
from bettercompute.agent.v1.session_pb2_grpc import AgentServiceStub
from bettercompute.contract.sections import SECTIONS, decode, digest, encode, section_hash
from google.protobuf.timestamp_pb2 import Timestamp

from agent.collectors import collect
from agent.recorded import open_host, open_nvml
from agent.session import messages as m
from agent.session import reconnect
from tests.hosts_catalog import HOSTS

HOST = "h100-sxm-8"
AT_ONCE = 96  # connections that are being opened: each costs both sides a handshake
COLLECTED = Timestamp(seconds=1_760_000_000)
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0), ("grpc.keepalive_time_ms", 301_000))
Answer = dict[str, Any]


def own(first: Mapping[str, bytes], number: int) -> dict[str, bytes]:
    """The same machine with identities of its own."""
    gpus, system, nics = (decode(name, first[name]) for name in ("gpus", "system", "nics"))
    assert isinstance(gpus, inventory_pb2.GpusSection)
    assert isinstance(system, inventory_pb2.SystemSection)
    assert isinstance(nics, inventory_pb2.NicsSection)
    for gpu in gpus.gpus:
        gpu.uuid = f"GPU-{number:08x}{gpu.uuid[12:]}"
        gpu.serial = f"{gpu.serial}{number:08d}"
    system.serial, system.product_uuid = f"S{number:08d}", f"{number:08x}-0000-1000-8000-3cecef000001"
    for place, nic in enumerate(nics.nics):
        nic.permanent_mac = f"b8:3f:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}:{place:02x}"
    return {**first, "gpus": encode(gpus), "system": encode(system), "nics": encode(nics)}


def recorded() -> dict[str, bytes]:
    """The sections of the recorded host."""
    host, nvml = open_host(HOSTS[HOST]), open_nvml(HOSTS[HOST])
    return {name: encode(collect(name, host, nvml)) for name in SECTIONS}


@dataclass(slots=True)
class Node:
    """One node. `identity`: its certificate and key (PEM), or None: it is taken at its word."""

    number: int
    node_id: str
    identity: tuple[bytes, bytes] | None
    epoch: int = 0
    place: int = 0  # attempts so far: several targets are tried in turn
    seq: int = 0
    digest: str = ""
    condition: pb.Condition | None = None
    lost_at: float = 0.0
    channel: grpc.aio.Channel | None = None
    call: Any = None
    saying: asyncio.Lock = field(default_factory=asyncio.Lock)
    welcomed: asyncio.Event = field(default_factory=asyncio.Event)
    results: asyncio.Queue[pb.InventoryResult] = field(default_factory=asyncio.Queue)

    async def say(self, **message: object) -> None:
        """Sends one message; one on a stream that is over is lost. Two at once would be the end of the call."""
        async with self.saying:
            with contextlib.suppress(grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
                await self.call.write(pb.SessionRequest(**message))  # type: ignore[arg-type]

    async def report(self, rng: random.Random) -> None:
        """A status report, as bcd's: with its time, and with a sample of pressure that is another one each time."""
        self.seq += 1
        await self.say(
            status_report=pb.StatusReport(
                seq=self.seq,
                sent_at=_now(),
                digest=self.digest,
                collected_at=COLLECTED,
                conditions=[self.condition] if self.condition else [],
                pressure=pb.Pressure(cpu=5 * rng.random(), memory=rng.random(), io=rng.random(), number=self.seq),
                kernel_log=pb.KernelLog(available=True, complete=True),
            )
        )

    async def answered(self) -> None:
        """Until all that was sent is handled: an offer that is answered at once, without the database."""
        await self.say(inventory_offer=pb.InventoryOffer(digest="of nothing"))
        await self.results.get()


class Players:
    """All nodes of a plan: {target, nodes, interval, serverCa?, identities?: [[node id, certificate, key]], first?: number}."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.plan = plan
        self.rng = random.Random(plan.get("seed", 0))
        self.first = recorded()
        self.interval = float(plan.get("interval", 30.0))
        self.ca = plan["serverCa"].encode() if plan.get("serverCa") else None
        begin = int(plan.get("first", 0))
        identities: Iterable[Any] = plan.get("identities") or itertools.repeat(None)
        self.nodes = [
            Node(number, one[0] if one else f"node_{number:026d}", (one[1].encode(), one[2].encode()) if one else None)
            for number, one in zip(range(begin, begin + int(plan["nodes"])), identities, strict=False)
        ]
        self.at_once = asyncio.Semaphore(AT_ONCE)
        self.tasks: set[asyncio.Task[None]] = set()
        self.lost_first = 0.0
        self.refused: dict[str, int] = {}
        self.offers: dict[str, dict[str, bytes]] = {}

    # ---- a session, for ever

    async def live(self, node: Node) -> None:
        """Session after session."""
        failures = 0
        while True:
            end = await self._session(node)
            failures = 0 if node.welcomed.is_set() else failures + 1
            if node.welcomed.is_set():
                node.lost_at = time.monotonic()
                self.lost_first = self.lost_first or node.lost_at
            node.welcomed.clear()
            await asyncio.sleep(reconnect.delay(end, failures, self.rng.random()))

    async def _session(self, node: Node) -> m.SessionEnd | None:
        async with self.at_once:
            await self._open(node)
        try:
            if not node.welcomed.is_set():
                return self._end(None)
            beating = asyncio.create_task(self._beat(node))
            try:
                return await self._listen(node)
            finally:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
        finally:
            node.call.cancel()
            if node.channel is not None:
                await node.channel.close()

    async def _open(self, node: Node) -> None:
        """Opens the stream, and has its Welcome, or not."""
        targets = str(self.plan["target"]).split(",")
        target, node.place = targets[(node.number + node.place) % len(targets)], node.place + 1
        metadata: tuple[tuple[str, str], ...] = ()
        if node.identity and self.ca:
            credentials = grpc.ssl_channel_credentials(self.ca, node.identity[1], node.identity[0])
            node.channel = grpc.aio.secure_channel(target, credentials, options=OPTIONS)
        else:
            node.channel = grpc.aio.insecure_channel(target, options=OPTIONS)
            metadata = (("bc-node-id", node.node_id),)
        node.call = AgentServiceStub(node.channel).Session(metadata=metadata)
        hello = pb.Hello(protocol_version="0.3", daemon_version="0.1.0", boot_id=f"boot {node.number}", instance_id="player")
        if node.epoch:
            hello.previous_epoch = node.epoch
        await node.say(hello=hello)
        try:
            message = await asyncio.wait_for(node.call.read(), 30)
        except (grpc.RpcError, TimeoutError, asyncio.InvalidStateError):
            return
        if isinstance(message, pb.SessionResponse) and message.HasField("welcome"):
            node.epoch, node.seq = message.welcome.epoch, 0
            node.welcomed.set()
        elif isinstance(message, pb.SessionResponse):
            self._end(message.session_end)

    def _end(self, end: pb.SessionEnd | None) -> m.SessionEnd | None:
        """What bcd makes of a session's end."""
        if end is None:
            return None
        reason = pb.SessionEndReason.Name(end.reason).removeprefix("SESSION_END_REASON_").lower().replace("_", "-")
        self.refused[reason] = self.refused.get(reason, 0) + 1
        after = end.retry_after.ToTimedelta().total_seconds() if end.HasField("retry_after") else None
        return m.SessionEnd(reason, retry_after=after, detail=end.detail)

    async def _beat(self, node: Node) -> None:
        await node.report(self.rng)
        while True:
            await asyncio.sleep(self.interval * (0.95 + 0.1 * self.rng.random()))
            await node.report(self.rng)

    async def _listen(self, node: Node) -> m.SessionEnd | None:
        try:
            while isinstance(message := await node.call.read(), pb.SessionResponse):
                if message.HasField("session_end"):
                    return self._end(message.session_end)
                if message.HasField("inventory_result"):
                    node.results.put_nowait(message.inventory_result)
                elif message.inventory_request.sections:
                    request = message.inventory_request
                    for name in request.sections:
                        data = self.offers[node.node_id][name]
                        chunk = pb.InventorySections(digest=request.digest, name=name, data=data, last=True)
                        await node.say(inventory_sections=chunk)
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass
        return None

    # ---- what a plan asks for

    async def connect(self, do: Mapping[str, Any]) -> Answer:
        """All nodes have a session."""
        began = time.monotonic()
        for node in self.nodes:
            task = asyncio.create_task(self.live(node))
            self.tasks.add(task)
        after = await self._all_welcomed(float(do.get("seconds", 600)), began)
        return {"seconds": time.monotonic() - began, "welcomed": len(after), "p99": _p(after, 0.99), "refused": self.refused}

    async def _all_welcomed(self, limit: float, began: float) -> list[float]:
        after: list[float] = []

        async def one(node: Node) -> None:
            await node.welcomed.wait()
            after.append(time.monotonic() - began)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await asyncio.gather(*(one(node) for node in self.nodes))
        return after

    async def offer(self, do: Mapping[str, Any]) -> Answer:
        """All offer their inventory; at most `atOnce` are under way."""
        places = asyncio.Semaphore(int(do.get("atOnce", 64)))
        statuses: dict[str, int] = {}

        async def one(node: Node) -> None:
            async with places:
                bodies = self.offers[node.node_id] = own(self.first, node.number)
                epoch, status = node.epoch, "unanswered"
                await node.say(inventory_offer=_offer(node, bodies))
                with contextlib.suppress(TimeoutError):
                    result = await asyncio.wait_for(node.results.get(), 60)
                    status = pb.InventoryStatus.Name(result.status).removeprefix("INVENTORY_STATUS_").lower()
                if (node.epoch, node.welcomed.is_set()) != (epoch, True):
                    status += ", its session lost"
                statuses[status] = statuses.get(status, 0) + 1
                del self.offers[node.node_id]

        began = time.monotonic()
        await asyncio.gather(*(one(node) for node in self.nodes))
        return {"seconds": time.monotonic() - began, "statuses": statuses}

    async def beats(self, do: Mapping[str, Any]) -> Answer:
        """Heartbeats go on; each second some nodes ask for an answer that needs no database: an offer that is refused at once."""
        trips: list[float] = []

        async def probe(node: Node) -> None:
            began = time.monotonic()
            await node.report(self.rng)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(node.answered(), 30)
                trips.append(time.monotonic() - began)

        end = time.monotonic() + float(do["seconds"])
        asked = min(int(do.get("probes", 20)), len(self.nodes))
        while time.monotonic() < end:
            there = [node for node in self.rng.sample(self.nodes, asked) if node.welcomed.is_set()]
            await asyncio.gather(asyncio.sleep(1.0), *(probe(node) for node in there))
        connected = sum(node.welcomed.is_set() for node in self.nodes)
        return {"p50": _p(trips, 0.5), "p99": _p(trips, 0.99), "trips": len(trips), "connected": connected}

    async def saturate(self, do: Mapping[str, Any]) -> Answer:
        """All send heartbeats that change nothing, one after the other, as fast as they are taken."""
        began, sent = time.monotonic(), 0

        async def one(node: Node) -> None:
            nonlocal sent
            while time.monotonic() < began + float(do["seconds"]):
                await node.report(self.rng)
                sent += 1
            await node.answered()  # what is sent waits in buffers of some megabytes

        await asyncio.gather(*(one(node) for node in self.nodes))
        return {"sent": sent, "seconds": time.monotonic() - began}

    async def fail(self, do: Mapping[str, Any]) -> Answer:
        """Some nodes report an Xid 79 of their first GPU."""
        chosen, within = self.nodes[: int(do["nodes"])], float(do["within"])
        gpus = decode("gpus", self.first["gpus"])
        assert isinstance(gpus, inventory_pb2.GpusSection)
        gpu, sent = gpus.gpus[0], {}
        began = time.monotonic()

        async def one(place: int, node: Node) -> None:
            await asyncio.sleep(within * place / len(chosen))
            uuid = f"GPU-{node.number:08x}{gpu.uuid[12:]}"
            node.condition = pb.Condition(
                type="Xid79",
                status=pb.CONDITION_STATUS_TRUE,
                device_id=uuid,
                bus_id=gpu.bus_id,
                count=1,
                message="79, fallen off",
            )
            sent[node.node_id] = time.time()
            await node.report(self.rng)

        await asyncio.gather(*(one(place, node) for place, node in enumerate(chosen)))
        return {"seconds": time.monotonic() - began, "sent": sent}

    async def back(self, do: Mapping[str, Any]) -> Answer:
        """The receiver was away: until all nodes have a session again. To be asked while they lose it."""
        while not self.lost_first:
            await asyncio.sleep(0.05)
        began = self.lost_first
        await asyncio.sleep(1.0)
        after = await self._all_welcomed(float(do.get("seconds", 120)), began)
        self.lost_first = 0.0
        after.sort()
        return {"welcomed": len(after), "p50": _p(after, 0.5), "p99": _p(after, 0.99), "last": max(after, default=0.0)}

    async def expected(self, do: Mapping[str, Any]) -> Answer:
        """What the nodes have caused."""
        caused = [(one.node_id, one.condition.type, one.condition.device_id) for one in self.nodes if one.condition]
        return {"conditions": caused, "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


DO: Mapping[str, Callable[[Players, Mapping[str, Any]], Awaitable[Answer]]] = {
    "connect": Players.connect,
    "offer": Players.offer,
    "live": Players.beats,
    "saturate": Players.saturate,
    "fail": Players.fail,
    "back": Players.back,
    "expected": Players.expected,
}


def _now() -> Timestamp:
    now = Timestamp()
    now.GetCurrentTime()
    return now


def _offer(node: Node, bodies: Mapping[str, bytes]) -> pb.InventoryOffer:
    hashes = {name: section_hash(data) for name, data in bodies.items()}
    node.digest = digest(hashes)
    sections = [
        pb.SectionOffer(name=name, schema_version=SECTIONS[name].schema_version, hash=hashes[name], size=len(bodies[name]))
        for name in sorted(bodies)
    ]
    return pb.InventoryOffer(digest=node.digest, sections=sections, boot_id=f"boot {node.number}", trigger="boot")


def _p(values: Iterable[float], share: float) -> float:
    there = sorted(values)
    return there[min(len(there) - 1, int(share * len(there)))] if there else 0.0


async def main(plan: Path) -> None:
    """Reads what to do from stdin, one at a time."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    players = Players(json.loads(plan.read_text()))
    while line := await asyncio.to_thread(sys.stdin.readline):
        do = json.loads(line)
        sys.stdout.write(json.dumps(await DO[do["do"]](players, do)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
