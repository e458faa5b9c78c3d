"""Conditions of status reports are exactly as the last report says (SPEC B3)."""

from dataclasses import replace
from typing import Any

import pytest

from receiver.planning.conditions import MOST, report, sort_out
from receiver.planning.reasons import settle
from receiver.planning.view import ConditionRow, Draft, Facts
from receiver.values import Condition, Fault

DOWN = Condition("NvmlUnavailable", "true", "Hang", "no answer in 30 s")
ROW = ConditionRow("NvmlUnavailable", reason="Hang", message="no answer in 30 s", no_schedule=True)
CLEARED = replace(ROW, status="false", reason="", message="", no_schedule=False)


def planned(
    stored: list[ConditionRow], reported: list[Condition], advisory: bool = False
) -> tuple[list[ConditionRow], list[dict[str, Any]]]:
    """Rows that differ from the stored ones, and payloads published without schemaVersion."""
    facts, before = Facts("node_1", advisory=advisory), Draft()
    for row in stored:
        before.put("conditions", row)
    reasons = tuple(sorted({row.type for row in stored if row.no_schedule}))
    before.node = replace(before.node, no_schedule_reasons=reasons)
    draft = before.copy()
    report(facts, draft, reported)
    settle(facts, before, draft)
    told = [dict(one.payload) for one in draft.events]
    assert all(payload.pop("schemaVersion") == 1 for payload in told)
    return [row for key, row in sorted(draft.conditions.items()) if row != before.conditions.get(key)], told


def told(status: str, reason: str = "", **more: object) -> dict[str, Any]:
    return {"condition": "NvmlUnavailable", "status": status, "reason": reason, "noSchedule": status == "true", **more}


def test_opens_on_the_first_report() -> None:
    assert planned([], [DOWN]) == ([ROW], [told("true", "Hang")])


def test_skips_when_the_report_says_the_same() -> None:
    assert planned([ROW], [DOWN]) == ([], [])


def test_clears_when_it_is_not_reported_any_more() -> None:
    assert planned([ROW], []) == ([CLEARED], [told("false")])


def test_clears_when_it_is_reported_false() -> None:
    assert planned([ROW], [replace(DOWN, status="false", reason="Up", message="")])[1] == [told("false", "Up")]


def test_is_unknown_while_it_is_reported_so() -> None:
    assert planned([ROW], [replace(DOWN, status="unknown")])[1] == [told("unknown", "Hang")]


def test_skips_what_is_false_and_never_was_anything_else() -> None:
    assert planned([], [replace(DOWN, status="false")]) == ([], [])


def test_skips_what_is_cleared_already() -> None:
    assert planned([CLEARED], []) == ([], [])
    assert planned([CLEARED], [DOWN]) == ([ROW], [told("true", "Hang")]), "and opens again"


def test_another_reason_is_told_and_another_message_only_written() -> None:
    assert planned([ROW], [replace(DOWN, reason="GpuLost")])[1] == [told("true", "GpuLost")]
    assert planned([ROW], [replace(DOWN, message="no answer in 60 s")]) == ([replace(ROW, message="no answer in 60 s")], [])


def test_devices_have_conditions_of_their_own() -> None:
    one, two = (Condition("PcieReplayHigh", "true", device_id=f"GPU-{number}", bus_id=f"bus{number}") for number in (1, 2))
    rows, _ = planned([], [one, two])
    assert [row.device_id for row in rows] == ["GPU-1", "GPU-2"]
    cleared, payloads = planned(rows, [two])
    assert [(row.device_id, row.bus_id, row.status) for row in cleared] == [("GPU-1", "bus1", "false")]
    assert payloads[0] == {
        "condition": "PcieReplayHigh",
        "status": "false",
        "reason": "",
        "noSchedule": False,
        "deviceId": "GPU-1",
        "busId": "bus1",
    }


def test_a_condition_of_a_bus_id_alone_has_it_for_its_device() -> None:
    (row,), (payload,) = planned([], [Condition("PcieReplayHigh", "true", bus_id="00000000:18:00.0")])
    assert (row.device_id, row.bus_id) == ("00000000:18:00.0", "00000000:18:00.0")
    assert (payload.get("deviceId"), payload["busId"]) == (None, "00000000:18:00.0")


def test_what_others_write_is_not_the_reports() -> None:
    rows = [ConditionRow("GpuLost", "GPU-1", no_schedule=True), ConditionRow("Xid79", "GPU-1", no_schedule=True)]
    assert planned(rows, []) == ([], [])


@pytest.mark.parametrize("kind", ["AcceptanceFailed", "GpuLost", "NotReporting", "DuplicateIdentity", "Xid79", "Made"])
@pytest.mark.parametrize("status", ["true", "false", "unknown"])
def test_a_report_neither_raises_nor_ends_what_it_may_not_set(kind: str, status: Any) -> None:
    stored = ConditionRow(kind, no_schedule=True)
    assert planned([], [Condition(kind, status)]) == ([], [])
    assert planned([stored], [Condition(kind, status, "Passed")]) == ([], [])


def test_a_tenants_word_is_recorded_as_advisory_and_is_no_reason() -> None:
    row = replace(ROW, advisory=True, no_schedule=False)
    assert planned([], [DOWN], advisory=True) == ([row], [{**told("true", "Hang", advisory=True), "noSchedule": False}])


def test_what_a_tenant_reports_no_more_is_the_tenants_word_too() -> None:
    written, payloads = planned([ROW], [], advisory=True)
    assert written == [replace(CLEARED, advisory=True)]
    assert payloads == [told("false", advisory=True)]


def test_the_end_of_a_lease_makes_it_the_platforms_word_and_tells() -> None:
    assert planned([replace(ROW, advisory=True, no_schedule=False)], [DOWN]) == ([ROW], [told("true", "Hang")])
    assert planned([replace(CLEARED, advisory=True)], []) == ([CLEARED], []), "nothing to tell of what is not there"


@pytest.mark.parametrize(
    "kind", ["AcceptanceFailed", "GpuLost", "Xid", "XidX", "Xid079", "xid79", "Xid99999999999", "", "NotReporting"]
)
def test_a_type_that_reports_may_not_set_is_dropped(kind: str) -> None:
    found = sort_out([Condition(kind, "true", device_id="GPU-1"), DOWN])
    assert (found.conditions, found.faults, found.bad) == ((DOWN,), (), (kind,))


@pytest.mark.parametrize(
    "bad",
    [
        replace(DOWN, status=None),
        replace(DOWN, device_id="x" * 129),
        replace(DOWN, bus_id="x" * 129),
        Condition("Xid79", "true", bus_id="00000000:18:00.0"),
        Condition("SXid12028", "true", device_id="GPU-1"),
        Condition("Xid79", "false", device_id="GPU-1"),
    ],
)
def test_a_condition_without_status_or_with_a_device_that_is_none_is_dropped(bad: Condition) -> None:
    assert sort_out([bad]).bad == (bad.type,)


def test_the_second_of_two_is_dropped() -> None:
    xid = Condition("Xid79", "true", device_id="GPU-1", count=3)
    found = sort_out([DOWN, xid, replace(DOWN, reason="Error"), replace(xid, count=9)])
    assert found.conditions == (DOWN,)
    assert found.faults == (Fault("xid", 79, "GPU-1", "", 3),)
    assert found.bad == ("NvmlUnavailable", "Xid79")


def test_a_node_that_makes_up_devices_does_not_fill_the_table() -> None:
    rows = [ConditionRow("PcieReplayHigh", f"GPU-{number}") for number in range(MOST)]
    made_up = Condition("PcieReplayHigh", "true", device_id="GPU-made-up")
    written, payloads = planned(rows, [made_up])
    assert "GPU-made-up" not in {row.device_id for row in written}
    assert len(payloads) == MOST, "what is known goes on"
    assert len(planned(rows[:-1], [made_up])[0]) == MOST


def test_a_full_table_hides_nothing_of_the_node_as_a_whole() -> None:
    rows = [ConditionRow("PcieReplayHigh", f"GPU-{number}", status="false") for number in range(MOST)]
    assert planned(rows, [DOWN]) == ([ROW], [told("true", "Hang")])
