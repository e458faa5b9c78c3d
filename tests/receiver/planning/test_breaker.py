from dataclasses import replace

import pytest

from receiver.planning import breaker
from receiver.planning.breaker import calm, limit, trips
from receiver.planning.budget import Load
from receiver.planning.view import ConditionRow, Device, Draft, Facts, Health, Node
from tests.receiver.builders import NODE
from tests.receiver.planning.scenes import pool

GPU = "GPU-00000000"
FACTS = Facts(NODE, boot_id="boot-1", pool=pool())
XID = Health(GPU, "xid", "Xid79", "boot-1", 1)
FINDING = Health(GPU, "inventory", "RowRemapPending")


def node(*rows: Health | ConditionRow, **fields: object) -> Draft:
    """A node in service with a GPU and these rows."""
    draft = Draft(node=Node(status="adopted", pool_id="pool_1", inventory_boot="boot-1"), devices={GPU: Device(GPU)})
    draft.node = replace(draft.node, **fields)  # type: ignore[arg-type]
    for row in rows:
        draft.put("health" if isinstance(row, Health) else "conditions", row)
    return draft


def settled(before: Draft, *rows: Health | ConditionRow, facts: Facts = FACTS, **fields: object) -> Draft:
    """The draft in which these rows have come to those before."""
    draft = before.copy()
    draft.node = replace(draft.node, **fields)  # type: ignore[arg-type]
    for row in rows:
        draft.put("health" if isinstance(row, Health) else "conditions", row)
    breaker.settle(facts, before, draft)
    return draft


@pytest.mark.parametrize(
    "row",
    [
        XID,
        FINDING,
        ConditionRow("SXid12028", "00000000:05:00.0"),
        ConditionRow("NvmlUnavailable"),
        ConditionRow("FabricManagerDown"),
    ],
)
def test_a_node_turns_unhealthy_by_a_fault_a_finding_or_what_does_not_answer(row: Health | ConditionRow) -> None:
    draft = settled(node(), row)
    assert draft.node.unhealthy
    assert draft.turns == [row.code if isinstance(row, Health) else row.type]


@pytest.mark.parametrize(
    "row",
    [
        ConditionRow("NotReporting"),
        ConditionRow("CpuPressure"),
        ConditionRow("AcceptanceFailed"),
        ConditionRow("GpuMissing"),
        ConditionRow("NvmlUnavailable", status="false"),
        ConditionRow("NvmlUnavailable", status="unknown"),
        ConditionRow("NvmlUnavailable", advisory=True),
        replace(XID, closed_reason="cleared"),
        replace(XID, boot_id="boot-0", device_id="GPU-gone"),  # it left with its GPU
    ],
)
def test_hygiene_pressure_acceptance_and_what_is_closed_make_no_node_unhealthy(row: Health | ConditionRow) -> None:
    draft = settled(node(), row)
    assert not draft.node.unhealthy
    assert draft.turns == []


def test_a_fault_of_a_gpu_that_is_another_nodes_turns_nothing() -> None:
    assert settled(node(), XID, facts=replace(FACTS, owners={GPU: "node_other"})).turns == []


def test_a_node_turns_once_however_many_faults_it_has() -> None:
    first = settled(node(), XID, FINDING)
    assert first.turns == ["RowRemapPending, Xid79"]
    assert settled(first, ConditionRow("NvmlUnavailable")).turns == []


def test_a_node_that_was_well_again_turns_again() -> None:
    well = settled(settled(node(), XID), replace(XID, closed_reason="repaired"))
    assert not well.node.unhealthy
    assert settled(well, replace(XID, count=2)).turns == ["Xid79"]


@pytest.mark.parametrize("status", ["adopting", "maintenance", "retired"])
def test_nodes_out_of_service_turn_nothing(status: str) -> None:
    draft = settled(node(status=status), XID)
    assert draft.node.unhealthy
    assert draft.turns == []


def test_a_node_that_comes_into_service_broken_has_not_turned() -> None:
    assert settled(node(status="adopting"), XID, status="adopted").turns == []


def test_a_node_that_somebody_disrupts_turns_nothing() -> None:
    assert settled(node(), XID, facts=replace(FACTS, disrupted=True)).turns == []


def test_pool_in_maintenance_counts_no_turns() -> None:
    assert settled(node(), XID, facts=replace(FACTS, pool=replace(pool(), maintenance=True))).turns == []


def test_a_node_in_no_pool_has_no_breaker() -> None:
    assert settled(node(pool_id=None), XID, facts=replace(FACTS, pool=None)).turns == []


@pytest.mark.parametrize(
    ("min_nodes", "in_service", "most"),
    [
        (2, 100, 10),  # more than 10 %
        (2, 109, 10),
        (2, 5, 1),  # two are too many, and one never is
        (2, 0, 1),
        (1, 5, 0),
        (20, 100, 19),
    ],
)
def test_it_trips_above_a_tenth_and_at_no_fewer_than_min_nodes(min_nodes: int, in_service: int, most: int) -> None:
    assert limit(min_nodes, in_service) == most
    assert not trips(min_nodes, Load(in_service, turned=most))
    assert trips(min_nodes, Load(in_service, turned=most + 1))


@pytest.mark.parametrize(
    ("turned", "unhealthy", "goes_on"),
    [(10, 10, True), (11, 0, False), (0, 11, False), (0, 0, True)],
)
def test_a_paused_pool_goes_on_when_few_turned_and_few_are_unhealthy(turned: int, unhealthy: int, goes_on: bool) -> None:
    assert calm(2, Load(100, turned=turned, unhealthy=unhealthy, paused=True)) is goes_on


def test_one_unhealthy_node_keeps_no_small_pool_paused() -> None:
    assert calm(2, Load(4, turned=1, unhealthy=1))
    assert not calm(2, Load(4, turned=1, unhealthy=2))
