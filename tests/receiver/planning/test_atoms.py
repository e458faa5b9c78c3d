"""What can be booked of a node's GPUs (SPEC B2, "Devices and atoms"; B0, "bookable")."""

from dataclasses import replace

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.planning import atoms
from receiver.planning.atoms import GONE, MISMATCH, hindrance
from receiver.planning.view import Atom, ConditionRow, Draft, Facts
from tests.receiver.planning.scenes import (
    booked,
    gpu,
    gpus,
    ids,
    instance,
    mig_gpu,
    of_gpus,
    planned,
    pool,
    raised,
    reports,
)

G0, G1 = "GPU-00000000", "GPU-00000001"
TWO = gpus(mig_gpu(0, instance("a"), instance("b", "2g.20gb", 1, 2)))


def why(facts: Facts, draft: Draft, atom_id: str, generation: int = 1) -> str | None:
    """Why an atom is not bookable."""
    atom = draft.atoms[atom_id, generation]
    return hindrance(facts, draft, atom, draft.devices[atom.device_id])


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize("shared", [None, pool("exclusive")])
def test_a_whole_gpu_is_one_atom_with_the_gpus_uuid(shared: object) -> None:
    draft = planned(reports(of_gpus(0, 1), pool=shared))
    assert sorted(draft.atoms) == [(G0, 1), (G1, 1)]
    assert draft.atoms[G0, 1].device_id == G0


def test_a_gpu_in_mig_mode_has_one_atom_per_instance_with_its_profile() -> None:
    draft = planned(reports(TWO))
    assert ids(draft.atoms.values()) == ["MIG-a", "MIG-b"]
    assert {atom.id: atom.profile for atom in draft.atoms.values()} == {"MIG-a": "1g.10gb", "MIG-b": "2g.20gb"}
    assert draft.atoms["MIG-b", 1].placement == {"start": 1, "size": 2}
    assert {atom.device_id for atom in draft.atoms.values()} == {G0}


@pytest.mark.parametrize(("sharing", "default"), [("timeslice", 4), ("mps", 10)])
def test_slots_of_shared_pools(sharing: str, default: int) -> None:
    draft = planned(reports(of_gpus(0), pool=pool(sharing)))
    assert ids(draft.atoms.values()) == sorted(f"{G0}::{number}" for number in range(default))
    more = planned(reports(of_gpus(0), pool=pool(sharing, replicas=48)))
    assert len(more.atoms) == 48
    assert len(planned(reports(of_gpus(0), pool=pool(sharing, replicas=1))).atoms) == 1


@pytest.mark.parametrize("current", [True, False])
def test_a_pending_mig_mode_keeps_the_atoms_and_makes_each_unbookable(current: bool) -> None:
    listed = mig_gpu(0, *([instance("a"), instance("b", start=1)] if current else []), current=current, pending=not current)
    facts = reports(gpus(listed))
    draft = planned(facts)
    assert ids(draft.atoms.values()) == (["MIG-a", "MIG-b"] if current else [G0])
    assert {why(facts, draft, *key) for key in draft.atoms} == {"PartitionPending"}


@pytest.mark.parametrize("sharing", ["exclusive", "mig", "timeslice", "mps"])
def test_a_gpu_in_mig_mode_has_mig_atoms_whatever_the_pool_says(sharing: str) -> None:
    assert ids(planned(reports(TWO, pool=pool(sharing))).atoms.values()) == ["MIG-a", "MIG-b"]


# ---------------------------------------------------------------- mig pools


def test_in_a_mig_pool_a_gpu_that_is_not_in_mig_mode_is_unbookable_instead_of_one_whole_atom() -> None:
    draft = planned(reports(gpus(mig_gpu(0, current=False), gpu(1)), pool=pool("mig")))
    assert draft.atoms == {}
    assert sorted(raised(draft, MISMATCH)) == [G0, G1]


def test_in_a_mig_pool_a_gpu_that_has_none_of_the_layout_is_unbookable() -> None:
    facts = reports(TWO, pool=pool("mig", mig_layout=("3g.40gb", "4g.40gb")))
    draft = planned(facts)
    assert ids(draft.atoms.values()) == ["MIG-a", "MIG-b"]
    assert {why(facts, draft, *key) for key in draft.atoms} == {MISMATCH}
    assert "3g.40gb" in raised(draft, MISMATCH)[G0].message


@pytest.mark.parametrize("layout", [(), ("1g.10gb",), ("1g.10gb", "7g.80gb")])
def test_in_a_mig_pool_a_gpu_that_has_some_of_the_layout_is_bookable(layout: tuple[str, ...]) -> None:
    facts = reports(TWO, pool=pool("mig", mig_layout=layout))
    draft = planned(facts)
    assert raised(draft, MISMATCH) == {}
    assert {why(facts, draft, *key) for key in draft.atoms} == {None}


def test_a_mig_mode_without_instances_has_no_layout() -> None:
    assert sorted(raised(planned(reports(gpus(mig_gpu(0)), pool=pool("mig"))), MISMATCH)) == [G0]


def test_outside_mig_pools_no_layout_is_wanted() -> None:
    assert raised(planned(reports(gpus(mig_gpu(0), gpu(1)), pool=pool("exclusive"))), MISMATCH) == {}


def test_the_mismatch_ends_when_the_layout_is_there() -> None:
    without = planned(reports(gpus(mig_gpu(0)), pool=pool("mig")))
    facts = reports(TWO, pool=pool("mig"))
    after = planned(facts, without)
    assert raised(after, MISMATCH) == {}
    assert {why(facts, after, *key) for key in after.atoms} == {None}


def test_what_a_lost_gpu_has_is_as_it_was_known() -> None:
    first = planned(reports(TWO, pool=pool("mig", mig_layout=("7g.80gb",))))
    facts = reports(gpus(gpu(0, state="lost")), pool=pool("mig", mig_layout=("7g.80gb",)))
    after = planned(facts, first)
    assert after.atoms == first.atoms
    assert raised(after, MISMATCH) == raised(first, MISMATCH) != {}
    assert {why(facts, after, *key) for key in after.atoms} == {"Lost"}


def test_of_a_gpu_that_nobody_can_ask_no_layout_is_missed() -> None:
    draft = planned(reports(gpus(gpu(0, state="lost"), gpu(1, assigned=True)), pool=pool("mig")))
    assert raised(draft, MISMATCH) == {}


def test_what_an_assigned_gpu_has_is_as_it_was_known_and_unbookable() -> None:
    first = planned(reports(TWO))
    facts = reports(gpus(gpu(0, assigned=True)))
    after = planned(facts, first)
    assert after.atoms == first.atoms
    assert {why(facts, after, *key) for key in after.atoms} == {"Assigned"}


def test_a_mig_mode_that_nvml_does_not_tell_is_as_it_was_known() -> None:
    first = planned(reports(TWO))
    assert planned(reports(of_gpus(0)), first).atoms == first.atoms


# ---------------------------------------------------------------- generations


def test_the_generation_stays_while_the_instance_does() -> None:
    first = planned(reports(TWO))
    assert planned(reports(TWO), first).atoms == first.atoms


@pytest.mark.parametrize(
    ("now", "boot"),
    [
        (instance("a", "2g.20gb"), "boot-1"),
        (instance("a", start=4), "boot-1"),
        (instance("a", size=2), "boot-1"),
        (instance("a"), "boot-2"),
    ],
)
def test_the_generation_rises_with_another_profile_placement_or_boot(now: object, boot: str) -> None:
    first = planned(reports(gpus(mig_gpu(0, instance("a")))))
    after = planned(reports(gpus(mig_gpu(0, now))), first, boot)  # type: ignore[arg-type]
    assert sorted(after.atoms) == [("MIG-a", 2)]


def test_the_generation_rises_too_when_the_instance_was_away_meanwhile() -> None:
    first = planned(reports(TWO))
    away = planned(reports(gpus(mig_gpu(0))), first)
    assert away.atoms == {}
    after = planned(reports(gpus(mig_gpu(0, instance("a", "7g.80gb")))), away)
    assert sorted(after.atoms) == [("MIG-a", 2)]


def test_an_instance_that_was_away_and_is_the_same_has_its_generation() -> None:
    away = planned(reports(gpus(mig_gpu(0))), planned(reports(TWO)))
    assert sorted(planned(reports(TWO), away).atoms) == [("MIG-a", 1), ("MIG-b", 1)]


def test_whole_gpus_and_slots_keep_their_generation_over_boots() -> None:
    facts = reports(of_gpus(0), pool=pool("mps", replicas=1))
    assert sorted(planned(facts, planned(facts), "boot-2").atoms) == [(f"{G0}::0", 1)]


def test_a_booking_belongs_to_one_generation() -> None:
    first = planned(reports(gpus(mig_gpu(0, instance("a")))))
    facts = reports(gpus(mig_gpu(0, instance("a"))), bookings=booked(f"{G0}/MIG-a"))
    after = planned(facts, first, "boot-2")
    assert sorted(after.atoms) == [("MIG-a", 1), ("MIG-a", 2)]
    assert why(facts, after, "MIG-a", 1) == "Retiring"
    assert why(facts, after, "MIG-a", 2) is None


def test_the_first_boot_that_is_known_is_not_another_one() -> None:
    first = planned(reports(TWO), boot="")
    after = planned(reports(TWO), first, "boot-1")
    assert sorted(after.atoms) == [("MIG-a", 1), ("MIG-b", 1)]
    assert sorted(planned(reports(TWO), after, "boot-2").atoms) == [("MIG-a", 2), ("MIG-b", 2)]


def test_another_boot_with_the_same_inventory_bears_mig_atoms_anew() -> None:
    section = gpus(mig_gpu(0, instance("a"), instance("b", start=1)), gpu(1))
    draft = planned(reports(section)).copy()
    draft.node = replace(draft.node, inventory_boot="boot-2")
    facts = Facts("node_1", bookings=booked(f"{G0}/MIG-a"))
    atoms.settle(facts, planned(reports(section)), draft)
    assert sorted(draft.atoms) == [(G1, 1), ("MIG-a", 1), ("MIG-a", 2), ("MIG-b", 2)]
    assert draft.atoms["MIG-a", 1].retiring
    again = draft.copy()
    atoms.reborn(facts, again)
    atoms.settle(facts, draft, again)
    assert again.atoms == draft.atoms
    assert planned(reports(section, bookings=facts.bookings), draft, "boot-2").atoms == draft.atoms


def test_what_is_not_there_is_not_born_anew_until_it_is() -> None:
    lost = planned(reports(gpus(gpu(0, state="lost"))), planned(reports(TWO))).copy()
    lost.node = replace(lost.node, inventory_boot="boot-2")
    atoms.reborn(Facts("node_1"), lost)
    assert sorted(lost.atoms) == [("MIG-a", 1), ("MIG-b", 1)]
    assert sorted(planned(reports(TWO), lost, "boot-2").atoms) == [("MIG-a", 2), ("MIG-b", 2)]


def test_an_instance_that_two_gpus_name_is_one_atom() -> None:
    section = gpus(mig_gpu(0, instance("a")), mig_gpu(1, instance("a")))
    draft = planned(reports(section))
    assert [(atom.id, atom.device_id) for atom in draft.atoms.values()] == [("MIG-a", G0)]
    assert planned(reports(section), draft).atoms == draft.atoms


def test_an_instance_that_another_node_has_is_no_atom_here() -> None:
    draft = planned(reports(TWO, owners={"MIG-a": "node_2"}))
    assert ids(draft.atoms.values()) == ["MIG-b"]
    assert raised(draft, "DuplicateIdentity") == {}


@pytest.mark.parametrize("name", ["", "GPU-00000001", "GPU-00000001::0", "MIG-", "MIG-a::0", "MIG-" + "x" * 129])
def test_what_is_not_named_as_an_instance_is_no_atom(name: str) -> None:
    draft = planned(reports(gpus(mig_gpu(0, pb.MigInstance(uuid=name)), gpu(1))))
    assert ids(draft.atoms.values()) == [G1]
    assert draft.atoms[G1, 1].device_id == G1


# ---------------------------------------------------------------- what is not planned any more


@pytest.mark.parametrize(
    ("now", "kept"),
    [
        (reports(of_gpus(0), pool=pool("timeslice", replicas=2)), f"{G0}::3"),  # fewer replicas
        (reports(of_gpus(0), pool=pool("exclusive")), f"{G0}::3"),  # other sharing
        (reports(TWO, pool=pool("timeslice")), f"{G0}::3"),  # a MIG change
    ],
)
def test_an_atom_that_is_not_planned_any_more_retires_and_goes_when_its_booking_ends(now: Facts, kept: str) -> None:
    first = planned(reports(of_gpus(0), pool=pool("timeslice")))
    after = planned(replace(now, bookings=booked(f"{G0}/{kept}")), first)
    assert after.atoms[kept, 1].retiring
    assert after.atoms[kept, 1].healthy
    assert why(now, after, kept) == "Retiring"
    assert [atom.id for atom in after.atoms.values() if atom.retiring] == [kept]  # what was not booked is gone
    assert (kept, 1) not in planned(now, after).atoms


def test_a_retiring_atom_of_a_missing_device_goes_with_its_own_booking() -> None:
    two = reports(of_gpus(0), pool=pool("timeslice", replicas=2), bookings=booked(f"{G0}/{G0}::0", f"{G0}/{G0}::3"))
    retiring = planned(two, planned(reports(of_gpus(0), pool=pool("timeslice"))))
    missing = planned(replace(two, sections={"gpus": of_gpus()}), retiring)
    assert missing.atoms == retiring.atoms
    after = planned(replace(two, sections={"gpus": of_gpus()}, bookings=two.bookings[:1]), missing)
    assert ids(after.atoms.values()) == [f"{G0}::0", f"{G0}::1"]


def test_an_atom_that_is_planned_again_is_not_retiring() -> None:
    four = reports(of_gpus(0), pool=pool("timeslice"), bookings=booked(f"{G0}/{G0}::3"))
    two = replace(four, pool=pool("timeslice", replicas=2))
    after = planned(four, planned(two, planned(four)))
    assert not after.atoms[f"{G0}::3", 1].retiring


def test_a_mig_change_that_was_ordered_retires_its_booked_atoms() -> None:
    facts = reports(gpus(mig_gpu(0, instance("c"))), pool=pool("mig", mig_layout=("1g.10gb",)), bookings=booked(f"{G0}/MIG-b"))
    after = planned(facts, planned(reports(TWO)))
    assert ids(after.atoms.values()) == ["MIG-b", "MIG-c"]
    assert after.atoms["MIG-b", 1].retiring
    assert why(facts, after, "MIG-c") is None


def test_a_layout_that_a_reboot_lost_is_a_fault_of_the_booked_instance() -> None:
    mig = pool("mig", mig_layout=("1g.10gb",))
    first = planned(reports(TWO, pool=mig))
    facts = reports(gpus(mig_gpu(0, current=False)), pool=mig, bookings=booked(f"{G0}/MIG-a"))
    after = planned(facts, first, "boot-2")
    assert ids(after.atoms.values()) == ["MIG-a"]
    assert not after.atoms["MIG-a", 1].retiring
    assert why(facts, after, "MIG-a") == GONE
    back = planned(reports(TWO, pool=mig, bookings=facts.bookings), after, "boot-2")
    assert why(facts, back, "MIG-a", 1) == GONE  # what its booking was of has not come back
    assert not back.atoms["MIG-a", 1].retiring
    assert why(facts, back, "MIG-a", 2) is None
    assert ("MIG-a", 1) not in planned(reports(TWO, pool=mig), back, "boot-2").atoms


def test_an_atom_that_retires_by_order_stays_healthy_when_the_layout_is_lost_later() -> None:
    mig = pool("mig", mig_layout=("1g.10gb",))
    ordered = reports(gpus(mig_gpu(0, instance("c"))), pool=mig, bookings=booked(f"{G0}/MIG-a"))
    after = planned(replace(ordered, sections={"gpus": gpus(mig_gpu(0))}), planned(ordered, planned(reports(TWO, pool=mig))))
    assert after.atoms["MIG-a", 1].retiring
    assert after.atoms["MIG-a", 1].reason != GONE


def test_an_instance_that_went_in_error_and_is_back_is_as_before() -> None:
    mig = pool("mig", mig_layout=("1g.10gb",))
    facts = reports(TWO, pool=mig, bookings=booked(f"{G0}/MIG-a"))
    first = planned(facts)
    gone = planned(replace(facts, sections={"gpus": gpus(mig_gpu(0))}), first)
    after = planned(facts, gone)
    assert why(facts, after, "MIG-a") is None


@pytest.mark.parametrize(("before", "now"), [("exclusive", "timeslice"), ("timeslice", "exclusive"), ("exclusive", "mps")])
def test_a_gpu_that_is_still_booked_in_one_way_is_not_bookable_in_another(before: str, now: str) -> None:
    first = planned(reports(of_gpus(0), pool=pool(before)))
    held = sorted(first.atoms)[0][0]
    facts = reports(of_gpus(0), pool=pool(now), bookings=booked(f"{G0}/{held}"))
    after = planned(facts, first)
    assert {why(facts, after, *key) for key in after.atoms} == {"Retiring", "BookedOtherwise"}
    free = replace(facts, bookings=())
    again = planned(free, after)
    assert {why(free, again, *key) for key in again.atoms} == {None}


def test_a_booking_of_one_slot_leaves_the_other_slots_bookable() -> None:
    facts = reports(of_gpus(0), pool=pool("mps"), bookings=booked(f"{G0}/{G0}::0"))
    draft = planned(facts)
    assert {why(facts, draft, *key) for key in draft.atoms} == {None}


# ---------------------------------------------------------------- hindrances


def test_hindrances_that_are_of_the_device() -> None:
    draft = planned(reports(of_gpus(0)))
    device, atom, facts = draft.devices[G0], draft.atoms[G0, 1], Facts("node_1")
    assert hindrance(facts, draft, atom, device) is None
    assert hindrance(facts, draft, atom, replace(device, present=False)) == "Missing"
    assert hindrance(facts, draft, atom, replace(device, lost=True)) == "Lost"
    assert hindrance(facts, draft, atom, replace(device, assigned=True)) == "Assigned"
    assert hindrance(facts, draft, atom, replace(device, draining=True)) == "Draining"


def test_a_mismatch_that_has_ended_hinders_nothing() -> None:
    draft = planned(reports(of_gpus(0)))
    draft.put("conditions", ConditionRow(MISMATCH, G0, status="false", message="x"))
    assert hindrance(Facts("node_1"), draft, Atom(G0, 1, G0), draft.devices[G0]) is None
