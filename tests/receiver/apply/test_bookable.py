"""What is bookable, and how placement and the receiver keep out of each other's way (SPEC B0)."""

import threading
from dataclasses import replace

import psycopg
import pytest

from receiver.apply.act import act
from receiver.apply.health import record_xid
from receiver.planning.view import Draft, Facts
from receiver.store.database import Connection
from receiver.values import Fault
from tests.receiver.builders import NODE, apply, gpu, gpus, host, join
from tests.receiver.planning.scenes import mig_gpu

GPU, NEXT = "GPU-00000000", "GPU-00000001"


@pytest.fixture
def serving(tx: Connection) -> Connection:
    """A node of two GPUs in service."""
    join(tx)
    apply(tx, host(2))
    assert bookable(tx) == [GPU, NEXT]
    return tx


def bookable(tx: Connection) -> list[str]:
    """What placement may take."""
    return [row[0] for row in tx.execute("SELECT id FROM bookable_atoms ORDER BY id").fetchall()]


def book(tx: Connection, atom: str = GPU) -> None:
    """Placement takes an atom, as it may at any time."""
    tx.execute(
        """INSERT INTO bookings (booking_id, tenant_id, node_id, device_id, atom_id, atom_generation)
           SELECT 'b-' || id, tenant_id, node_id, device_id, id, generation FROM atoms WHERE id = %s""",
        [atom],
    )


@pytest.mark.parametrize("status", ["adopting", "maintenance", "retired", "deleted"])
def test_only_of_a_node_that_is_adopted(serving: Connection, status: str) -> None:
    serving.execute("UPDATE nodes SET status = %s", [status])
    assert bookable(serving) == []


def test_only_of_a_node_with_trust_platform(serving: Connection) -> None:
    serving.execute("UPDATE nodes SET trust = 'tenant-controlled'")
    assert bookable(serving) == []


@pytest.mark.parametrize("owner", ["health", "somebody-else"])
def test_only_of_a_node_with_no_reason_against_it_whoever_has_one(serving: Connection, owner: str) -> None:
    serving.execute(
        "UPDATE nodes SET no_schedule_reasons = jsonb_build_array(jsonb_build_object('owner', %s::text, 'type', 'X'))", [owner]
    )
    assert bookable(serving) == []


def test_not_of_a_missing_device(serving: Connection) -> None:
    book(serving)
    apply(serving, host(gpus=gpus(gpu(1))))
    serving.execute("DELETE FROM bookings")
    assert bookable(serving) == [NEXT]


def test_not_of_a_device_with_a_fault_and_the_rest_of_the_node_stays(serving: Connection) -> None:
    book(serving)
    record_xid(serving, NODE, Fault("xid", 48, GPU, gpu(0).bus_id, 1, "48, DBE"))
    assert bookable(serving) == [NEXT]
    assert serving.execute("SELECT ended_at FROM bookings").fetchall() == [(None,)], "a quarantine releases nothing"


def test_not_of_a_device_that_a_vm_has(serving: Connection) -> None:
    apply(serving, host(gpus=gpus(gpu(0, assigned=True), gpu(1))))
    assert bookable(serving) == [NEXT]


def test_not_while_a_partition_is_pending(serving: Connection) -> None:
    apply(serving, host(gpus=gpus(mig_gpu(0, current=False, pending=True), gpu(1))))
    assert bookable(serving) == [NEXT]
    apply(serving, host(gpus=gpus(mig_gpu(0, current=False), gpu(1))))
    assert bookable(serving) == [GPU, NEXT]


def test_not_what_is_retiring(serving: Connection) -> None:
    book(serving)
    apply(serving, host(gpus=gpus(mig_gpu(0), gpu(1))))
    serving.execute("DELETE FROM bookings")
    assert serving.execute("SELECT retiring FROM atoms WHERE id = %s", [GPU]).fetchall() == [(True,)]
    assert bookable(serving) == [NEXT]


def test_not_what_is_booked_until_that_ends(serving: Connection) -> None:
    book(serving)
    assert bookable(serving) == [NEXT]
    serving.execute("UPDATE bookings SET ended_at = now()")
    assert bookable(serving) == [GPU, NEXT]


def test_no_booking_slips_in_between_a_fault_and_its_no_schedule(database: str) -> None:
    """Placement that holds the node's and the atom's row sees what the receiver has written, or is seen by it."""
    taken: list[bool] = []

    def place() -> None:
        with psycopg.connect(database) as placement:
            placement.execute("SELECT FROM nodes WHERE id = %s FOR NO KEY UPDATE", [NODE])
            placement.execute("SELECT FROM atoms WHERE id = %s FOR NO KEY UPDATE", [GPU])
            taken.append(GPU in bookable(placement))

    with psycopg.connect(database) as receiver:
        join(receiver)
        apply(receiver, host(2))
        receiver.commit()
        record_xid(receiver, NODE, Fault("xid", 79, GPU, gpu(0).bus_id, 1, "79, GPU has fallen off the bus."))
        thread = threading.Thread(target=place)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive(), "placement waits for the node's row"
        receiver.commit()
        thread.join(10)
    assert taken == [False]


def test_a_pool_that_only_observes_keeps_a_faulty_gpu_out_too(serving: Connection) -> None:
    serving.execute("INSERT INTO pools (id, tenant_id, name, mode) VALUES ('pool_1', 'default', 'a', 'observe')")

    def moved(facts: Facts, draft: Draft) -> None:
        draft.node = replace(draft.node, pool_id="pool_1")

    act(serving, NODE, moved, inventory_too=True)
    record_xid(serving, NODE, Fault("xid", 79, GPU, gpu(0).bus_id, 1, "79, GPU has fallen off the bus."))
    assert bookable(serving) == [NEXT]
