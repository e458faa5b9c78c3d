"""Whose a GPU is, and what goes with it (SPEC B2, "Ownership"): devices.transfer, swaps and moves."""

from dataclasses import replace

import pytest

from receiver.apply import replan
from receiver.apply.act import act
from receiver.apply.devices import transfer_device
from receiver.apply.health import record_xid
from receiver.apply.inventory import apply_inventory
from receiver.apply.session import hello
from receiver.apply.status import record_status
from receiver.errors import Invalid, NotFound, Refused
from receiver.planning.view import Health
from receiver.store.database import Connection
from receiver.values import Fault, Status
from tests.receiver.builders import FACTS, NODE, OTHER, apply, gpu, gpus, host, join, offer
from tests.receiver.planning.scenes import instance, mig_gpu

GPU = "GPU-00000000"


@pytest.fixture
def disputed(tx: Connection) -> Connection:
    """Two nodes that report the same GPU: the first has it."""
    for node in (NODE, OTHER):
        join(tx, node)
        apply(tx, host(1), node)
    tx.commit()
    return tx


def owner(tx: Connection) -> str | None:
    row = tx.execute("SELECT node_id FROM devices WHERE id = %s", [GPU]).fetchone()
    return row[0] if row else None


def disputes(tx: Connection) -> list[tuple[str, str]]:
    return tx.execute(
        """SELECT node_id, evidence ->> 'otherNode' FROM conditions
           WHERE type = 'DuplicateIdentity' AND status = 'true' AND reason = 'DeviceOwned' ORDER BY node_id"""
    ).fetchall()


def test_a_transfer_gives_the_device_to_the_other_node(disputed: Connection) -> None:
    assert disputes(disputed) == [(OTHER, NODE)]
    assert transfer_device(disputed, GPU, OTHER, by="ada", reason="the old host is dead") == NODE
    assert owner(disputed) == OTHER
    assert disputed.execute("SELECT node_id, device_id FROM atoms").fetchall() == [(OTHER, GPU)]


def test_the_node_that_goes_on_reporting_it_has_the_dispute_from_then_on(disputed: Connection) -> None:
    transfer_device(disputed, GPU, OTHER)
    assert disputes(disputed) == [(NODE, OTHER)]
    apply(disputed, host(0))
    assert disputes(disputed) == []


def test_faults_and_history_follow_the_device(disputed: Connection) -> None:
    act(disputed, NODE, lambda facts, draft: draft.put("health", Health(GPU, "xid", "Xid48", "boot-1", 1)))
    transfer_device(disputed, GPU, OTHER, by="ada", reason="the old host is dead")
    assert disputed.execute("SELECT node_id FROM device_health").fetchall() == [(OTHER,)]
    assert disputed.execute("SELECT healthy FROM devices").fetchall() == [(False,)]
    lines = disputed.execute(
        "SELECT node_id, event, detail FROM device_history WHERE device_id = %s ORDER BY seq", [GPU]
    ).fetchall()
    assert [line[:2] for line in lines if line[1] not in ("quarantined", "cleared")] == [
        (NODE, "added"),
        (NODE, "transferred"),
        (NODE, "released"),
        (OTHER, "added"),
    ]
    told = next(line[2] for line in lines if line[1] == "transferred")
    assert told == {"from": NODE, "to": OTHER, "by": "ada", "reason": "the old host is dead"}


def test_a_booked_device_is_not_transferred(disputed: Connection) -> None:
    disputed.execute(
        """INSERT INTO bookings (booking_id, tenant_id, node_id, device_id, atom_id, atom_generation)
           VALUES ('b1', 'default', %s, %s, %s, 1)""",
        [NODE, GPU, GPU],
    )
    disputed.commit()
    with pytest.raises(Refused, match="b1"):
        transfer_device(disputed, GPU, OTHER)
    disputed.rollback()
    assert owner(disputed) == NODE


def test_a_node_that_does_not_report_the_device_does_not_get_it(disputed: Connection) -> None:
    apply(disputed, host(0), OTHER)
    disputed.commit()
    with pytest.raises(Refused, match=f"{OTHER} does not report"):
        transfer_device(disputed, GPU, OTHER)
    disputed.rollback()
    assert owner(disputed) == NODE


@pytest.mark.parametrize(("column", "value"), [("status", "retired"), ("trust", "tenant-controlled")])
def test_a_node_that_could_not_keep_the_device_does_not_get_it(disputed: Connection, column: str, value: str) -> None:
    disputed.execute(f"UPDATE nodes SET {column} = %s WHERE id = %s", [value, OTHER])
    with pytest.raises(Refused, match=value):
        transfer_device(disputed, GPU, OTHER)


@pytest.mark.parametrize(
    ("device", "node", "error"), [("GPU-none", OTHER, NotFound), (GPU, "node_none", NotFound), (GPU, NODE, Invalid)]
)
def test_what_is_not_there_is_named(disputed: Connection, device: str, node: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=device if device != GPU else node):
        transfer_device(disputed, device, node)


def test_what_a_transfer_settled_is_not_planned_otherwise_again(disputed: Connection) -> None:
    transfer_device(disputed, GPU, OTHER)
    while replan.drain(disputed):
        pass
    assert owner(disputed) == OTHER
    assert disputes(disputed) == [(NODE, OTHER)]


def reboot(tx: Connection, boot: str = "boot-2") -> None:
    """The first node begins a session of another boot."""
    hello(tx, NODE, replace(FACTS, boot_id=boot))


def raised(tx: Connection) -> list[tuple[str, str]]:
    """Conditions of XIDs that are true, by node."""
    return tx.execute("SELECT node_id, type FROM conditions WHERE type = 'Xid79' AND status = 'true'").fetchall()


def test_a_swapped_gpu_takes_its_faults_along_and_its_node_is_free_of_them(tx: Connection) -> None:
    join(tx)
    apply(tx, host(2))
    record_xid(tx, NODE, Fault("xid", 79, GPU, gpu(0).bus_id, 1, "79, GPU has fallen off the bus."))
    assert raised(tx) == [(NODE, "Xid79")]
    apply(tx, host(gpus=gpus(gpu(1))))
    assert raised(tx) == [(NODE, "Xid79")], "it fell off in this boot: the node is not sound"
    reboot(tx)
    assert raised(tx) == [(NODE, "Xid79")], "nothing of this boot is known yet"
    swapped = host(gpus=gpus(gpu(1), gpu(7, bus_id=gpu(0).bus_id)))
    apply_inventory(tx, NODE, replace(offer(swapped), boot_id="boot-2"), swapped)
    assert raised(tx) == []
    assert tx.execute("SELECT placeable FROM nodes").fetchall() == [(True,)]
    assert tx.execute("SELECT device_id FROM device_health WHERE closed_at IS NULL").fetchall() == [(GPU,)]


def test_a_gpu_that_comes_back_brings_its_faults_to_where_it_is(tx: Connection) -> None:
    for node in (NODE, OTHER):
        join(tx, node)
    apply(tx, host(2))
    record_xid(tx, NODE, Fault("xid", 79, GPU, gpu(0).bus_id, 1, "79, GPU has fallen off the bus."))
    reboot(tx)
    without = host(gpus=gpus(gpu(1)))
    apply_inventory(tx, NODE, replace(offer(without), boot_id="boot-2"), without)
    assert raised(tx) == []
    apply(tx, host(gpus=gpus(gpu(0))), OTHER)
    assert raised(tx) == [(OTHER, "Xid79")]
    assert tx.execute("SELECT node_id, healthy FROM devices WHERE id = %s", [GPU]).fetchall() == [(OTHER, False)]


def test_a_node_that_names_an_instance_of_another_node_takes_nothing_and_is_applied(tx: Connection) -> None:
    for node in (NODE, OTHER):
        join(tx, node)
    apply(tx, host(gpus=gpus(mig_gpu(0, instance("a")))))
    apply(tx, host(gpus=gpus(mig_gpu(1, instance("a"), instance("b")))), OTHER)
    assert tx.execute("SELECT id, node_id FROM atoms ORDER BY id").fetchall() == [("MIG-a", NODE), ("MIG-b", OTHER)]
    apply(tx, host(gpus=gpus(mig_gpu(0, instance("a")), driver="570.1")))
    assert tx.execute("SELECT generation FROM atoms WHERE id = 'MIG-a'").fetchall() == [(1,)]


def test_a_report_of_another_boot_with_the_same_inventory_bears_mig_atoms_anew(tx: Connection) -> None:
    join(tx)
    bodies = host(gpus=gpus(mig_gpu(0, instance("a")), gpu(1)))
    apply(tx, bodies)
    epoch = hello(tx, NODE, replace(FACTS, boot_id="boot-2")).epoch
    digest = offer(bodies).digest
    for _ in range(2):
        record_status(tx, NODE, epoch, Status(digest))
        assert tx.execute("SELECT id, generation FROM atoms ORDER BY id").fetchall() == [("GPU-00000001", 1), ("MIG-a", 2)]
    assert tx.execute("SELECT id FROM bookable_atoms ORDER BY id").fetchall() == [("GPU-00000001",), ("MIG-a",)]
    record_status(tx, NODE, epoch, Status("another"))
    assert tx.execute("SELECT generation FROM atoms WHERE id = 'MIG-a'").fetchall() == [(2,)]
