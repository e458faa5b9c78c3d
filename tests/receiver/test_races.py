"""Many writers of few nodes at once, placement among them: nothing is lost, and nothing is booked that is unhealthy.

`make test` has a tenth of it; `make proof-conclude` the whole minute.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from receiver.apply import replan
from receiver.apply.act import act
from receiver.planning.view import Draft, Facts
from receiver.store import database as db
from receiver.store import view
from tests.receiver import racing
from tests.receiver.builders import gpu
from tests.repetitions import PROOF

SECONDS = 60.0 if PROOF else 6.0
THREADS, CONNECTIONS = 64, 24


def test_many_writers_and_placement_leave_every_node_as_one_writer_would(database: str) -> None:
    with db.open_pool(database, CONNECTIONS) as pool:
        world = racing.World(pool)
        world.start()
        end = time.monotonic() + SECONDS
        with ThreadPoolExecutor(THREADS) as threads:
            running = [threads.submit(racing.rush, world, seed, lambda: time.monotonic() > end) for seed in range(THREADS)]
        for one in running:
            one.result()
        while world.run(replan.drain):
            pass
    with psycopg.connect(database) as tx:
        assert_no_deadlock(tx)
        hit = sum(bookings_that_a_fault_hit(tx, node) for node in world.nodes)
        assert hit, "there was nothing to prove"
        assert_placement_finds_what_is_free(tx)
        assert_disputes_are_those_that_there_are(tx)
        for node in world.nodes:
            assert_events_are_in_order(tx, node)
            assert_nothing_was_lost(tx, node)
            assert_planning_again_plans_nothing(tx, node)
    assert world.done["booked"] > SECONDS
    assert world.done["report_status"] > 10 * SECONDS


def assert_no_deadlock(tx: db.Connection) -> None:
    tx.execute("SELECT pg_stat_clear_snapshot()")
    assert tx.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone() == (0,)


def assert_placement_finds_what_is_free(tx: db.Connection) -> None:
    """Whoever made an atom bookable or ended its booking, and whoever did the other at the same time."""
    missed = """SELECT a.id FROM atoms a WHERE a.bookable
      AND NOT EXISTS (SELECT FROM bookings b WHERE (b.atom_id, b.atom_generation) = (a.id, a.generation) AND b.ended_at IS NULL)
      AND NOT EXISTS (SELECT FROM free_atoms f WHERE (f.node_id, f.atom_id, f.generation) = (a.node_id, a.id, a.generation))"""
    assert tx.execute(missed).fetchall() == []


def assert_disputes_are_those_that_there_are(tx: db.Connection) -> None:
    """A node that reports the GPU of another names its owner, and none names an owner that has let it go."""
    owner = tx.execute("SELECT node_id FROM devices WHERE id = %s", [racing.WANDERER]).fetchone()
    named = """SELECT evidence ->> 'otherNode' FROM conditions
      WHERE (type, device_id, status) = ('DuplicateIdentity', %s, 'true')"""
    assert {row[0] for row in tx.execute(named, [racing.WANDERER])} <= set(owner or ())


def bookings_that_a_fault_hit(tx: db.Connection, node: racing.Node) -> int:
    """How many there were. Plays the witness again: none began on what was unhealthy. (Its rows are in the order of locks.)"""
    faults: dict[str, set[str]] = defaultdict(set)
    booked: dict[str, str] = {}
    status, reasons, hit = "adopted", [], 0
    rows = tx.execute("SELECT what, key, value FROM witness WHERE node_id = %s ORDER BY seq", [node.id])
    for what, key, value in rows:
        if what == "fault":
            (faults[key].add if value[1] else faults[key].discard)(value[0])
            hit += value[1] and key in booked.values()
        elif what == "node":
            status, reasons = key, value
        elif what == "ended":
            booked.pop(value, None)
        else:
            assert not faults[key], f"{value} was booked with {faults[key]} open"
            assert (status, reasons) == ("adopted", []), f"{value} was booked on a node with {status} {reasons}"
            assert value not in booked, f"{value} was booked twice"
            booked[value] = key
    return hit


def assert_events_are_in_order(tx: db.Connection, node: racing.Node) -> None:
    """As a reader has them: each tells a change from what the one before it told."""
    rows = tx.execute("SELECT type, payload, time FROM events WHERE node_id = %s ORDER BY xid, seq", [node.id]).fetchall()
    assert [row[2] for row in rows] == sorted(row[2] for row in rows)
    told: dict[tuple[Any, ...], Any] = {}
    for kind, payload, _ in rows:
        for key, value, before in _claims(kind, payload, told):
            assert value != before, f"{key} is {value} again"
            told[key] = value
    assert any(key[0] == "condition" for key in told)
    snapshots = [payload["snapshotId"] for kind, payload, _ in rows if kind == "node.inventory.changed"]
    appended = tx.execute("SELECT id FROM inventory_snapshots WHERE node_id = %s ORDER BY created_at", [node.id]).fetchall()
    assert snapshots == [row[0] for row in appended]


def _claims(kind: str, payload: dict[str, Any], told: dict[tuple[Any, ...], Any]) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """What an event says of what, and what was said of it before."""
    device = payload.get("deviceId", "")
    if kind == "node.condition.changed":
        key: tuple[Any, ...] = ("condition", payload["condition"], device)
        value: Any = (payload["status"], payload["reason"], payload["noSchedule"])
    elif kind in ("node.gpu.quarantined", "node.gpu.cleared"):
        key, value = ("quarantine", device, payload["code"]), kind
    elif kind == "node.xid":
        key, value = ("xid", device, payload["xid"]), payload["count"]
        assert value >= 2 * told.get(key, 0), "the first one, and each doubling"
    else:
        return
    yield key, value, told.get(key)


def assert_nothing_was_lost(tx: db.Connection, node: racing.Node) -> None:
    """What was said to the receiver is there, whoever said what else at the same time."""
    counted = tx.execute("SELECT code, device_id, count FROM node_faults WHERE node_id = %s", [node.id]).fetchall()
    assert {(code, device): count for code, device, count in counted} == {
        (f"Xid{code}", gpu(number).uuid): count for (code, number), count in node.counts.items()
    }
    row = tx.execute("SELECT count(*) FROM inventory_snapshots WHERE node_id = %s", [node.id]).fetchone()
    assert row == (node.applied,)
    for owner in racing.OWNERS:
        assert racing.reasons_of(tx, node.id, owner) == node.others.get(owner)


def assert_planning_again_plans_nothing(tx: db.Connection, node: racing.Node) -> None:
    """The rows are those that the rules give, all of them."""

    def nothing(facts: Facts, draft: Draft) -> None:
        """The rules alone."""

    tx.execute("DELETE FROM replan")
    act(tx, node.id, nothing, inventory_too=True)  # what a booking was the last thing to keep goes
    stamp = "SELECT plan_rev, xmin::text FROM nodes WHERE id = %s"
    _, before = view.load(tx, node.id)
    written = tx.execute(stamp, [node.id]).fetchone()
    act(tx, node.id, nothing, inventory_too=True)
    _, after = view.load(tx, node.id)
    assert (after, tx.execute(stamp, [node.id]).fetchone()) == (before, written)
    for device in after.devices.values():
        is_open = any(row.device_id == device.id and row.open for row in after.health.values())
        assert device.healthy == (device.present and not is_open)
        for atom in (one for one in after.atoms.values() if one.device_id == device.id):
            assert atom.bookable <= device.healthy
    raised = {row.type for row in after.conditions.values() if row.status == "true" and row.no_schedule}
    assert set(after.node.no_schedule_reasons) == raised
    tx.commit()
