"""XIDs are told when they are new and when their count has doubled (SPEC B4)."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from receiver.planning.faults import MOST, Counted, CountFault, as_fault, plan_faults
from receiver.planning.inventory import Publish
from receiver.values import Condition, Fault

XID = Fault("xid", 79, "GPU-1", "00000000:18:00.0", 1, "79, pid=1, name=python, GPU has fallen off the bus.")
SXID = Fault("sxid", 12028, "", "00000000:05:00.0", 1, "SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32")


def planned(stored: dict[tuple[str, str], Counted], *reported: Fault) -> tuple[list[CountFault], list[dict[str, object]]]:
    steps = list(plan_faults(stored, reported))
    told = [dict(step.event.payload) for step in steps if isinstance(step, Publish)]
    return [step for step in steps if isinstance(step, CountFault)], told


def test_the_first_is_told() -> None:
    counted, told = planned({}, XID)
    assert [(one.fault, one.told) for one in counted] == [(XID, 1)]
    assert told == [
        {
            "kind": "xid",
            "xid": 79,
            "deviceId": "GPU-1",
            "busId": "00000000:18:00.0",
            "message": XID.message,
            "count": 1,
            "schemaVersion": 1,
        }
    ]


def test_an_sxid_is_told_by_its_bus_id() -> None:
    ((payload,), counted) = planned({}, SXID)[::-1]
    assert (payload["kind"], payload["xid"], payload["busId"], "deviceId" in payload) == ("sxid", 12028, SXID.bus_id, False)
    assert (counted[0].fault.code, counted[0].fault.device) == ("SXid12028", SXID.bus_id)


def test_skips_when_the_count_is_not_above_the_stored_one() -> None:
    stored = {("Xid79", "GPU-1"): Counted(5, 4)}
    for count in (1, 4, 5):
        assert planned(stored, replace(XID, count=count)) == ([], [])


def test_a_higher_count_is_stored_and_a_doubled_one_told() -> None:
    stored = {("Xid79", "GPU-1"): Counted(5, 4)}
    counted, told = planned(stored, replace(XID, count=7))
    assert [(one.fault.count, one.told) for one in counted] == [(7, 4)]
    assert told == []
    counted, told = planned(stored, replace(XID, count=8))
    assert [(one.fault.count, one.told) for one in counted] == [(8, 8)]
    assert [payload["count"] for payload in told] == [8]


def test_codes_and_devices_are_counted_apart() -> None:
    stored = {("Xid79", "GPU-1"): Counted(1, 1)}
    _, told = planned(stored, XID, replace(XID, number=48), replace(XID, device_id="GPU-2"))
    assert [(payload["xid"], payload["deviceId"]) for payload in told] == [(48, "GPU-1"), (79, "GPU-2")]


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60))
def test_a_storm_is_told_at_most_once_a_doubling_and_every_count_is_told_at_half_its_height(counts: list[int]) -> None:
    stored: dict[tuple[str, str], Counted] = {}
    heard = []
    for count in counts:
        counted, told = planned(stored, replace(XID, count=count))
        heard += [payload["count"] for payload in told]
        stored |= {(one.fault.code, one.fault.device): Counted(one.fault.count, one.told) for one in counted}
        assert planned(stored, replace(XID, count=count)) == ([], []), "planning twice plans nothing"
    assert len(heard) <= 21
    assert stored["Xid79", "GPU-1"].count == max(counts) < 2 * heard[-1]  # type: ignore[operator]


def test_a_fault_that_is_reported_without_a_count_was_there_once() -> None:
    fault = as_fault(Condition("Xid79", "true", message="m", device_id="GPU-1", bus_id="b"))
    assert fault == Fault("xid", 79, "GPU-1", "b", 1, "m")


def test_an_unknown_number_is_a_fault_too() -> None:
    assert as_fault(Condition("Xid4711", "true", device_id="GPU-1")) is not None


def test_a_node_that_makes_up_devices_does_not_fill_the_table() -> None:
    stored = {("Xid79", f"GPU-{number}"): Counted(1, 1) for number in range(MOST)}
    assert planned(stored, replace(XID, device_id="GPU-made-up")) == ([], [])
    assert planned(stored, replace(XID, count=2))[1] != [], "what is known goes on"
