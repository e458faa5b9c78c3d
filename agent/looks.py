"""When the GPUs are looked at (collected) because of the kernel log (SPEC A2, A4). Pure; times are seconds of a monotonic clock.

A fault that is new is looked at 2 s after its line. One that repeats itself, as a crashing program's does all day, is too, but
each look makes the next one wait longer, up to a minute; after ten quiet minutes it is as at first.
"""

from dataclasses import dataclass

AFTER_XID = 2.0
AFTER_FALLEN = 1.8  # "within 2 s" of a line that says a GPU is gone and is no XID
FIRST_GAP, LAST_GAP = 4.0, 60.0
FORGIVEN = 600.0


@dataclass(frozen=True, slots=True)
class Looks:
    """The last look that the kernel log caused, and how long the next one waits after it when nothing is new."""

    last: float | None = None
    gap: float = 0.0

    def due(self, now: float, delay: float, new: bool) -> float:
        """When a line of `now` makes bcd look."""
        at = now + delay
        return at if new or self.last is None else max(at, self.last + self.gap)

    def taken(self, now: float) -> "Looks":
        """A look begins."""
        again = self.last is not None and now - self.last < FORGIVEN
        return Looks(now, min(LAST_GAP, self.gap * 2) if again else FIRST_GAP)
