"""What open faults do to devices and atoms, what is told, and clears (SPEC B4)."""

from dataclasses import replace
from typing import Any

import pytest

from receiver.errors import Refused
from receiver.planning import faults
from receiver.planning.findings import GONE
from receiver.planning.health import Cleared, clear, describe, settle
from receiver.planning.policy import Policy
from receiver.planning.view import Atom, Booking, Counted, Device, Draft, Facts, Health, History, Notice, Pool
from receiver.values import Json

GPU, OTHER, SWITCH = "GPU-1", "GPU-2", "00000000:05:00.0"
FACTS = Facts("node_1", boot_id="boot-1")
ECC = Health(
    GPU, "xid", "Xid48", "boot-1", 1, detail={"message": "48, pid=7, name=secret, DBE", "busId": "b", "action": "inspect"}
)
FINDING = Health(GPU, "inventory", "EccUncorrectable", detail={"dram": 2})
WHY = "cleared by operator: checked"


def node(*rows: Health, **device: Any) -> Draft:
    """A node with two GPUs as stored, in health but for these rows."""
    draft = Draft()
    draft.put("devices", Device(GPU, "16501", attributes={"gpuProduct": "H100-SXM5-80GB"}, **device))
    draft.put("devices", Device(OTHER, "16502"))
    for atom in (Atom(GPU, 1, GPU), Atom(OTHER, 1, OTHER)):
        draft.put("atoms", atom)
    settle(FACTS, draft, draft)
    stored = draft.copy()
    for row in rows:
        stored.put("health", row)
    return concluded(stored, draft)


def concluded(draft: Draft, before: Draft, facts: Facts = FACTS) -> Draft:
    """As behind every writer; doing it again changes nothing."""
    faults.judge(facts, before, draft)
    settle(facts, before, draft)
    again = draft.copy()
    faults.judge(facts, draft, again)
    settle(facts, draft, again)
    assert (again.devices, again.atoms, again.health) == (draft.devices, draft.atoms, draft.health)
    assert (again.events, again.history, again.notices) == ([], [], []), "planning twice plans nothing"
    return draft


def told(draft: Draft) -> list[tuple[str, Json]]:
    return [(one.type, {key: value for key, value in one.payload.items() if key != "schemaVersion"}) for one in draft.events]


def bookable(draft: Draft) -> list[str]:
    return sorted(atom.id for atom in draft.atoms.values() if atom.bookable)


# ---- what a fault does


@pytest.mark.parametrize("row", [ECC, FINDING], ids=["xid", "inventory"])
def test_a_device_is_unhealthy_while_any_row_of_it_is_open_and_the_rest_of_the_node_stays(row: Health) -> None:
    draft = node(row)
    assert {device.id: device.healthy for device in draft.devices.values()} == {GPU: False, OTHER: True}
    assert bookable(draft) == [OTHER]
    assert draft.atoms[GPU, 1].reason == row.code


def test_both_sources_on_one_device_keep_it_out_until_both_are_closed() -> None:
    draft = node(ECC, FINDING)
    before = draft.copy()
    draft = draft.copy()
    assert clear(FACTS, draft, GPU, WHY) == Cleared(("Xid48",), ("EccUncorrectable",))
    concluded(draft, before)
    assert (draft.devices[GPU].healthy, bookable(draft)) == (False, [OTHER])
    after = draft.copy()
    after.put("health", replace(FINDING, closed_reason=GONE))
    assert bookable(concluded(after, draft)) == [GPU, OTHER]


def test_mig_instances_and_slots_leave_placement_alike() -> None:
    draft = Draft()
    for device in (Device(GPU), Device(OTHER)):
        draft.put("devices", device)
    for atom in (Atom("MIG-1", 3, GPU, "1g.10gb"), Atom("MIG-2", 1, GPU, "1g.10gb"), Atom(f"{OTHER}::0", 1, OTHER)):
        draft.put("atoms", atom)
    draft = concluded(draft, Draft())
    assert bookable(draft) == [f"{OTHER}::0", "MIG-1", "MIG-2"]
    ill = draft.copy()
    ill.put("health", ECC)
    assert bookable(concluded(ill, draft)) == [f"{OTHER}::0"]
    assert not any(atom.healthy for atom in ill.atoms.values() if atom.device_id == GPU)
    slot = draft.copy()
    slot.put("health", replace(ECC, device_id=OTHER))
    assert bookable(concluded(slot, draft)) == ["MIG-1", "MIG-2"]


def test_bookings_are_untouched() -> None:
    held = replace(FACTS, bookings=(Booking("b1", GPU, GPU, 1),))
    before = node()
    draft = before.copy()
    draft.put("health", ECC)
    concluded(draft, before, held)
    assert draft.atoms.keys() == before.atoms.keys(), "a quarantine releases nothing"
    assert not draft.atoms[GPU, 1].retiring


def test_a_quarantine_acts_in_pools_that_observe_too() -> None:
    observing = replace(FACTS, pool=Pool("pool_1", mode="observe"))
    before = node()
    draft = before.copy()
    draft.put("health", ECC)
    assert bookable(concluded(draft, before, observing)) == [OTHER]


def test_a_device_planned_later_is_born_unhealthy() -> None:
    before = Draft(health={ECC.key: ECC})
    draft = before.copy()
    draft.put("devices", Device(GPU))
    draft.put("atoms", Atom(GPU, 1, GPU))
    concluded(draft, before)
    assert (draft.devices[GPU].healthy, draft.atoms[GPU, 1].healthy, bookable(draft)) == (False, False, [])
    assert draft.notices == [Notice("AtomUnhealthy", GPU)]


def test_a_missing_device_is_unhealthy_without_a_fault() -> None:
    before = node()
    draft = before.copy()
    draft.put("devices", replace(draft.devices[GPU], present=False))
    concluded(draft, before)
    assert (draft.devices[GPU].healthy, draft.atoms[GPU, 1].reason) == (False, "Missing")
    assert draft.notices == [Notice("AtomUnhealthy", GPU)]


@pytest.mark.parametrize("kept", [{"assigned": True}, {"partition_pending": True}, {"draining": True}])
def test_what_is_not_bookable_without_a_fault_stays_healthy(kept: dict[str, bool]) -> None:
    draft = node(**kept)
    assert (draft.devices[GPU].healthy, draft.atoms[GPU, 1].healthy, bookable(draft)) == (True, True, [OTHER])


def test_a_fault_of_a_device_that_another_node_has_is_nothing_here() -> None:
    before = Draft()
    draft = Draft(health={ECC.key: ECC})
    settle(replace(FACTS, owners={GPU: "node_2"}), before, draft)
    assert (draft.notices, draft.events, draft.history) == ([], [], [])


# ---- what is told


def test_quarantined_is_told_with_product_serial_code_and_reason_and_noticed() -> None:
    draft = node(ECC)
    payload = {
        "deviceId": GPU,
        "gpuProduct": "H100-SXM5-80GB",
        "serial": "16501",
        "code": "Xid48",
        "reason": "uncorrectable (double-bit) ECC error",
    }
    assert told(draft) == [("node.gpu.quarantined", payload)]
    assert draft.notices == [Notice("AtomUnhealthy", GPU)]
    detail = {"source": "xid", "code": "Xid48", "reason": payload["reason"]}
    assert draft.history == [History(GPU, "16501", "quarantined", detail)]


def test_cleared_is_told_with_why_and_notices_nobody() -> None:
    before = node(ECC).copy()
    draft = before.copy()
    clear(FACTS, draft, GPU, WHY)
    concluded(draft, before)
    ((kind, payload),) = told(draft)
    assert (kind, payload["code"], payload["reason"], payload["serial"]) == ("node.gpu.cleared", "Xid48", WHY, "16501")
    assert (draft.notices, [one.event for one in draft.history]) == ([], ["cleared"])


def test_every_fault_of_a_device_is_told() -> None:
    assert [payload["code"] for _, payload in told(node(ECC, FINDING))] == ["EccUncorrectable", "Xid48"]
    before = node(ECC).copy()
    draft = before.copy()
    draft.put("health", FINDING)
    concluded(draft, before)
    assert [(kind, payload["code"]) for kind, payload in told(draft)] == [("node.gpu.quarantined", "EccUncorrectable")]
    assert draft.notices == [Notice("AtomUnhealthy", GPU)]


def test_no_text_of_the_driver_is_told_beyond_the_tenant() -> None:
    assert "secret" not in str(node(ECC).events) + str(node(ECC).history)


def test_a_finding_is_described_with_its_values() -> None:
    assert describe(FACTS, FINDING) == "uncorrectable memory errors since the driver was loaded: dram 2"
    assert describe(FACTS, replace(ECC, code="Xid4711")) == "Xid4711 is in no table"


def test_values_that_change_are_not_told_again() -> None:
    before = node(FINDING).copy()
    draft = before.copy()
    draft.put("health", replace(FINDING, detail={"dram": 3}))
    assert told(concluded(draft, before)) == []


# ---- clears


def test_a_clear_closes_xids_of_all_boots() -> None:
    draft = node(ECC, replace(ECC, boot_id="boot-0", count=4))
    assert clear(FACTS, draft, GPU, WHY) == Cleared(("Xid48",), ())
    assert {row.boot_id: (row.cleared_count, row.closed_reason) for row in draft.health.values()} == {
        "boot-1": (1, WHY),
        "boot-0": (4, WHY),
    }


def test_a_clear_of_one_code_leaves_the_others() -> None:
    draft = node(ECC, replace(ECC, code="Xid79"))
    assert clear(FACTS, draft, GPU, WHY, code="Xid79").closed == ("Xid79",)
    assert draft.health[ECC.key].open


def test_a_clear_leaves_other_devices() -> None:
    draft = node(ECC, replace(ECC, device_id=OTHER))
    clear(FACTS, draft, GPU, WHY)
    assert draft.health[replace(ECC, device_id=OTHER).key].open


@pytest.mark.parametrize("code", [None, "EccUncorrectable"])
def test_a_finding_is_refused_by_name(code: str | None) -> None:
    draft = node(FINDING)
    before = draft.copy()
    with pytest.raises(Refused, match=r"EccUncorrectable \(.*dram 2\).*force"):
        clear(FACTS, draft, GPU, WHY, code=code)
    assert draft.health == before.health


def test_force_closes_findings_and_xids() -> None:
    draft = node(ECC, FINDING)
    assert clear(FACTS, draft, GPU, WHY, force=True) == Cleared(("EccUncorrectable", "Xid48"), ())
    assert draft.health[FINDING.key].closed_reason == WHY
    assert clear(FACTS, node(ECC, FINDING), GPU, WHY, force=True, code="EccUncorrectable").closed == ("EccUncorrectable",)


def test_a_clear_of_what_is_not_open_closes_nothing() -> None:
    draft = node()
    assert clear(FACTS, draft, GPU, WHY) == Cleared((), ())
    assert clear(FACTS, node(FINDING), GPU, WHY, code="Xid48") == Cleared((), ("EccUncorrectable",))


def test_a_clear_counts_what_has_no_policy_too() -> None:
    before = node()
    before.put("faults", Counted("Xid13", GPU, "boot-1", 5, 5, message="13, x"))
    draft = before.copy()
    assert clear(FACTS, draft, GPU, WHY).closed == ()
    edited = replace(FACTS, pool=Pool("pool_1", policy=Policy(xid={13: "device"})))
    assert bookable(concluded(draft, before, edited)) == [GPU, OTHER], "an edit of the pool does not bring it back"
    again = draft.copy()
    again.put("faults", replace(again.faults["Xid13", GPU], count=6))
    assert bookable(concluded(again, draft, edited)) == [OTHER]


def test_a_clear_of_a_switch_is_by_its_bus_id() -> None:
    before = node()
    before.put("faults", Counted("SXid20009", SWITCH, "boot-1", 2, 2, message="20009, Fatal, Link 44"))
    draft = concluded(before.copy(), before)
    assert draft.conditions["SXid20009", SWITCH].status == "true"
    assert clear(FACTS, draft, SWITCH, WHY) == Cleared(("SXid20009",), ())
    assert concluded(draft, before).conditions["SXid20009", SWITCH].status == "false"


def test_a_tenants_machine_is_not_cleared() -> None:
    with pytest.raises(Refused, match="tenant-controlled"):
        clear(replace(FACTS, advisory=True), node(ECC), GPU, WHY)
