"""When a run is a person's instead of being begun."""

from datetime import UTC, datetime, timedelta

import pytest

from receiver.planning.escalation import Past, too_many
from receiver.planning.view import Cause, Run

NOW = datetime(2026, 11, 1, tzinfo=UTC)
OFF = Cause("GPU-1", "xid", "Xid79", "boot-9")
RUN = Run("run_9", "node.reboot", causes=(OFF.as_json(),))


def past(hours_ago: float, cause: Cause = OFF, boot: str = "boot-1", took: float = 0.1) -> Past:
    began = NOW - timedelta(hours=hours_ago)
    of_boot = Cause(cause.device_id, cause.source, cause.code, boot)
    return Past(f"run_{hours_ago}", began, began + timedelta(hours=took), (of_boot.as_json(),))


def why(*runs: Past) -> str | None:
    return too_many(RUN, runs, NOW, NOW)


@pytest.mark.parametrize("hours", [(2, 4), (2, 4, 25), (20, 40, 60, 80), (24, 24, 24)])
def test_so_few_runs_are_no_persons(hours: tuple[float, ...]) -> None:
    assert why(*map(past, hours)) is None


def test_the_fourth_run_in_24_hours_is_a_persons_whatever_the_others_were_for() -> None:
    other = Cause("GPU-2", "inventory", "RowRemapPending")
    assert why(past(3), past(10, other), past(23.9)) == "more than 3 runs on the node in 24 h"


def test_the_sixth_run_in_7_days_is_a_persons() -> None:
    assert why(*(past(hours) for hours in (25, 50, 75, 100, 167))) == "more than 5 runs on the node in 168 h"
    assert why(*(past(hours) for hours in (25, 50, 75, 100, 168))) is None


def test_two_runs_in_a_row_after_which_the_same_fault_was_soon_back_are_enough() -> None:
    assert why(past(0.5), past(1.2)) == "two runs in a row did not clear Xid79"
    assert why(past(0.5)) is None, "one"
    assert why(past(0.5), past(3)) is None, "it had lasted"
    assert why(past(1.5), past(2.2)) is None, "it has lasted"
    assert why(past(0.5), past(1.2, Cause("GPU-2", "xid", "Xid79"))) is None, "of another GPU"
    assert why(past(0.5), past(1.2, Cause("GPU-1", "xid", "Xid95"))) is None, "another fault"
