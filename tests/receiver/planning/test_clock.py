"""ClockSkew (SPEC B3): more than 5 s in 3 reports in a row; the smallest of the three counts."""

import pytest

from receiver.planning.clock import Clock, begin, follow, offset
from receiver.planning.telemetry import Standing

NEW = Clock()


def after(*offsets: float | None, clock: Clock = NEW) -> str:
    for one in offsets:
        clock = follow(clock, one)
    return clock.status


@pytest.mark.parametrize("sign", [1, -1])
def test_raised_by_three_reports_in_a_row_that_differ_by_more_than_five_seconds(sign: int) -> None:
    assert after(6.0 * sign, 6.0 * sign) == "false"
    assert after(6.0 * sign, 6.0 * sign, 6.0 * sign) == "true"
    assert after(5.0 * sign, 5.0 * sign, 5.0 * sign) == "false"


def test_the_smallest_of_the_three_counts() -> None:
    assert after(60.0, 60.0, 4.9, 60.0, 60.0) == "false", "a report that was held up says nothing of the clock"
    assert after(60.0, 60.0, 4.9, 60.0, 60.0, 60.0) == "true"
    clock = Clock()
    for one in (9.0, 5.5, 7.0):
        clock = follow(clock, one)
    (told,) = clock.concluded()
    assert (told.reason, told.message) == ("Ahead", "its clock is 5.5 s ahead of the receiver's")


def test_a_clock_that_is_behind_is_told_so() -> None:
    clock = follow(follow(follow(Clock(), -8.0), -7.0), -9.0)
    assert [(one.type, one.reason, one.message) for one in clock.concluded()] == [
        ("ClockSkew", "Behind", "its clock is 7.0 s behind the receiver's")
    ]


def test_cleared_by_one_report_that_differs_by_less() -> None:
    raised = Clock("true", (9.0, 9.0, 9.0))
    assert after(1.0, clock=raised) == "false"


def test_a_report_without_a_time_says_nothing() -> None:
    assert after(9.0, None, 9.0, None, 9.0) == "true"
    assert after(None, clock=Clock("true")) == "true"


def test_a_session_begins_with_what_stands_and_needs_three_reports_of_its_own() -> None:
    stands = begin({"ClockSkew": Standing("true", "boot-1")})
    assert after(9.0, clock=stands) == "true"
    assert after(0.0, clock=stands) == "false"
    assert after(9.0, 9.0, clock=begin({})) == "false"


@pytest.mark.parametrize(
    ("sent", "since", "came", "expected"),
    [
        (10.0, 10.0, 10.0, 0.0),
        (20.0, 10.0, 10.0, 10.0),
        (0.0, 10.0, 10.0, -10.0),
        (1.0, 0.0, 20.0, 0.0),  # it waited 19 s while the stream's last message was worked on
        (-8.0, 0.0, 20.0, -8.0),
        (29.0, 0.0, 20.0, 9.0),
    ],
)
def test_what_a_message_may_have_waited_here_is_no_skew(sent: float, since: float, came: float, expected: float) -> None:
    assert offset(sent, since, came) == expected
