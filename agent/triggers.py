"""When bcd collects (SPEC A2): reasons come in, collections go out one at a time. Pure.

`Triggers` is the queue: what comes while a collection runs is merged into one more. A new source of triggers costs a row in
REASONS and a caller of `add`. Hardware events: `concerns` says which sections one is about, `Spacing` when they are collected.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bettercompute.contract.sections import SECTIONS

if TYPE_CHECKING:
    from agent.udev import Event

ALL = frozenset(SECTIONS)
IMAGES_INTERVAL = 600.0  # seconds, where a CRI socket is configured (A1)
RESCAN_JITTER = 0.1
RETRY = 300.0  # seconds between two tries of what is missing: the next rescan may be half a day away

# Reason -> the sections that it concerns.
REASONS: dict[str, frozenset[str]] = {
    "first": ALL,  # nothing is stored
    "boot": ALL,  # the stored inventory is of another boot
    "upgrade": ALL,  # bcd or the driver is another version than the stored inventory's
    "events": ALL,  # the kernel has sent uevents since
    "incomplete": ALL,  # a section is missing in the stored inventory
    "rescan": ALL,
    "refresh": ALL,  # a person, a provisioner (bcd refresh, SIGUSR1) or the receiver
    "reset": ALL,  # a GPU was reset
    "refused": ALL,  # the receiver refused the inventory: once more
    "images": frozenset({"images"}),
    "settling": frozenset({"gpus"}),
    "xid": frozenset({"gpus"}),  # the kernel log told of a fault
    "probe": frozenset({"gpus"}),  # the health probe saw something else than the last collection (A6)
    "overrun": ALL,  # events were lost
    **{f"retry-{name}": frozenset({name}) for name in SECTIONS},  # it is missing
    **{f"event-{name}": frozenset({name}) for name in ("disks", "gpus", "memory", "nics", "os")},
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


# ---------------------------------------------------------------- hardware events

QUIET, PATIENCE = 2.0, 10.0  # seconds without an event before a collection, but not longer than that from the first one
SPACE, LONGEST_SPACE = 60.0, 900.0  # between two collections that events caused

_PCI_ADDRESS = re.compile(r"/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?=/|$)")
_NO_CHANGE = frozenset({"change", "bind", "unbind"})
_OF_SUBSYSTEM = {
    "block": frozenset({"disks"}),
    "nvme": frozenset({"disks"}),
    "net": frozenset({"nics"}),
    "infiniband": frozenset({"nics"}),
    "memory": frozenset({"memory"}),
}
_OF_NVIDIA, _OF_ANOTHER = frozenset({"gpus", "os"}), frozenset({"disks", "nics"})


def pci_address(devpath: str) -> str | None:
    """The PCI function that a device is or hangs on: 0000:16:00.0 of `/devices/pci0000:15/0000:16:00.0/drm/card1`."""
    found = _PCI_ADDRESS.findall(devpath)
    return found[-1] if found else None


def concerns(event: "Event", nvidia: Callable[[str], bool], virtual_function: Callable[[str], bool]) -> frozenset[str]:
    """The sections that an event concerns; none for what is no event (A2). Both functions are asked about a PCI address."""
    address = pci_address(event.devpath)
    if event.devpath.startswith("/devices/virtual/") or event.properties.get("DEVTYPE") == "partition":
        return frozenset()
    of_nvidia = event.subsystem in ("pci", "drm") and address is not None and nvidia(address)
    if (event.action in _NO_CHANGE and not of_nvidia) or (address and virtual_function(address)):
        return frozenset()
    if event.subsystem in ("pci", "drm"):
        return _OF_NVIDIA if of_nvidia else _OF_ANOTHER
    return _OF_SUBSYSTEM.get(event.subsystem, frozenset())


@dataclass(frozen=True, slots=True)
class Spacing:
    """Hardware events that wait for their collection, and when it may be. Times are seconds of one monotonic clock."""

    sections: frozenset[str] = frozenset()  # that wait
    first: float = 0.0  # of the events that wait
    last: float | None = None  # event heard
    collected: float | None = None  # when events last caused a collection
    futile: int = 0  # such collections in a row that changed nothing, while events kept coming

    def heard(self, sections: frozenset[str], now: float) -> "Spacing":
        """One more event."""
        if not sections:
            return self
        paused = self.last is None or now - self.last > LONGEST_SPACE
        first = self.first if self.sections else now
        return replace(self, sections=self.sections | sections, first=first, last=now, futile=0 if paused else self.futile)

    @property
    def due(self) -> float | None:
        """When to collect what waits; None: nothing does."""
        if not self.sections or self.last is None:
            return None
        debounced = min(self.last + QUIET, self.first + PATIENCE)
        space = min(SPACE * 2.0 ** max(0, self.futile - 1), LONGEST_SPACE)
        return debounced if self.collected is None else max(debounced, self.collected + space)

    def take(self, now: float) -> "Spacing":
        """What waited is being collected."""
        return replace(self, sections=frozenset(), collected=now)

    def judged(self, changed: bool) -> "Spacing":
        """That collection ended. From the second one on that changes nothing, the space to the next doubles."""
        return replace(self, futile=0 if changed else min(self.futile + 1, 64))
