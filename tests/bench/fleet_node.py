"""One node of a played fleet: what it has said, and how it says it."""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from bettercompute.agent.v1 import session_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp

from tests.bench.fleet_hosts import COLLECTED


@dataclass(slots=True)
class Node:
    """One node. `identity`: its certificate and key (PEM), or None: it is taken at its word."""

    number: int
    node_id: str
    identity: tuple[bytes, bytes] | None
    epoch: int = 0
    place: int = 0  # attempts so far: several targets are tried in turn
    seq: int = 0
    revision: int = 0  # of its inventory
    digest: str = ""
    condition: pb.Condition | None = None
    channel: grpc.aio.Channel | None = None
    call: Any = None
    saying: asyncio.Lock = field(default_factory=asyncio.Lock)
    welcomed: asyncio.Event = field(default_factory=asyncio.Event)
    offering: asyncio.Lock = field(default_factory=asyncio.Lock)
    result: asyncio.Future[pb.InventoryResult | None] | None = None

    async def say(self, **message: object) -> None:
        """Sends one message; one on a stream that is over is lost. Two at once would be the end of the call."""
        async with self.saying:
            with _call_may_be_over():
                await self.call.write(pb.SessionRequest(**message))  # type: ignore[arg-type]

    async def hear(self) -> pb.SessionResponse | None:
        """The receiver's next message; None when there is none to come."""
        message = None
        with _call_may_be_over():
            message = await self.call.read()
        return message if isinstance(message, pb.SessionResponse) else None

    async def lose(self) -> None:
        """Its connection is gone."""
        self.call.cancel()

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

    async def offer(self, offer: pb.InventoryOffer) -> pb.InventoryResult | None:
        """Offers an inventory; how that ended, or None when the session was over before."""
        async with self.offering:
            self.result = asyncio.get_running_loop().create_future()
            if not self.welcomed.is_set():
                return None
            await self.say(inventory_offer=offer)
            return await self.result

    def ended(self, result: pb.InventoryResult | None) -> None:
        """What `offer` waits for."""
        if self.result is not None and not self.result.done():
            self.result.set_result(result)

    async def answered(self) -> None:
        """Until all that was sent is handled: an offer that is answered at once, without the database."""
        await self.offer(pb.InventoryOffer(digest="of nothing"))


def _now() -> Timestamp:
    now = Timestamp()
    now.GetCurrentTime()
    return now


@contextlib.contextmanager
def _call_may_be_over() -> Iterator[None]:
    """What gRPC says of a call that has ended. Of one that `lose` has ended it says a cancellation, which is not the task's."""
    try:
        yield
    except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
        pass
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
