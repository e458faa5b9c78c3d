"""When bcd collects (SPEC A2): reasons come in, collections go out one at a time. Pure.

`Triggers` is the queue: what comes while a collection runs is merged into one more. A new source of triggers costs a row in
REASONS and a caller of `add`; rules on when an event may trigger (debounce, spacing) belong here too, as functions of times.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bettercompute.contract.sections import SECTIONS

ALL = frozenset(SECTIONS)
IMAGES_INTERVAL = 600.0  # seconds, where a CRI socket is configured (A1)
RESCAN_JITTER = 0.1

# Reason -> the sections that it concerns.
REASONS: dict[str, frozenset[str]] = {
    "first": ALL,  # nothing is stored
    "boot": ALL,  # the stored inventory is of another boot
    "upgrade": ALL,  # bcd or the driver is another version than the stored inventory's
    "events": ALL,  # the kernel has sent uevents since
    "incomplete": ALL,  # a section is missing in the stored inventory
    "rescan": ALL,
    "refresh": ALL,  # a person, a provisioner (bcd refresh, SIGUSR1) or the receiver
    "refused": ALL,  # the receiver refused the inventory: once more
    "images": frozenset({"images"}),
    "settling": frozenset({"gpus"}),
}


@dataclass(frozen=True, slots=True)
class Work:
    """One collection: its number (from 1), why, and what."""

    number: int
    reason: str
    sections: frozenset[str]


@dataclass(frozen=True, slots=True)
class Triggers:
    """The queue. `started` counts the collections begun so far, `done` those ended."""

    started: int = 0
    done: int = 0
    reasons: tuple[str, ...] = ()

    def add(self, reason: str) -> "Triggers":
        """One more reason. The collection that serves it has the number `next`. Raises KeyError for an unknown reason."""
        REASONS[reason]
        return self if reason in self.reasons else replace(self, reasons=(*self.reasons, reason))

    @property
    def next(self) -> int:
        """The number of the collection that serves what is added now: one that has begun may have passed it already."""
        return self.started + 1

    def start(self) -> "tuple[Triggers, Work | None]":
        """The next collection; None while one runs or nothing waits. Its reason is the reasons merged, in order of arrival."""
        if not self.reasons or self.started > self.done:
            return self, None
        sections = frozenset[str]().union(*(REASONS[reason] for reason in self.reasons))
        work = Work(self.started + 1, "+".join(self.reasons), sections)
        return replace(self, started=work.number, reasons=()), work

    def finish(self) -> "Triggers":
        """The running collection has ended, well or not."""
        return replace(self, done=self.started)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells, without collecting, that a stored inventory may be out of date. Absent: the host does not say."""

    bcd_version: str
    driver_version: str | None
    uevent_seqnum: int | None


def at_start(stored: tuple[str, Fingerprint] | None, boot_id: str, now: Fingerprint, missing: Iterable[str] = ()) -> str | None:
    """The reason to collect when bcd starts; None when the stored inventory (its boot, its fingerprint) still stands."""
    if stored is None:
        return "first"
    stored_boot, then = stored
    if stored_boot != boot_id:
        return "boot"
    if (then.bcd_version, then.driver_version) != (now.bcd_version, now.driver_version):
        return "upgrade"
    if then.uevent_seqnum != now.uevent_seqnum:
        return "events"
    return "incomplete" if any(missing) else None


def rescan_delay(interval: float, jitter: float) -> float:
    """Seconds to the next rescan; `jitter` in [0, 1) spreads it over 10 % to both sides."""
    return interval * (1 + RESCAN_JITTER * (2 * jitter - 1))
