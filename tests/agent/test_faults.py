"""The fault ledger's rules: one entry per (device, code), nothing counted twice, nothing cleared by age."""

from dataclasses import replace

import pytest

from agent import faults
from agent.faults import Fault, Ledger, Places, Seen, conditions, xid_recent

A, B = "00000000:18:00.0", "00000000:2A:00.0"
HERE = Places(shown={A: "GPU-1", B: "GPU-2"}, inventory=True)
OFF = "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def xid(code: int = 79, bus_id: str = A, seq: int = 1, message: str = "", at: float = 0.0, **more: int) -> Seen:
    return Seen("Xid", code, bus_id, message or f"{code}, Ch 00000008", seq, at or float(seq), **more)


def ledger(*seen: Seen, places: Places = HERE) -> Ledger:
    """A ledger that has read the boot from its start, and these."""
    found = Ledger("boot-1").read(0)
    for one in seen:
        found = found.read(one.seq).add(one, places)
    return found


def only(found: Ledger) -> Fault:
    (fault,) = found.faults.values()
    return fault


def test_one_fault_per_device_and_code_and_repeats_raise_its_count() -> None:
    found = ledger(xid(seq=1), xid(seq=2), xid(seq=3, bus_id=B), xid(48, seq=4))
    assert [(c.type, c.device_id, c.count, c.since) for c in conditions(found)] == [
        ("Xid79", "GPU-2", 1, 3.0),
        ("Xid79", "GPU-1", 2, 1.0),
        ("Xid48", "GPU-1", 1, 4.0),
    ]
    first = found.faults["GPU-1", "Xid79"]
    assert (first.first_seq, first.last_seq, first.first_at, first.last_at) == (1, 2, 1.0, 2.0)


def test_the_condition_carries_the_driver_s_text_and_both_identities() -> None:
    (condition,) = conditions(ledger(xid(message=OFF)))
    assert (condition.status, condition.message, condition.device_id, condition.bus_id) == ("true", OFF, "GPU-1", A)


def test_the_first_of_equal_messages_stands_and_a_worse_one_replaces_it() -> None:
    calm = "145, pid=1, name=a, RLW_SRC_TRACK, Nonfatal, XC0, i0, Link 04"
    grave = "145, pid=2, name=b, RLW_SRC_TRACK, Fatal, XC0, i0, Link 04"
    assert only(ledger(xid(145, seq=1, message=calm), xid(145, seq=2, message=grave))).message == grave
    assert only(ledger(xid(145, seq=1, message=grave), xid(145, seq=2, message=calm))).message == grave
    assert only(ledger(xid(31, seq=1, message="31, first"), xid(31, seq=2, message="31, second"))).message == "31, first"


def test_an_unknown_number_is_an_xid_too() -> None:
    (condition,) = conditions(ledger(xid(9999)))
    assert condition.type == "Xid9999"


def test_a_mig_instance_s_fault_belongs_to_its_gpu() -> None:
    fault = only(ledger(xid(43, gi=7, ci=0)))
    assert (fault.device_id, fault.gi, fault.ci) == ("GPU-1", 7, 0)


def test_an_sxid_is_of_its_bus_id_and_of_no_device() -> None:
    found = ledger(Seen("SXid", 20034, "00000000:C4:00.0", "20034, Fatal, Link 48 LTSSM Fault Up", 1, 1.0))
    (condition,) = conditions(found)
    assert (condition.type, condition.device_id, condition.bus_id) == ("SXid20034", "", "00000000:C4:00.0")
    assert found.unattributed == ()
    assert only(found).policy.policy == "node"


def test_an_xid_of_no_known_gpu_is_counted_and_raises_no_condition() -> None:
    found = ledger(xid(bus_id="00000000:99:00.0", seq=1), xid(bus_id="00000000:99:00.0", seq=2))
    assert conditions(found) == ()
    assert [(f.bus_id, f.count) for f in found.unattributed] == [("00000000:99:00.0", 2)]


def test_attributed_after_all_when_an_inventory_shows_the_gpu() -> None:
    found = ledger(xid(seq=1), xid(seq=2), places=Places()).learn(HERE)
    assert (only(found).device_id, only(found).count, found.unattributed) == ("GPU-1", 2, ())


def test_attributed_by_the_driver_s_own_line() -> None:
    found = ledger(xid(), places=Places()).name(A, "GPU-1", Places())
    assert only(found).device_id == "GPU-1"
    assert only(ledger().name(A, "GPU-1", Places()).add(xid(), Places())).device_id == "GPU-1"


def test_an_inventory_replaces_what_the_driver_s_line_said_before() -> None:
    named = ledger().name(A, "GPU-9", HERE)
    assert only(named.add(xid(), HERE)).device_id == "GPU-9", "the line is newer than the inventory"
    assert only(named.learn(HERE).add(xid(), HERE)).device_id == "GPU-1"


def test_an_earlier_boot_s_gpu_is_remembered_while_this_boot_shows_no_other_there() -> None:
    earlier = Places(earlier={A: "GPU-1"})
    found = ledger(xid(), places=earlier)
    assert (only(found).device_id, only(found).remembered) == ("GPU-1", True)
    same = found.learn(Places(shown={A: "GPU-1"}))
    assert (only(same).device_id, only(same).remembered) == ("GPU-1", False)
    other = found.learn(Places(shown={A: "GPU-9"}))
    assert (only(other).device_id, only(other).remembered) == ("GPU-9", False)


def test_a_map_that_is_gone_is_no_evidence_against_a_remembered_gpu() -> None:
    found = ledger(xid(), places=Places(earlier={A: "GPU-1"}))
    assert found.attributed(Places()) == found


def test_a_remembered_gpu_that_this_boot_shows_elsewhere_is_not_taken() -> None:
    moved = Places(shown={B: "GPU-1"}, earlier={A: "GPU-1"})
    assert [f.bus_id for f in ledger(xid(), places=moved).unattributed] == [A]
    assert [f.bus_id for f in ledger(xid(), places=Places(earlier={A: "GPU-1"})).learn(moved).unattributed] == [A]


def test_counts_join_when_two_entries_turn_out_to_be_one() -> None:
    found = ledger(xid(seq=1), places=Places())  # nobody's
    found = found.read(2).add(xid(seq=2), HERE)  # GPU-1's
    assert len(found.faults) == 2
    joined = only(found.learn(HERE))
    assert (joined.count, joined.first_seq, joined.last_seq) == (2, 1, 2)


def test_a_gpu_that_was_exchanged_begins_without_faults() -> None:
    found = ledger(xid(seq=1)).read(2).add(xid(seq=2), Places(shown={A: "GPU-9"}))
    assert {key: fault.count for key, fault in found.faults.items()} == {("GPU-1", "Xid79"): 1, ("GPU-9", "Xid79"): 1}


def test_the_ledger_holds_256_pairs_and_further_records_are_counted() -> None:
    found = ledger(*(xid(code, seq=code) for code in range(1, 260)))
    assert (len(found.faults), found.overflow) == (256, 3)
    assert found.add(xid(1, seq=300), HERE).overflow == 3, "a pair that is there still counts"


def test_only_the_gpu_that_was_reset_loses_its_faults() -> None:
    found = ledger(xid(seq=1), xid(48, seq=2), xid(seq=3, bus_id=B)).without(["GPU-1"])
    assert list(found.faults) == [("GPU-2", "Xid79")]
    assert found.cursor == 3, "what was read stays read"


def test_a_jump_in_the_sequence_is_lost_records() -> None:
    found = Ledger("boot-1").read(0).read(1)
    assert found.complete
    assert (found.read(10).lost, found.read(10).complete) == (8, False)


def test_no_count_outgrows_the_wire() -> None:
    end = (1 << 64) - 1
    assert replace(Ledger("boot-1").read(0), lost=end - 1).read(9).lost == end


def test_a_log_whose_beginning_is_gone_is_not_complete() -> None:
    assert not Ledger("boot-1").complete
    assert not Ledger("boot-1").read(1227).complete
    assert Ledger("boot-1").read(1227).lost == 0


def test_a_message_fits_into_a_report() -> None:
    fault = only(ledger(xid(message="79, \0" + "é" * 2000)))
    assert fault.message.startswith("79, \ufffdé")
    assert len(fault.message.encode()) <= 2048


@pytest.mark.parametrize(
    ("found", "verdict", "reason"),
    [
        (ledger(), "pass", ""),
        (ledger(xid(31)), "pass", ""),
        (ledger(xid(48)), "fail", "Xid48 (uncorrectable (double-bit) ECC error), 1 time"),
        (ledger(xid(9999)), "pass", ""),
        (ledger(xid(31, seq=5)), "unknown", "4 records of this boot's kernel log were lost"),
        (ledger(xid(48, seq=5)), "fail", "Xid48"),
        (replace(ledger(), from_start=False), "unknown", "the beginning of this boot's kernel log was gone"),
        (Ledger("boot-1"), "unknown", "nothing of this boot's kernel log was read"),
        (replace(ledger(), overflow=2), "unknown", "2 records of XIDs did not fit"),
    ],
)
def test_xid_recent_fails_on_a_policy_and_is_unknown_when_records_are_missing(found: Ledger, verdict: str, reason: str) -> None:
    recent = xid_recent(found, "GPU-1")
    assert recent.verdict == verdict
    assert recent.reason.startswith(reason)


def test_xid_recent_tells_warnings_and_what_it_only_notes() -> None:
    recent = xid_recent(ledger(xid(9999, seq=1), xid(31, seq=2)), "GPU-1")
    assert ([f.code for f in recent.warnings], [f.code for f in recent.noted]) == ([9999], [31])


def test_xid_recent_of_the_node_has_switches_and_what_is_nobody_s() -> None:
    switch = Seen("SXid", 20034, "00000000:C4:00.0", "20034, Fatal, Link 48", 1, 1.0)
    found = ledger(switch, xid(seq=2, bus_id="00000000:99:00.0"))
    assert [f.type for f in xid_recent(found).failing] == ["Xid79", "SXid20034"]
    assert xid_recent(found, "GPU-1").verdict == "pass"


def test_the_worst_conditions_come_first() -> None:
    assert [c.type for c in conditions(ledger(xid(31, seq=1), xid(48, seq=2), xid(79, seq=3)))] == ["Xid79", "Xid48", "Xid31"]
    assert faults.PAIRS == 256, "as many as a report may hold (B11)"
