"""Nodes that are planned again without a new inventory (SPEC B2, "Applying", "Ownership")."""

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from receiver.apply import replan
from receiver.apply.act import act
from receiver.planning import node as rules
from receiver.planning.view import Draft, Facts
from receiver.store import view
from receiver.store.database import Connection
from tests.receiver.builders import NODE, OTHER, apply, count, gpu, gpus, host, join

GPU = "GPU-00000000"


def adopted(tx: Connection, count: int = 1, node: str = NODE) -> None:
    """A node of so many GPUs that is in service, and planned again with the baseline of that."""
    apply(tx, host(count), node)
    replan.drain(tx)


def queued(tx: Connection) -> dict[str, str]:
    return dict(tx.execute("SELECT node_id, reason FROM replan ORDER BY node_id").fetchall())


def devices(tx: Connection) -> dict[str, str]:
    """Device to node."""
    return dict(tx.execute("SELECT id, node_id FROM devices ORDER BY id").fetchall())


def atoms(tx: Connection) -> list[str]:
    return [row[0] for row in tx.execute("SELECT id FROM atoms ORDER BY id").fetchall()]


def book(tx: Connection, device: str = GPU, atom: str = "", generation: int = 1, node: str = NODE, name: str = "b1") -> None:
    tx.execute(
        """INSERT INTO bookings (booking_id, tenant_id, node_id, device_id, atom_id, atom_generation)
           VALUES (%s, 'default', %s, %s, %s, %s)""",
        [name, node, device, atom or device, generation],
    )


def end_booking(tx: Connection, name: str = "b1") -> None:
    tx.execute("UPDATE bookings SET ended_at = now() WHERE booking_id = %s", [name])


def into_pool(tx: Connection, sharing: str = "exclusive", policy: str = "{}") -> None:
    tx.execute(
        "INSERT INTO pools (id, tenant_id, name, sharing, policy) VALUES ('pool_1', 'default', 'a', %s, %s)", [sharing, policy]
    )
    act(tx, NODE, lambda facts, draft: _move(draft), inventory_too=True)


def _move(draft: Draft) -> None:
    draft.node = replace(draft.node, pool_id="pool_1")


@pytest.fixture
def joined(tx: Connection) -> Connection:
    for node in (NODE, OTHER):
        join(tx, node)
    return tx


def test_a_queued_node_is_planned_once_and_forgotten(joined: Connection) -> None:
    apply(joined, host(1))
    joined.execute("DELETE FROM atoms")
    assert replan.queue(joined, [NODE], "why not") == 1
    assert replan.drain(joined) == 1
    assert atoms(joined) == [GPU]
    assert queued(joined) == {}
    assert replan.drain(joined) == 0


def test_planning_again_what_has_not_changed_writes_nothing(joined: Connection) -> None:
    adopted(joined, 2)
    joined.commit()
    rows = "SELECT xmin, ctid FROM nodes UNION ALL SELECT xmin, ctid FROM devices UNION ALL SELECT xmin, ctid FROM atoms"
    before, told = joined.execute(rows).fetchall(), count(joined, "events")
    replan.queue(joined, [NODE], "why not")
    replan.drain(joined)
    joined.commit()
    assert joined.execute(rows).fetchall() == before
    assert count(joined, "events") == told


def test_a_node_without_an_inventory_may_be_queued(joined: Connection) -> None:
    replan.queue(joined, [NODE], "why not")
    assert replan.drain(joined) == 1
    assert queued(joined) == {}


def test_an_edited_pool_plans_its_nodes_again(joined: Connection) -> None:
    apply(joined, host(1))
    into_pool(joined)
    joined.execute("UPDATE pools SET sharing = 'timeslice', revision = revision + 1")
    assert replan.queue_pool(joined, "pool_1", "the pool was edited") == 1
    assert queued(joined) == {NODE: "the pool was edited"}
    replan.drain(joined)
    assert atoms(joined) == [f"{GPU}::{number}" for number in range(4)]


def test_an_upgraded_table_plans_all_nodes_again(joined: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    adopted(joined)
    assert replan.queue_outdated(joined) == 0
    newer = {**rules.tables(), "models": rules.tables()["models"] + 1}
    monkeypatch.setattr(rules, "tables", lambda: newer)
    monkeypatch.setattr(replan, "tables", lambda: newer)
    assert replan.queue_outdated(joined) == 1
    assert replan.queue_outdated(joined) == 0, "it is in the queue"
    replan.drain(joined)
    assert replan.queue_outdated(joined) == 0


def test_an_older_receiver_does_not_plan_again_what_a_newer_one_has_planned(
    joined: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(joined, host(1))
    monkeypatch.setattr(replan, "tables", lambda: {"models": 1, "xids": 0})
    assert replan.queue_outdated(joined) == 0


# ---------------------------------------------------------------- who has a device


def test_the_old_node_lets_go_and_the_new_one_gets_it_without_a_new_inventory(joined: Connection) -> None:
    adopted(joined)
    adopted(joined, node=OTHER)
    assert devices(joined) == {GPU: NODE}
    disputes = "SELECT node_id, device_id, evidence FROM conditions WHERE type = 'DuplicateIdentity' AND status = 'true'"
    assert joined.execute(disputes + " AND reason = 'DeviceOwned'").fetchall() == [
        (OTHER, GPU, {"deviceId": GPU, "otherNode": NODE})
    ]
    apply(joined, host(0))
    assert devices(joined) == {}
    assert list(queued(joined)) == [OTHER]
    replan.drain(joined)
    assert devices(joined) == {GPU: OTHER}
    assert joined.execute(disputes + " AND reason = 'DeviceOwned'").fetchall() == []
    life = joined.execute("SELECT node_id, event FROM device_history WHERE device_id = %s ORDER BY seq", [GPU]).fetchall()
    assert life == [(NODE, "added"), (NODE, "released"), (OTHER, "added")]


def test_two_devices_that_one_node_waits_for_are_let_go_at_once(joined: Connection) -> None:
    apply(joined, host(2))
    apply(joined, host(2), OTHER)
    apply(joined, host(0))
    replan.drain(joined)
    assert set(devices(joined).values()) == {OTHER}


def test_an_owner_does_not_let_go_of_what_is_booked(joined: Connection) -> None:
    apply(joined, host(1))
    book(joined)
    apply(joined, host(1), OTHER)
    apply(joined, host(0))
    assert devices(joined) == {GPU: NODE}
    end_booking(joined)
    assert queued(joined)[NODE] == "a booking ended"
    replan.drain(joined)
    replan.drain(joined)
    assert devices(joined) == {GPU: OTHER}


def test_the_generation_of_an_instance_follows_its_gpu(joined: Connection) -> None:
    from tests.receiver.planning.scenes import instance, mig_gpu

    apply(joined, host(gpus=gpus(mig_gpu(0, instance("a")))))
    apply(joined, host(gpus=gpus(mig_gpu(0, instance("a", "2g.20gb"), current=True))))
    apply(joined, host(0))
    apply(joined, host(gpus=gpus(mig_gpu(0, instance("a")))), OTHER)
    rows = joined.execute("SELECT id, generation, node_id FROM atoms").fetchall()
    assert rows == [("MIG-a", 3, OTHER)]


# ---------------------------------------------------------------- ended bookings


@pytest.mark.parametrize("how", ["ended", "deleted"])
def test_a_missing_device_is_deleted_once_its_bookings_end(joined: Connection, how: str) -> None:
    apply(joined, host(2))
    book(joined)
    apply(joined, host(gpus=gpus(gpu(1))))
    assert joined.execute("SELECT present, healthy FROM devices WHERE id = %s", [GPU]).fetchone() == (False, False)
    if how == "ended":
        end_booking(joined)
    else:
        joined.execute("DELETE FROM bookings")
    replan.drain(joined)
    assert list(devices(joined)) == ["GPU-00000001"]


def test_a_retiring_atom_goes_when_its_booking_ends(joined: Connection) -> None:
    apply(joined, host(1))
    into_pool(joined, "timeslice")
    book(joined, GPU, f"{GPU}::3")
    joined.execute("""UPDATE pools SET policy = '{"sharing": {"replicas": 2}}', revision = 2""")
    replan.queue_pool(joined, "pool_1", "edited")
    replan.drain(joined)
    assert atoms(joined) == [f"{GPU}::0", f"{GPU}::1", f"{GPU}::3"]
    end_booking(joined)
    replan.drain(joined)
    assert atoms(joined) == [f"{GPU}::0", f"{GPU}::1"]


def test_a_booking_that_ends_on_what_stays_queues_nothing(joined: Connection) -> None:
    adopted(joined)
    assert joined.execute("SELECT bookable FROM atoms").fetchall() == [(True,)]
    book(joined)
    end_booking(joined)
    joined.execute("UPDATE bookings SET ended_at = now()")
    assert queued(joined) == {}


def test_a_booking_that_ends_while_its_device_is_found_missing_is_seen_later(database: str) -> None:
    with psycopg.connect(database) as planner, psycopg.connect(database) as placement:
        join(planner)
        adopted(planner)
        book(planner)
        planner.commit()
        apply(planner, host(0))  # keeps it: the booking is live
        end_booking(placement)  # sees it present
        placement.commit()
        planner.commit()
        assert queued(planner) == {}
        assert replan.queue_missed(planner) == 1
        replan.drain(planner)
        assert devices(planner) == {}
        assert replan.queue_missed(planner) == 0


def test_a_device_that_is_let_go_while_another_node_reports_it_is_seen_later(database: str) -> None:
    with psycopg.connect(database) as first, psycopg.connect(database) as second:
        for node in (NODE, OTHER):
            join(first, node)
        adopted(first)
        first.commit()
        apply(first, host(0))
        apply(second, host(1), OTHER)  # the first has not committed: it owns the device
        first.commit()
        second.commit()
        assert queued(first) == {}
        assert replan.queue_missed(first) == 1
        replan.drain(first)
        assert devices(first) == {GPU: OTHER}
        assert replan.queue_missed(first) == 0


def test_what_a_tenants_node_keeps_is_not_looked_for_until_the_lease_ends(joined: Connection) -> None:
    adopted(joined)
    joined.execute("UPDATE devices SET present = false")
    joined.execute("UPDATE nodes SET trust = 'tenant-controlled', plan_key = '{}' WHERE id = %s", [NODE])
    assert replan.queue_missed(joined) == replan.queue_outdated(joined) == 0
    joined.execute("UPDATE nodes SET trust = 'platform' WHERE id = %s", [NODE])
    assert replan.queue_missed(joined) == 1
    joined.execute("DELETE FROM replan")
    assert replan.queue_outdated(joined) == 1


# ---------------------------------------------------------------- the queue


def test_the_oldest_are_planned_first_a_batch_at_a_time(joined: Connection) -> None:
    replan.queue(joined, [OTHER], "first")
    replan.queue(joined, [NODE], "second")
    assert replan.drain(joined, batch=1) == 1
    assert list(queued(joined)) == [NODE]


def test_one_receiver_drains_at_a_time(database: str) -> None:
    with psycopg.connect(database) as one, psycopg.connect(database) as other:
        join(one)
        replan.queue(one, [NODE], "why not")
        one.commit()
        assert replan.drain(one) == 1
        assert replan.drain(other) == 0
        one.rollback()
        assert replan.drain(other) == 1


def test_what_is_queued_while_it_is_planned_is_planned_again(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(database) as drainer, psycopg.connect(database) as other:
        join(drainer)
        apply(drainer, host(1))
        replan.queue(drainer, [NODE], "first")
        drainer.commit()

        def meanwhile(facts: Facts, draft: Draft) -> None:
            replan.queue(other, [NODE], "second")
            other.commit()

        with monkeypatch.context() as patched:
            patched.setattr(rules, "INVENTORY", (*rules.INVENTORY, meanwhile))
            assert replan.drain(drainer) == 1
        drainer.commit()
        assert queued(drainer) == {NODE: "second"}


def test_a_node_that_cannot_be_planned_holds_up_no_other(
    joined: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for node, bodies in ((NODE, host(1)), (OTHER, host(0))):
        apply(joined, bodies, node)
    joined.execute("DELETE FROM atoms")

    def broken(facts: Facts, draft: Draft) -> None:
        assert facts.node_id != OTHER, "our bug"

    monkeypatch.setattr(rules, "INVENTORY", (*rules.INVENTORY, broken))
    replan.queue(joined, [NODE, OTHER], "why not")
    with caplog.at_level(logging.ERROR):
        assert replan.drain(joined) == 2
    assert atoms(joined) == [GPU]
    assert list(queued(joined)) == [OTHER]
    assert "cannot be planned again" in caplog.text
    assert replan.drain(joined) == 0, "it is tried later"


def test_a_tenants_node_is_not_planned_until_the_lease_ends(joined: Connection) -> None:
    apply(joined, host(1))
    joined.execute("UPDATE nodes SET trust = 'tenant-controlled', lease_id = 'lease_1' WHERE id = %s", [NODE])
    joined.execute("DELETE FROM atoms")
    replan.queue(joined, [NODE], "why not")
    replan.drain(joined)
    assert atoms(joined) == []


def test_drains_and_applies_at_once_lock_in_one_order(database: str) -> None:
    nodes = [f"node_01hf7yat00000000000000{number:04d}" for number in range(8)]
    with psycopg.connect(database) as tx:
        for number, node in enumerate(nodes):
            join(tx, node)
            apply(tx, host(gpus=gpus(gpu(0, uuid=f"GPU-{number}"))), node)

    def work(seed: int) -> None:
        with psycopg.connect(database) as tx:
            for turn in range(6):
                number = (seed * 5 + turn * 3) % 8
                apply(tx, host(gpus=gpus(gpu(0, uuid=f"GPU-{number}"), driver=f"550.{seed}.{turn}")), nodes[number])
                tx.commit()
                replan.queue(tx, nodes, "again")
                tx.commit()
                replan.drain(tx)
                tx.commit()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4), timeout=60)) == [None] * 4
    with psycopg.connect(database) as tx:
        assert len(devices(tx)) == 8
        facts, _ = view.load(tx, nodes[0])
        assert facts.node_id == nodes[0]
