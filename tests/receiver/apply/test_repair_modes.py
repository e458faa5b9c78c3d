"""Where repairs do not go on: paused pools, pools in maintenance, dry runs (SPEC B8)."""

from dataclasses import replace
from unittest.mock import patch

import pytest

from receiver.apply import pool_stops, repairs, replan
from receiver.apply.health import clear_device_health
from receiver.store import database as db
from receiver.store.database import Connection
from receiver.values import Fault
from tests.receiver.apply.repair_world import GPU, OFF, POOL, SECOND, World, in_service
from tests.receiver.builders import NODE

PAUSED = "repairs of the pool are paused: too many of its nodes turned unhealthy"
OTHER: Fault = replace(OFF, device_id=SECOND, bus_id="00000000:19:00.0")


@pytest.fixture
def world(tx: Connection) -> World:
    return in_service(tx)


def pause(world: World) -> None:
    """Other nodes of the pool turn unhealthy."""
    ids = ["node_a", "node_b"]
    for one in ids:
        world.tx.execute(
            "INSERT INTO nodes (id, tenant_id, pool_id, status, unhealthy) VALUES (%s, 'default', %s, 'adopted', true)",
            [one, POOL],
        )
        world.tx.execute("INSERT INTO unhealthy_turns (pool_id, node_id) VALUES (%s, %s)", [POOL, one])
    pool_stops.watch(world.tx)
    assert world.told("pool.remediation.") == ["paused"]


def test_a_fault_that_opens_while_the_pool_is_paused_is_repaired_once_it_goes_on(world: World) -> None:
    pause(world)
    world.reports(OFF)
    assert world.runs() == []
    assert world.bookable() == [], "it is out of placement all the same"
    pool_stops.resume(world.tx, POOL, by="ops")
    replan.drain(world.tx)
    assert world.runs() == [("node.reboot", "queued")]
    world.step()
    assert world.runs() == [("node.reboot", "running")]


def test_a_run_that_was_queued_before_waits_while_the_pool_is_paused(world: World) -> None:
    world.reports(OFF)
    pause(world)
    world.step()
    assert world.run()["state"] == "waiting"
    assert world.run()["reason"] == PAUSED
    assert (world.sent(), world.disruptions()) == ([], [])


def test_a_run_that_is_under_way_finishes_in_a_paused_pool(world: World) -> None:
    world.reports(OFF)
    world.step()
    pause(world)
    world.answers_by_reboot()
    world.step()
    assert world.runs() == [("node.reboot", "succeeded")]
    assert world.bookable() == [GPU, SECOND]


def test_clears_work_in_a_paused_pool(world: World) -> None:
    pause(world)
    world.reports(OFF)
    clear_device_health(world.tx, GPU, "looked at")
    assert world.bookable() == [GPU, SECOND]


def stepped(world: World) -> list[str]:
    """The nodes that a round of the singleton's work has looked at."""
    seen: list[str] = []

    def step(tx: Connection, node_id: str) -> str | None:
        seen.append(node_id)
        return real(tx, node_id)

    real = repairs.step_node
    with patch("receiver.apply.repairs.step_node", step):
        repairs.work(lambda work: work(world.tx))
    return seen


def wait_for(world: World, count: int, reason: str, force: bool = False, boot_id: str = "b") -> list[str]:
    """So many nodes of the pool with a reboot that waits for this."""
    made = [f"node_w{number}" for number in range(count)]
    for node in made:
        world.tx.execute(
            "INSERT INTO nodes (id, tenant_id, pool_id, status, boot_id) VALUES (%s, 'default', %s, 'adopted', 'b')", [node, POOL]
        )
        world.tx.execute(
            """INSERT INTO remediation_runs (id, node_id, tenant_id, pool_id, state, reason, force, boot_id, by, kind)
               VALUES (%s, %s, 'default', %s, 'waiting', %s, %s, %s, 'ops', 'node.reboot')""",
            [f"run_{node}", node, POOL, reason, force, boot_id],
        )
    return made


def test_of_many_that_wait_for_a_paused_pool_one_is_asked_for_all(world: World) -> None:
    pause(world)
    made = wait_for(world, 4, PAUSED)
    assert stepped(world) == made[:1]
    pool_stops.resume(world.tx, POOL, by="ops")
    assert stepped(world) == made, "it goes on"


@pytest.mark.parametrize(
    ("reason", "force", "boot_id"),
    [("1 live bookings: b1", False, "b"), (PAUSED, True, "b"), (PAUSED, False, "another")],
)
def test_what_waits_for_something_else_or_may_go_on_is_looked_at_each_time(
    world: World, reason: str, force: bool, boot_id: str
) -> None:
    pause(world)
    made = wait_for(world, 3, reason, force, boot_id)
    assert stepped(world) == made


def test_the_breaker_trips_before_the_run_begins_that_it_is_about(world: World) -> None:
    world.policy(breaker={"minNodes": 1})
    world.reports(OFF)
    world.step()
    assert world.runs() == [("node.reboot", "waiting")]
    assert world.told("pool.remediation.") == ["paused"]
    assert world.disruptions() == []


def test_a_node_under_repair_does_not_turn_again(world: World) -> None:
    world.reports(OFF)
    world.step()
    world.reports(OTHER)
    world.answers_by_reboot()
    world.reports(replace(OFF, count=1))
    assert world.tx.execute("SELECT reason FROM unhealthy_turns").fetchall() == [("Xid79",)]


def test_a_pool_in_maintenance_ends_what_waits_queues_nothing_and_lets_what_runs_finish(world: World) -> None:
    world.reports(OFF)
    pool_stops.begin_maintenance(world.tx, POOL, by="ops", reason="firmware")
    world.step()
    assert world.runs() == [("node.reboot", "cancelled")]
    assert world.node()["status"] == "adopted", "nobody is bothered"
    world.reports(OTHER)
    assert len(world.runs()) == 1
    pool_stops.end_maintenance(world.tx, POOL, by="ops")
    replan.drain(world.tx)
    assert world.runs() == [("node.reboot", "cancelled"), ("node.reboot", "queued")]
    world.step()
    assert len(world.sent()) == 1
    pool_stops.begin_maintenance(world.tx, POOL, by="ops", reason="firmware")
    world.answers_by_reboot()
    world.step()
    assert world.runs()[-1] == ("node.reboot", "succeeded")


def test_a_dry_run_records_what_would_be_done_and_does_nothing(world: World) -> None:
    world.tx.execute("SET bc.dry_run = 'on'")
    world.reports(OFF)
    world.step()
    assert world.run()["observed"]
    assert world.steps()[-1] == ("cancelled", "only observed: would send node.reboot")
    assert (world.sent(), world.disruptions(), world.node()["draining"], world.told()) == ([], [], False, [])


def test_a_dry_run_begins_nothing_that_another_receiver_has_queued(world: World) -> None:
    world.reports(OFF)
    world.tx.execute("SET bc.dry_run = 'on'")
    world.step()
    assert (world.sent(), world.disruptions(), world.node()["draining"]) == ([], [], False)
    assert world.node()["status"] == "adopted"


def test_what_a_dry_run_only_observed_is_repaired_without_it(world: World) -> None:
    world.tx.execute("SET bc.dry_run = 'on'")
    world.reports(OFF)
    world.step()
    assert replan.queue_observed(world.tx) == 0, "while it lasts"
    world.tx.execute("RESET bc.dry_run")
    assert replan.queue_observed(world.tx) == 1
    replan.drain(world.tx)
    world.step()
    assert world.runs() == [("node.reboot", "cancelled"), ("node.reboot", "running")]
    assert replan.queue_observed(world.tx) == 0


def test_what_an_observing_pool_observed_is_not_looked_for(world: World) -> None:
    world.policy("observe")
    world.reports(OFF)
    world.step()
    assert replan.queue_observed(world.tx) == 0


def test_connections_of_a_receiver_on_a_dry_run_say_so(world: World, database: str) -> None:
    world.tx.commit()
    for dry_run, shown in ((True, "on"), (False, None)):
        with db.open_pool(database, 1, dry_run=dry_run) as opened:
            found = db.transact(
                opened, lambda tx: tx.execute("SELECT nullif(current_setting('bc.dry_run', true), '')").fetchone()
            )
        assert found == (shown,)
    assert world.node()["id"] == NODE
