"""ClockSkew (SPEC B3): a report's `sentAt` differs from its arrival by more than MOST, REPORTS times in a row. In memory.

An offset is in seconds: above zero where the node's clock is ahead of the receiver's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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


def offset(sent_at: float, since: float, came: float) -> float:
    """By how much a clock differs at least, when a message that it stamped `sent_at` came between `since` and `came`.

    (What waits while a stream's last message is worked on has come before it is read.)

    >>> offset(30.0, 20.0, 21.0), offset(10.0, 20.0, 31.0), offset(25.0, 20.0, 31.0)
    (9.0, -10.0, 0.0)
    """
    return max(sent_at - came, 0.0) or min(sent_at - since, 0.0)
