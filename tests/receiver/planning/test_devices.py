"""Devices and who has them (SPEC B2, "Devices and atoms", "Ownership", and missing, lost and assigned ones)."""

from dataclasses import replace

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.planning import devices
from receiver.planning.view import Booking, ConditionRow, Draft, Facts, Node
from tests.receiver.planning.scenes import NODE, booked, gpu, gpus, mig_gpu, of_gpus, planned, raised, reports

OTHER = "node_2"
G0, G1, G2 = (f"GPU-{number:08d}" for number in range(3))


def lifes(draft: Draft) -> list[tuple[str, str]]:
    return [(line.device_id, line.event) for line in draft.history]


def functions(*numbers: int, driver: str = "nvidia") -> list[pb.PciFunction]:
    return [pb.PciFunction(bus_id=gpu(n).bus_id, device_id="2330", class_code="030200", driver=driver or None) for n in numbers]


def with_functions(section: pb.GpusSection, *more: pb.PciFunction) -> pb.GpusSection:
    section.pci_functions.extend(more)
    return section


def test_a_device_is_its_gpus_uuid() -> None:
    draft = planned(reports(of_gpus(0, 1)))
    assert sorted(draft.devices) == [G0, G1]
    assert draft.devices[G0].serial == "165000"
    assert draft.devices[G0].present
    assert lifes(draft) == [(G0, "added"), (G1, "added")]


def test_ids_are_stable_over_reboots_and_reinventory() -> None:
    first = planned(reports(of_gpus(0, 1)))
    again = planned(reports(gpus(gpu(1, index=0), gpu(0, index=1))), first, boot="boot-2")
    assert sorted(again.devices) == sorted(first.devices)
    assert again.atoms.keys() == first.atoms.keys()
    assert again.history == []


def test_a_device_has_the_attributes_of_its_gpu() -> None:
    device = planned(reports(of_gpus(0))).devices[G0]
    assert device.attributes["gpuModel"] == "H100"
    assert device.attributes["pciBusId"] == gpu(0).bus_id


@pytest.mark.parametrize("name", [None, "GPU-", "GPU-1::0", "MIG-1", "GPU-" + "x" * 129])
def test_a_gpu_without_a_uuid_is_no_device(name: str | None) -> None:
    draft = planned(reports(gpus(gpu(0, uuid=name)), owners={name: OTHER} if name else {}))
    assert draft.devices == {}
    assert raised(draft, "DuplicateIdentity") == {}


def test_no_gpus_section_yet_plans_nothing() -> None:
    first = planned(reports(of_gpus(0)))
    again = planned(Facts(NODE, sections={}), first)
    assert (again.devices, again.atoms) == (first.devices, first.atoms)


# ---------------------------------------------------------------- missing


def test_a_missing_device_goes_at_once_and_its_history_stays() -> None:
    first = planned(reports(of_gpus(0, 1)))
    after = planned(reports(of_gpus(1)), first)
    assert sorted(after.devices) == [G1]
    assert [atom.device_id for atom in after.atoms.values()] == [G1]
    assert lifes(after) == [(G0, "released")]
    assert after.history[0].serial == "165000"
    assert after.released == {G0}


def test_a_missing_device_with_live_bookings_is_kept() -> None:
    first = planned(reports(of_gpus(0, 1)))
    after = planned(reports(of_gpus(1), bookings=booked(G0)), first)
    assert not after.devices[G0].present
    assert (G0, 1) in after.atoms
    assert not after.atoms[G0, 1].retiring  # it is a fault, and nothing that was ordered
    assert lifes(after) == [(G0, "missing")]
    assert after.released == set()


def test_a_kept_device_is_deleted_once_its_bookings_end() -> None:
    first = planned(reports(of_gpus(0, 1)))
    kept = planned(reports(of_gpus(1), bookings=booked(G0)), first)
    after = planned(reports(of_gpus(1)), kept)
    assert sorted(after.devices) == [G1]
    assert after.released == {G0}


def test_a_kept_device_that_comes_back_is_there_again() -> None:
    first = planned(reports(of_gpus(0, 1)))
    kept = planned(reports(of_gpus(1), bookings=booked(G0)), first)
    after = planned(reports(of_gpus(0, 1), bookings=booked(G0)), kept)
    assert after.devices == first.devices
    assert after.atoms == first.atoms
    assert lifes(after) == [(G0, "returned")]


def test_every_atom_of_a_kept_device_stays_until_it_goes() -> None:
    from tests.receiver.planning.scenes import instance

    first = planned(reports(gpus(mig_gpu(0, instance("a"), instance("b", start=1)))))
    kept = planned(reports(gpus(), bookings=booked(f"{G0}/MIG-a")), first)
    assert kept.atoms == first.atoms


# ---------------------------------------------------------------- lost and assigned


def test_a_lost_device_is_kept_and_told() -> None:
    first = planned(reports(of_gpus(0)))
    after = planned(reports(gpus(gpu(0, state="lost", index=None))), first)
    assert after.devices[G0].lost
    assert after.devices[G0].present
    assert [one.type for one in after.events] == ["node.gpu.lost"]
    assert after.events[0].payload["deviceId"] == G0
    assert lifes(after) == [(G0, "lost")]
    again = planned(reports(gpus(gpu(0, state="lost", index=None))), after)
    assert again.events == []


def test_a_lost_device_keeps_what_was_known_of_it() -> None:
    first = planned(reports(gpus(gpu(0, compute_capability="9.0"))))
    after = planned(reports(gpus(pb.Gpu(uuid=G0, state="lost", bus_id=gpu(0).bus_id))), first)
    assert after.devices[G0].attributes["computeCapability"] == "9.0"
    assert after.devices[G0].serial == first.devices[G0].serial


def test_a_lost_device_that_answers_again_has_returned() -> None:
    lost = planned(reports(gpus(gpu(0, state="lost"))))
    after = planned(reports(of_gpus(0)), lost)
    assert not after.devices[G0].lost
    assert lifes(after) == [(G0, "returned")]


def test_an_assigned_device_is_kept() -> None:
    first = planned(reports(of_gpus(0)))
    after = planned(reports(gpus(gpu(0, assigned=True, index=None))), first)
    assert after.devices[G0].assigned
    assert (G0, 1) in after.atoms
    assert not planned(reports(of_gpus(0)), after).devices[G0].assigned


@pytest.mark.parametrize(("driver", "lost"), [("nvidia", True), ("", True), ("vfio-pci", False), ("nvgrace_gpu_vfio_pci", False)])
def test_a_gpu_that_no_list_has_is_not_missing_while_pci_shows_it(driver: str, lost: bool) -> None:
    first = planned(reports(of_gpus(0, 1)))
    after = planned(reports(with_functions(of_gpus(1), *functions(0, driver=driver))), first)
    assert (after.devices[G0].lost, after.devices[G0].assigned) == (lost, not lost)
    assert after.devices[G0].present


def test_a_gpu_whose_place_another_has_taken_is_missing() -> None:
    first = planned(reports(of_gpus(0, 1)))
    after = planned(reports(gpus(gpu(2, bus_id=gpu(0).bus_id), gpu(1))), first)
    assert sorted(after.devices) == [G1, G2]


def test_an_entry_without_a_uuid_is_the_gpu_that_was_known_at_its_place() -> None:
    first = planned(reports(of_gpus(0)))
    after = planned(reports(gpus(gpu(0, uuid=None, state="lost"))), first)
    assert after.devices[G0].lost
    assert not planned(reports(gpus(gpu(0, uuid=None))), first).devices[G0].lost


# ---------------------------------------------------------------- MIG mode


def test_mig_mode_pending_differs_from_current_is_partition_pending() -> None:
    after = planned(reports(gpus(mig_gpu(0, current=False, pending=True))))
    assert after.devices[G0].partition_pending
    assert not planned(reports(gpus(mig_gpu(0))), after).devices[G0].partition_pending


# ---------------------------------------------------------------- ownership


def test_another_node_that_reports_a_device_gets_duplicate_identity_and_no_row() -> None:
    after = planned(reports(of_gpus(0, 1), owners={G0: OTHER}))
    assert sorted(after.devices) == [G1]
    assert [atom.device_id for atom in after.atoms.values()] == [G1]
    row = raised(after, "DuplicateIdentity")[G0]
    assert row.reason == "DeviceOwned"
    assert row.evidence == {"deviceId": G0, "otherNode": OTHER}


def test_the_dispute_ends_and_the_row_comes_when_the_owner_has_let_go() -> None:
    disputed = planned(reports(of_gpus(0, 1), owners={G0: OTHER}))
    after = planned(reports(of_gpus(0, 1)), disputed)
    assert sorted(after.devices) == [G0, G1]
    assert raised(after, "DuplicateIdentity") == {}


def test_the_dispute_ends_when_the_node_reports_the_device_no_more() -> None:
    disputed = planned(reports(of_gpus(0, 1), owners={G0: OTHER}))
    assert raised(planned(reports(of_gpus(1)), disputed), "DuplicateIdentity") == {}


def test_other_reasons_of_duplicate_identity_are_left_alone() -> None:
    before = Draft()
    before.put("conditions", ConditionRow("DuplicateIdentity", reason="HardwareKey", evidence={"otherNode": OTHER}))
    assert planned(reports(of_gpus(0)), before).conditions == before.conditions


def test_flags_of_a_standing_dispute_stay() -> None:
    disputed = planned(reports(of_gpus(0), owners={G0: OTHER}))
    row = replace(disputed.conditions["DuplicateIdentity", G0], no_schedule=True)
    disputed.put("conditions", row)
    assert planned(reports(of_gpus(0), owners={G0: OTHER}), disputed).conditions["DuplicateIdentity", G0] == row


@pytest.mark.parametrize("status", ["retired", "deleted"])
def test_a_node_that_is_out_has_no_devices_whatever_it_reports(status: str) -> None:
    before = planned(reports(of_gpus(0, 1)))
    before.node = Node(status=status)
    after = planned(reports(of_gpus(0, 1)), before)
    assert (after.devices, after.atoms) == ({}, {})
    assert after.released == {G0, G1}
    assert raised(planned(reports(of_gpus(0), owners={G0: OTHER}), replace_node(status)), "DuplicateIdentity") == {}


def replace_node(status: str) -> Draft:
    return Draft(node=Node(status=status))


def test_to_release_all_tells_who_waits_for_them() -> None:
    draft = planned(reports(of_gpus(0, 1, 2), owners={G2: OTHER})).copy()
    devices.release_all(draft, "the node is retired")
    assert (draft.devices, draft.atoms) == ({}, {})
    assert draft.released == {G0, G1}
    assert {line.detail["reason"] for line in draft.history} == {"the node is retired"}
    assert raised(draft, "DuplicateIdentity") == {}


def test_a_booking_of_another_device_keeps_nothing() -> None:
    first = planned(reports(of_gpus(0, 1)))
    assert sorted(planned(reports(of_gpus(1), bookings=(Booking("b", G1, G1, 1),)), first).devices) == [G1]
