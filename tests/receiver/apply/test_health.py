"""Device health in the database: XIDs, findings, clears, and what follows a GPU from node to node (SPEC B4)."""

import json
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.apply import replan
from receiver.apply.command import queue, record_result
from receiver.apply.health import ClearOutcome, clear_device_health, record_xid
from receiver.apply.session import hello
from receiver.apply.status import record_status
from receiver.errors import Invalid, NotFound, Refused
from receiver.store.database import Connection
from receiver.values import CommandResult, Fault, Status
from tests.receiver.builders import FACTS, NODE, OTHER, apply, count, gpu, gpus, host, join, told

GPU, SECOND = gpu(0).uuid, gpu(1).uuid
SWITCH = "00000000:05:00.0"
ECC = Fault("xid", 48, GPU, gpu(0).bus_id, 1, "48, pid=7, name=python, DBE (double bit error) ECC Error")
OFF = Fault("xid", 79, GPU, gpu(0).bus_id, 1, "79, pid=7, name=python, GPU has fallen off the bus.")
SXID = Fault("sxid", 11004, "", SWITCH, 1, "11004, Fatal, Link 44")
ILL = host(gpus=gpus(gpu(0, row_remap=pb.RowRemap(pending=True)), gpu(1)))


@pytest.fixture
def node(tx: Connection) -> int:
    """A node with two GPUs; its epoch."""
    epoch = join(tx)
    apply(tx, host())
    return epoch


def bookable(tx: Connection) -> list[str]:
    return [row[0] for row in tx.execute("SELECT id FROM atoms WHERE bookable ORDER BY id")]


def reasons(tx: Connection, node_id: str = NODE) -> list[str]:
    rows = tx.execute(
        "SELECT r ->> 'type' FROM nodes, jsonb_array_elements(no_schedule_reasons) AS r WHERE id = %s ORDER BY 1", [node_id]
    )
    return [row[0] for row in rows]


def opened(tx: Connection) -> list[Any]:
    return tx.execute("SELECT device_id, source, code FROM device_health WHERE closed_at IS NULL ORDER BY 1, 2, 3").fetchall()


def report(tx: Connection, epoch: int, *faults: Fault, node_id: str = NODE) -> None:
    assert record_status(tx, node_id, epoch, Status("d" * 64, faults=faults))


def test_a_device_fault_takes_one_gpu_and_its_booking_stays(tx: Connection, node: int) -> None:
    columns = "booking_id, tenant_id, node_id, device_id, atom_id, atom_generation"
    tx.execute(f"INSERT INTO bookings ({columns}) VALUES ('b', 't', %s, %s, %s, 1)", [NODE, GPU, GPU])
    before = tx.execute("SELECT * FROM bookings").fetchall()
    record_xid(tx, NODE, ECC)
    assert (bookable(tx), reasons(tx)) == ([SECOND], [])
    assert tx.execute("SELECT * FROM bookings").fetchall() == before
    assert tx.execute("SELECT healthy FROM devices ORDER BY id").fetchall() == [(False,), (True,)]


def test_a_node_fault_is_no_schedule_in_the_same_transaction(database: str) -> None:
    with psycopg.connect(database) as writer, psycopg.connect(database, autocommit=True) as reader:
        join(writer)
        apply(writer, host())
        writer.commit()
        record_xid(writer, NODE, OFF)
        assert (reasons(reader), bookable(reader)) == ([], [GPU, SECOND])
        writer.commit()
        assert (reasons(reader), bookable(reader)) == (["Xid79"], [SECOND])


def test_xid79_on_two_gpus_and_one_cleared_is_still_no_schedule(tx: Connection, node: int) -> None:
    report(tx, node, OFF, replace(OFF, device_id=SECOND, bus_id=gpu(1).bus_id))
    assert clear_device_health(tx, GPU, "looked at").closed == ("Xid79",)
    assert reasons(tx) == ["Xid79"]
    clear_device_health(tx, SECOND, "looked at")
    assert (reasons(tx), bookable(tx)) == ([], [GPU, SECOND])


def test_a_clear_stays_through_ten_unchanged_reports_and_one_more_opens_it_again(tx: Connection, node: int) -> None:
    report(tx, node, replace(OFF, count=3))
    clear_device_health(tx, GPU, "looked at", by="ada")
    for _ in range(10):
        report(tx, node, replace(OFF, count=3))
    assert (opened(tx), reasons(tx)) == ([], [])
    assert tx.execute("SELECT closed_reason, cleared_count FROM device_health").fetchone() == ("cleared by ada: looked at", 3)
    report(tx, node, replace(OFF, count=4))
    assert (opened(tx), reasons(tx)) == ([(GPU, "xid", "Xid79")], ["Xid79"])


def test_quarantined_and_cleared_are_told_and_kept_and_noticed_at_commit(database: str) -> None:
    with psycopg.connect(database) as tx, psycopg.connect(database, autocommit=True) as listener:
        listener.execute("LISTEN bc_reservations")
        join(tx)
        apply(tx, host())
        record_xid(tx, NODE, ECC)
        assert list(listener.notifies(timeout=0.1)) == [], "not before the commit"
        tx.commit()
        heard = [json.loads(one.payload) for one in listener.notifies(timeout=5, stop_after=1)]
        assert heard == [{"reason": "AtomUnhealthy", "deviceId": GPU, "nodeId": NODE}]
        clear_device_health(tx, GPU, "looked at", by="ada")
        tx.commit()
        assert told(tx, "node.gpu") == ["node.gpu.quarantined", "node.gpu.cleared"]
        rows = tx.execute("SELECT payload FROM events WHERE starts_with(type, 'node.gpu') ORDER BY seq").fetchall()
        assert [(row[0]["gpuProduct"], row[0]["serial"], row[0]["code"]) for row in rows] == [
            ("H100-SXM5-80GB", "165000", "Xid48")
        ] * 2
        lines = tx.execute(
            "SELECT event, serial, detail ->> 'code' FROM device_history WHERE device_id = %s AND event <> 'added'", [GPU]
        )
        assert lines.fetchall() == [("quarantined", "165000", "Xid48"), ("cleared", "165000", "Xid48")]


def test_a_finding_follows_each_applied_inventory(tx: Connection, node: int) -> None:
    apply(tx, ILL)
    assert (opened(tx), bookable(tx)) == ([(GPU, "inventory", "RowRemapPending")], [SECOND])
    apply(tx, host())
    assert (opened(tx), bookable(tx)) == ([], [GPU, SECOND])


def test_a_finding_is_refused_by_name_unless_forced_until_its_values_change(tx: Connection, node: int) -> None:
    apply(tx, ILL)
    with pytest.raises(Refused, match="RowRemapPending"):
        clear_device_health(tx, GPU, "looked at")
    forced = clear_device_health(tx, GPU, "known", force=True)
    assert forced == ClearOutcome(GPU, NODE, ("RowRemapPending",), (), True)
    apply(tx, {**ILL, "os": host()["cpu"]})  # another inventory that shows the same
    assert (opened(tx), bookable(tx)) == ([], [GPU, SECOND])
    apply(tx, host())
    apply(tx, ILL)
    assert opened(tx) == [(GPU, "inventory", "RowRemapPending")]


def test_both_sources_on_one_device(tx: Connection, node: int) -> None:
    apply(tx, ILL)
    report(tx, node, ECC)
    outcome = clear_device_health(tx, GPU, "looked at")
    assert (outcome.closed, outcome.stands, outcome.healthy) == (("Xid48",), ("RowRemapPending",), False)
    assert bookable(tx) == [SECOND]


def test_a_device_planned_later_is_born_unhealthy(tx: Connection) -> None:
    epoch = join(tx)
    report(tx, epoch, ECC)
    assert (count(tx, "devices"), opened(tx)) == (0, [(GPU, "xid", "Xid48")])
    apply(tx, host())
    assert bookable(tx) == [SECOND]


def test_another_nodes_gpu_is_an_event_and_nothing_else(tx: Connection, node: int) -> None:
    epoch = join(tx, OTHER)
    report(tx, epoch, OFF, node_id=OTHER)
    record_xid(tx, OTHER, replace(OFF, count=2))
    assert (
        tx.execute("SELECT payload ->> 'foreign', node_id FROM events WHERE type = 'node.xid'").fetchall()
        == [("true", OTHER)] * 2
    )
    assert (count(tx, "device_health"), count(tx, "conditions"), reasons(tx), reasons(tx, OTHER)) == (0, 0, [], [])


def test_faults_follow_a_gpu_that_moves_and_the_node_that_had_it_is_free(tx: Connection, node: int) -> None:
    report(tx, node, OFF, replace(OFF, device_id=SECOND, bus_id=gpu(1).bus_id))
    clear_device_health(tx, SECOND, "looked at")
    apply(tx, host(gpus=gpus(gpu(2))))
    assert reasons(tx) == ["Xid79"], "a fault of a GPU that is gone is not over"
    join(tx, OTHER)
    apply(tx, host(), OTHER)
    assert [row[0] for row in tx.execute("SELECT id FROM devices WHERE NOT healthy")] == [GPU]
    assert reasons(tx, OTHER) == ["Xid79"]
    assert replan.drain(tx) >= 1
    assert reasons(tx) == []
    report(tx, node, OFF, replace(OFF, device_id=SECOND, bus_id=gpu(1).bus_id))  # as in every report of this boot
    assert (reasons(tx), opened(tx)) == ([], [(GPU, "xid", "Xid79")])
    assert clear_device_health(tx, GPU, "repaired").node_id == OTHER
    assert (opened(tx), reasons(tx, OTHER)) == ([], [])


def test_another_boot_closes_nothing(tx: Connection, node: int) -> None:
    report(tx, node, OFF)
    epoch = hello(tx, NODE, replace(FACTS, boot_id="boot-2")).epoch
    report(tx, epoch)
    assert (opened(tx), reasons(tx)) == ([(GPU, "xid", "Xid79")], ["Xid79"])


def test_an_edit_of_the_pool_is_judged_by_the_same_rule(tx: Connection, node: int) -> None:
    tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES ('pool_1', 'default', 'a')")
    tx.execute("UPDATE nodes SET pool_id = 'pool_1'")
    report(tx, node, OFF)
    tx.execute("""UPDATE pools SET policy = '{"xid": {"79": {"policy": null}}}', revision = 2""")
    replan.queue_pool(tx, "pool_1", "its policy")
    replan.drain(tx)
    assert (reasons(tx), opened(tx), bookable(tx)) == ([], [], [GPU, SECOND])
    tx.execute("UPDATE pools SET policy = '{}', revision = 3")
    replan.queue_pool(tx, "pool_1", "its policy")
    replan.drain(tx)
    assert (reasons(tx), opened(tx)) == (["Xid79"], [(GPU, "xid", "Xid79")])


def test_a_switch_is_cleared_by_its_bus_id_on_its_node(tx: Connection, node: int) -> None:
    report(tx, node, SXID)
    assert (reasons(tx), count(tx, "device_health")) == (["SXid11004"], 0)
    with pytest.raises(Invalid, match="nodeId"):
        clear_device_health(tx, SWITCH, "looked at")
    outcome = clear_device_health(tx, SWITCH, "looked at", node_id=NODE)
    assert (outcome, reasons(tx)) == (ClearOutcome(SWITCH, NODE, ("SXid11004",), (), True), [])
    report(tx, node, SXID)
    assert reasons(tx) == []
    report(tx, node, replace(SXID, count=2))
    assert reasons(tx) == ["SXid11004"]


@pytest.mark.parametrize("where", [("GPU-nobodys", None), (GPU, OTHER), ("00000000:99:00.0", NODE), ("MIG-1", None)])
def test_a_device_that_is_not_known_is_not_found(tx: Connection, node: int, where: tuple[str, str | None]) -> None:
    join(tx, OTHER)
    device, node_id = where
    with pytest.raises(NotFound, match=device):
        clear_device_health(tx, device, "looked at", node_id=node_id)


def test_a_clear_that_closes_nothing_writes_nothing(tx: Connection, node: int) -> None:
    before = tx.execute("SELECT xmin FROM nodes UNION ALL SELECT xmin FROM device_health").fetchall()
    assert clear_device_health(tx, GPU, "looked at") == ClearOutcome(GPU, NODE, (), (), True)
    assert tx.execute("SELECT xmin FROM nodes UNION ALL SELECT xmin FROM device_health").fetchall() == before


def test_a_tenants_machine_is_not_cleared(tx: Connection, node: int) -> None:
    report(tx, node, ECC)
    tx.execute("UPDATE nodes SET trust = 'tenant-controlled'")
    with pytest.raises(Refused, match="tenant-controlled"):
        clear_device_health(tx, GPU, "looked at")


@pytest.mark.parametrize("payload", [{"group": [GPU, "GPU-nobodys"]}, {"group": []}, None])
def test_after_a_verified_reset_the_first_xid_opens_what_was_cleared(
    tx: Connection, node: int, payload: dict[str, Any] | None
) -> None:
    report(tx, node, replace(ECC, count=3))
    clear_device_health(tx, GPU, "reset")
    command = queue(tx, NODE, "gpu.reset", {"deviceId": GPU}, "k")
    record_result(tx, NODE, CommandResult(command, "succeeded", payload=payload))
    report(tx, node)
    assert opened(tx) == []
    report(tx, node, ECC)
    assert opened(tx) == [(GPU, "xid", "Xid48")]


@pytest.mark.parametrize(
    ("kind", "status", "payload"),
    [("gpu.reset", "failed", {"group": [GPU]}), ("diag.nvml", "succeeded", {"group": [GPU]})],
)
def test_only_a_reset_that_succeeded_starts_the_counts_again(
    tx: Connection, node: int, kind: str, status: str, payload: dict[str, Any]
) -> None:
    report(tx, node, replace(ECC, count=3))
    clear_device_health(tx, GPU, "reset")
    command = queue(tx, NODE, kind, {"deviceId": GPU}, "k")
    assert record_result(tx, NODE, CommandResult(command, status, payload=payload))
    report(tx, node, ECC)
    assert opened(tx) == []


def test_record_xid_names_a_node_that_there_is_not(tx: Connection) -> None:
    with pytest.raises(LookupError, match="node_nowhere"):
        record_xid(tx, "node_nowhere", ECC)
