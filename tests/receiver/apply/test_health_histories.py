"""Over random histories (seeded) of two nodes whose GPUs fail, move, are reset and cleared: what always holds of their health."""

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.apply import replan
from receiver.apply.act import act
from receiver.apply.command import queue, record_result
from receiver.apply.health import clear_device_health
from receiver.apply.session import hello
from receiver.apply.status import record_status
from receiver.errors import NotFound, Refused
from receiver.store.database import Connection
from receiver.values import CommandResult, Fault, HelloFacts, Status
from tests.receiver.builders import NODE, OTHER, apply, gpu, gpus, host

GPUS = [gpu(number).uuid for number in range(3)]
CODES = (13, 48, 79)
ILL: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"row_remap": pb.RowRemap(pending=True)},
    {"state": "lost"},
    {"row_remap": pb.RowRemap(failure=True)},
)
POLICIES = ("{}", '{"xid": {"48": {"policy": null}}}', '{"xid": {"13": {"policy": "node"}, "79": {"policy": "device"}}}')
TABLES = ("devices", "atoms", "conditions", "device_health", "node_faults")


class Host:
    """A node with its ledger of faults, as bcd keeps it."""

    def __init__(self, tx: Connection, node_id: str) -> None:
        self.tx, self.node_id, self.boots = tx, node_id, 0
        self.reboot()

    def reboot(self) -> None:
        self.boots += 1
        self.faults: dict[tuple[str, int], int] = {}
        boot = f"boot-{self.node_id[-1]}-{self.boots}"
        self.epoch = hello(self.tx, self.node_id, HelloFacts("0.3", "0.1.0", boot, "instance")).epoch

    def report(self) -> None:
        faults = [Fault("xid", code, one, "b", count, f"{code}, x") for (one, code), count in sorted(self.faults.items())]
        assert record_status(self.tx, self.node_id, self.epoch, Status("d" * 64, faults=tuple(faults)))


def fail(host_: Host, rng: random.Random) -> None:
    key = rng.choice(GPUS), rng.choice(CODES)
    host_.faults[key] = host_.faults.get(key, 0) + 1
    host_.report()


def collect(host_: Host, rng: random.Random) -> None:
    there = [gpu(number, **rng.choice(ILL)) for number in range(3) if rng.random() < 0.6]
    apply(host_.tx, host(gpus=gpus(*there)), host_.node_id)


def clear(host_: Host, rng: random.Random) -> None:
    with contextlib.suppress(Refused, NotFound):
        clear_device_health(host_.tx, rng.choice(GPUS), "looked at", force=rng.random() < 0.3)


def reset(host_: Host, rng: random.Random) -> None:
    one = rng.choice(GPUS)
    host_.faults = {key: count for key, count in host_.faults.items() if key[0] != one}
    command = queue(host_.tx, host_.node_id, "gpu.reset", {"deviceId": one}, f"k{rng.random()}")
    record_result(host_.tx, host_.node_id, CommandResult(command, "succeeded", payload={"group": [one]}))
    host_.report()


def reboot(host_: Host, rng: random.Random) -> None:
    host_.reboot()
    host_.report()


def edit(host_: Host, rng: random.Random) -> None:
    host_.tx.execute("UPDATE pools SET policy = %s::jsonb, revision = revision + 1", [rng.choice(POLICIES)])
    replan.queue_pool(host_.tx, "pool_1", "edited")


STEPS: tuple[Callable[[Host, random.Random], None], ...] = (fail, fail, fail, collect, collect, clear, clear, reset, reboot, edit)


@pytest.mark.parametrize("seed", range(5))
def test_what_always_holds_of_device_health(tx: Connection, seed: int) -> None:
    rng = random.Random(seed)
    tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES ('pool_1', 'default', 'a')")
    hosts = [Host(tx, node_id) for node_id in (NODE, OTHER)]
    tx.execute("UPDATE nodes SET pool_id = 'pool_1'")
    for _ in range(30):
        rng.choice(STEPS)(rng.choice(hosts), rng)
        again(tx, hosts)  # a GPU that has changed hands is counted by the one that has it now
        before = rows(tx)
        again(tx, hosts)
        assert rows(tx) == before, "the same reports and plans again change nothing"
        check(tx)


def again(tx: Connection, hosts: list[Host]) -> None:
    """Every node reports what it reported before, and is planned again."""
    for one in hosts:
        one.report()
        act(tx, one.node_id, lambda facts, draft: None, inventory_too=True)
    while replan.drain(tx):
        pass
    tx.commit()


def rows(tx: Connection) -> list[tuple[str, ...]]:
    """The version of every row."""
    listed = " UNION ALL ".join(f"SELECT '{name}', ctid::text, xmin::text FROM {name}" for name in TABLES)
    return sorted(tx.execute(listed).fetchall())


def check(tx: Connection) -> None:
    """A device is healthy while nothing of it is open; conditions are where the device is; a node fault keeps all away."""
    bad = """SELECT d.id FROM devices d WHERE d.healthy <>
      (d.present AND NOT EXISTS (SELECT FROM device_health h WHERE h.device_id = d.id AND h.closed_reason IS NULL))"""
    assert tx.execute(bad).fetchall() == []
    assert (
        tx.execute("SELECT FROM atoms a JOIN devices d ON d.id = a.device_id WHERE a.bookable AND NOT d.healthy").fetchall() == []
    )
    assert tx.execute("SELECT FROM device_health WHERE (closed_at IS NULL) <> (closed_reason IS NULL)").fetchall() == []
    opened = tx.execute(
        """SELECT DISTINCT coalesce(d.node_id, h.node_id), h.code, h.device_id FROM device_health h
           LEFT JOIN devices d ON d.id = h.device_id WHERE h.source = 'xid' AND h.closed_reason IS NULL ORDER BY 1, 2, 3"""
    ).fetchall()
    raised = "SELECT node_id, type, device_id FROM conditions WHERE starts_with(type, 'Xid') AND status = 'true' ORDER BY 1, 2, 3"
    assert tx.execute(raised).fetchall() == opened
    stopped = "SELECT DISTINCT node_id, type FROM conditions WHERE status = 'true' AND no_schedule AND starts_with(type, 'Xid')"
    reasons = """SELECT n.id, r ->> 'type' FROM nodes n, jsonb_array_elements(n.no_schedule_reasons) AS r
                 WHERE starts_with(r ->> 'type', 'Xid') ORDER BY 1, 2"""
    assert tx.execute(reasons).fetchall() == sorted(tx.execute(stopped).fetchall())
