"""The sweep of hygiene (SPEC B6) in Postgres: raised, cleared, told, suspended, confirmed; only changes are written."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar
from unittest.mock import patch

import psycopg
import pytest
from sqlalchemy import Engine

from receiver.apply import hygiene, pool_stops
from receiver.apply.hygiene import Swept, confirm, run_hygiene, sweep
from receiver.apply.trust import set_trust
from receiver.errors import Invalid, Refused
from receiver.planning import reasons
from receiver.planning.hygiene import Options
from receiver.store import database as db
from receiver.store import leases
from receiver.store.leases import LeaseLost
from receiver.store.words import jsonb
from tests.receiver.builders import NODE, OTHER, join

T = TypeVar("T")
OLD = Options(min_daemon_version="0.2")


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    made = db.engine(database)
    yield made
    made.dispose()


@pytest.fixture
def tx(database: str) -> Iterator[db.Connection]:
    """What a test says is committed at once: sweeps have connections of their own."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def nodes(tx: db.Connection, count: int, pool: str | None = None, first: int = 0) -> list[str]:
    """So many nodes in service, which report with bcd 0.1.0."""
    if pool is not None:
        tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES (%s, 'default', %s) ON CONFLICT DO NOTHING", [pool, pool])
    made = [f"node_{number:026d}" for number in range(first, first + count)]
    for node in made:
        join(tx, node)
    tx.execute("UPDATE nodes SET status = 'adopted', pool_id = %s WHERE id = ANY(%s)", [pool, made])
    return made


def set_to(tx: db.Connection, node: str, **columns: Any) -> None:
    for name, value in columns.items():
        tx.execute(f"UPDATE nodes SET {name} = {value} WHERE id = %s", [node])


def silence(tx: db.Connection, *silent: str, minutes: float = 6) -> None:
    tx.execute("UPDATE nodes SET last_seen = now() - %s WHERE id = ANY(%s)", [timedelta(minutes=minutes), list(silent)])


def conditions(tx: db.Connection, node: str) -> list[tuple[str, str]]:
    return tx.execute("SELECT type, status FROM conditions WHERE node_id = %s ORDER BY type", [node]).fetchall()


def reasons_of(tx: db.Connection, node: str) -> list[str]:
    row = tx.execute("SELECT no_schedule_reasons FROM nodes WHERE id = %s", [node]).fetchone()
    assert row is not None
    return [f"{one['owner']}:{one['type']}" for one in row[0]]


def told(tx: db.Connection, kind: str) -> list[Any]:
    return [row[0] for row in tx.execute("SELECT payload FROM events WHERE type = %s ORDER BY seq", [kind])]


class Counting:
    """Runs a sweep's transactions, and counts the rows that they insert, update and delete, by table."""

    def __init__(self, tx: db.Connection) -> None:
        self.tx = tx
        self.rows: Counter[str] = Counter()

    def __call__(self, work: Callable[[db.Connection], T]) -> T:
        with self.tx.transaction():
            before = self._count()
            answer = work(self.tx)
            self.rows += self._count() - before
        return answer

    def _count(self) -> Counter[str]:
        """What this connection has done and not reported yet."""
        return Counter(dict(self.tx.execute("SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_xact_user_tables")))


# ---- conditions and reasons


def test_a_condition_adds_its_reason_and_its_event_and_all_go_with_the_cause(tx: db.Connection, engine: Engine) -> None:
    (node,) = nodes(tx, 1)
    before = tx.execute("SELECT plan_rev FROM nodes").fetchone()
    assert run_hygiene(engine, OLD) == Swept(1, raised={"DaemonOutdated": 1})  # type: ignore[arg-type]
    assert conditions(tx, node) == [("DaemonOutdated", "true")]
    assert reasons_of(tx, node) == ["health:DaemonOutdated"]
    assert tx.execute("SELECT placeable FROM nodes").fetchone() == (False,)
    assert tx.execute("SELECT plan_rev - 1 FROM nodes").fetchone() == before
    assert run_hygiene(engine, Options()).cleared == {"DaemonOutdated": 1}
    assert conditions(tx, node) == [("DaemonOutdated", "false")]
    assert (reasons_of(tx, node), tx.execute("SELECT placeable FROM nodes").fetchone()) == ([], (True,))
    events = [(one["condition"], one["status"], one["reason"], one["noSchedule"]) for one in told(tx, "node.condition.changed")]
    assert events == [("DaemonOutdated", "true", "Outdated", True), ("DaemonOutdated", "false", "", False)]


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("DaemonOutdated", {"daemon_version": "'0.1.9'"}),
        ("ProtocolUnsupported", {"protocol_version": "'0.9'"}),
        (
            "CertificateExpiring",
            {"certificate_from": "now() - interval '28 days'", "certificate_until": "now() + interval '2 days'"},
        ),
        ("InventoryStale", {"collected_at": "now() - interval '40 hours'"}),
        ("NotReporting", {"last_seen": "now() - interval '301 s'"}),
    ],
)
def test_each_cause_is_found_and_its_end(tx: db.Connection, engine: Engine, name: str, columns: dict[str, str]) -> None:
    well = {
        "daemon_version": "'0.2.0'",
        "protocol_version": "'0.3'",
        "certificate_from": "now()",
        "certificate_until": "now() + interval '30 days'",
        "collected_at": "now()",
        "last_seen": "now()",
    }
    first, second = nodes(tx, 2)
    for node in (first, second):
        set_to(tx, node, **well)
    assert run_hygiene(engine, OLD).nodes == 0
    set_to(tx, second, **columns)
    assert run_hygiene(engine, OLD).raised == {name: 1}
    assert (conditions(tx, first), conditions(tx, second)) == ([], [(name, "true")])
    set_to(tx, second, **well)
    assert run_hygiene(engine, OLD).cleared == {name: 1}


def test_what_others_have_written_of_the_node_stays(tx: db.Connection, engine: Engine) -> None:
    (node,) = nodes(tx, 1)
    mine = json.dumps([{"owner": "rollout", "type": "NotReporting"}, {"owner": "health", "type": "NvmlUnavailable"}])
    tx.execute("UPDATE nodes SET no_schedule_reasons = %s::jsonb", [mine])
    row = "INSERT INTO conditions (node_id, tenant_id, type, device_id, status) VALUES (%s, 'default', %s, '', 'true')"
    tx.execute(row, [node, "NvmlUnavailable"])
    silence(tx, node)
    run_hygiene(engine)
    assert reasons_of(tx, node) == ["health:NotReporting", "health:NvmlUnavailable", "rollout:NotReporting"]
    silence(tx, node, minutes=0)
    run_hygiene(engine)
    assert reasons_of(tx, node) == ["health:NvmlUnavailable", "rollout:NotReporting"]


def test_an_observing_pool_only_records_what_would_be(tx: db.Connection, engine: Engine) -> None:
    (node,) = nodes(tx, 1, "pool_1")
    tx.execute("UPDATE pools SET mode = 'observe'")
    silence(tx, node)
    run_hygiene(engine)
    assert tx.execute("SELECT no_schedule_reasons, would_no_schedule, placeable FROM nodes").fetchone() == (
        [],
        [{"owner": "health", "type": "NotReporting"}],
        True,
    )
    assert [(one["noSchedule"], one["wouldNoSchedule"]) for one in told(tx, "node.condition.changed")] == [(False, True)]


def test_a_reason_that_changes_is_told_and_a_status_that_stays_keeps_its_time(tx: db.Connection, engine: Engine) -> None:
    (node,) = nodes(tx, 1)
    set_to(tx, node, certificate_from="now() - interval '30 days'", certificate_until="now() + interval '1 hour'")
    run_hygiene(engine)
    since = tx.execute("SELECT since FROM conditions").fetchone()
    set_to(tx, node, certificate_until="now() - interval '1 s'")
    assert run_hygiene(engine).nodes == 1
    assert [one["reason"] for one in told(tx, "node.condition.changed")] == ["Expiring", "Expired"]
    assert tx.execute("SELECT since FROM conditions").fetchone() == since
    assert run_hygiene(engine).nodes == 0


# ---- whom it looks over


@pytest.mark.parametrize("status", ["adopting", "adopted", "maintenance", "retired", "deleted"])
def test_every_node_is_looked_over_that_is_not_out_for_good(tx: db.Connection, engine: Engine, status: str) -> None:
    (node,) = nodes(tx, 1)
    set_to(tx, node, status=f"'{status}'")
    silence(tx, node)
    assert run_hygiene(engine).nodes == (0 if status in ("retired", "deleted") else 1)


def test_a_tenants_machine_stays_as_it_is_until_its_lease_ends(tx: db.Connection, engine: Engine) -> None:
    reporting, silent = nodes(tx, 2)
    silence(tx, silent)
    run_hygiene(engine)
    for node in (reporting, silent):
        set_trust(tx, node, "tenant-controlled", "lease_1", by="o", reason="r")
    silence(tx, reporting)
    silence(tx, silent, minutes=0)
    assert run_hygiene(engine).nodes == 0
    assert (reasons_of(tx, reporting), reasons_of(tx, silent)) == ([], ["health:NotReporting"])
    set_to(tx, reporting, trust="'platform'")
    set_to(tx, silent, trust="'platform'")
    assert run_hygiene(engine).nodes == 2
    assert (reasons_of(tx, reporting), reasons_of(tx, silent)) == (["health:NotReporting"], [])


def test_who_never_had_a_session_is_not_missed(tx: db.Connection, engine: Engine) -> None:
    tx.execute("INSERT INTO nodes (id, tenant_id, last_seen) VALUES (%s, 'default', now() - interval '1 day')", [NODE])
    assert run_hygiene(engine).nodes == 0


# ---- receivers that were away


def serving(tx: db.Connection, since: float, beat: float = 0) -> None:
    """A receiver has been serving for so many minutes, and said so last so many ago."""
    tx.execute("DELETE FROM serving")
    statement = "INSERT INTO serving (name, since, beat_at) VALUES ('receivers', now() - %s, now() - %s)"
    tx.execute(statement, [timedelta(minutes=since), timedelta(minutes=beat)])


def test_after_twenty_minutes_without_receivers_nobody_is_not_reporting(tx: db.Connection, engine: Engine) -> None:
    dead, alive, lately = nodes(tx, 3)
    silence(tx, dead, minutes=60)
    serving(tx, since=1000)
    run_hygiene(engine)
    silence(tx, alive, lately, minutes=20)
    tx.execute("UPDATE serving SET since = now() - interval '1 day', beat_at = now() - interval '20 min'")
    leases.beat(tx, timedelta(minutes=1))  # the first receiver that is there again
    assert run_hygiene(engine).nodes == 0
    assert reasons_of(tx, dead) == ["health:NotReporting"]  # and who was dead is no better for it
    silence(tx, alive, minutes=0)
    serving(tx, since=9.9)
    assert run_hygiene(engine).nodes == 0
    serving(tx, since=10.1)
    silence(tx, alive, minutes=0)
    assert run_hygiene(engine).raised == {"NotReporting": 1}
    assert (reasons_of(tx, alive), reasons_of(tx, lately)) == ([], ["health:NotReporting"])


def test_who_sweeps_while_no_receiver_serves_misses_nobody(tx: db.Connection, engine: Engine) -> None:
    silence(tx, *nodes(tx, 1), minutes=60)
    serving(tx, since=1000, beat=2)
    assert run_hygiene(engine).nodes == 0
    serving(tx, since=1000, beat=0.5)
    assert run_hygiene(engine).nodes == 1


# ---- the mass guard


def test_a_mass_is_suspended_and_told_once_and_goes_on_when_it_is_fewer(tx: db.Connection, engine: Engine) -> None:
    made = nodes(tx, 20, "pool_1")
    others = nodes(tx, 3, first=50)
    silence(tx, *made[:5], others[0])
    swept = run_hygiene(engine)
    assert swept.suspended == {(("default", "pool_1"), "NotReporting")}
    assert swept.raised == {"NotReporting": 1}  # of the one in no pool
    assert [conditions(tx, node) for node in made] == [[]] * 20
    assert run_hygiene(engine).nodes == 0
    assert told(tx, "fleet.hygiene.suspended") == [
        {"condition": "NotReporting", "poolId": "pool_1", "nodes": 5, "schemaVersion": 1}
    ]
    assert tx.execute("SELECT tenant_id, pool_id, node_id FROM events WHERE type = 'fleet.hygiene.suspended'").fetchall() == [
        ("default", "pool_1", None)
    ]
    silence(tx, made[0], minutes=0)
    assert run_hygiene(engine).raised == {"NotReporting": 4}
    assert tx.execute("SELECT count(*) FROM pool_stops WHERE ended_at IS NULL").fetchone() == (0,)


def test_a_mass_in_a_pool_that_a_person_has_is_marked_as_nobodys_alert(tx: db.Connection, engine: Engine) -> None:
    silence(tx, *nodes(tx, 10, "pool_1"))
    pool_stops.begin_maintenance(tx, "pool_1", by="ada", reason="firmware")
    run_hygiene(engine)
    assert [one.get("maintenance") for one in told(tx, "fleet.hygiene.suspended")] == [True]


def test_a_mass_that_is_confirmed_is_raised(tx: db.Connection, engine: Engine) -> None:
    made = nodes(tx, 10, "pool_1")
    silence(tx, *made)
    run_hygiene(engine)
    confirm(tx, "default", "pool_1", "NotReporting", "ada")
    assert run_hygiene(engine).raised == {"NotReporting": 10}
    assert run_hygiene(engine).nodes == 0
    assert tx.execute("SELECT confirmed_by, ended_at IS NOT NULL FROM pool_stops").fetchall() == [("ada", True)]
    assert len(told(tx, "fleet.hygiene.suspended")) == 1


def test_only_what_is_suspended_is_confirmed(tx: db.Connection, engine: Engine) -> None:
    silence(tx, *nodes(tx, 10, "pool_1"))
    run_hygiene(engine)
    with pytest.raises(Invalid, match="Xid79 is no condition of hygiene: those are CertificateExpiring"):
        confirm(tx, "default", "pool_1", "Xid79", "ada")
    for tenant, pool, name in (
        ("default", "pool_1", "InventoryStale"),
        ("default", "", "NotReporting"),
        ("x", "pool_1", "NotReporting"),
    ):
        with pytest.raises(Refused, match=f"{name} is not suspended in"):
            confirm(tx, tenant, pool, name, "ada")
    confirm(tx, "default", "pool_1", "NotReporting", "ada")
    with pytest.raises(Refused):
        confirm(tx, "default", "pool_1", "NotReporting", "bob")


def test_what_stands_and_other_conditions_go_on_while_one_is_suspended(tx: db.Connection, engine: Engine) -> None:
    made = nodes(tx, 10, "pool_1")
    silence(tx, made[0])
    run_hygiene(engine)
    silence(tx, *made)
    set_to(tx, made[1], protocol_version="'9.9'")
    swept = run_hygiene(engine)
    assert swept.raised == {"ProtocolUnsupported": 1}
    assert conditions(tx, made[0]) == [("NotReporting", "true")]  # stands, and is no part of the mass
    assert conditions(tx, made[1]) == [("ProtocolUnsupported", "true")]
    assert [one["nodes"] for one in told(tx, "fleet.hygiene.suspended")] == [9]
    silence(tx, made[0], minutes=0)
    assert run_hygiene(engine).cleared == {"NotReporting": 1}


def test_nodes_without_a_pool_are_guarded_together_by_tenant(tx: db.Connection, engine: Engine) -> None:
    silence(tx, *nodes(tx, 6))
    assert run_hygiene(engine).suspended == {(("default", ""), "NotReporting")}
    assert [one["poolId"] for one in told(tx, "fleet.hygiene.suspended")] == [None]
    confirm(tx, "default", "", "NotReporting", "ada")
    assert run_hygiene(engine).nodes == 6


# ---- what is written


def test_only_changes_are_written(tx: db.Connection) -> None:
    made = nodes(tx, 40)
    silence(tx, *made[:2])
    first, again, third = Counting(tx), Counting(tx), Counting(tx)
    assert sweep(first, Options()).nodes == 2
    assert first.rows == {"nodes": 2, "conditions": 2, "events": 2}
    assert sweep(again, Options()).nodes == 0
    assert not again.rows
    silence(tx, made[0], minutes=0)
    assert sweep(third, Options()).nodes == 1
    assert third.rows == {"nodes": 1, "conditions": 1, "events": 1}


def test_a_sweep_writes_at_most_a_batch_in_one_transaction(tx: db.Connection, engine: Engine) -> None:
    nodes(tx, 7)
    ran: list[Any] = []

    def run(work: Any) -> Any:
        ran.append(work)
        return hygiene._transact(engine, work)

    assert sweep(run, Options(batch=3, min_daemon_version="0.2", protocol_max="0.3")).suspended
    confirm(tx, "default", "", "DaemonOutdated", "ada")
    ran.clear()
    assert sweep(run, Options(batch=3, min_daemon_version="0.2")).nodes == 7
    assert len(ran) == 1 + 3
    assert tx.execute("SELECT count(DISTINCT xmin::text) FROM conditions").fetchone() == (3,)


def test_a_node_that_reports_while_it_is_swept_is_judged_by_that(tx: db.Connection, engine: Engine) -> None:
    late, silent = nodes(tx, 2)
    silence(tx, late, silent)
    look = hygiene._look

    def and_then_it_reports(*arguments: Any) -> Any:
        found = look(*arguments)
        silence(tx, late, minutes=0)
        return found

    with patch.object(hygiene, "_look", and_then_it_reports):
        swept = run_hygiene(engine)
    assert swept.nodes == 1
    assert (conditions(tx, late), conditions(tx, silent)) == ([], [("NotReporting", "true")])


def test_a_node_that_cannot_be_written_holds_up_no_other(tx: db.Connection, engine: Engine) -> None:
    made = nodes(tx, 9)
    settle, bad = reasons.settle, made[4]
    silence(tx, *made[2:6])

    def settles(facts: Any, before: Any, draft: Any) -> None:
        if facts.node_id == bad:
            raise ZeroDivisionError
        settle(facts, before, draft)

    with patch.object(reasons, "settle", settles):
        swept = run_hygiene(engine)
    assert (swept.nodes, swept.failed) == (3, [bad])
    assert run_hygiene(engine).nodes == 1


def test_a_lease_that_is_lost_ends_the_sweep(tx: db.Connection, engine: Engine) -> None:
    silence(tx, *nodes(tx, 2))
    calls: list[Any] = []

    def run(work: Any) -> Any:
        calls.append(work)
        if len(calls) > 1:
            raise LeaseLost("another receiver has the lease")
        return hygiene._transact(engine, work)

    with pytest.raises(LeaseLost):
        sweep(run, Options(batch=1))
    assert len(calls) == 2
    assert tx.execute("SELECT count(*) FROM conditions").fetchone() == (0,)


def test_two_sweeps_at_once_tell_everything_once(tx: db.Connection, engine: Engine) -> None:
    """They are not to be (a lease sees to it); were they, the node's lock would."""
    silence(tx, *nodes(tx, 4))
    look = hygiene._look

    def and_another_sweeps(*arguments: Any) -> Any:
        found = look(*arguments)
        with patch.object(hygiene, "_look", look):
            assert run_hygiene(engine).nodes == 4
        return found

    with patch.object(hygiene, "_look", and_another_sweeps):
        assert run_hygiene(engine).nodes == 0
    assert len(told(tx, "node.condition.changed")) == 4


def test_a_session_from_before_the_end_of_a_lease_is_missed_but_not_believed(tx: db.Connection, engine: Engine) -> None:
    (node,) = nodes(tx, 1)
    set_to(tx, node, trust_epoch="1", protocol_version="'9.9'")
    assert run_hygiene(engine).nodes == 0
    silence(tx, node)
    assert run_hygiene(engine).raised == {"NotReporting": 1}


def test_a_node_of_another_tenant_is_told_to_that_tenant(tx: db.Connection, engine: Engine) -> None:
    join(tx, OTHER, "acme")
    silence(tx, OTHER)
    assert run_hygiene(engine).nodes == 1
    assert tx.execute("SELECT tenant_id FROM events WHERE type = 'node.condition.changed'").fetchall() == [("acme",)]
    assert tx.execute("SELECT tenant_id FROM conditions").fetchall() == [("acme",)]


def test_a_missing_gpu_stays_the_reason_that_it_is_by_the_nodes_links(tx: db.Connection, engine: Engine) -> None:
    """What a sweep does not load must not be concluded from."""
    linked, alone = nodes(tx, 2)
    for node in (linked, alone):
        device = "INSERT INTO devices (id, node_id, tenant_id, attributes) VALUES (%s, %s, 'default', %s)"
        tx.execute(device, [f"GPU-{node}", node, jsonb({"nvlinkPeers": ["GPU-x"] if node == linked else []})])
        row = """INSERT INTO conditions (node_id, tenant_id, type, device_id, status, no_schedule)
          VALUES (%s, 'default', %s, '', 'true', %s)"""
        tx.execute(row, [node, "GpuMissing", node == linked])
    tx.execute('UPDATE nodes SET no_schedule_reasons = \'[{"owner": "health", "type": "GpuMissing"}]\' WHERE id = %s', [linked])
    silence(tx, linked, alone)
    assert run_hygiene(engine).nodes == 2
    assert reasons_of(tx, linked) == ["health:GpuMissing", "health:NotReporting"]
    assert reasons_of(tx, alone) == ["health:NotReporting"]


def test_what_is_suspended_in_a_pool_is_told_to_the_pools_tenant(tx: db.Connection, engine: Engine) -> None:
    silence(tx, *nodes(tx, 5, "pool_1"))
    tx.execute("UPDATE pools SET tenant_id = 'platform'")
    assert run_hygiene(engine).suspended == {(("platform", "pool_1"), "NotReporting")}
    assert tx.execute("SELECT tenant_id FROM events WHERE type LIKE 'fleet.%'").fetchall() == [("platform",)]
    confirm(tx, "platform", "pool_1", "NotReporting", "ada")
    assert run_hygiene(engine).nodes == 5


def test_nodes_in_maintenance_make_no_mass_and_are_held_by_none(tx: db.Connection, engine: Engine) -> None:
    made = nodes(tx, 20, "pool_1")
    tx.execute("UPDATE nodes SET status = 'maintenance' WHERE id = ANY(%s)", [made[:10]])
    silence(tx, *made[:12])
    swept = run_hygiene(engine)
    assert (swept.raised, swept.suspended) == ({"NotReporting": 12}, frozenset())
    silence(tx, *made[:12], minutes=0)
    run_hygiene(engine)
    silence(tx, *made[:13])  # three of the ten that are in service, which is no mass
    assert run_hygiene(engine).raised == {"NotReporting": 13}
    silence(tx, *made[:13], minutes=0)
    run_hygiene(engine)
    silence(tx, *made[:15])  # five of ten are one
    assert run_hygiene(engine).raised == {"NotReporting": 10}
    assert [one["nodes"] for one in told(tx, "fleet.hygiene.suspended")] == [5]
