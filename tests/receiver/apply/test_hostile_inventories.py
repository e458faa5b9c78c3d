"""Inventories that no machine has: they are applied or refused by name, and planned again they write nothing."""

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import encode

from receiver.apply.act import act
from receiver.planning.offer import INSTANCES
from receiver.planning.policy import GPUS
from receiver.store.database import Connection
from tests.receiver.apply.test_again import rows
from tests.receiver.builders import NODE, apply, count, gpu, gpus, host, join
from tests.receiver.planning.scenes import instance, mig_gpu

HOSTILE = {
    "no GPUs": host(gpus=pb.GpusSection()),
    "a GPU twice": host(gpus=gpus(gpu(0), gpu(0, bus_id="00000000:99:00.0", row_remap=pb.RowRemap(pending=True)))),
    "a GPU without a name": host(gpus=gpus(gpu(0), gpu(1, uuid=None))),
    "two GPUs in one place": host(gpus=gpus(gpu(0), gpu(1, bus_id=gpu(0).bus_id))),
    "a GPU called like a slot": host(gpus=gpus(gpu(0, uuid="GPU-1::0"), gpu(1, uuid="GPU-1"))),
    "no text as names": host(gpus=gpus(gpu(0, uuid="GPU-\0", assigned=True), mig_gpu(1, pb.MigInstance(uuid="MIG-\0")))),
    "no text as values": host(
        gpus=gpus(gpu(0, name="a\0", serial="\0", architecture="\0", recovery_action="\0")),
        system=pb.SystemSection(serial="S\0", product_uuid="\0", manufacturer="\0"),
        os=pb.OsSection(distro_id="\0", kernel_release="5\0"),
    ),
    "figures without sense": host(gpus=gpus(gpu(0, index=(1 << 32) - 1, numa_node=-5, vram_bytes=(1 << 64) - 1))),
    "a MIG instance twice": host(gpus=gpus(mig_gpu(0, instance("a"), instance("a", start=1)))),
    "a MIG instance on two GPUs": host(gpus=gpus(mig_gpu(1, instance("a")), mig_gpu(0, instance("a", start=3)))),
    "a MIG placement without sense": host(gpus=gpus(mig_gpu(0, instance("a", start=(1 << 32) - 1, size=0)))),
    "200 GPUs": host(gpus=gpus(*(gpu(number, bus_id=f"{number:08x}:18:00.0") for number in range(200)))),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_inventory_planned_again_writes_nothing(tx: Connection, what: str) -> None:
    join(tx)
    assert apply(tx, HOSTILE[what]).status == "applied"
    before = rows(tx)
    act(tx, NODE, lambda facts, draft: None, inventory_too=True)
    assert rows(tx) == before


def test_what_has_no_name_is_no_device_and_no_atom(tx: Connection) -> None:
    join(tx)
    apply(tx, HOSTILE["no text as names"])
    assert tx.execute("SELECT id FROM devices").fetchall() == [(gpu(1).uuid,)]
    assert count(tx, "atoms") == 0


def test_a_mig_instance_that_is_listed_twice_is_one_atom(tx: Connection) -> None:
    join(tx)
    apply(tx, HOSTILE["a MIG instance twice"])
    assert tx.execute("SELECT id, generation, placement ->> 'start' FROM atoms").fetchall() == [("MIG-a", 1, "0")]


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (gpus(*(gpu(number) for number in range(GPUS + 1))), f"{GPUS + 1} GPUs; a node has at most {GPUS}"),
        (
            gpus(mig_gpu(0, *(instance(str(number)) for number in range(INSTANCES + 1)))),
            f"{INSTANCES + 1} MIG instances of one GPU; it has at most {INSTANCES}",
        ),
    ],
)
def test_more_than_any_machine_has_is_refused(tx: Connection, section: pb.GpusSection, reason: str) -> None:
    join(tx)
    outcome = apply(tx, {**host(), "gpus": encode(section)})
    assert (outcome.status, outcome.section, outcome.reason) == ("refused", "gpus", reason)
    assert count(tx, "inventory_snapshots") == 0
