"""Conditions with both ends: what bcd says is what the receiver judges, whatever is in it (A3, A6, B3)."""

from dataclasses import replace

import pytest

from agent.conditions.declared import TYPES as DECLARED
from agent.conditions.table import TABLE
from agent.session import machine as agent
from agent.session import messages as said
from receiver.planning.condition_types import DAEMON_NODE_CONDITIONS
from receiver.values import Condition, Fault, Status
from tests.contract.wire import Wire


def judged(*conditions: said.Condition) -> Status:
    """What the receiver is to record of a report with these."""
    wire = Wire()
    wire.connect()
    wire.agent(agent.StatusChanged(replace(wire.state.status, conditions=conditions)))
    wire.run()
    wire.later(31.0)
    status: Status = wire.store.judged[-1]
    return status


@pytest.mark.parametrize("status", ["true", "false", "unknown"])
def test_a_condition_arrives_as_it_was_said(status: str) -> None:
    one = said.Condition("PcieReplayHigh", status, 1000.0, "Rose", "by 2,000", "GPU-1", "00000000:18:00.0")
    assert judged(one).conditions == (
        Condition("PcieReplayHigh", status, "Rose", "by 2,000", "GPU-1", "00000000:18:00.0"),  # type: ignore[arg-type]
    )


def test_faults_arrive_as_faults() -> None:
    xid = said.Condition("Xid79", "true", 1000.0, message="79, off the bus", device_id="GPU-1", bus_id="b", count=3)
    sxid = said.Condition("SXid12028", "true", 1000.0, message="12028, Non-fatal", bus_id="s", count=1)
    faults = (Fault("sxid", 12028, "", "s", 1, "12028, Non-fatal"), Fault("xid", 79, "GPU-1", "b", 3, "79, off the bus"))
    assert judged(sxid, xid).faults == faults


def test_a_text_that_is_too_long_is_cut_and_costs_no_session() -> None:
    (found,) = judged(said.Condition("RebootRequired", "true", 1000.0, "ü" * 3000, "界" * 1000)).conditions
    assert (found.reason, found.message) == ("ü" * 1024, "界" * 682)


def test_what_bcd_may_report_is_what_the_receiver_takes() -> None:
    found = {*TABLE, *DECLARED, "KernelLogUnavailable"}
    assert found == set(DAEMON_NODE_CONDITIONS)
