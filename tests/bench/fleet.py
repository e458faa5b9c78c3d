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
    {"do": "mix", "seconds": 60, "fail": 0.1, "change": 0.2, "lose": 0.3}   at any time of it these shares of the nodes report an
                                            Xid 79, have another disk, lose their connection; until all is said and applied
    {"do": "expected"}                      every condition that the nodes have caused, and the digest of what each has
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
from pathlib import Path
from typing import Any

import grpc
from bettercompute.agent.v1 import inventory_pb2
from bettercompute.agent.v1 import session_pb2 as pb
from bettercompute.agent.v1.session_pb2_grpc import AgentServiceStub
from bettercompute.contract.sections import decode

from agent.session import messages as m
from agent.session import reconnect
from tests.bench import percentile
from tests.bench.fleet_hosts import offer, own, recorded
from tests.bench.fleet_node import Node

AT_ONCE = 96  # connections that are being opened: each costs both sides a handshake
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0), ("grpc.keepalive_time_ms", 301_000))
Answer = dict[str, Any]


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
                self.lost_first = self.lost_first or time.monotonic()
            node.welcomed.clear()
            node.ended(None)
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
        message = None
        with contextlib.suppress(TimeoutError):
            message = await asyncio.wait_for(node.hear(), 30)
        if message is not None and message.HasField("welcome"):
            node.epoch, node.seq = message.welcome.epoch, 0
            node.welcomed.set()
        elif message is not None:
            self._end(message.session_end)
        elif node.call.done():
            self._count(await node.call.details())

    def _end(self, end: pb.SessionEnd | None) -> m.SessionEnd | None:
        """What bcd makes of a session's end."""
        if end is None:
            return None
        reason = pb.SessionEndReason.Name(end.reason).removeprefix("SESSION_END_REASON_").lower().replace("_", "-")
        self._count(reason)
        after = end.retry_after.ToTimedelta().total_seconds() if end.HasField("retry_after") else None
        return m.SessionEnd(reason, retry_after=after, detail=end.detail)

    def _count(self, refusal: str) -> None:
        self.refused[refusal] = self.refused.get(refusal, 0) + 1

    async def _beat(self, node: Node) -> None:
        await node.report(self.rng)
        while True:
            await asyncio.sleep(self.interval * (0.95 + 0.1 * self.rng.random()))
            await node.report(self.rng)

    async def _listen(self, node: Node) -> m.SessionEnd | None:
        while message := await node.hear():
            if message.HasField("session_end"):
                return self._end(message.session_end)
            if message.HasField("inventory_result"):
                node.ended(message.inventory_result)
            for name in message.inventory_request.sections:
                data = self.offers[node.node_id][name]
                chunk = pb.InventorySections(digest=message.inventory_request.digest, name=name, data=data, last=True)
                await node.say(inventory_sections=chunk)
        return None

    # ---- what a plan asks for

    async def connect(self, do: Mapping[str, Any]) -> Answer:
        """All nodes have a session."""
        began = time.monotonic()
        for node in self.nodes:
            task = asyncio.create_task(self.live(node))
            self.tasks.add(task)
        after = await self._all_welcomed(float(do.get("seconds", 600)), began)
        return {
            "seconds": time.monotonic() - began,
            "welcomed": len(after),
            "p99": percentile(after, 0.99),
            "refused": self.refused,
        }

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
                status, _ = await self._offered(node)
                statuses[status] = statuses.get(status, 0) + 1

        began = time.monotonic()
        await asyncio.gather(*(one(node) for node in self.nodes))
        return {"seconds": time.monotonic() - began, "statuses": statuses}

    async def _offered(self, node: Node) -> tuple[str, float]:
        """A node offers what it has: how that ended, in a word, and seconds until it may try again."""
        bodies = self.offers[node.node_id] = own(self.first, node.number, node.revision)
        message = offer(node.number, bodies)
        node.digest, result, status = message.digest, None, "unanswered"
        with contextlib.suppress(TimeoutError):
            result = await asyncio.wait_for(node.offer(message), 60)
            status = "session lost"
        del self.offers[node.node_id]
        if result is None:
            return status, 0.0
        status = pb.InventoryStatus.Name(result.status).removeprefix("INVENTORY_STATUS_").lower()
        return status, result.retry_after.ToTimedelta().total_seconds()

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
        return {"p50": percentile(trips, 0.5), "p99": percentile(trips, 0.99), "trips": len(trips), "connected": connected}

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
        chosen, within, sent = self.nodes[: int(do["nodes"])], float(do["within"]), {}
        began = time.monotonic()

        async def one(place: int, node: Node) -> None:
            await asyncio.sleep(within * place / len(chosen))
            sent[node.node_id] = time.time()
            await self._fail(node)

        await asyncio.gather(*(one(place, node) for place, node in enumerate(chosen)))
        return {"seconds": time.monotonic() - began, "sent": sent}

    async def _fail(self, node: Node) -> None:
        gpus = decode("gpus", self.first["gpus"])
        assert isinstance(gpus, inventory_pb2.GpusSection)
        node.condition = pb.Condition(
            type="Xid79",
            status=pb.CONDITION_STATUS_TRUE,
            device_id=f"GPU-{node.number:08x}{gpus.gpus[0].uuid[12:]}",
            bus_id=gpus.gpus[0].bus_id,
            count=1,
            message="79, fallen off",
        )
        await node.report(self.rng)

    async def _change(self, node: Node) -> None:
        """Another disk; offered until the receiver has it, as bcd does."""
        node.revision += 1
        while True:
            await node.welcomed.wait()
            status, wait = await self._offered(node)
            if status in ("applied", "unchanged"):
                return
            await asyncio.sleep(wait)

    async def mix(self, do: Mapping[str, Any]) -> Answer:
        """What happens to a fleet, at random times and in any order."""
        kinds = {"fail": self._fail, "change": self._change, "lose": Node.lose}
        began, seconds = time.monotonic(), float(do["seconds"])

        async def one(node: Node, happens: Callable[[Node], Awaitable[None]]) -> None:
            await asyncio.sleep(seconds * self.rng.random())
            await happens(node)

        chosen = {kind: self.rng.sample(self.nodes, int(len(self.nodes) * do[kind])) for kind in kinds}
        await asyncio.gather(*(one(node, kinds[kind]) for kind, nodes in chosen.items() for node in nodes))
        await self._all_welcomed(60, began)
        return {"seconds": time.monotonic() - began, **{kind: len(nodes) for kind, nodes in chosen.items()}}

    async def back(self, do: Mapping[str, Any]) -> Answer:
        """The receiver was away: until all nodes have a session of another epoch. To be asked while they have one."""
        waiting = {node.node_id: (node, node.epoch) for node in self.nodes}
        after: list[float] = []
        while not self.lost_first:
            await asyncio.sleep(0.05)
        end = self.lost_first + float(do.get("seconds", 120))
        while waiting and time.monotonic() < end:
            await asyncio.sleep(0.1)
            back = [name for name, (node, epoch) in waiting.items() if node.welcomed.is_set() and node.epoch != epoch]
            after += [time.monotonic() - self.lost_first] * len(back)
            for name in back:
                del waiting[name]
        self.lost_first = 0.0
        return {
            "welcomed": len(after),
            "p50": percentile(after, 0.5),
            "p99": percentile(after, 0.99),
            "last": max(after, default=0.0),
        }

    async def expected(self, do: Mapping[str, Any]) -> Answer:
        """What the nodes have caused."""
        caused = [(one.node_id, one.condition.type, one.condition.device_id) for one in self.nodes if one.condition]
        digests = [(one.node_id, one.digest) for one in self.nodes]
        return {"conditions": caused, "digests": digests, "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


DO: Mapping[str, Callable[[Players, Mapping[str, Any]], Awaitable[Answer]]] = {
    "connect": Players.connect,
    "offer": Players.offer,
    "live": Players.beats,
    "saturate": Players.saturate,
    "fail": Players.fail,
    "back": Players.back,
    "mix": Players.mix,
    "expected": Players.expected,
}


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
