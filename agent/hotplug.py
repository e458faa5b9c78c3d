"""Hears hardware events and wants the collections that they call for (SPEC A2). The rules are triggers.py's, the door udev.py."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from agent import udev
from agent.errors import Unreadable
from agent.host import Host
from agent.triggers import Spacing, concerns

_DEVICES = "/sys/bus/pci/devices"
_AGAIN = 60.0  # seconds until a socket that could not be had is tried again

_log = logging.getLogger("bcd.hotplug")


class Hotplug:
    """One long-running part of the daemon. `want(reason)` adds a trigger.

    `connect(udevd)` gives the socket; None: the host is a recorded one, on which nothing happens.
    """

    def __init__(
        self,
        host: Callable[[], Host],
        want: Callable[[str], object],
        connect: Callable[[bool], socket.socket] | None,
        clock: Callable[[], float],
    ) -> None:
        self._host = host
        self._want = want
        self._connect = connect
        self._clock = clock
        self._spacing = Spacing()
        self._changed = asyncio.Event()
        self._vfs: set[str] = set()  # SR-IOV functions: when one is removed, sysfs cannot be asked any more
        self._nvidia: set[str] = set()
        self._complaint = ""
        self._deaf = False

    async def run(self) -> None:
        """For ever; a socket that cannot be had is tried again."""
        if self._connect is None:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._collect())
            while True:
                try:
                    await self._listen(self._connect)
                except OSError as error:
                    self._complain(f"hardware events cannot be heard: {error}; changes are seen by the rescan only")
                await asyncio.sleep(_AGAIN)

    def collected(self, reason: str, changed: bool) -> None:
        """A collection ended; `reason` as in triggers.Work."""
        if any(part.startswith("event-") for part in reason.split("+")):
            self._spacing = self._spacing.judged(changed)
            self._changed.set()

    async def _listen(self, connect: Callable[[bool], socket.socket]) -> None:
        host = self._host()
        with contextlib.closing(connect(host.exists("/run/udev/control"))) as sock:
            self._complaint = ""
            self._learn(host)
            if self._deaf:  # what happened meanwhile, nobody has heard
                self._want("overrun")
            self._deaf = True  # from the moment on that this ends
            async for item in udev.events(sock):
                if isinstance(item, udev.Overrun):
                    self._overrun()
                else:
                    self._heard(host, item)

    def _heard(self, host: Host, event: udev.Event) -> None:
        sections = concerns(event, lambda slot: self._is_nvidia(host, slot), lambda slot: self._is_vf(host, slot))
        if sections:
            _log.debug("event %s %s", event.action, event.devpath)
            self._spacing = self._spacing.heard(sections, self._clock())
            self._changed.set()

    def _overrun(self) -> None:
        _log.warning("hardware events came faster than they could be read, some are lost: all is collected")
        self._want("overrun")

    async def _collect(self) -> None:
        """Wants what waits when it is due."""
        while True:
            self._changed.clear()
            due = self._spacing.due
            wait = None if due is None else max(0.0, due - self._clock())
            if wait == 0.0:
                for section in sorted(self._spacing.sections):
                    self._want(f"event-{section}")
                self._spacing = self._spacing.take(self._clock())
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()

    def _learn(self, host: Host) -> None:
        """What the functions that are there are, once: an event of their removal comes too late to ask."""
        with contextlib.suppress(Unreadable):
            for slot in host.listdir(_DEVICES):
                self._is_vf(host, slot)
                self._is_nvidia(host, slot)

    def _is_vf(self, host: Host, slot: str) -> bool:
        return _remembered(self._vfs, slot, lambda: host.exists(f"{_DEVICES}/{slot}/physfn"), host)

    def _is_nvidia(self, host: Host, slot: str) -> bool:
        return _remembered(self._nvidia, slot, lambda: host.read(f"{_DEVICES}/{slot}/vendor").strip() == b"0x10de", host)

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            _log.warning("%s", text)
            self._complaint = text


def _remembered(known: set[str], slot: str, ask: Callable[[], bool], host: Host) -> bool:
    """The answer while the function is there, and what was known of it when it no longer is."""
    if host.exists(f"{_DEVICES}/{slot}"):
        with contextlib.suppress(Unreadable):
            (known.add if ask() else known.discard)(slot)
    return slot in known
