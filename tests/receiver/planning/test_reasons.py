"""From conditions to noScheduleReasons, events and notices (SPEC B3)."""

from dataclasses import replace
from typing import Any

import pytest

from receiver.planning.condition_types import NODE_CONDITION_TYPES
from receiver.planning.policy import Policy
from receiver.planning.reasons import TEXT_BYTES, cut, settle
from receiver.planning.view import ConditionRow, Device, Draft, Facts, Node, Notice, Pool

BUS = "00000000:18:00.0"
FACTS = Facts("node_1")
OBSERVING = Facts("node_1", pool=Pool("pool_1", mode="observe"))
DOWN = ConditionRow("FabricManagerDown", reason="FabricNotUp")
ALWAYS = [name for name, row in NODE_CONDITION_TYPES.items() if row.no_schedule == "yes"]
NEVER = [name for name, row in NODE_CONDITION_TYPES.items() if row.no_schedule == "no"]
PRESSURE = ("CpuPressure", "MemoryPressure", "IoPressure", "CpuSteal")


def draft(*rows: ConditionRow, node: Node | None = None, devices: tuple[Device, ...] = ()) -> Draft:
    found = Draft(node=node or Node())
    for row in rows:
        found.put("conditions", row)
    for device in devices:
        found.put("devices", device)
    return found


def settled(facts: Facts, *rows: ConditionRow, before: Draft | None = None, devices: tuple[Device, ...] = ()) -> Draft:
    """The draft after these rows are written to a node where nothing was, or to `before`."""
    stored = before or draft()
    after = stored.copy()
    for row in rows:
        after.put("conditions", row)
    for device in devices:
        after.put("devices", device)
    settle(facts, stored, after)
    return after


def again(facts: Facts, found: Draft) -> Draft:
    """The same rows planned once more: what came of it the first time is what is stored."""
    after = found.copy()
    settle(facts, found, after)
    return after


def told(found: Draft) -> list[dict[str, Any]]:
    payloads = [dict(one.payload) for one in found.events]
    assert all(payload.pop("schemaVersion") == 1 for payload in payloads)
    assert {one.type for one in found.events} <= {"node.condition.changed"}
    return payloads


def pool(**fields: Any) -> Facts:
    return Facts("node_1", pool=Pool("pool_1", **fields))


@pytest.mark.parametrize("kind", ALWAYS)
def test_a_type_that_is_no_schedule_is_a_reason_while_it_is_true(kind: str) -> None:
    raised = settled(FACTS, ConditionRow(kind))
    assert raised.node.no_schedule_reasons == (kind,)
    assert raised.conditions[kind, ""].no_schedule
    ended = settled(FACTS, ConditionRow(kind, status="false"), before=raised)
    assert ended.node.no_schedule_reasons == ()
    assert not ended.conditions[kind, ""].no_schedule


@pytest.mark.parametrize("kind", NEVER)
def test_a_type_that_is_not_no_schedule_is_never_a_reason(kind: str) -> None:
    for sharing in ("exclusive", "mig", "timeslice", "mps"):
        facts = pool(sharing=sharing, kind="vps-host", policy=Policy(links="node", on_gpu_missing="node"))
        assert settled(facts, ConditionRow(kind)).node.no_schedule_reasons == ()


def test_unknown_is_not_no_schedule() -> None:
    raised = settled(FACTS, replace(DOWN, status="unknown"))
    assert raised.node.no_schedule_reasons == ()
    assert told(raised) == [{"condition": "FabricManagerDown", "status": "unknown", "reason": "FabricNotUp", "noSchedule": False}]


def test_a_type_is_a_reason_while_at_least_one_of_its_rows_is_true() -> None:
    """Xid79 on two GPUs, one cleared: still NoSchedule."""
    one, two = (ConditionRow("Xid79", f"GPU-{number}", no_schedule=True) for number in (1, 2))
    both = settled(FACTS, one, two)
    assert both.node.no_schedule_reasons == ("Xid79",)
    left = settled(FACTS, replace(one, status="false", no_schedule=False), before=both)
    assert left.node.no_schedule_reasons == ("Xid79",)
    none = settled(FACTS, replace(two, status="false", no_schedule=False), before=left)
    assert none.node.no_schedule_reasons == ()


def test_the_verdict_on_an_xid_says_whether_it_is_a_reason() -> None:
    assert settled(FACTS, ConditionRow("Xid48", "GPU-1", no_schedule=False)).node.no_schedule_reasons == ()
    assert settled(FACTS, ConditionRow("SXid12028", BUS, BUS, no_schedule=True)).node.no_schedule_reasons == ("SXid12028",)


@pytest.mark.parametrize("no_schedule", [True, False])
def test_a_type_that_a_newer_receiver_wrote_is_left_as_it_is(no_schedule: bool) -> None:
    found = settled(FACTS, ConditionRow("FromTheFuture", no_schedule=no_schedule))
    assert found.node.no_schedule_reasons == (("FromTheFuture",) if no_schedule else ())
    assert again(FACTS, found).conditions == found.conditions


def test_reasons_are_sorted_and_each_is_there_once() -> None:
    rows = (ConditionRow("NvmlUnavailable"), ConditionRow("GpuLost", "GPU-2"), ConditionRow("GpuLost", "GPU-1"))
    assert settled(FACTS, *rows).node.no_schedule_reasons == ("GpuLost", "NvmlUnavailable")


@pytest.mark.parametrize("sharing", ["exclusive", "mig", "timeslice", "mps"])
def test_mps_down_is_a_reason_in_mps_pools(sharing: str) -> None:
    found = settled(pool(sharing=sharing), ConditionRow("MPSDown"))
    assert found.node.no_schedule_reasons == (("MPSDown",) if sharing == "mps" else ())


def test_mps_down_is_no_reason_without_a_pool() -> None:
    assert settled(FACTS, ConditionRow("MPSDown")).node.no_schedule_reasons == ()


@pytest.mark.parametrize("kind", ["gpu", "vps-host", "sandbox"])
@pytest.mark.parametrize("condition", PRESSURE)
def test_pressure_is_a_reason_in_vps_host_pools(kind: str, condition: str) -> None:
    found = settled(pool(kind=kind), ConditionRow(condition))
    assert found.node.no_schedule_reasons == ((condition,) if kind == "vps-host" else ())


@pytest.mark.parametrize("condition", ["NvLinkDegraded", "IbLinkDown"])
def test_links_are_a_reason_where_the_policy_says_so(condition: str) -> None:
    assert settled(pool(), ConditionRow(condition)).node.no_schedule_reasons == ()
    assert settled(pool(policy=Policy(links="node")), ConditionRow(condition)).node.no_schedule_reasons == (condition,)
    assert settled(FACTS, ConditionRow(condition)).node.no_schedule_reasons == ()


LINKED = Device("GPU-1", attributes={"nvlinkPeers": 8})
ALONE = Device("GPU-1", attributes={"nvlinkPeers": 0})


@pytest.mark.parametrize(
    ("policy", "device", "reason"),
    [(None, LINKED, True), (None, ALONE, False), ("no", LINKED, False), ("node", ALONE, True)],
)
def test_a_missing_gpu_is_a_reason_by_the_policy_else_where_gpus_have_nvlink_peers(
    policy: str | None, device: Device, reason: bool
) -> None:
    facts = pool(policy=Policy(on_gpu_missing=policy))
    found = settled(facts, ConditionRow("GpuMissing"), devices=(device,))
    assert found.node.no_schedule_reasons == (("GpuMissing",) if reason else ())


def test_the_last_gpu_that_is_left_had_nvlink_peers_when_it_was_accepted() -> None:
    before = draft(node=Node(baseline={"gpus": ["GPU-1", "GPU-2"], "links": {"GPU-1": 18, "GPU-2": 18}, "ports": {}}))
    found = settled(FACTS, ConditionRow("GpuMissing"), before=before, devices=(ALONE,))
    assert found.node.no_schedule_reasons == ("GpuMissing",)


def test_another_pool_is_another_rule() -> None:
    """The effective policy is recomputed when the node's pool changes, and the change is told."""
    stored = settled(pool(sharing="exclusive"), ConditionRow("MPSDown", reason="NoAnswer"))
    moved = stored.copy()
    settle(pool(sharing="mps"), stored, moved)
    assert moved.node.no_schedule_reasons == ("MPSDown",)
    assert told(moved) == [{"condition": "MPSDown", "status": "true", "reason": "NoAnswer", "noSchedule": True}]


def test_in_a_pool_that_observes_a_reason_is_would_no_schedule() -> None:
    found = settled(OBSERVING, DOWN)
    assert (found.node.no_schedule_reasons, found.node.would_no_schedule) == ((), ("FabricManagerDown",))
    assert told(found) == [
        {
            "condition": "FabricManagerDown",
            "status": "true",
            "reason": "FabricNotUp",
            "noSchedule": False,
            "wouldNoSchedule": True,
        }
    ]
    assert told(again(OBSERVING, found)) == []


def test_what_only_would_be_a_reason_is_one_as_soon_as_the_pool_enforces_and_back() -> None:
    observed = settled(OBSERVING, DOWN)
    enforced = observed.copy()
    settle(pool(), observed, enforced)
    assert (enforced.node.no_schedule_reasons, enforced.node.would_no_schedule) == (("FabricManagerDown",), ())
    assert [(one["noSchedule"], "wouldNoSchedule" in one) for one in told(enforced)] == [(True, False)]
    back = enforced.copy()
    settle(OBSERVING, enforced, back)
    assert (back.node.no_schedule_reasons, back.node.would_no_schedule) == ((), ("FabricManagerDown",))
    assert [(one["noSchedule"], one.get("wouldNoSchedule")) for one in told(back)] == [(False, True)]


def test_skips_when_nothing_changed() -> None:
    first = settled(FACTS, DOWN, ConditionRow("GpuLost", "GPU-1", BUS), ConditionRow("Xid79", "GPU-1", no_schedule=True))
    second = again(FACTS, first)
    assert told(second) == []
    assert (second.node, second.conditions) == (first.node, first.conditions)


def test_another_reason_is_told_and_another_message_or_count_is_not() -> None:
    first = settled(FACTS, DOWN)
    assert [one["reason"] for one in told(settled(FACTS, replace(DOWN, reason="FabricFailed"), before=first))] == ["FabricFailed"]
    assert told(settled(FACTS, replace(DOWN, message="another", count=7), before=first)) == []


def test_a_row_that_appears_false_is_not_told() -> None:
    assert told(settled(FACTS, replace(DOWN, status="false", reason=""))) == []


def test_a_condition_of_a_gpu_names_it_and_one_of_a_switch_its_bus_id() -> None:
    rows = (ConditionRow("GpuLost", "GPU-1", BUS, reason="Lost"), ConditionRow("SXid12028", BUS, BUS, no_schedule=True))
    assert told(settled(FACTS, *rows)) == [
        {"condition": "GpuLost", "status": "true", "reason": "Lost", "noSchedule": True, "deviceId": "GPU-1", "busId": BUS},
        {"condition": "SXid12028", "status": "true", "reason": "", "noSchedule": True, "busId": BUS},
    ]


def test_a_row_that_went_with_its_device_is_told_as_false() -> None:
    stored = settled(FACTS, ConditionRow("Xid79", "GPU-1", BUS, reason="Fatal", no_schedule=True))
    gone = stored.copy()
    del gone.conditions["Xid79", "GPU-1"]
    settle(FACTS, stored, gone)
    assert gone.node.no_schedule_reasons == ()
    assert told(gone) == [
        {"condition": "Xid79", "status": "false", "reason": "", "noSchedule": False, "deviceId": "GPU-1", "busId": BUS}
    ]


def test_events_are_in_the_order_of_type_and_device() -> None:
    rows = [ConditionRow("NvmlUnavailable"), ConditionRow("GpuLost", "GPU-2"), ConditionRow("GpuLost", "GPU-1")]
    assert [(one["condition"], one.get("deviceId")) for one in told(settled(FACTS, *rows))] == [
        ("GpuLost", "GPU-1"),
        ("GpuLost", "GPU-2"),
        ("NvmlUnavailable", None),
    ]


def test_a_change_of_foreign_gpu_exposure_sends_the_notice_of_reservations() -> None:
    raised = settled(FACTS, ConditionRow("ForeignGpuExposure", reason="OtherPath"))
    assert raised.notices == [Notice("AtomUnhealthy")]
    assert again(FACTS, raised).notices == []
    ended = settled(FACTS, ConditionRow("ForeignGpuExposure", status="false"), before=raised)
    assert ended.notices == [Notice("AtomUnhealthy")]
    assert settled(FACTS, DOWN).notices == []


ADVISORY = replace(FACTS, advisory=True)


def test_a_tenants_word_is_never_a_reason() -> None:
    found = settled(ADVISORY, replace(DOWN, advisory=True), ConditionRow("ForeignGpuExposure", advisory=True))
    assert (found.node.no_schedule_reasons, found.node.would_no_schedule, found.notices) == ((), (), [])
    assert [(one["condition"], one["noSchedule"], one["advisory"]) for one in told(found)] == [
        ("FabricManagerDown", False, True),
        ("ForeignGpuExposure", False, True),
    ]


def test_reasons_that_stood_when_the_lease_began_stand_until_it_ends() -> None:
    stored = settled(FACTS, DOWN, ConditionRow("GpuLost", "GPU-1"))
    lied = settled(ADVISORY, replace(DOWN, status="false", advisory=True), before=stored)
    assert lied.node == stored.node
    assert lied.conditions["GpuLost", "GPU-1"] == stored.conditions["GpuLost", "GPU-1"]
    said = settled(FACTS, replace(DOWN, status="false"), before=lied)
    assert said.node.no_schedule_reasons == ("GpuLost",), "the first report of the platform's own session ends it"


def test_a_tenants_word_that_is_the_last_neither_raises_nor_ends_a_reason_when_the_lease_is_over() -> None:
    stood = settled(FACTS, DOWN)
    lied = settled(
        ADVISORY, replace(DOWN, status="false", advisory=True), ConditionRow("NvmlUnavailable", advisory=True), before=stood
    )
    over = again(FACTS, lied)
    assert over.node.no_schedule_reasons == ("FabricManagerDown",)
    assert told(over) == []


def test_another_pool_during_a_lease_changes_no_reason() -> None:
    stored = settled(FACTS, DOWN)
    moved = stored.copy()
    settle(replace(OBSERVING, advisory=True), stored, moved)
    assert moved.node == stored.node
    assert told(moved) == []


@pytest.mark.parametrize(
    ("text", "kept"),
    [("a" * 2048, "a" * 2048), ("a" * 2049, "a" * 2048), ("ü" * 1025, "ü" * 1024), ("界" * 700, "界" * 682), ("", "")],
)
def test_a_text_is_cut_at_the_limit_and_never_within_a_character(text: str, kept: str) -> None:
    assert cut(text) == kept
    assert len(kept.encode()) <= TEXT_BYTES


def test_texts_of_conditions_are_cut() -> None:
    found = settled(FACTS, replace(DOWN, message="m" * 3000, reason="r" * 3000))
    row = found.conditions["FabricManagerDown", ""]
    assert (row.message, row.reason) == ("m" * 2048, "r" * 2048)
    assert told(again(FACTS, found)) == []
