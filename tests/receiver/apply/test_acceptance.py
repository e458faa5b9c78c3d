"""Acceptance in the database (SPEC B7): one attempt from its commands to its end, whoever writes and whatever the time."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from receiver.apply import acceptance, command, nodes, trust
from receiver.apply.inventory import apply_inventory
from receiver.apply.replan import drain
from receiver.apply.session import end_sessions, hello
from receiver.apply.status import record_status
from receiver.store import attempts
from receiver.store.database import Connection
from receiver.values import CommandResult, Status
from tests.receiver.builders import FACTS, NODE, OTHER, apply, gpu, gpus, host, join, offer

TWO = '{"acceptance": [{"kind": "diag.nvml"}, {"kind": "diag.dcgm"}, {"kind": "diag.nvml"}]}'
ONE = '{"acceptance": [{"kind": "diag.nvml"}]}'
PASSED = {"passed": True}
LOST = {"passed": False, "checks": [{"check": "gpu.count", "result": "fail", "reason": "1 GPU, 2 expected"}]}


def pool(tx: Connection, policy: str, name: str = "a") -> str:
    tx.execute("INSERT INTO pools (id, tenant_id, name, policy) VALUES (%s, 'default', %s, %s)", [f"pool_{name}", name, policy])
    return f"pool_{name}"


def joined(tx: Connection, policy: str = ONE, node: str = NODE) -> int:
    """A node of a pool with checks, before its first inventory; its epoch."""
    epoch = join(tx, node)
    tx.execute("UPDATE nodes SET pool_id = %s WHERE id = %s", [pool(tx, policy, node[-1]), node])
    return epoch


def running(tx: Connection, policy: str = ONE, node: str = NODE) -> list[str]:
    """A node whose attempt runs; its commands, which its session was sent, those of diag.nvml first."""
    epoch = joined(tx, policy, node)
    apply(tx, host() if node == NODE else host(gpus=gpus(gpu(7))), node)
    return [one.id for one in sorted(command.due(tx, node, epoch, []), key=lambda one: one.kind, reverse=True)]


def state_of(tx: Connection, name: str = NODE) -> tuple[str, int, list[str]]:
    """Its status, attempt and reasons."""
    row = tx.execute("SELECT status, attempt, no_schedule_reasons FROM nodes WHERE id = %s", [name]).fetchone()
    assert row is not None
    return row[0], row[1], [one["type"] for one in row[2]]


def condition(tx: Connection, name: str = NODE) -> tuple[str, str] | None:
    query = "SELECT status, reason FROM conditions WHERE type = 'AcceptanceFailed' AND node_id = %s"
    return tx.execute(query, [name]).fetchone()


def attempt(tx: Connection, number: int = 1) -> tuple[str, str, dict[str, str]]:
    """Its state, its reason, and the status of each check. One that has ended has the time of it."""
    row = tx.execute(
        "SELECT state, reason, checks, ended_at IS NOT NULL FROM acceptance_attempts WHERE attempt = %s AND node_id = %s",
        [number, NODE],
    ).fetchone()
    assert row is not None
    assert row[3] == (row[0] != "running")
    return row[0], row[1], {one["kind"]: one["status"] for one in row[2]}


def told(tx: Connection, kind: str) -> list[Mapping[str, Any]]:
    return [
        row[0]
        for row in tx.execute("SELECT payload - 'schemaVersion' FROM events WHERE type = %s ORDER BY seq", [kind]).fetchall()
    ]


def ends(
    tx: Connection, command_id: str, result: Any = None, status: str = "succeeded", reason: str = "", name: str = NODE
) -> None:
    """The node says how a command ended."""
    assert command.record_result(tx, name, CommandResult(command_id, status, reason, PASSED if result is None else result))


def sweep(tx: Connection) -> None:
    acceptance.sweep(lambda work: work(tx))


def later(tx: Connection, seconds: float) -> None:
    """The fleet's clock is so many seconds ahead from now on."""
    tx.execute(
        "CREATE OR REPLACE FUNCTION bc_clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS "
        f"'SELECT now() + interval ''{seconds} seconds'''"
    )


# -- how it begins


def test_the_checks_are_ordered_in_the_transaction_that_applies_the_inventory(database: str) -> None:
    with psycopg.connect(database) as tx, psycopg.connect(database, autocommit=True) as listener:
        listener.execute(f"LISTEN {command.CHANNEL}")
        epoch = joined(tx, TWO)
        apply(tx, host())
        tx.commit()
        assert [one.payload for one in listener.notifies(timeout=5, stop_after=1)] == [NODE]
        rows = tx.execute(
            """SELECT id, kind, payload, idempotency_key, created_by, tenant_id, state,
                 extract(epoch FROM not_after - created_at)::int FROM commands ORDER BY kind DESC"""
        ).fetchall()
        ids = [row[0] for row in rows]
        assert [row[1:] for row in rows] == [
            (kind, payload, f"acceptance:{NODE}:1:{kind}", "acceptance", "default", "queued", 600)
            for kind, payload in (("diag.nvml", {"expect": {"gpuCount": 2}}), ("diag.dcgm", {}))
        ]
        assert told(tx, "node.acceptance.started") == [
            {"attempt": 1, "commandIds": ids, "checks": ["diag.nvml", "diag.dcgm"]},
        ]
        assert attempt(tx) == ("running", "", {"diag.nvml": "running", "diag.dcgm": "running"})
        assert sorted(one.id for one in command.due(tx, NODE, epoch, [])) == sorted(ids)


def test_while_it_runs_the_node_is_adopting_and_not_bookable_and_unknown_adds_no_reason(tx: Connection) -> None:
    running(tx)
    assert (state_of(tx), condition(tx)) == (("adopting", 1, []), ("unknown", "Running"))
    assert tx.execute("SELECT FROM bookable_atoms").rowcount == 0


def test_it_begins_once_whatever_is_reported_meanwhile(tx: Connection) -> None:
    epoch = joined(tx)
    for bodies in (host(), host(), host(gpus=gpus(gpu(0), gpu(1), driver="550.90.07"))):
        apply(tx, bodies)
        record_status(tx, NODE, epoch, Status(offer(bodies).digest))
        sweep(tx)
        drain(tx)
    assert tx.execute("SELECT count(*) FROM commands").fetchone() == (1,)
    assert len(told(tx, "node.acceptance.started")) == 1


def test_a_node_that_comes_with_the_applied_inventory_in_another_boot_begins_when_it_has_said_so(tx: Connection) -> None:
    epoch = joined(tx)
    end_sessions(tx, [(NODE, epoch, "lost")])
    apply(tx, host())
    assert tx.execute("SELECT FROM commands").rowcount == 0, "it is not connected"
    epoch = hello(tx, NODE, replace(FACTS, boot_id="boot-2", previous_epoch=epoch)).epoch
    drain(tx)
    assert tx.execute("SELECT FROM commands").rowcount == 0, "what is applied is of another boot"
    record_status(tx, NODE, epoch, Status(offer(host()).digest))
    drain(tx)
    assert attempt(tx)[0] == "running"


# -- how it ends


def test_all_settled_well_the_node_is_in_service_with_the_inventory_as_its_baseline(tx: Connection) -> None:
    first, second = running(tx, TWO)
    ends(tx, second)
    sweep(tx)
    assert (state_of(tx)[0], attempt(tx)) == ("adopting", ("running", "", {"diag.nvml": "running", "diag.dcgm": "running"}))
    ends(tx, first)
    sweep(tx)
    assert (state_of(tx), condition(tx)) == (("adopted", 1, []), ("false", "Passed"))
    assert attempt(tx) == ("passed", "Passed", {"diag.nvml": "succeeded", "diag.dcgm": "succeeded"})
    assert told(tx, "node.adopted") == [{"attempt": 1, "specGeneration": 1}]
    row = tx.execute("SELECT baseline -> 'gpus' FROM nodes").fetchone()
    assert row == (["GPU-00000000", "GPU-00000001"],)
    assert tx.execute("SELECT FROM bookable_atoms").rowcount == 2


@pytest.mark.parametrize(
    ("status", "why", "result", "reason"),
    [
        ("succeeded", "", LOST, "diag.nvml:gpu.count"),
        ("refused", "NotAllowed", {}, "diag.nvml:failed"),
        ("failed", "TimedOut", PASSED, "diag.nvml:failed"),
        ("expired", "", {}, "Expired"),
        ("succeeded", "", ["passed"], "diag.nvml:failed"),
    ],
)
def test_one_that_ends_otherwise_fails_it(tx: Connection, status: str, why: str, result: Any, reason: str) -> None:
    (one,) = running(tx)
    ends(tx, one, result, status, why)
    sweep(tx)
    assert (state_of(tx), condition(tx)) == (("adopting", 1, ["AcceptanceFailed"]), ("true", reason))
    assert attempt(tx)[:2] == ("failed", reason)
    assert told(tx, "node.acceptance.failed") == [{"attempt": 1, "reason": reason, "commandId": one}]
    assert told(tx, "node.adopted") == []


def test_a_result_settles_it_also_behind_the_next_report(tx: Connection) -> None:
    """However the singleton fares."""
    (one,) = running(tx)
    ends(tx, one, LOST)
    row = tx.execute("SELECT epoch FROM nodes").fetchone()
    assert row is not None
    record_status(tx, NODE, row[0], Status(offer(host()).digest))
    assert attempt(tx)[:2] == ("failed", "diag.nvml:gpu.count")


def test_who_waits_for_results_is_woken(database: str) -> None:
    with psycopg.connect(database) as tx, psycopg.connect(database, autocommit=True) as listener:
        (one,) = running(tx)
        tx.commit()
        listener.execute(f"LISTEN {acceptance.CHANNEL}")
        ends(tx, one)
        tx.commit()
        assert [row.payload for row in listener.notifies(timeout=5, stop_after=1)] == [NODE]


def test_a_result_that_comes_again_or_too_late_changes_nothing(tx: Connection) -> None:
    (one,) = running(tx)
    ends(tx, one, LOST)
    sweep(tx)
    events = tx.execute("SELECT count(*) FROM events").fetchone()
    ends(tx, one)
    sweep(tx)
    assert (attempt(tx)[0], tx.execute("SELECT count(*) FROM events").fetchone()) == ("failed", events)


def test_sticky_only_an_order_begins_another_attempt(tx: Connection) -> None:
    (one,) = running(tx)
    ends(tx, one, LOST)
    sweep(tx)
    apply(tx, host(gpus=gpus(gpu(0), gpu(1), driver="550.90.07")))
    epoch = join(tx)
    record_status(tx, NODE, epoch, Status(""))
    tx.execute("UPDATE pools SET policy = '{}'")
    sweep(tx)
    drain(tx)
    assert state_of(tx) == ("adopting", 1, ["AcceptanceFailed"])
    tx.execute("UPDATE pools SET policy = %s", [ONE])
    nodes.adopt(tx, NODE, reason="a new board")
    assert (state_of(tx), condition(tx)) == (("adopting", 2, []), ("unknown", "Running"))
    (again,) = command.due(tx, NODE, epoch, [])
    assert again.idempotency_key == f"acceptance:{NODE}:2:diag.nvml"
    ends(tx, again.id)
    sweep(tx)
    assert (state_of(tx), attempt(tx, 1)[0], attempt(tx, 2)[0]) == (("adopted", 2, []), "failed", "passed")
    assert told(tx, "node.adopted") == [{"attempt": 2, "specGeneration": 1}]


def test_on_an_adopted_node_an_order_takes_it_out_of_placement_until_the_checks_pass(tx: Connection) -> None:
    (one,) = running(tx)
    ends(tx, one)
    sweep(tx)
    nodes.adopt(tx, NODE)
    assert (state_of(tx)[0], tx.execute("SELECT FROM bookable_atoms").rowcount) == ("adopting", 0)
    row = tx.execute("SELECT id FROM commands WHERE idempotency_key = %s", [f"acceptance:{NODE}:2:diag.nvml"]).fetchone()
    assert row is not None
    ends(tx, row[0])
    sweep(tx)
    assert (state_of(tx)[0], tx.execute("SELECT FROM bookable_atoms").rowcount) == ("adopted", 2)


# -- time


def test_a_check_that_was_not_sent_by_its_time_is_late(tx: Connection) -> None:
    joined(tx)
    apply(tx, host())
    later(tx, 599)
    sweep(tx)
    assert attempt(tx)[0] == "running"
    later(tx, 600)
    sweep(tx)
    assert attempt(tx) == ("failed", "Expired", {"diag.nvml": "expired"})
    assert tx.execute("SELECT state, reason FROM commands").fetchall() == [("expired", "NotSent")]


def test_one_that_was_sent_has_its_kind_s_limit_from_its_latest_start(tx: Connection) -> None:
    first, second = running(tx, TWO)
    ends(tx, first)
    later(tx, 899)
    sweep(tx)
    assert attempt(tx)[0] == "running"
    later(tx, 900)
    sweep(tx)
    assert attempt(tx) == ("failed", "Expired", {"diag.nvml": "succeeded", "diag.dcgm": "expired"})
    assert told(tx, "node.acceptance.failed") == [{"attempt": 1, "reason": "Expired", "commandId": second}]
    assert command.due(tx, NODE, 1, []) == [], "the node is not sent again what nobody waits for"


def test_what_is_expired_or_cancelled_elsewhere_is_settled(tx: Connection) -> None:
    joined(tx)
    apply(tx, host())
    later(tx, 600)
    command.outstanding(tx, "")
    sweep(tx)
    assert attempt(tx)[:2] == ("failed", "Expired")
    nodes.adopt(tx, NODE)
    row = tx.execute("SELECT id FROM commands WHERE state = 'queued'").fetchone()
    assert row is not None
    command.cancel(tx, row[0], "not today")
    sweep(tx)
    assert attempt(tx, 2) == ("failed", "diag.nvml:failed", {"diag.nvml": "cancelled"})


def test_after_ten_minutes_without_an_inventory_with_gpus_it_fails_and_sticks(tx: Connection) -> None:
    joined(tx)
    apply(tx, host(gpus=None), gpus="settling")
    later(tx, 599)
    sweep(tx)
    assert condition(tx) is None
    later(tx, 600)
    sweep(tx)
    assert (state_of(tx), condition(tx)) == (("adopting", 1, ["AcceptanceFailed"]), ("true", "NoInventory"))
    assert told(tx, "node.acceptance.failed") == [{"attempt": 1, "reason": "NoInventory"}]
    apply(tx, host())
    sweep(tx)
    assert attempt(tx) == ("failed", "NoInventory", {})
    nodes.adopt(tx, NODE, reason="the driver is installed")
    assert attempt(tx, 2)[0] == "running"


def test_an_order_and_another_session_are_waited_for_anew(tx: Connection) -> None:
    epoch = joined(tx)
    later(tx, 600)
    sweep(tx)
    later(tx, 700)
    nodes.adopt(tx, NODE)
    later(tx, 1299)
    sweep(tx)
    assert condition(tx) == ("false", "")
    later(tx, 1290)
    hello(tx, NODE, replace(FACTS, boot_id="boot-2", previous_epoch=epoch))
    later(tx, 1889)
    sweep(tx)
    assert condition(tx) == ("false", "")
    later(tx, 1890)
    sweep(tx)
    assert condition(tx) == ("true", "NoInventory")


def test_a_node_that_is_not_connected_is_not_waited_for(tx: Connection) -> None:
    epoch = joined(tx)
    end_sessions(tx, [(NODE, epoch, "lost")])
    later(tx, 6000)
    sweep(tx)
    assert condition(tx) is None


# -- what interrupts it


def test_maintenance_cancels_it_and_the_next_order_begins_another(tx: Connection) -> None:
    (one,) = running(tx)
    nodes.maintenance(tx, NODE, by="ops", reason="a fan")
    assert (state_of(tx)[0], condition(tx), attempt(tx)[0]) == ("maintenance", ("false", ""), "cancelled")
    assert tx.execute("SELECT state FROM commands").fetchall() == [("cancelled",)]
    ends(tx, one)
    sweep(tx)
    assert state_of(tx)[:2] == ("maintenance", 1)
    nodes.adopt(tx, NODE)
    assert (attempt(tx, 2)[0], state_of(tx)[:2]) == ("running", ("adopting", 2))


def test_a_lease_cancels_it_and_after_the_lease_another_begins_by_itself(tx: Connection) -> None:
    (one,) = running(tx)
    trust.set_trust(tx, NODE, "tenant-controlled", "lease-1")
    assert attempt(tx) == ("cancelled", "the node is tenant-controlled", {"diag.nvml": "cancelled"})
    ends(tx, one)
    later(tx, 6000)
    apply(tx, host())
    sweep(tx)
    assert state_of(tx)[:2] == ("adopting", 1)
    trust.set_trust(tx, NODE, "platform")
    sweep(tx)
    epoch = join(tx)
    assert tx.execute("SELECT FROM commands").rowcount == 1
    apply(tx, host())
    assert (attempt(tx, 2)[0], [one.kind for one in command.due(tx, NODE, epoch, [])]) == ("running", ["diag.nvml"])


def test_another_node_s_gpus_cancel_it_until_that_is_resolved(tx: Connection) -> None:
    join(tx, OTHER)
    apply(tx, host(gpus=gpus(gpu(5))), OTHER)
    running(tx)
    bodies = host(gpus=gpus(gpu(0), gpu(5)))
    apply(tx, bodies)
    assert attempt(tx)[:2] == ("cancelled", "DuplicateIdentity")
    later(tx, 6000)
    sweep(tx)
    assert state_of(tx) == ("adopting", 1, ["DuplicateIdentity"])
    nodes.retire(tx, OTHER)
    drain(tx)
    assert (attempt(tx, 2)[0], state_of(tx)) == ("running", ("adopting", 2, []))


def test_a_node_that_has_booted_since_passes_with_an_inventory_of_its_boot(tx: Connection) -> None:
    (one,) = running(tx)
    epoch = hello(tx, NODE, replace(FACTS, boot_id="boot-2", previous_epoch=1)).epoch
    ends(tx, one)
    sweep(tx)
    assert (state_of(tx)[0], attempt(tx)) == ("adopting", ("running", "", {"diag.nvml": "succeeded"}))
    bodies = host()
    apply_inventory(tx, NODE, replace(offer(bodies), boot_id="boot-2"), bodies, epoch)
    assert state_of(tx)[0] == "adopted"


# -- the singleton


def test_each_node_is_settled_once_batch_after_batch(tx: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (NODE, OTHER):
        for one in running(tx, ONE, name):
            ends(tx, one, name=name)
    monkeypatch.setattr(acceptance, "BATCH", 1)
    assert attempts.due(tx, "", 9) == [NODE, OTHER]
    sweep(tx)
    assert (state_of(tx)[0], state_of(tx, OTHER)[0], attempts.due(tx, "", 9)) == ("adopted", "adopted", [])


def test_a_node_that_cannot_be_settled_holds_up_no_other(tx: Connection, caplog: pytest.LogCaptureFixture) -> None:
    for name in (NODE, OTHER):
        for one in running(tx, ONE, name):
            ends(tx, one, name=name)
    tx.execute("UPDATE pools SET policy = '7' WHERE id = (SELECT pool_id FROM nodes WHERE id = %s)", [NODE])
    with caplog.at_level(logging.ERROR):
        sweep(tx)
    assert state_of(tx, OTHER)[0] == "adopted"
    assert [getattr(one, "node", "") for one in caplog.records] == [NODE]


def test_nothing_is_due_while_checks_run(tx: Connection) -> None:
    running(tx, TWO)
    assert attempts.due(tx, "", 9) == []
