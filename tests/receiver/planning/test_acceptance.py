"""Acceptance of a node that has nothing to prove: SPEC B7, "NoChecks", and what it waits for."""

from dataclasses import replace
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.planning import acceptance
from receiver.planning.policy import Policy
from receiver.planning.view import ConditionRow, Draft, Facts, Node, Pool
from tests.receiver.builders import NODE, gpu, gpus

LINKED = gpu(0, nvlinks=[pb.NvLink(link=0, active=True), pb.NvLink(link=1, active=False)])
FACTS = Facts(
    NODE,
    boot_id="boot-1",
    online=True,
    sections={"gpus": gpus(LINKED, gpu(1)), "nics": pb.NicsSection()},
    fresh=frozenset(("gpus", "nics")),
)
CHECKED = Pool("pool_1", policy=Policy(acceptance=({"kind": "diag.nvml"}, {"kind": "diag.dcgm"}, {"kind": "diag.nvml"})))
READY = Node(inventory_boot="boot-1", attempt=3, plan_key={"digest": "d1"})


def settled(facts: Facts = FACTS, node: Node = READY, *rows: ConditionRow) -> Draft:
    draft = Draft(node=node, conditions={row.key: row for row in rows})
    acceptance.settle(facts, draft.copy(), draft)
    return draft


@pytest.mark.parametrize(
    "facts",
    [FACTS, replace(FACTS, pool=Pool("pool_1")), replace(FACTS, pool=CHECKED, kind="site-agent")],
    ids=["no pool", "an empty list", "a site agent"],
)
def test_a_node_with_nothing_to_prove_passes_at_once(facts: Facts) -> None:
    after = settled(facts)
    assert after.node.status == "adopted"
    assert [(one.type, dict(one.payload)) for one in after.events] == [
        ("node.status", {"from": "adopting", "to": "adopted", "reason": "NoChecks", "schemaVersion": 1}),
        ("node.adopted", {"attempt": 3, "specGeneration": 1, "schemaVersion": 1}),
    ]


def test_a_pool_with_checks_keeps_its_nodes_adopting_and_names_each_kind_once() -> None:
    facts = replace(FACTS, pool=CHECKED)
    assert settled(facts).node == READY
    assert acceptance.checks(facts) == ("diag.nvml", "diag.dcgm")


WAITING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "not connected": ({"online": False}, {}),
    "tenant-controlled": ({}, {"trust": "tenant-controlled"}),
    "a session from before the trust epoch": ({"advisory": True}, {}),
    "inventory of another boot": ({"boot_id": "boot-2"}, {}),
    "no inventory yet": ({"fresh": frozenset()}, {"inventory_boot": None}),
    "no report since the lease": ({}, {"plan_key": {"digest": None}}),
    "a tenant's report": ({}, {"plan_key": {"digest": "advisory:d1"}}),
    "not planned yet": ({}, {"plan_key": None}),
    "no boot id": ({"boot_id": ""}, {"inventory_boot": ""}),
    "its gpus section is missing": ({"fresh": frozenset(("nics",))}, {}),
    "in service": ({}, {"status": "adopted"}),
    "in maintenance": ({}, {"status": "maintenance"}),
    "retired": ({}, {"status": "retired"}),
}


@pytest.mark.parametrize("name", WAITING)
def test_it_waits(name: str) -> None:
    facts, node = WAITING[name]
    waiting = replace(READY, **node)
    assert settled(replace(FACTS, **facts), waiting) == Draft(node=waiting)


@pytest.mark.parametrize(
    "row",
    [
        ConditionRow("DuplicateIdentity", reason="HardwareKey"),
        ConditionRow("DuplicateIdentity", "GPU-1", reason="DeviceOwned"),
        ConditionRow("AcceptanceFailed", reason="Expired"),
        ConditionRow("AcceptanceFailed", status="unknown", reason="Running"),
    ],
)
def test_it_waits_while_a_duplicate_or_an_attempt_that_failed_or_runs(row: ConditionRow) -> None:
    assert settled(FACTS, READY, row).node.status == "adopting"
    over = replace(row, status="false")
    assert settled(FACTS, READY, over).node.status == "adopted"


def test_other_conditions_are_no_reason_to_wait() -> None:
    assert settled(FACTS, READY, ConditionRow("RebootRequired")).node.status == "adopted"


def test_the_inventory_of_a_passed_attempt_is_the_baseline_and_the_node_is_planned_by_it() -> None:
    after = settled(node=replace(READY, baseline={"gpus": ["GPU-9"], "links": {}, "ports": {}}))
    assert after.node.baseline == {"gpus": ["GPU-00000000", "GPU-00000001"], "links": {"GPU-00000000": 1}, "ports": {}}
    assert after.plan_again
    assert not settled(node=replace(READY, baseline=after.node.baseline)).plan_again
    assert not settled().plan_again, "the first one was missed by nothing"


def test_behind_a_writer_without_the_inventory_the_node_is_queued_to_be_planned_with_it() -> None:
    after = settled(replace(FACTS, sections=None))
    assert (after.node, after.plan_again, after.events) == (READY, True, [])


def test_a_lease_that_ends_passes_nobody_on_what_was_known_before() -> None:
    draft = Draft(node=replace(READY, trust_epoch=1))
    acceptance.settle(FACTS, Draft(node=READY), draft)
    assert draft.node.status == "adopting"


def test_settling_twice_passes_once() -> None:
    after = settled()
    again = after.copy()
    acceptance.settle(FACTS, after, again)
    assert again == after.copy()


def test_what_an_earlier_attempt_failed_by_is_false_when_it_has_passed() -> None:
    after = settled(FACTS, READY, ConditionRow("AcceptanceFailed", status="false"))
    row = after.conditions["AcceptanceFailed", ""]
    assert (row.status, row.reason) == ("false", "NoChecks")
    assert settled().conditions == {}
