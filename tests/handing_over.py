"""How long it takes from the report of an Xid 79 to `node.reboot` in the node's session: a real receiver, fake daemons."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.gateway.listener import Listener
from tests.fake_daemon import FakeDaemon
from tests.receiver.builders import gpu, gpus, host
from tests.receiver.live import Live, serving

POOL = "pool_latency"
# All may be repaired at once: what is measured is the way of one.
_POLICY = '{"disruptionBudget": "100%", "breaker": {"minNodes": 1000000}}'
_numbers = itertools.count()


@contextmanager
def without_notify() -> Iterator[None]:
    """Receivers that begin in the block hear no notification of the database."""

    def deaf(url: str, handlers: Any, again: Any) -> Listener:
        return Listener(url, {}, again)

    with patch("receiver.service.Listener", deaf):
        yield


async def measure(database: str, nodes: int, spread: float | None = None) -> list[float]:
    """Seconds of each of so many idle nodes, sorted: one after the other, or (`spread`) beginning within so many seconds."""
    async with serving(database, database_connections=8) as served:
        daemons = [await _in_service(served) for _ in range(nodes)]
        await asyncio.sleep(1.1)  # a beat: what their beginnings left is written
        if spread is None:
            return sorted([await _broken(daemon) for daemon in daemons])
        waits = [spread * number / nodes for number in range(nodes)]
        return sorted(await asyncio.gather(*(_broken(*each) for each in zip(daemons, waits, strict=True))))


def p99(seconds: list[float]) -> float:
    """Of sorted ones, the one that a hundredth of the others are above."""
    return seconds[-1 - len(seconds) // 100]


async def _in_service(served: Live) -> FakeDaemon:
    """A node in the pool, with a GPU of its own and a machine of its own."""
    number = next(_numbers)
    served.rows(
        "INSERT INTO pools (id, tenant_id, name, policy) VALUES (%s, 'default', %s, %s) ON CONFLICT DO NOTHING RETURNING id",
        POOL,
        POOL,
        _POLICY,
    )
    daemon = served.daemon()
    await daemon.connect()
    served.rows("UPDATE nodes SET pool_id = %s WHERE id = %s RETURNING id", POOL, daemon.node_id)
    mac = f"b8:3f:d2:01:{number >> 8:02x}:{number & 255:02x}"
    bodies = host(
        gpus=gpus(gpu(0, uuid=_gpu_of(daemon), serial=f"{number:013d}")),
        system=pb.SystemSection(manufacturer="Supermicro", product="SYS-821GE-TNHR", serial=f"S{number:08d}"),
        nics=pb.NicsSection(nics=[pb.Nic(name="ens3f0", permanent_mac=mac, kind="ethernet")]),
    )
    await daemon.offer(bodies)
    await daemon.report()
    await daemon.dealt_with()
    assert served.rows("SELECT status, pool_id FROM nodes WHERE id = %s", daemon.node_id) == [("adopted", POOL)]
    return daemon


def _gpu_of(daemon: FakeDaemon) -> str:
    return f"GPU-{daemon.node_id.removeprefix('node_')}"


async def _broken(daemon: FakeDaemon, wait: float = 0) -> float:
    await asyncio.sleep(wait)
    daemon.xid(79, _gpu_of(daemon), gpu(0).bus_id, message="GPU has fallen off the bus.")
    began = time.monotonic()
    await daemon.report()
    command = await daemon.command()
    assert command.kind == "node.reboot", command
    return time.monotonic() - began
