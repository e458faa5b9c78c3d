"""Conditions of status reports are exactly as the last report says (SPEC B3)."""

from dataclasses import replace

import pytest

from receiver.planning.condition_types import DAEMON_NODE_CONDITIONS
from receiver.planning.conditions import MOST, ConditionRow, SetCondition, plan_conditions, sort_out
from receiver.planning.inventory import Publish
from receiver.values import Condition, Fault

DOWN = Condition("NvmlUnavailable", "true", "Hang", "no answer in 30 s")
ROW = ConditionRow("NvmlUnavailable", "", "", "true", "Hang", "no answer in 30 s", False)


def planned(
    stored: list[ConditionRow], reported: list[Condition], advisory: bool = False
) -> tuple[list[ConditionRow], list[dict[str, object]]]:
    """Rows written, and payloads published without schemaVersion."""
    steps = list(plan_conditions({row.key: row for row in stored}, reported, advisory))
    told = [dict(step.event.payload) for step in steps if isinstance(step, Publish)]
    assert all(payload.pop("schemaVersion") == 1 for payload in told)
    return [step.row for step in steps if isinstance(step, SetCondition)], told


def told(status: str, reason: str = "", **more: object) -> dict[str, object]:
    return {"condition": "NvmlUnavailable", "status": status, "reason": reason, "noSchedule": False, **more}


def test_the_types_are_those_of_the_spec() -> None:
    assert set(DAEMON_NODE_CONDITIONS) == {
        *("FabricManagerDown", "MPSDown", "RebootRequired", "HostManagedExternally", "ForeignGpuExposure"),
        *("PodResourcesUnavailable", "KubernetesReleaseStuck", "KubernetesReleasesUnreadable", "KubernetesReleased"),
        *("KubernetesTaintsDrift", "NvmlUnavailable", "KernelLogUnavailable", "PcieReplayHigh"),
    }
    assert {name for name, row in DAEMON_NODE_CONDITIONS.items() if row.no_schedule == "yes"} == {
        *("FabricManagerDown", "ForeignGpuExposure", "PodResourcesUnavailable", "KubernetesReleaseStuck"),
        *("KubernetesReleasesUnreadable", "NvmlUnavailable"),
    }
    assert DAEMON_NODE_CONDITIONS["MPSDown"].no_schedule == "in mps pools"


def test_opens_on_the_first_report() -> None:
    assert planned([], [DOWN]) == ([ROW], [told("true", "Hang")])


def test_skips_when_the_report_says_the_same() -> None:
    assert planned([ROW], [DOWN]) == ([], [])


def test_clears_when_it_is_not_reported_any_more() -> None:
    assert planned([ROW], []) == ([replace(ROW, status="false", reason="", message="")], [told("false")])


def test_clears_when_it_is_reported_false() -> None:
    assert planned([ROW], [replace(DOWN, status="false", reason="Up", message="")])[1] == [told("false", "Up")]


def test_is_unknown_while_it_is_reported_so() -> None:
    assert planned([ROW], [replace(DOWN, status="unknown")])[1] == [told("unknown", "Hang")]


def test_skips_what_is_false_and_never_was_anything_else() -> None:
    assert planned([], [replace(DOWN, status="false")]) == ([], [])


def test_skips_what_is_cleared_already() -> None:
    cleared = replace(ROW, status="false", reason="", message="")
    assert planned([cleared], []) == ([], [])
    assert planned([cleared], [DOWN]) == ([ROW], [told("true", "Hang")]), "and opens again"


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


def test_a_tenants_word_is_recorded_as_advisory() -> None:
    assert planned([], [DOWN], advisory=True) == ([replace(ROW, advisory=True)], [told("true", "Hang", advisory=True)])


def test_the_end_of_a_lease_makes_it_the_platforms_word_and_tells() -> None:
    assert planned([replace(ROW, advisory=True)], [DOWN]) == ([ROW], [told("true", "Hang")])
    cleared = replace(ROW, status="false", reason="", message="")
    assert planned([replace(cleared, advisory=True)], []) == ([cleared], []), "nothing to tell of what is not there"


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
    rows = [ConditionRow("PcieReplayHigh", f"GPU-{number}", "", "true", "", "", False) for number in range(MOST)]
    made_up = Condition("PcieReplayHigh", "true", device_id="GPU-made-up")
    written, payloads = planned(rows, [made_up])
    assert "GPU-made-up" not in {row.device_id for row in written}
    assert len(payloads) == MOST, "what is known goes on"
    assert len(planned(rows[:-1], [made_up])[0]) == MOST
