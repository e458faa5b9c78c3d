"""Conditions over a database: what inventories, reports, moves and edits of pools raise and end (SPEC B3)."""

from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.apply import pools, replan
from receiver.apply.nodes import move
from receiver.apply.session import hello
from receiver.apply.status import record_status
from receiver.apply.trust import end_advisory_inventory, set_trust
from receiver.store.database import Connection
from receiver.values import Condition, Status
from tests.receiver.builders import FACTS, NODE, apply, gpu, gpus, host, join

STATUS = Status("d" * 64)
MPS_DOWN = Condition("MPSDown", "true", "NoAnswer")
STRANGE = gpu(1, name="NVIDIA B999")
PEERS = [pb.NvLink(link=number, active=True, peer_type="switch") for number in range(18)]


@pytest.fixture
def node(tx: Connection) -> Connection:
    """A database with a node of two GPUs that have NVLink peers, in service, in no pool."""
    join(tx)
    apply(tx, host(gpus=both()))
    replan.drain(tx)
    assert (status(tx), reasons(tx), true(tx)) == ("adopted", [], [])
    return tx


def both() -> pb.GpusSection:
    return gpus(gpu(0, nvlinks=PEERS), gpu(1, nvlinks=PEERS))


def status(tx: Connection) -> str:
    return str(one(tx, "SELECT status FROM nodes"))


def reasons(tx: Connection, column: str = "no_schedule_reasons") -> list[str]:
    return [entry["type"] for entry in one(tx, f"SELECT {column} FROM nodes")]


def true(tx: Connection) -> list[tuple[str, str]]:
    return tx.execute("SELECT type, device_id FROM conditions WHERE status = 'true' ORDER BY 1, 2").fetchall()


def bookable(tx: Connection) -> int:
    return int(one(tx, "SELECT count(*) FROM bookable_atoms"))


def one(tx: Connection, query: str) -> Any:
    row = tx.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def pool(tx: Connection, **settings: Any) -> str:
    policy = settings.pop("policy", {})
    return pools.create(tx, "default", {"name": "a", **settings}, policy)


def change(tx: Connection, pool_id: str, policy: dict[str, Any], **settings: str | None) -> None:
    """Edits the pool; the queue plans its nodes again."""
    assert pools.change(tx, pool_id, settings, policy)
    assert replan.drain(tx) == 1


def report(tx: Connection, *conditions: Condition) -> None:
    assert record_status(tx, NODE, one(tx, "SELECT epoch FROM nodes"), Status("d" * 64, conditions=conditions))


def test_a_gpu_that_the_table_does_not_know_keeps_the_node_out_until_it_is_gone(node: Connection) -> None:
    apply(node, host(gpus=gpus(gpu(0, nvlinks=PEERS), STRANGE)))
    assert ("GpuModelUnknown", STRANGE.uuid) in true(node)
    assert "GpuModelUnknown" in reasons(node)
    assert bookable(node) == 0
    apply(node, host(gpus=both()))
    assert (true(node), reasons(node), bookable(node)) == ([], [], 2)


def test_a_pool_of_another_model_is_a_mismatch_as_soon_as_the_node_is_in_it(node: Connection) -> None:
    into = pool(node, gpu_model="H200")
    move(node, NODE, into)
    assert true(node) == [("GpuModelMismatch", gpu(0).uuid), ("GpuModelMismatch", gpu(1).uuid)]
    assert (reasons(node), bookable(node)) == (["GpuModelMismatch"], 0)
    change(node, into, {}, gpu_model="H100")
    assert (true(node), reasons(node)) == ([], [])


def test_a_lost_gpu_keeps_the_whole_node_out_until_it_is_back(node: Connection) -> None:
    apply(node, host(gpus=gpus(gpu(0, nvlinks=PEERS), gpu(1, state="lost"), on_pci=2)))
    assert ("GpuLost", gpu(1).uuid) in true(node)
    assert (reasons(node), bookable(node)) == (["GpuLost"], 0)
    apply(node, host(gpus=both()))
    assert (true(node), reasons(node), bookable(node)) == ([], [], 2)


def test_a_gpu_that_is_missing_keeps_a_node_with_nvlink_out_or_by_policy_does_not(node: Connection) -> None:
    apply(node, host(gpus=gpus(gpu(0, nvlinks=PEERS))))
    assert (true(node), reasons(node), bookable(node)) == ([("GpuMissing", "")], ["GpuMissing"], 0)
    assert gpu(1).uuid in one(node, "SELECT message FROM conditions WHERE type = 'GpuMissing'")
    move(node, NODE, pool(node, policy={"onGpuMissing": "no"}))
    assert (true(node), reasons(node), bookable(node)) == ([("GpuMissing", "")], [], 1)


def test_a_section_that_is_missing_or_errored_raises_and_ends_nothing(node: Connection) -> None:
    apply(node, host(gpus=gpus(gpu(0, nvlinks=PEERS))))
    before = true(node)
    apply(node, host(gpus=None), gpus="Hang")
    apply(node, host(gpus=gpus(error="DriverNotLoaded")))
    assert true(node) == before == [("GpuMissing", "")]


def test_links_that_went_down_are_shown_and_keep_the_node_out_by_policy(node: Connection) -> None:
    into = pool(node)
    move(node, NODE, into)
    down = [pb.NvLink(link=0, active=False), *PEERS[1:]]
    apply(node, host(gpus=gpus(gpu(0, nvlinks=down), gpu(1, nvlinks=PEERS))))
    assert (true(node), reasons(node), bookable(node)) == ([("NvLinkDegraded", gpu(0).uuid)], [], 2)
    change(node, into, {"links": "node"})
    assert (reasons(node), bookable(node)) == (["NvLinkDegraded"], 0)


def test_the_number_of_gpus_that_the_pool_expects_is_judged_when_it_changes(node: Connection) -> None:
    into = pool(node)
    move(node, NODE, into)
    change(node, into, {"expect": {"gpuCount": 8}})
    assert true(node) == [("GpuCountMismatch", ""), ("GpuMissing", "")]
    change(node, into, {"expect": {"gpuCount": 1}})
    assert (true(node), reasons(node)) == ([("GpuCountMismatch", "")], [])
    change(node, into, {"expect": None})
    assert true(node) == []


def test_a_condition_that_stands_is_a_reason_by_the_pool_that_the_node_is_in(node: Connection) -> None:
    report(node, MPS_DOWN)
    assert reasons(node) == []
    shared = pool(node, sharing="mps")
    move(node, NODE, shared)
    assert (reasons(node), bookable(node)) == (["MPSDown"], 0)
    change(node, shared, {}, mode="observe")
    assert (reasons(node), reasons(node, "would_no_schedule")) == ([], ["MPSDown"])
    assert bookable(node) > 0
    change(node, shared, {}, mode="enforce")
    assert (reasons(node), reasons(node, "would_no_schedule")) == (["MPSDown"], [])
    move(node, NODE, None)
    assert reasons(node) == []
    told = node.execute(
        """SELECT payload -> 'noSchedule', payload -> 'wouldNoSchedule' FROM events
           WHERE type = 'node.condition.changed' AND payload ->> 'condition' = 'MPSDown' ORDER BY xid, seq"""
    )
    assert told.fetchall() == [(False, None), (True, None), (False, True), (True, None), (False, None)]


def test_since_moves_with_the_status_and_not_with_the_rule(node: Connection) -> None:
    report(node, MPS_DOWN)
    node.execute("UPDATE conditions SET since = '2026-01-01'")
    move(node, NODE, pool(node, sharing="mps"))
    assert one(node, "SELECT since < '2026-01-02' FROM conditions WHERE type = 'MPSDown'")


def test_reasons_that_stood_when_a_lease_began_stand_until_a_session_behind_it_says_otherwise(node: Connection) -> None:
    report(node, Condition("FabricManagerDown", "true", "FabricNotUp"))
    set_trust(node, NODE, "tenant-controlled", "lease_1")
    report(node)
    apply(node, host(gpus=gpus(gpu(0))))
    report(node, Condition("NvmlUnavailable", "true"))
    assert reasons(node) == ["FabricManagerDown"]
    assert node.execute("SELECT type, status, advisory FROM conditions ORDER BY type").fetchall() == [
        ("FabricManagerDown", "false", True),
        ("NvmlUnavailable", "true", True),
    ]
    end_advisory_inventory(node, NODE, "lease_1")
    report(node)
    assert reasons(node) == ["FabricManagerDown"], "a report of the session of the lease"
    hello(node, NODE, FACTS)
    move(node, NODE, pool(node))
    assert reasons(node) == ["FabricManagerDown"], "nothing is known yet"
    report(node, Condition("PodResourcesUnavailable", "true"))
    assert reasons(node) == ["PodResourcesUnavailable"]
    assert node.execute("SELECT count(*) FROM conditions WHERE advisory").fetchone() == (0,)
