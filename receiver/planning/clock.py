"""ClockSkew (SPEC B3): a report's `sentAt` differs from its arrival by more than MOST, REPORTS times in a row. In memory.

An offset is in seconds: above zero where the node's clock is ahead of the receiver's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from receiver.planning.telemetry import Conclusion, Standing
from receiver.values import ConditionStatus

TYPE = "ClockSkew"
MOST = 5.0  # seconds
REPORTS = 3


@dataclass(frozen=True, slots=True)
class Clock:
    """A session's clock: the condition as concluded, and the offsets of its last REPORTS reports since one was right."""

    status: ConditionStatus = "false"
    last: tuple[float, ...] = ()

    def concluded(self) -> Iterator[Conclusion]:
        """The condition as it is now, told by the smallest of the offsets."""
        if self.status != "true" or not self.last:
            yield Conclusion(TYPE, self.status)
            return
        smallest = min(self.last, key=abs)
        word = "ahead of" if smallest > 0 else "behind"
        yield Conclusion(TYPE, "true", word.split()[0].title(), f"its clock is {abs(smallest):.1f} s {word} the receiver's")


RIGHT = Clock()


def begin(standing: Mapping[str, Standing]) -> Clock:
    """A session's clock before its first report."""
    return Clock(standing.get(TYPE, Standing()).status)


def follow(clock: Clock, offset: float | None) -> Clock:
    """The clock after a report; None: the report does not say when it was sent."""
    if offset is None:
        return clock
    if abs(offset) <= MOST:
        return RIGHT
    last = (*clock.last, offset)[-REPORTS:]
    return Clock("true" if len(last) == REPORTS else clock.status, last)


def offset(sent_at: datetime, since: datetime, came: datetime) -> float:
    """By how much a clock differs at least, when a message that it stamped `sent_at` came between `since` and `came`.

    (What waits while a stream's last message is worked on has come before it is read.)

    >>> at = lambda second: datetime(2026, 1, 1, 0, 0, second)
    >>> offset(at(30), at(20), at(21)), offset(at(10), at(20), at(31)), offset(at(25), at(20), at(31))
    (9.0, -10.0, 0.0)
    """
    least, most = (sent_at - came).total_seconds(), (sent_at - since).total_seconds()
    return least if least > 0 else min(most, 0.0)
