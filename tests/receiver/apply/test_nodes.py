"""What operators order of a node, in the database: statuses, moves, labels (SPEC B0, B2, B9)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from receiver.apply import nodes
from receiver.apply.replan import drain
from receiver.apply.session import Revoked, hello
from receiver.apply.status import record_status
from receiver.errors import Invalid, NotFound, Refused
from receiver.store.database import Connection
from receiver.values import Condition, Driver, Fault, HelloFacts, Status
from tests.receiver.builders import NODE, OTHER, apply, count, gpu, gpus, host, join, offer, told

GPU = "GPU-00000000"


def column(tx: Connection, name: str, node: str = NODE) -> Any:
    row = tx.execute(f"SELECT {name} FROM nodes WHERE id = %s", [node]).fetchone()
    assert row is not None
    return row[0]


def pool(tx: Connection, name: str, policy: str = "{}", tenant: str = "default", **columns: str) -> str:
    sharing = columns.get("sharing", "exclusive")
    model = columns.get("gpu_model")
    tx.execute(
        "INSERT INTO pools (id, tenant_id, name, policy, sharing, gpu_model) VALUES (%s, %s, %s, %s, %s, %s)",
        [f"pool_{name}", tenant, name, policy, sharing, model],
    )
    return f"pool_{name}"


def book(tx: Connection, device: str = GPU) -> None:
    tx.execute(
        """INSERT INTO bookings (booking_id, tenant_id, node_id, device_id, atom_id, atom_generation)
           VALUES ('book-1', 'acme', %s, %s, %s, 1)""",
        [NODE, device, device],
    )


def bookable(tx: Connection) -> list[str]:
    return [row[0] for row in tx.execute("SELECT id FROM bookable_atoms ORDER BY id").fetchall()]


def in_service(tx: Connection) -> int:
    epoch = join(tx)
    apply(tx, host())
    return epoch


# -- acceptance of a node that has nothing to prove


def test_a_node_without_a_pool_is_in_service_with_its_first_inventory(tx: Connection) -> None:
    in_service(tx)
    assert column(tx, "status") == "adopted"
    assert column(tx, "baseline")["gpus"] == [GPU, "GPU-00000001"]
    assert bookable(tx) == [GPU, "GPU-00000001"]
    row = tx.execute("SELECT payload FROM events WHERE type = 'node.adopted'").fetchall()
    assert row == [({"attempt": 1, "specGeneration": 1, "schemaVersion": 1},)]


def test_a_node_of_a_pool_with_checks_stays_adopting_and_is_not_bookable(tx: Connection) -> None:
    in_service(tx)
    nodes.move(tx, NODE, pool(tx, "a", '{"acceptance": [{"kind": "diag.nvml"}]}'))
    assert column(tx, "status") == "adopted", "a move proves nothing anew"
    nodes.adopt(tx, NODE, reason="new board")
    assert (column(tx, "status"), bookable(tx)) == ("adopting", [])


def test_an_inventory_without_its_gpus_puts_no_node_in_service(tx: Connection) -> None:
    join(tx)
    apply(tx, host(gpus=None), gpus="settling")
    apply(tx, host(gpus=gpus(error="VersionMismatch", on_pci=2)))
    assert column(tx, "status") == "adopting"
    apply(tx, host())
    assert column(tx, "status") == "adopted"


def test_an_inventory_that_has_lost_its_gpus_meanwhile_puts_no_node_in_service(tx: Connection) -> None:
    in_service(tx)
    assert apply(tx, host(gpus=None), gpus="NVML hangs").status == "unchanged"
    nodes.adopt(tx, NODE, reason="again")
    assert column(tx, "status") == "adopting"
    apply(tx, host())
    assert column(tx, "status") == "adopted"


def test_after_a_reboot_a_node_is_in_service_once_a_report_confirms_the_inventory(tx: Connection) -> None:
    in_service(tx)
    nodes.maintenance(tx, NODE, reason="kernel")
    epoch = hello_in(tx, "boot-2")
    nodes.adopt(tx, NODE, reason="back")
    assert column(tx, "status") == "adopting", "it may be another machine by now"
    record_status(tx, NODE, epoch, Status(""))
    drain(tx)
    assert column(tx, "status") == "adopting"
    record_status(tx, NODE, epoch, Status(offer(host()).digest))
    drain(tx)
    assert (column(tx, "status"), column(tx, "attempt")) == ("adopted", 2)


def hello_in(tx: Connection, boot: str) -> int:
    """A session in another boot."""
    return hello(tx, NODE, HelloFacts("0.3", "0.1.0", boot, "instance-2")).epoch


def test_adopt_takes_what_is_there_now_as_what_is_to_be_there(tx: Connection) -> None:
    in_service(tx)
    apply(tx, host(1))
    missing = "SELECT status FROM conditions WHERE type = 'GpuMissing'"
    assert tx.execute(missing).fetchall() == [("true",)]
    nodes.adopt(tx, NODE, reason="one GPU was sold")
    assert column(tx, "baseline")["gpus"] == [GPU]
    drain(tx)
    assert tx.execute(missing).fetchall() == [("false",)]
    assert column(tx, "status") == "adopted"


# -- statuses


def test_a_maintenance_takes_the_node_out_of_placement_until_it_is_adopted_again(tx: Connection) -> None:
    in_service(tx)
    until = datetime.now(UTC) + timedelta(hours=2)
    nodes.maintenance(tx, NODE, until, by="eva", reason="fan 3")
    told_of = "status, maintenance_by, maintenance_reason, maintenance_until, maintenance_since IS NOT NULL"
    assert tx.execute(f"SELECT {told_of} FROM nodes").fetchall() == [("maintenance", "eva", "fan 3", until, True)]
    assert bookable(tx) == []
    nodes.adopt(tx, NODE, reason="done")
    assert (column(tx, "status"), column(tx, "maintenance_by"), len(bookable(tx))) == ("adopted", None, 2)
    statuses = tx.execute("SELECT payload ->> 'to' FROM events WHERE type = 'node.status' ORDER BY seq").fetchall()
    assert [row[0] for row in statuses] == ["adopted", "maintenance", "adopting", "adopted"]


@pytest.mark.parametrize("until", [datetime(2020, 1, 1, tzinfo=UTC), datetime(2999, 1, 1)], ids=["past", "no zone"])  # noqa: DTZ001
def test_a_maintenance_until_no_time_to_come_is_refused(tx: Connection, until: datetime) -> None:
    in_service(tx)
    with pytest.raises(Invalid, match="until"):
        nodes.maintenance(tx, NODE, until)


def test_a_retired_node_has_no_devices_and_its_history_is_kept(tx: Connection) -> None:
    in_service(tx)
    nodes.retire(tx, NODE, reason="sold")
    assert (count(tx, "devices"), count(tx, "atoms"), bookable(tx)) == (0, 0, [])
    rows = tx.execute("SELECT device_id, event FROM device_history WHERE event = 'released' ORDER BY device_id").fetchall()
    assert rows == [(GPU, "released"), ("GPU-00000001", "released")]
    assert count(tx, "inventory_snapshots") == 1
    assert column(tx, "applied_digest") is None, "what it reports when it joins again is applied, whatever it is"


def test_what_a_retired_node_reports_brings_no_device_back(tx: Connection) -> None:
    epoch = in_service(tx)
    nodes.retire(tx, NODE)
    for _ in range(2):
        apply(tx, host())
        record_status(tx, NODE, epoch, Status(offer(host()).digest))
        drain(tx)
    assert (column(tx, "status"), count(tx, "devices")) == ("retired", 0)


@pytest.mark.parametrize("orders", [(nodes.retire,), (nodes.retire, nodes.delete)], ids=["retired", "deleted"])
def test_the_hello_of_a_node_that_is_out_is_refused_and_changes_nothing(tx: Connection, orders: tuple[Any, ...]) -> None:
    in_service(tx)
    for order in orders:
        order(tx, NODE)
    before = [
        tx.execute(f"SELECT t FROM {table} t ORDER BY t").fetchall() for table in ("nodes", "sessions", "events", "node_labels")
    ]
    driver = Driver("libvirt-kvm", "10.0.0", ("vm",))
    with pytest.raises(Revoked, match=rf"{NODE} is out for good"):
        hello(tx, NODE, HelloFacts("0.3", "0.2.0", "boot-2", "instance-2", 1, (driver,)))
    after = [
        tx.execute(f"SELECT t FROM {table} t ORDER BY t").fetchall() for table in ("nodes", "sessions", "events", "node_labels")
    ]
    assert after == before


def test_what_is_open_of_a_gpu_goes_with_it_when_its_node_is_retired(tx: Connection) -> None:
    epoch = in_service(tx)
    record_status(tx, NODE, epoch, Status("", faults=(Fault("xid", 79, gpu(0).uuid, gpu(0).bus_id, 1),)))
    apply(tx, host(gpus=gpus(gpu(0))))
    open_now = "SELECT type FROM conditions WHERE status = 'true' ORDER BY type"
    assert [row[0] for row in tx.execute(open_now)] == ["GpuMissing", "Xid79"]
    nodes.retire(tx, NODE)
    assert (column(tx, "no_schedule_reasons"), tx.execute(open_now).fetchall()) == ([], [])
    join(tx, OTHER)
    apply(tx, host(gpus=gpus(gpu(0))), OTHER)
    assert column(tx, "no_schedule_reasons", OTHER) == [{"owner": "health", "type": "Xid79"}]


def test_a_retire_is_refused_while_a_booking_is_live_and_taken_when_it_has_ended(tx: Connection) -> None:
    in_service(tx)
    book(tx)
    with pytest.raises(Refused, match=f"book-1 on {GPU}"):
        nodes.retire(tx, NODE)
    assert (column(tx, "status"), count(tx, "devices")) == ("adopted", 2)
    tx.execute("UPDATE bookings SET ended_at = now()")
    nodes.retire(tx, NODE)
    assert column(tx, "status") == "retired"


def test_the_gpus_of_a_retired_node_are_another_s_without_a_new_inventory(tx: Connection) -> None:
    in_service(tx)
    join(tx, OTHER)
    apply(tx, host(), OTHER)
    duplicate = "SELECT count(*) FROM conditions WHERE type = 'DuplicateIdentity' AND status = 'true' AND node_id = %s"
    assert tx.execute(duplicate, [OTHER]).fetchone() != (0,)
    nodes.retire(tx, NODE)
    drain(tx)
    assert tx.execute("SELECT DISTINCT node_id FROM devices").fetchall() == [(OTHER,)]
    assert tx.execute(duplicate, [OTHER]).fetchone() == (0,)
    assert column(tx, "status", OTHER) == "adopted"


def test_a_deleted_node_is_a_tombstone(tx: Connection) -> None:
    epoch = in_service(tx)
    faults = (Fault("xid", 79, gpu(0).uuid, gpu(0).bus_id, 1), Fault("sxid", 20034, "", "00000000:05:00.0", 1))
    record_status(tx, NODE, epoch, Status("", conditions=(Condition("FabricManagerDown", "true"),), faults=faults))
    with pytest.raises(Refused, match="adopted"):
        nodes.delete(tx, NODE)
    nodes.retire(tx, NODE)
    nodes.delete(tx, NODE)
    assert (column(tx, "status"), column(tx, "no_schedule_reasons")) == ("deleted", [])
    assert (count(tx, "node_labels"), count(tx, "conditions")) == (0, 0)
    for order in (nodes.adopt, nodes.retire, nodes.delete, nodes.maintenance):
        with pytest.raises(Refused, match="deleted"):
            order(tx, NODE)


def test_orders_of_a_node_that_is_not_there_are_lookup_errors(tx: Connection) -> None:
    for order in (nodes.adopt, nodes.retire, nodes.delete, nodes.maintenance):
        with pytest.raises(LookupError):
            order(tx, "node_00000000000000000000000000")


# -- moves and labels


def test_a_move_plans_the_node_by_the_pool_that_it_is_in_then(tx: Connection) -> None:
    in_service(tx)
    nodes.move(tx, NODE, pool(tx, "slots", sharing="timeslice", gpu_model="A100"))
    assert count(tx, "atoms") == 8
    assert [one["type"] for one in column(tx, "no_schedule_reasons")] == ["GpuModelMismatch"]
    nodes.move(tx, NODE, None)
    assert (column(tx, "pool_id"), column(tx, "no_schedule_reasons"), bookable(tx)) == (None, [], [GPU, "GPU-00000001"])


def test_a_move_is_into_a_pool_that_is_there_and_of_the_node_s_tenant(tx: Connection) -> None:
    in_service(tx)
    with pytest.raises(NotFound, match="pool_none"):
        nodes.move(tx, NODE, "pool_none")
    with pytest.raises(Invalid, match="pool_theirs"):
        nodes.move(tx, NODE, pool(tx, "theirs", tenant="acme"))
    assert column(tx, "pool_id") is None


def test_events_behind_a_move_are_of_the_new_pool(tx: Connection) -> None:
    in_service(tx)
    nodes.move(tx, NODE, pool(tx, "a", gpu_model="A100"))
    rows = tx.execute("SELECT DISTINCT pool_id FROM events WHERE type = 'node.condition.changed'").fetchall()
    assert rows == [("pool_a",)]


def test_labels_of_an_operator_stay_with_the_next_inventory(tx: Connection) -> None:
    in_service(tx)
    nodes.label(tx, NODE, {"rack": "r1"})
    apply(tx, host(gpus=gpus(gpu(0), gpu(2))))
    assert tx.execute("SELECT value FROM node_labels WHERE source = 'operator'").fetchall() == [("r1",)]
    with pytest.raises(Refused, match=r"gpu\.count"):
        nodes.label(tx, NODE, {"gpu.count": "9"})
    nodes.label(tx, NODE, {}, ["rack"])
    assert tx.execute("SELECT FROM node_labels WHERE source = 'operator'").rowcount == 0


def test_a_label_of_the_inventory_is_refused_on_a_node_without_one(tx: Connection) -> None:
    join(tx)
    with pytest.raises(Refused, match=r"kvm\.available"):
        nodes.label(tx, NODE, {"kvm.available": "true"})
    assert told(tx) == []
