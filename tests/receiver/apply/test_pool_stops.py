"""Budget, breaker and maintenance of pools, in the database (SPEC B8)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from receiver.apply import nodes, pool_stops
from receiver.apply.pool_stops import gate, watch
from receiver.apply.status import record_status
from receiver.errors import Invalid, Refused
from receiver.store.database import Connection
from receiver.values import Condition, Fault, Status
from tests.receiver.builders import NODE, apply, host, join

POOL = "pool_a"
GPU = "GPU-00000000"
PAUSED = "repairs of the pool are paused: too many of its nodes turned unhealthy"


def fleet(tx: Connection, size: int, policy: str = "{}", pool: str | None = POOL) -> list[str]:
    """A pool, and so many nodes that are in service in it (None: in none)."""
    if pool is not None:
        tx.execute("INSERT INTO pools (id, tenant_id, name, policy) VALUES (%s, 'default', 'a', %s)", [pool, policy])
    ids = [f"node_{number:03d}" for number in range(size)]
    tx.cursor().executemany(
        "INSERT INTO nodes (id, tenant_id, pool_id, status) VALUES (%s, 'default', %s, 'adopted')", [(one, pool) for one in ids]
    )
    return ids


def disrupt(tx: Connection, node_ids: list[str], kind: str = "workflow", pool: str | None = POOL) -> None:
    tx.cursor().executemany(
        "INSERT INTO disruptions (id, pool_id, node_id, kind, owner) VALUES (%s, %s, %s, %s, 'somebody')",
        [(f"dis_{one}_{kind}", pool, one, kind) for one in node_ids],
    )


def turn(tx: Connection, node_ids: list[str], minutes_ago: float = 0, unhealthy: bool = True) -> None:
    """These nodes turned unhealthy then, and are so still."""
    tx.cursor().executemany(
        "INSERT INTO unhealthy_turns (pool_id, node_id, at, reason) VALUES (%s, %s, bc_clock() - %s, 'Xid79')",
        [(POOL, one, timedelta(minutes=minutes_ago)) for one in node_ids],
    )
    tx.execute("UPDATE nodes SET unhealthy = %s WHERE id = ANY(%s)", [unhealthy, node_ids])


def told(tx: Connection) -> list[tuple[str, dict[str, Any]]]:
    """Events of pools and their payloads, all of which name the pool and its tenant, and no node."""
    rows = tx.execute(
        """SELECT type, payload - 'schemaVersion' FROM events
           WHERE (tenant_id, pool_id) = ('default', %s) AND node_id IS NULL ORDER BY seq""",
        [POOL],
    )
    return rows.fetchall()


def queued(tx: Connection) -> list[str]:
    return [row[0] for row in tx.execute("SELECT node_id FROM replan ORDER BY node_id").fetchall()]


def later(tx: Connection, minutes: float) -> None:
    """So much time has passed since, for what the rules read."""
    tx.execute(
        f"CREATE OR REPLACE FUNCTION bc_clock() RETURNS timestamptz LANGUAGE sql STABLE AS "
        f"$$SELECT now() + interval '{minutes} minutes'$$"
    )


# -- budget


@pytest.mark.parametrize("kind", ["remediation", "workflow", "rollout", "maintenance"])
def test_budget_counts_all_open_disruptions_of_the_pool_whoever_they_are_of(tx: Connection, kind: str) -> None:
    ids = fleet(tx, 40)
    disrupt(tx, ids[:1], kind)
    assert gate(tx, "default", POOL) is None
    disrupt(tx, ids[1:2], kind)
    assert gate(tx, "default", POOL) == "2 of at most 2 disruptions are open (budget 5% of 40 nodes in service)"
    tx.execute("UPDATE disruptions SET ended_at = bc_clock() WHERE node_id = %s", [ids[0]])
    assert gate(tx, "default", POOL) is None


def test_budget_is_of_nodes_in_service_and_of_the_pools_own_disruptions(tx: Connection) -> None:
    ids = fleet(tx, 40)
    tx.execute("UPDATE nodes SET status = 'maintenance' WHERE id = %s", [ids[39]])
    tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES ('pool_b', 'default', 'b')")
    disrupt(tx, ids[5:9], pool="pool_b")
    assert gate(tx, "default", POOL) is None
    disrupt(tx, ids[:1])
    assert gate(tx, "default", POOL) == "1 of at most 1 disruptions are open (budget 5% of 39 nodes in service)"


def test_budget_of_nothing_stops_a_pool(tx: Connection) -> None:
    fleet(tx, 40, '{"disruptionBudget": 0}')
    assert gate(tx, "default", POOL) == "the pool's disruption budget is 0"


def test_nodes_without_a_pool_have_the_default_budget_by_tenant(tx: Connection) -> None:
    ids = fleet(tx, 20, pool=None)
    assert gate(tx, "default", None) is None
    disrupt(tx, ids[:1], pool=None)
    assert gate(tx, "default", None) == "1 of at most 1 disruptions are open (budget 5% of 20 nodes in service)"
    assert gate(tx, "acme", None) is None


def test_gate_of_a_pool_that_does_not_exist_is_a_lookup_error(tx: Connection) -> None:
    with pytest.raises(LookupError, match="no pool pool_x"):
        gate(tx, "default", "pool_x")


@pytest.mark.parametrize("pool", [POOL, None])
def test_nobody_passes_the_gate_while_another_may_still_begin(database: str, pool: str | None) -> None:
    with psycopg.connect(database) as one, psycopg.connect(database) as other:
        ids = fleet(one, 3, pool=pool)
        one.commit()
        assert gate(one, "default", pool) is None
        other.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            gate(other, "default", pool)
        other.rollback()
        disrupt(one, ids[:1], pool=pool)
        one.commit()
        assert gate(other, "default", pool) == "1 of at most 1 disruptions are open (budget 5% of 3 nodes in service)"


# -- breaker


def test_breaker_trips_above_a_tenth_of_the_pool_and_tells_once(tx: Connection) -> None:
    ids = fleet(tx, 40, '{"disruptionBudget": "100%"}')
    turn(tx, ids[:4])
    watch(tx)
    assert (gate(tx, "default", POOL), told(tx)) == (None, [])
    turn(tx, ids[4:5])
    for _ in range(2):
        watch(tx)
        assert gate(tx, "default", POOL) == PAUSED
    assert told(tx) == [("pool.remediation.paused", {"nodes": 5, "limit": 4})]


def test_gate_itself_trips_the_breaker(tx: Connection) -> None:
    ids = fleet(tx, 10)
    turn(tx, ids[:2])
    assert gate(tx, "default", POOL) == PAUSED
    assert told(tx) == [("pool.remediation.paused", {"nodes": 2, "limit": 1})]


def test_breaker_counts_nodes_and_not_turns(tx: Connection) -> None:
    ids = fleet(tx, 10)
    for _ in range(5):
        turn(tx, ids[:1])
    assert gate(tx, "default", POOL) is None


def test_breaker_trips_at_no_fewer_nodes_than_the_policy_says(tx: Connection) -> None:
    ids = fleet(tx, 10, '{"breaker": {"minNodes": 4}}')
    turn(tx, ids[:3])
    assert gate(tx, "default", POOL) is None
    turn(tx, ids[3:4])
    assert gate(tx, "default", POOL) == PAUSED


def test_breaker_looks_back_ten_minutes(tx: Connection) -> None:
    ids = fleet(tx, 20, '{"disruptionBudget": "100%"}')
    turn(tx, ids[:8], minutes_ago=10.1)
    turn(tx, ids[8:10], minutes_ago=9.9)
    assert gate(tx, "default", POOL) is None
    turn(tx, ids[10:11], minutes_ago=9.9)
    assert gate(tx, "default", POOL) == PAUSED


def test_a_paused_pool_goes_on_by_itself_when_the_window_is_over_and_few_are_unhealthy(tx: Connection) -> None:
    ids = fleet(tx, 20)
    turn(tx, ids[:5])
    watch(tx)
    later(tx, 11)
    watch(tx)
    assert gate(tx, "default", POOL) == PAUSED, "five of twenty are unhealthy still"
    tx.execute("UPDATE nodes SET unhealthy = false WHERE id = ANY(%s)", [ids[:3]])
    watch(tx)
    assert gate(tx, "default", POOL) is None
    assert [kind for kind, _ in told(tx)] == ["pool.remediation.paused", "pool.remediation.resumed"]
    assert told(tx)[1][1] == {"by": "receiver"}
    assert queued(tx) == ids[3:5], "what broke meanwhile is to be repaired now"


def test_a_paused_pool_does_not_go_on_while_the_window_is_above_the_limit(tx: Connection) -> None:
    ids = fleet(tx, 20)
    turn(tx, ids[:5], unhealthy=False)
    watch(tx)
    later(tx, 9)
    watch(tx)
    assert gate(tx, "default", POOL) == PAUSED


def test_a_person_lets_a_pool_go_on_and_what_turned_before_counts_no_more(tx: Connection) -> None:
    ids = fleet(tx, 20, '{"disruptionBudget": "100%"}')
    turn(tx, ids[:5], minutes_ago=1)
    watch(tx)
    pool_stops.resume(tx, POOL, by="ops")
    assert told(tx)[1] == ("pool.remediation.resumed", {"by": "ops"})
    watch(tx)
    assert gate(tx, "default", POOL) is None
    assert queued(tx) == ids[:5]
    later(tx, 1)
    turn(tx, ids[10:13])
    assert gate(tx, "default", POOL) == PAUSED, "three more have turned since"


def test_a_pool_that_is_not_paused_cannot_be_resumed(tx: Connection) -> None:
    fleet(tx, 3)
    with pytest.raises(Refused, match="not paused"):
        pool_stops.resume(tx, POOL, by="ops")
    with pytest.raises(LookupError):
        pool_stops.resume(tx, "pool_x", by="ops")


def test_pools_do_not_trip_each_others_breakers(tx: Connection) -> None:
    ids = fleet(tx, 10)
    turn(tx, ids[:5])
    tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES ('pool_b', 'default', 'b')")
    assert gate(tx, "default", "pool_b") is None


def test_old_turns_are_forgotten(tx: Connection) -> None:
    ids = fleet(tx, 3)
    turn(tx, ids[:1], minutes_ago=31 * 24 * 60)
    turn(tx, ids[1:], minutes_ago=20)
    watch(tx)
    assert tx.execute("SELECT count(*) FROM unhealthy_turns").fetchone() == (2,)


# -- what a node's own report does


def report(tx: Connection, epoch: int, *said: Condition | Fault) -> None:
    conditions = tuple(one for one in said if isinstance(one, Condition))
    faults = tuple(one for one in said if isinstance(one, Fault))
    record_status(tx, NODE, epoch, Status("d", conditions=conditions, faults=faults))


def xid(count: int = 1) -> Fault:
    return Fault("xid", 79, GPU, "00000000:18:00.0", count, "GPU has fallen off the bus")


def in_pool(tx: Connection) -> int:
    epoch = join(tx)
    apply(tx, host())
    tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES (%s, 'default', 'a')", [POOL])
    nodes.move(tx, NODE, POOL)
    return epoch


def turns(tx: Connection) -> list[tuple[str, str, str]]:
    return tx.execute("SELECT pool_id, node_id, reason FROM unhealthy_turns ORDER BY seq").fetchall()


def test_a_report_that_breaks_a_sound_node_is_a_turn_in_the_same_transaction(tx: Connection) -> None:
    epoch = in_pool(tx)
    tx.commit()
    tx.execute("LISTEN bc_remediation")
    report(tx, epoch, xid())
    assert turns(tx) == [(POOL, NODE, "Xid79")]
    tx.commit()
    assert NODE in {one.payload for one in tx.notifies(timeout=2, stop_after=1)}
    report(tx, epoch, xid(3))
    assert len(turns(tx)) == 1


@pytest.mark.parametrize("kind", ["NvmlUnavailable", "FabricManagerDown"])
def test_a_driver_or_fabric_that_does_not_answer_is_a_turn(tx: Connection, kind: str) -> None:
    epoch = in_pool(tx)
    report(tx, epoch, Condition(kind, "true"))
    report(tx, epoch)
    report(tx, epoch, Condition(kind, "true"))
    assert turns(tx) == [(POOL, NODE, kind)] * 2


def test_a_disrupted_node_does_not_turn(tx: Connection) -> None:
    epoch = in_pool(tx)
    disrupt(tx, [NODE], "remediation")
    report(tx, epoch, Condition("NvmlUnavailable", "true"))
    assert turns(tx) == []
    assert tx.execute("SELECT unhealthy FROM nodes WHERE id = %s", [NODE]).fetchone() == (True,)


# -- maintenance of a pool


def test_a_pool_in_maintenance_counts_no_turns_begins_no_repairs_and_raises_no_alert(tx: Connection) -> None:
    epoch = in_pool(tx)
    fleet(tx, 4, pool=None)
    turn(tx, [f"node_{number:03d}" for number in range(4)])
    pool_stops.begin_maintenance(tx, POOL, by="ops", reason="firmware")
    report(tx, epoch, Condition("NvmlUnavailable", "true"))
    watch(tx)
    assert len(turns(tx)) == 4
    assert gate(tx, "default", POOL) == "the pool is in maintenance"
    assert told(tx) == []


def test_what_happens_in_a_pool_in_maintenance_is_marked_as_nobodys_alert(tx: Connection) -> None:
    epoch = in_pool(tx)
    pool_stops.begin_maintenance(tx, POOL, by="ops", reason="firmware")
    report(tx, epoch, xid())
    rows = tx.execute("SELECT DISTINCT type FROM events WHERE payload @> '{\"maintenance\": true}' ORDER BY type").fetchall()
    assert [row[0] for row in rows] == ["node.condition.changed", "node.gpu.quarantined", "node.xid"]


def test_maintenance_ends_when_a_person_says_so_and_broken_nodes_are_planned_again(tx: Connection) -> None:
    ids = fleet(tx, 5)
    turn(tx, ids[:1])
    pool_stops.begin_maintenance(tx, POOL, by="ops", reason="firmware")
    pool_stops.end_maintenance(tx, POOL, by="ops")
    assert gate(tx, "default", POOL) is None
    assert queued(tx) == ids[:1]
    with pytest.raises(Refused, match="not in maintenance"):
        pool_stops.end_maintenance(tx, POOL, by="ops")


def test_maintenance_ends_at_its_time(tx: Connection) -> None:
    ids = fleet(tx, 5)
    turn(tx, ids[:1])
    pool_stops.begin_maintenance(tx, POOL, by="ops", reason="firmware", until=datetime.now(UTC) + timedelta(minutes=30))
    later(tx, 29)
    watch(tx)
    assert gate(tx, "default", POOL) == "the pool is in maintenance"
    later(tx, 31)
    watch(tx)
    assert gate(tx, "default", POOL) is None
    assert queued(tx) == ids[:1]


def test_a_second_maintenance_takes_the_place_of_the_first(tx: Connection) -> None:
    fleet(tx, 5)
    for reason in ("firmware", "cooling"):
        pool_stops.begin_maintenance(tx, POOL, by="ops", reason=reason)
    rows = tx.execute("SELECT detail FROM pool_stops WHERE ended_at IS NULL").fetchall()
    assert rows == [({"by": "ops", "reason": "cooling"},)]


def test_maintenance_until_a_time_that_is_past_or_nowhere_is_refused(tx: Connection) -> None:
    fleet(tx, 1)
    with pytest.raises(Invalid, match="past"):
        pool_stops.begin_maintenance(tx, POOL, by="ops", reason="r", until=datetime.now(UTC) - timedelta(minutes=1))
    with pytest.raises(Invalid, match="time zone"):
        pool_stops.begin_maintenance(tx, POOL, by="ops", reason="r", until=datetime(2099, 1, 1))  # noqa: DTZ001
    with pytest.raises(LookupError):
        pool_stops.begin_maintenance(tx, "pool_x", by="ops", reason="r")
