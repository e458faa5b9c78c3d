"""The hardware key of a node: SPEC B2, "Hardware key", and the HardwareKey part of B1's DuplicateIdentity."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.hardware_key import Identifiers, identifiers
from google.protobuf.message import Message

from receiver.planning import hardware
from receiver.planning.view import ConditionRow, Draft, Facts, HardwareKey, Node
from tests.receiver.builders import NODE, OTHER, gpu, gpus

UUID = "4c4c4544-0051-3510-8043-b7c04f4d3532"
KEY = ("DuplicateIdentity", "")
NICS = pb.NicsSection(nics=[pb.Nic(name="ens3f0", permanent_mac="b8:3f:d2:00:00:01", kind="ethernet", bus_id="00000000:4B:00.0")])


def sections(**replaced: Message) -> dict[str, Message]:
    """A machine with all four kinds of identity."""
    system = pb.SystemSection(product_uuid=UUID, serial="S512345X3900001")
    return {"system": system, "nics": NICS, "gpus": gpus(gpu(0), gpu(1)), **replaced}


def facts(told: Mapping[str, Message], missing: tuple[str, ...] = (), same_key: tuple[str, ...] = ()) -> Facts:
    return Facts(NODE, sections=told, fresh=frozenset(told) - set(missing), same_key=same_key)


def planned(told: Facts, stored: HardwareKey | None = None, **draft: object) -> Draft:
    after = Draft(hardware=stored, **draft)  # type: ignore[arg-type]
    hardware.plan(told, after)
    return after


def key(draft: Draft) -> HardwareKey:
    assert draft.hardware is not None
    return draft.hardware


def stored(told: Mapping[str, Message] | None = None) -> HardwareKey:
    return key(planned(facts(told or sections())))


def events(draft: Draft) -> list[str]:
    return [one.type for one in draft.events]


SWAPPED = sections(gpus=gpus(gpu(0), gpu(7)))


# -- when a key is computed


def test_the_first_complete_report_gives_the_key_of_the_contract_and_tells_no_change() -> None:
    told = sections()
    after = planned(facts(told))
    assert key(after).key == identifiers(told["system"], told["nics"], told["gpus"]).key  # type: ignore[arg-type]
    assert key(after).identifiers == {
        "uuid": UUID,
        "serial": "S512345X3900001",
        "mac": ["b8:3f:d2:00:00:01"],
        "gpu": ["GPU-00000000", "GPU-00000001"],
    }
    assert (key(after).trusted, key(after).provisional, events(after)) == (True, False, [])


@pytest.mark.parametrize("name", ["system", "nics", "gpus"])
def test_the_stored_key_stays_while_a_section_is_missing(name: str) -> None:
    told = facts(SWAPPED, missing=(name,))
    assert planned(told, stored()).hardware == stored()
    assert planned(told).hardware is None
    assert hardware.key_of(told.sections or {}, told.fresh, stored()) == stored().key


@pytest.mark.parametrize(
    "section",
    [
        gpus(error="VersionMismatch", on_pci=2),
        gpus(gpu(0), gpu(7, state="lost")),
        gpus(gpu(0), gpu(7, assigned=True)),
        gpus(gpu(0), on_pci=2),
    ],
    ids=["error", "lost", "assigned", "on PCI alone"],
)
def test_the_stored_key_stays_while_nvml_fails_or_a_gpu_is_lost_or_assigned(section: pb.GpusSection) -> None:
    assert planned(facts(sections(gpus=section)), stored()).hardware == stored()


def test_a_host_without_gpus_has_a_key_of_the_other_kinds() -> None:
    assert set(stored(sections(gpus=gpus())).identifiers) == {"uuid", "serial", "mac"}


# -- a changed key


def test_a_changed_key_replaces_the_old_and_tells_what_differs() -> None:
    after = planned(facts(SWAPPED), stored())
    (told,) = after.events
    assert (told.type, told.payload["before"], told.payload["after"]) == (
        "node.hardware.changed",
        stored().key,
        stored(SWAPPED).key,
    )
    assert told.payload["identifiers"] == {
        "gpu": {"before": ["GPU-00000000", "GPU-00000001"], "after": ["GPU-00000000", "GPU-00000007"]}
    }
    assert (key(after).key, after.key_released) == (stored(SWAPPED).key, True)


def test_planning_twice_plans_nothing() -> None:
    once = planned(facts(SWAPPED, same_key=(OTHER,)), stored())
    again = once.copy()
    hardware.plan(facts(SWAPPED, same_key=(OTHER,)), again)
    assert again == replace(once, events=[], key_released=False)


def test_the_first_complete_report_replaces_joins_provisional_key_without_an_event() -> None:
    joined = HardwareKey("0" * 64, provisional=True, identifiers={"serial": "S512345X3900001"})
    after = planned(facts(sections()), joined)
    assert (key(after), events(after)) == (stored(), [])


# -- trusted


@pytest.mark.parametrize(
    ("told", "trusted"),
    [
        (sections(), True),
        (sections(nics=pb.NicsSection(), gpus=gpus()), True),  # UUID and serial
        (sections(system=pb.SystemSection(serial="Default string"), gpus=gpus()), False),  # MACs alone
        (sections(system=pb.SystemSection(), nics=pb.NicsSection()), False),  # GPUs alone
        (sections(system=pb.SystemSection(), nics=pb.NicsSection(), gpus=gpus()), False),  # nothing
    ],
)
def test_a_key_is_trusted_when_two_of_the_four_kinds_survive(told: dict[str, Message], trusted: bool) -> None:
    after = planned(facts(told))
    assert key(after).trusted is trusted


def test_a_trusted_key_is_unique_the_second_node_is_the_duplicate() -> None:
    after = planned(facts(sections(), same_key=(OTHER,)))
    row = after.conditions[KEY]
    assert not key(after).trusted
    assert (row.status, row.reason, row.evidence, row.device_id) == ("true", "HardwareKey", {"otherNode": OTHER}, "")


def test_a_key_that_is_not_trusted_makes_no_duplicate() -> None:
    told = sections(system=pb.SystemSection(), nics=pb.NicsSection())
    assert planned(facts(told, same_key=(OTHER,))).conditions == {}


def test_the_duplicate_ends_when_the_other_node_has_let_the_key_go() -> None:
    duplicate = planned(facts(sections(), same_key=(OTHER,)))
    after = duplicate.copy()
    hardware.plan(facts(sections()), after)
    assert (after.conditions[KEY].status, after.conditions[KEY].evidence, key(after).trusted) == ("false", {}, True)


def test_a_duplicate_stands_on_the_stored_key_while_a_report_is_not_complete() -> None:
    after = planned(facts(sections(), missing=("gpus",), same_key=(OTHER,)), replace(stored(), trusted=False))
    assert after.conditions[KEY].status == "true"


def test_the_owner_of_a_key_is_no_duplicate_and_keeps_it_on_a_plan_again() -> None:
    after = planned(facts(sections()), stored())
    assert (after.hardware, after.conditions, after.key_released) == (stored(), {}, False)


# -- what operators decided


def test_a_duplicate_session_is_neither_overwritten_nor_cleared() -> None:
    row = ConditionRow("DuplicateIdentity", reason="DuplicateSession")
    for same in ((), (OTHER,)):
        assert planned(facts(sections(), same_key=same), conditions={KEY: row}).conditions == {KEY: row}


def test_machines_told_apart_stay_untrusted_and_are_no_duplicates() -> None:
    after = Draft(hardware=stored())
    hardware.tell_apart(after, OTHER)
    assert (key(after).trusted, key(after).distinct, after.key_released) == (False, (OTHER,), True)
    for same in ((), (OTHER,)):
        again = after.copy()
        hardware.plan(facts(sections(), same_key=same), again)
        assert (key(again).trusted, again.conditions, again.key_released) == (False, {}, False)


def test_a_third_machine_with_the_key_is_a_duplicate_for_a_pair_told_apart() -> None:
    apart = replace(stored(), trusted=False, distinct=(OTHER,))
    assert planned(facts(sections(), same_key=("node_third",)), apart).conditions[KEY].evidence == {"otherNode": "node_third"}


def test_the_pair_is_remembered_with_another_key_which_may_be_trusted() -> None:
    apart = replace(stored(), trusted=False, distinct=(OTHER,))
    after = planned(facts(SWAPPED), apart)
    assert (key(after).trusted, key(after).distinct) == (True, (OTHER,))
    shared = planned(facts(SWAPPED, same_key=(OTHER,)), apart)
    assert (key(shared).trusted, shared.conditions) == (False, {})


@pytest.mark.parametrize("status", ["retired", "deleted"])
def test_a_node_that_is_out_holds_its_key_against_nobody_and_is_no_duplicate(status: str) -> None:
    after = Draft(node=Node(status=status), hardware=stored())
    hardware.release(after)
    assert (key(after).trusted, after.key_released) == (False, True)
    for same in ((), (OTHER,)):
        hardware.plan(facts(sections(), same_key=same), after)
        assert (key(after).trusted, after.conditions) == (False, {})


# -- what a joining machine claims


CLAIMED = identifiers(sections()["system"], NICS, None)  # type: ignore[arg-type]


def claiming(held_by: tuple[str, ...] = (), key: HardwareKey | None = None, **draft: object) -> Draft:
    after = Draft(hardware=key, **draft)  # type: ignore[arg-type]
    hardware.claim(Facts(NODE, same_key=held_by), after, CLAIMED)
    return after


def test_a_claim_is_a_provisional_key_and_held_against_nobody() -> None:
    after = claiming()
    assert (key(after).key, key(after).provisional, key(after).trusted) == (CLAIMED.key, True, False)
    assert (KEY in after.conditions, after.events) == (False, [])


def test_who_claims_anothers_trusted_key_is_its_duplicate() -> None:
    row = claiming(held_by=(OTHER,)).conditions[KEY]
    assert (row.status, row.reason, row.evidence) == ("true", "HardwareKey", {"otherNode": OTHER})


def test_a_claim_replaces_an_earlier_claim_and_no_key_of_a_report() -> None:
    assert key(claiming(key=HardwareKey("earlier", provisional=True))).key == CLAIMED.key
    assert claiming(key=replace(stored(), trusted=False)).hardware == stored(), "and that is held again"
    assert key(claiming(held_by=(OTHER,), key=replace(stored(), trusted=False))).trusted is False
    assert key(claiming(key=replace(stored(), distinct=(OTHER,)))).trusted is False, "told apart"


def test_nothing_claimed_is_no_key() -> None:
    after = Draft()
    hardware.claim(Facts(NODE), after, Identifiers())
    assert (after.hardware, after.conditions) == (None, {})


def test_the_first_report_replaces_a_claim_and_tells_no_change() -> None:
    after = planned(facts(sections()), key(claiming()))
    assert (key(after).provisional, key(after).trusted, events(after)) == (False, True, [])


def test_a_report_that_gives_no_key_leaves_a_claim_untrusted() -> None:
    after = planned(facts(sections(), missing=("gpus",)), key(claiming()))
    assert (key(after).key, key(after).provisional, key(after).trusted) == (CLAIMED.key, True, False)
