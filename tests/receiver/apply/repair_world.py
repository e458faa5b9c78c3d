"""A node, its pool and a clock, for tests of remediation: what it reports, what comes of it, step by step."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from psycopg.types.json import Jsonb

from receiver.apply import command, repairs, replan
from receiver.apply.inventory import apply_inventory
from receiver.apply.session import hello
from receiver.apply.status import record_status
from receiver.store.database import Connection
from receiver.values import Command, CommandResult, Fault, Status
from tests.receiver.builders import FACTS, NODE, gpu, gpus, host, offer

POOL = "pool_a"
GPU, SECOND = gpu(0).uuid, gpu(1).uuid
OFF = Fault("xid", 79, GPU, gpu(0).bus_id, 1, "79, pid=7, name=python, GPU has fallen off the bus.")
SXID = Fault("sxid", 11004, "", "00000000:05:00.0", 1, "11004, Fatal, Link 44")
LOST = gpus(gpu(0, state="lost"), gpu(1))
ILL = gpus(gpu(0, row_remap=pb.RowRemap(pending=True)), gpu(1))
START = datetime(2026, 11, 1, 12, tzinfo=UTC)


@dataclass
class World:
    """A node with two GPUs in a pool of its own, and a clock."""

    tx: Connection
    now: datetime = START
    boot: str = "boot-1"
    epoch: int = 0
    faults: dict[str, Fault] = field(default_factory=dict)
    gpus: pb.GpusSection = field(default_factory=lambda: gpus(gpu(0), gpu(1)))
    collected: int = 0

    def later(self, **time: float) -> None:
        self.now += timedelta(**time)
        self.tx.execute(
            "CREATE OR REPLACE FUNCTION bc_clock() RETURNS timestamptz LANGUAGE sql STABLE AS "
            f"$$SELECT '{self.now.isoformat()}'::timestamptz$$"
        )

    def connects(self, boot: str | None = None) -> None:
        self.boot = boot or self.boot
        self.epoch = hello(self.tx, NODE, replace(FACTS, boot_id=self.boot, previous_epoch=self.epoch)).epoch

    def collects(self, section: pb.GpusSection | None = None) -> None:
        """Collects an inventory, offers and confirms it."""
        self.gpus = section or self.gpus
        self.collected += 1
        bodies = host(gpus=self.gpus)
        offered = replace(offer(bodies), boot_id=self.boot)
        apply_inventory(self.tx, NODE, offered, bodies)
        self.digest = offered.digest
        self.reports()

    def reports(self, *faults: Fault) -> None:
        self.faults |= {fault.code + fault.device: fault for fault in faults}
        at = START + timedelta(minutes=self.collected)
        assert record_status(self.tx, NODE, self.epoch, Status(self.digest, at, faults=tuple(self.faults.values())))

    def reboots(self, section: pb.GpusSection | None = None) -> None:
        """Comes up again, and has collected its inventory."""
        self.faults.clear()
        self.connects(f"boot-{int(self.boot[5:]) + 1}")
        self.collects(section)

    def step(self) -> None:
        repairs.step_node(self.tx, NODE)

    def sent(self) -> list[Command]:
        """What the node's session is handed."""
        return command.due(self.tx, NODE, self.epoch, [])

    def answers(self, status: str, reason: str = "", payload: object = None) -> None:
        (one,) = self.sent()
        assert command.record_result(self.tx, NODE, CommandResult(one.id, status, reason, payload))

    def runs(self) -> list[tuple[str, str]]:
        return self.tx.execute("SELECT kind, state FROM remediation_runs ORDER BY id").fetchall()

    def run(self) -> Any:
        """The last run, as a mapping."""
        row = self.tx.execute("SELECT to_jsonb(r) FROM remediation_runs r ORDER BY id DESC LIMIT 1").fetchone()
        assert row is not None
        return row[0]

    def steps(self) -> list[tuple[str, str]]:
        """Of the last run."""
        rows = self.tx.execute("SELECT state, reason FROM remediation_steps WHERE run_id = %s ORDER BY seq", [self.run()["id"]])
        return rows.fetchall()

    def told(self, prefix: str = "node.remediation.") -> list[str]:
        rows = self.tx.execute("SELECT type FROM events WHERE starts_with(type, %s) ORDER BY seq", [prefix])
        return [row[0].removeprefix(prefix) for row in rows]

    def node(self) -> Any:
        row = self.tx.execute("SELECT to_jsonb(n) FROM nodes n WHERE id = %s", [NODE]).fetchone()
        assert row is not None
        return row[0]

    def bookable(self) -> list[str]:
        return [row[0] for row in self.tx.execute("SELECT id FROM bookable_atoms ORDER BY id")]

    def opened(self) -> list[str]:
        rows = self.tx.execute("SELECT code FROM device_health WHERE closed_at IS NULL ORDER BY code")
        return [row[0] for row in rows]

    def disruptions(self) -> list[tuple[str, bool]]:
        """Whose, and whether they are open."""
        return self.tx.execute("SELECT owner, ended_at IS NULL FROM disruptions ORDER BY started_at, id").fetchall()

    def policy(self, mode: str = "enforce", **keys: object) -> None:
        self.tx.execute("UPDATE pools SET policy = %s, mode = %s, revision = revision + 1", [Jsonb(keys), mode])
        replan.queue(self.tx, [NODE], "the pool was edited")
        replan.drain(self.tx)

    def books(self, device: str = GPU, booking: str = "booking_1") -> None:
        self.tx.execute(
            """INSERT INTO bookings (booking_id, tenant_id, node_id, device_id, atom_id, atom_generation)
               VALUES (%s, 'default', %s, %s, %s, 1)""",
            [booking, NODE, device, device],
        )

    def ends(self, booking: str = "booking_1") -> None:
        self.tx.execute("UPDATE bookings SET ended_at = bc_clock() WHERE booking_id = %s", [booking])

    def rebooted_well(self) -> None:
        """The fault's reboot, from the order to its proof."""
        self.step()
        self.answers_by_reboot()
        self.step()

    def answers_by_reboot(self) -> None:
        (one,) = self.sent()
        self.reboots(gpus(gpu(0), gpu(1)))
        assert command.record_result(self.tx, NODE, CommandResult(one.id, "succeeded", "", {"bootId": self.boot}))


@pytest.fixture
def world(tx: Connection) -> World:
    """In service."""
    return in_service(tx)


def in_service(tx: Connection) -> World:
    """A node that is in service, in a pool of its own."""
    made = World(tx)
    made.later()
    tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES (%s, 'default', 'a')", [POOL])
    made.connects()
    tx.execute("UPDATE nodes SET pool_id = %s", [POOL])
    made.collects()
    assert (made.node()["status"], made.bookable()) == ("adopted", [GPU, SECOND])
    return made
