"""Acceptance as rules over a node's rows: SPEC B7, sentence by sentence. What a check's answer comes to: test_checks.py."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.planning import acceptance, lifecycle
from receiver.planning.policy import Policy
from receiver.planning.view import Attempt, CommandEnd, CommandState, ConditionRow, Draft, Facts, Node, Pool
from receiver.values import Payload
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


RUNS = ConditionRow("AcceptanceFailed", status="unknown", reason="Running")
PASSED = CommandState("succeeded", result={"passed": True})
BAD_ECC = CommandState(
    "succeeded",
    result={
        "passed": False,
        "checks": [
            {"check": "nvml.init", "result": "pass", "reason": "NVML answers"},
            {"check": "ecc.uncorrectable", "result": "fail", "reason": "3 errors", "deviceId": "GPU-00000001"},
        ],
    },
)


def running(number: int = 3, **ids: str) -> Attempt:
    """An attempt whose two checks have these commands."""
    given = {"diag.nvml": "cmd_1", "diag.dcgm": "cmd_2", **ids}
    return Attempt(number, checks=[{"kind": kind, "status": "running", "commandId": name} for kind, name in given.items()])


def followed(nvml: CommandState, dcgm: CommandState = PASSED, node: Node = READY, *rows: ConditionRow, **facts: Any) -> Draft:
    """Of a node whose attempt runs, with its two commands as they are now."""
    stored = Draft(node=node, conditions={row.key: row for row in (RUNS, *rows)}, attempts={3: running()})
    draft = stored.copy()
    told = replace(FACTS, pool=CHECKED, commands={"cmd_1": nvml, "cmd_2": dcgm})
    acceptance.settle(replace(told, **facts), stored, draft)
    return draft


def failed(draft: Draft) -> Payload:
    """What the one event says by which it failed."""
    (event,) = draft.events
    assert event.type == "node.acceptance.failed"
    return {key: value for key, value in event.payload.items() if key != "schemaVersion"}


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


# -- an attempt begins


def test_a_node_of_a_pool_with_checks_is_told_to_do_each_kind_once() -> None:
    after = settled(replace(FACTS, pool=CHECKED))
    assert after.node == READY
    assert [(one.kind, one.key, one.start_within) for one in after.commands] == [
        ("diag.nvml", f"acceptance:{NODE}:3:diag.nvml", 600.0),
        ("diag.dcgm", f"acceptance:{NODE}:3:diag.dcgm", 600.0),
    ]
    row = after.conditions["AcceptanceFailed", ""]
    assert (row.status, row.reason) == ("unknown", "Running")
    assert after.attempts == {3: Attempt(3, checks=after.attempts[3].checks)}


def test_what_begins_is_told_with_the_ids_of_its_commands() -> None:
    after = settled(replace(FACTS, pool=CHECKED))
    numbers = itertools.count(1)
    acceptance.place(after, lambda prefix: f"{prefix}_{next(numbers)}")
    assert [one.id for one in after.commands] == ["cmd_1", "cmd_2"]
    assert [dict(one) for one in after.attempts[3].checks] == [
        {"kind": "diag.nvml", "status": "running", "commandId": "cmd_1"},
        {"kind": "diag.dcgm", "status": "running", "commandId": "cmd_2"},
    ]
    (told,) = after.events
    assert (told.type, dict(told.payload)) == (
        "node.acceptance.started",
        {"attempt": 3, "commandIds": ["cmd_1", "cmd_2"], "checks": ["diag.nvml", "diag.dcgm"], "schemaVersion": 1},
    )


def test_nothing_is_told_by_who_begins_nothing() -> None:
    draft = Draft(node=READY, attempts={3: running()})
    acceptance.place(draft, lambda prefix: prefix)
    assert (draft.events, draft.commands) == ([], [])


@pytest.mark.parametrize(("said", "given"), [(None, 2), (8, 8), (0, 0)])
def test_the_number_of_gpus_that_the_pool_expects_else_that_the_inventory_found_goes_to_diag_nvml_alone(
    said: int | None, given: int
) -> None:
    pool = replace(CHECKED, policy=replace(CHECKED.policy, expect_gpu_count=said))
    nvml, dcgm = settled(replace(FACTS, pool=pool)).commands
    assert (nvml.payload, dcgm.payload) == ({"expect": {"gpuCount": given}}, {})


def test_a_kind_that_no_receiver_knows_fails_the_attempt_and_nothing_is_ordered() -> None:
    pool = Pool("pool_1", policy=Policy(acceptance=({"kind": "diag.nvml"}, {"kind": "burn-in"})))
    after = settled(replace(FACTS, pool=pool))
    row = after.conditions["AcceptanceFailed", ""]
    assert (row.status, row.reason, "burn-in" in row.message, after.commands) == ("true", "UnsupportedCheck", True, [])
    assert failed(after) == {"attempt": 3, "reason": "UnsupportedCheck"}
    assert [dict(one) for one in after.attempts[3].checks] == [
        {"kind": "diag.nvml", "status": "cancelled"},
        {"kind": "burn-in", "status": "failed", "reason": "UnsupportedCheck"},
    ]
    assert after.node.status == "adopting"


@pytest.mark.parametrize("kind", ["node.reboot", "gpu.reset"])
def test_what_disrupts_is_no_check(kind: str) -> None:
    after = settled(replace(FACTS, pool=Pool("pool_1", policy=Policy(acceptance=({"kind": kind},)))))
    assert (after.attempts[3].reason, after.commands) == ("UnsupportedCheck", [])


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


# -- an attempt's way


def test_while_a_check_runs_it_is_followed_and_not_judged() -> None:
    for late in (-600.0, 0.0, 119.0):
        after = followed(CommandState("sent", late=late), BAD_ECC)
        assert (after.node, after.events, after.ends) == (READY, [], [])
        assert [one["status"] for one in after.attempts[3].checks] == ["running", "failed"]
        assert after.conditions["AcceptanceFailed", ""] == RUNS


def test_all_settled_well_the_node_is_in_service() -> None:
    after = followed(PASSED)
    assert after.node == replace(READY, status="adopted", baseline=after.node.baseline)
    assert after.node.baseline is not None
    row = after.conditions["AcceptanceFailed", ""]
    assert (row.status, row.reason) == ("false", "Passed")
    assert [(one.type, one.payload.get("attempt")) for one in after.events] == [("node.status", None), ("node.adopted", 3)]
    assert (after.attempts[3].state, after.attempts[3].reason) == ("passed", "Passed")
    assert {one["status"] for one in after.attempts[3].checks} == {"succeeded"}


def test_one_that_is_not_well_fails_it_and_the_node_stays_adopting() -> None:
    after = followed(BAD_ECC)
    assert after.node == READY
    row = after.conditions["AcceptanceFailed", ""]
    assert (row.status, row.reason) == ("true", "diag.nvml:ecc.uncorrectable")
    assert "GPU-00000001" in row.message
    assert failed(after) == {"attempt": 3, "reason": "diag.nvml:ecc.uncorrectable", "commandId": "cmd_1"}
    assert (after.attempts[3].state, after.attempts[3].reason) == ("failed", "diag.nvml:ecc.uncorrectable")


def test_of_several_the_first_of_the_policy_is_the_reason() -> None:
    worse = CommandState("failed", "NotInstalled")
    assert failed(followed(BAD_ECC, worse))["commandId"] == "cmd_1"
    assert failed(followed(PASSED, worse)) == {"attempt": 3, "reason": "diag.dcgm:failed", "commandId": "cmd_2"}


@pytest.mark.parametrize(
    ("state", "late", "why"), [("queued", 0.0, "NotSent"), ("sent", 120.0, "NotEnded")], ids=["not begun", "not ended"]
)
def test_a_check_is_late_when_it_has_not_begun_by_its_time_or_not_ended_by_its_limit(state: str, late: float, why: str) -> None:
    after = followed(CommandState(state, late=late))
    assert failed(after) == {"attempt": 3, "reason": "Expired", "commandId": "cmd_1"}
    assert after.ends == [CommandEnd("cmd_1", "expired", why)]
    assert dict(after.attempts[3].checks[0]) == {"kind": "diag.nvml", "status": "expired", "commandId": "cmd_1", "reason": why}
    assert followed(CommandState(state, late=late - 0.1)).events == []


def test_a_failed_attempt_is_sticky_whatever_comes() -> None:
    after = followed(BAD_ECC)
    for facts in (replace(FACTS, pool=CHECKED, waited=9e9), replace(FACTS, pool=None)):
        again = after.copy()
        acceptance.settle(facts, after, again)
        assert again == after.copy()


def test_a_failed_attempt_is_sticky_also_when_its_condition_was_dropped() -> None:
    after = followed(BAD_ECC)
    after.conditions.clear()
    again = after.copy()
    acceptance.settle(FACTS, after, again)
    assert again == after.copy()


def test_an_attempt_of_which_the_node_has_begun_another_is_cancelled() -> None:
    stored = Draft(node=READY, conditions={RUNS.key: RUNS}, attempts={3: running()})
    draft = stored.copy()
    lifecycle.adopt("a new board")(FACTS, draft)
    acceptance.settle(replace(FACTS, pool=CHECKED, waited=9e9), stored, draft)
    assert draft.attempts[3].state == "cancelled"
    assert draft.ends == [CommandEnd(one, "cancelled", "another attempt begins") for one in ("cmd_1", "cmd_2")]
    assert (draft.node.attempt, draft.attempts[4].state) == (4, "running")
    assert [one.key for one in draft.commands][:1] == [f"acceptance:{NODE}:4:diag.nvml"]


INTERRUPTED: dict[str, tuple[Node, tuple[ConditionRow, ...]]] = {
    "the node is maintenance": (replace(READY, status="maintenance"), ()),
    "the node is retired": (replace(READY, status="retired"), ()),
    "the node is tenant-controlled": (replace(READY, trust="tenant-controlled"), ()),
    "DuplicateIdentity": (READY, (ConditionRow("DuplicateIdentity", reason="HardwareKey"),)),
}


@pytest.mark.parametrize("reason", INTERRUPTED)
def test_an_attempt_that_the_node_cannot_stand_for_is_neither_passed_nor_failed(reason: str) -> None:
    node, rows = INTERRUPTED[reason]
    after = followed(PASSED, CommandState("sent", late=-1.0), node, *rows)
    assert (after.node, after.events) == (node, [])
    assert (after.attempts[3].state, after.attempts[3].reason) == ("cancelled", reason)
    assert after.ends == [CommandEnd(one, "cancelled", reason) for one in ("cmd_1", "cmd_2")]
    assert after.conditions["AcceptanceFailed", ""].status == "false"


def test_after_a_cancelled_attempt_another_begins_by_itself_with_commands_of_its_own() -> None:
    stored = Draft(node=READY, attempts={3: replace(running(), state="cancelled")})
    draft = stored.copy()
    acceptance.settle(replace(FACTS, pool=CHECKED), stored, draft)
    assert (draft.node.attempt, draft.attempts[4].state, draft.attempts[3].state) == (4, "running", "cancelled")
    assert {one.key for one in draft.commands} == {f"acceptance:{NODE}:4:{kind}" for kind in ("diag.nvml", "diag.dcgm")}


def test_a_node_that_has_booted_meanwhile_passes_with_the_inventory_of_this_boot() -> None:
    booted: dict[str, Any] = {"boot_id": "boot-2"}
    assert followed(PASSED, waited=599.0, **booted).events == []
    assert followed(PASSED, waited=599.0, **booted).attempts[3].state == "running"
    assert followed(PASSED, node=replace(READY, inventory_boot="boot-2"), **booted).node.status == "adopted"
    assert failed(followed(PASSED, waited=600.0, **booted)) == {"attempt": 3, "reason": "NoInventory"}


def test_a_passed_attempt_waits_for_a_writer_with_the_inventory() -> None:
    after = followed(PASSED, sections=None)
    assert (after.node, after.plan_again, after.attempts[3].state) == (READY, True, "running")


# -- NoInventory

WITHOUT = replace(FACTS, fresh=frozenset(), waited=600.0)


@pytest.mark.parametrize("pool", [CHECKED, None], ids=["with checks", "without"])
def test_after_ten_minutes_without_an_inventory_of_this_boot_it_fails(pool: Pool | None) -> None:
    after = settled(replace(WITHOUT, pool=pool))
    assert failed(after) == {"attempt": 3, "reason": "NoInventory"}
    assert after.conditions["AcceptanceFailed", ""].reason == "NoInventory"
    assert (after.attempts[3].state, after.node) == ("failed", READY)


@pytest.mark.parametrize(
    ("facts", "node"),
    [
        ({"waited": 599.9}, {}),
        ({"waited": None}, {}),
        ({"online": False}, {}),
        ({"advisory": True}, {}),
        ({}, {"status": "adopted"}),
        ({}, {"trust": "tenant-controlled"}),
    ],
)
def test_it_does_not_fail_a_node_that_is_not_waited_for(facts: dict[str, Any], node: dict[str, Any]) -> None:
    assert settled(replace(WITHOUT, **facts), replace(READY, **node)).events == []


def test_a_duplicate_is_not_waited_for() -> None:
    assert settled(WITHOUT, READY, ConditionRow("DuplicateIdentity")).events == []


def test_what_was_waited_before_an_order_does_not_count_for_the_next_attempt() -> None:
    stored = Draft(node=READY, conditions={RUNS.key: replace(RUNS, status="true", reason="NoInventory")})
    draft = stored.copy()
    lifecycle.adopt("the driver is installed")(FACTS, draft)
    acceptance.settle(WITHOUT, stored, draft)
    assert (draft.events, draft.conditions["AcceptanceFailed", ""].status) == ([], "false")
