"""Over random histories of three nodes in a database (seeded): what was planned is planned no further, no GPU has two owners."""

import contextlib
import random

import pytest

from receiver.apply import replan
from receiver.apply.act import act
from receiver.apply.nodes import move, retire
from receiver.errors import Refused
from receiver.store.database import Connection
from tests.receiver.builders import NODE, OTHER, apply, gpu, gpus, host, join
from tests.receiver.planning.scenes import instance, mig_gpu

THIRD = NODE[:-1] + "3"
NODES = (NODE, OTHER, THIRD)
TABLES = ("devices", "atoms", "conditions", "device_health", "mig_generations", "hardware_keys", "node_labels")


def rows(tx: Connection) -> list[tuple[str, ...]]:
    """The version of every row that a plan may write."""
    tx.commit()
    query = " UNION ALL ".join(f"SELECT '{name}', ctid::text, xmin::text FROM {name}" for name in TABLES)
    reasons = "SELECT id, status, (no_schedule_reasons, would_no_schedule, inventory_boot, baseline)::text FROM nodes"
    return sorted(tx.execute(f"{query} UNION ALL {reasons}").fetchall())


def hardware(tx: Connection, rng: random.Random) -> None:
    """A node has some of the six GPUs, whoever else says so too."""
    sliced = [mig_gpu(number, instance(f"{number}a", start=rng.randrange(2))) for number in range(6)]
    there = [rng.choice((gpu(number), sliced[number])) for number in range(6) if rng.random() < 0.5]
    apply(tx, host(gpus=gpus(*there, driver=rng.choice(("550.1", "570.1")))), rng.choice(NODES))


def book(tx: Connection, rng: random.Random) -> None:
    """Placement takes a bookable atom."""
    tx.execute(
        """INSERT INTO bookings (booking_id, tenant_id, node_id, device_id, atom_id, atom_generation)
           SELECT %s, tenant_id, node_id, device_id, id, generation FROM bookable_atoms ORDER BY md5(id || %s) LIMIT 1""",
        [f"b{rng.random()}", str(rng.random())],
    )


def end(tx: Connection, rng: random.Random) -> None:
    """A booking ends."""
    tx.execute(
        """UPDATE bookings SET ended_at = now() WHERE booking_id =
           (SELECT booking_id FROM bookings WHERE ended_at IS NULL ORDER BY md5(booking_id || %s) LIMIT 1)""",
        [str(rng.random())],
    )


def edit(tx: Connection, rng: random.Random) -> None:
    """The pool shares in another way."""
    tx.execute("UPDATE pools SET sharing = %s, revision = revision + 1", [rng.choice(("exclusive", "mig", "timeslice", "mps"))])
    replan.queue_pool(tx, "pool_1", "edited")


def moved(tx: Connection, rng: random.Random) -> None:
    """A node changes its pool."""
    with contextlib.suppress(Refused):  # it is retired
        move(tx, rng.choice(NODES), rng.choice(("pool_1", None)))


def retired(tx: Connection, rng: random.Random) -> None:
    """The third node goes for good, if nothing is booked on it."""
    if rng.random() < 0.3:
        with contextlib.suppress(Refused):
            retire(tx, THIRD)


STEPS = (hardware, hardware, hardware, book, book, end, edit, moved, retired)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_planned_is_planned_no_further(tx: Connection, seed: int) -> None:
    rng = random.Random(seed)
    tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES ('pool_1', 'default', 'a')")
    for node in NODES:
        join(tx, node)
    for _ in range(30):
        rng.choice(STEPS)(tx, rng)
        tx.commit()
        for _ in range(5):
            replan.drain(tx)
        assert replan.drain(tx) == 0, "the queue ends"
        assert replan.queue_missed(tx) == 0, "nothing was missed: nothing else happened meanwhile"
        before = rows(tx)
        for node in NODES:
            act(tx, node, lambda facts, draft: None, inventory_too=True)
        assert rows(tx) == before
        check(tx)


def check(tx: Connection) -> None:
    """What always holds."""
    lonely = """SELECT b.booking_id FROM bookings b LEFT JOIN atoms a ON (a.id, a.generation) = (b.atom_id, b.atom_generation)
                WHERE b.ended_at IS NULL AND (a.id IS NULL OR a.node_id <> b.node_id)"""
    assert tx.execute(lonely).fetchall() == []
    split = "SELECT a.id FROM atoms a JOIN devices d ON d.id = a.device_id WHERE a.node_id <> d.node_id"
    assert tx.execute(split).fetchall() == []
    owned = """SELECT c.node_id, c.device_id FROM conditions c JOIN devices d ON d.id = c.device_id
               WHERE (c.type, c.status, c.reason) = ('DuplicateIdentity', 'true', 'DeviceOwned') AND d.node_id = c.node_id"""
    assert tx.execute(owned).fetchall() == []
    idle = """SELECT device_id FROM conditions WHERE (type, status, reason) = ('DuplicateIdentity', 'true', 'DeviceOwned')
              AND device_id NOT IN (SELECT id FROM devices)"""
    assert tx.execute(idle).fetchall() == []
