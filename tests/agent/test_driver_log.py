"""The step from a record to the ledger: what each kind of line does to it, and that no line breaks it."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import faults
from agent.driver_log import Taken, take
from agent.faults import Ledger, Places
from agent.kmsg.record import Record

A, UUID = "00000000:18:00.0", "GPU-5f3a8c21-7b94-1e0d-a6c2-93d41b7e2f08"
HERE = Places({A: "GPU-1"}, inventory=True)
XID = "NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=python, GPU has fallen off the bus."
SXID = "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, "
START = Ledger("boot-1", cursor=6, from_start=True)


def taken(text: str, priority: int = 4, trusted: bool = False) -> Taken:
    return take(START, Record(7, priority, 5_000_000, "c", text), HERE, lambda record: record.stamp_us / 1e6, trusted)


def test_an_xid_is_a_fault_of_the_gpu_at_its_bus_id_at_its_moment() -> None:
    found = taken(XID)
    (fault,) = found.ledger.faults.values()
    assert (found.xid, found.fallen, found.ledger.cursor) == (True, "", 7)
    assert (fault.type, fault.device_id, fault.first_seq, fault.first_at) == ("Xid79", "GPU-1", 7, 5.0)


@pytest.mark.parametrize(
    ("priority", "trusted", "counts"), [(4, False, True), (12, False, False), (30, False, False), (12, True, True)]
)
def test_only_the_kernel_counts_unless_user_space_is_trusted(priority: int, trusted: bool, counts: bool) -> None:
    found = taken(XID, priority, trusted)
    assert (bool(found.ledger.faults), found.xid) == (counts, counts)
    assert found.ledger.cursor == 7, "it was read all the same"


@pytest.mark.parametrize(("rest", "count"), [("Fatal, Link 48 LTSSM Fault Up", 1), ("Severity 1 Engine instance 48", 0)])
def test_the_details_of_a_switch_s_event_are_no_further_events(rest: str, count: int) -> None:
    found = taken(SXID + rest)
    assert (len(found.ledger.faults), found.xid) == (count, False)


def test_a_line_of_a_gpu_that_is_gone_is_no_fault() -> None:
    text = "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus."
    assert taken(text) == Taken(dataclasses.replace(START, cursor=7), fallen=text)
    assert not taken(f"systemd[1]: {text}").fallen


def test_the_driver_names_a_gpu() -> None:
    assert taken(f"NVRM: GPU at PCI:0000:2a:00: {UUID}").ledger.named == {"00000000:2A:00.0": UUID}


@given(
    st.sampled_from(["NVRM: ", "NVRM: Xid (PCI:0000:18:00): ", SXID[:45], ""]),
    st.sampled_from(["", "154, name=x, GPU recovery action changed from 0 to ", "144, ", "79, ", "20034, ", "4294967296, "]),
    st.text(max_size=80) | st.text("0123456789x, ", max_size=12),
)
def test_no_line_breaks_the_step_or_what_is_told_of_it(head: str, middle: str, rest: str) -> None:
    ledger = taken(head + middle + rest).ledger
    assert ledger.cursor == 7
    assert len(faults.conditions(ledger)) == len(ledger.faults)
    assert faults.xid_recent(ledger).verdict in ("pass", "fail")
