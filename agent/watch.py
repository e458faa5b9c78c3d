"""Watches the kernel log (SPEC A4): reader, record, XID, ledger, report; the report goes out before anything is written to disk.

One task reads, one keeps faults.json. A log that cannot be read is the condition KernelLogUnavailable, and is opened again. What
the lines start (a report, a collection) is asked of the daemon through Hooks.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent import fault_store, faults
from agent.driver_log import take
from agent.faults import Fault, Ledger, Places
from agent.kmsg.growth import changes
from agent.kmsg.reader import KernelLogError, Lost, Reader
from agent.kmsg.record import Record, Unparsed
from agent.known_gpus import Known
from agent.looks import AFTER_FALLEN, AFTER_XID, Looks
from agent.session import messages as m

TELL_GAP = 1.0  # seconds between two reports of what only repeats itself
KEEP_AFTER = 0.05  # seconds from a report to the write of what it tells
KEEP_GAP = 1.0  # seconds between two writes
KEEP_RETRY = 5.0  # seconds after a write that failed
CURSOR_EVERY = 60.0  # seconds after which a cursor alone is written
FIRST_DELAY, LAST_DELAY = 1.0, 60.0  # seconds until a log that broke off is opened again
GROWTH_POLL = 1.0  # seconds between two looks at a recorded log that was read to its end, where inotify does not tell
LOOKS = 64  # lines without an XID that each have a look of their own
LIVE = 60.0  # seconds: a younger record is of now; the kernel's clock drifts from ours by seconds in weeks

_MOST = 1 << 31  # that these counts say on the wire

_log = logging.getLogger("bcd.watch")


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the watch asks of the daemon. `clock`: the kernel log's own clock, seconds since boot."""

    changed: Callable[[], None]  # the status report says something else now
    want: Callable[[str], object]  # collect, for this reason (triggers.REASONS)
    trust_userspace: Callable[[], bool]
    clock: Callable[[], float]


def places(known: Known, boot_id: str) -> Places:
    """The remembered GPUs as the ledger asks for them."""
    here = {bus_id: r.gpu.uuid for bus_id, r in known.items() if r.boot_id == boot_id}
    earlier = {bus_id: r.gpu.uuid for bus_id, r in known.items() if r.boot_id != boot_id}
    return Places(here, earlier, inventory=bool(here))


class Watch:
    """The kernel log's reader and the faults of this boot. `path`: /dev/kmsg, or a recorded host's log."""

    def __init__(self, path: Path, data_dir: Path, boot_id: str, known: Known, hooks: Hooks) -> None:
        self._path = path
        self._data_dir = data_dir
        self._hooks = hooks
        self._places = places(known, boot_id)
        self._saved = fault_store.recover(data_dir, boot_id)
        attributed = self._saved.attributed(self._places)
        self._ledger = self._saved if attributed == self._saved else attributed
        self._trouble: KernelLogError | None = None
        self._heard_since: float | None = None  # when the log became readable, or stopped being so; None: not tried yet
        self._unparsed = 0
        self._told_at = float("-inf")
        self._telling: asyncio.TimerHandle | None = None
        self._looks: dict[str, Looks] = {}  # by the line that asks for them; empty: XIDs
        self._asking: set[str] = set()
        self._newest = float("-inf")  # when the last new fault is to be looked at
        self._looking: asyncio.TimerHandle | None = None
        self._nobodys_since: float | None = None  # since when an XID waits for the first inventory
        self._nobodys_told: set[faults.Key] = set()
        self._again = asyncio.Event()  # a recorded log may be another
        self._dirty = asyncio.Event()
        self._unsaved: str | None = None
        self._disk = ThreadPoolExecutor(1, "faults")  # one thread: writes keep their order

    # -- what is known

    @property
    def ledger(self) -> Ledger:
        """The faults of this boot."""
        return self._ledger

    @property
    def trouble(self) -> str:
        """Why the log cannot be read; empty: it can, or was not tried yet."""
        return str(self._trouble) if self._trouble else ""

    def conditions(self) -> tuple[m.Condition, ...]:
        """KernelLogUnavailable, then the faults', the worst first."""
        if self._heard_since is None:
            return faults.conditions(self._ledger)
        status, reason, message = ("true", self._trouble.reason, str(self._trouble)) if self._trouble else ("false", "", "")
        own = m.Condition("KernelLogUnavailable", status, self._heard_since, reason, message)
        return (own, *faults.conditions(self._ledger))

    def kernel_log(self) -> m.KernelLog | None:
        """The reader's state for the status report; None before it was tried."""
        if self._heard_since is None:
            return None
        return m.KernelLog(
            available=self._trouble is None,
            complete=self._trouble is None and self._ledger.complete,
            lost_records=self._ledger.lost,
            unattributed=0 if self._waiting() else min(_MOST, sum(fault.count for fault in self._ledger.unattributed)),
            overflow=min(_MOST, self._ledger.overflow),
        )

    def describe(self) -> Mapping[str, Any]:
        """The same for a person on this host."""
        return {
            "path": str(self._path),
            "available": self._heard_since is not None and self._trouble is None,
            "reason": self._trouble.reason if self._trouble else None,
            "cursor": self._ledger.cursor,
            "complete": self._ledger.complete,
            "lostRecords": self._ledger.lost,
            "unparsedRecords": self._unparsed,
            "overflow": self._ledger.overflow,
            "unattributed": [
                {"type": fault.type, "busId": fault.bus_id, "count": fault.count, "message": fault.message}
                for fault in self._ledger.unattributed
            ],
            "notSaved": self._unsaved,
        }

    # -- what happens outside

    def learn(self, known: Known, boot_id: str) -> None:
        """A collection has ended; one of another boot (a recorded host's) begins the ledger anew."""
        self._places = places(known, boot_id)
        if boot_id != self._ledger.boot_id:
            self._nobodys_told.clear()
            self._take_on(Ledger(boot_id), new=True)
            self._again.set()
        elif (learnt := self._ledger.learn(self._places)) != self._ledger:
            self._take_on(learnt, new=learnt.faults != self._ledger.faults)
        self._tell(new=bool(self._ledger.unattributed))

    async def drop(self, device_ids: Iterable[str]) -> None:
        """The faults of these GPUs are over: a reset that was verified. On disk when it returns, if the disk lets it."""
        self._take_on(self._ledger.without(device_ids), new=True)
        await self._save()

    async def run(self) -> None:
        """Reads and keeps until it is cancelled; what is not on disk then is written last."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow())
                group.create_task(self._keep())
        finally:
            if self._ledger is not self._saved:
                with contextlib.suppress(OSError):  # told while it ran
                    self._disk.submit(fault_store.save, self._data_dir, self._ledger).result()
            self._disk.shutdown()

    # -- reading

    async def _follow(self) -> None:
        failures = 0
        while True:
            # The open is the first thing that the reader does: when it fails, this does not come about.
            opened = asyncio.get_running_loop().call_soon(self._heard, None)
            began = time.monotonic()
            before = (self._ledger.boot_id, self._stamp())
            try:
                async with contextlib.aclosing(Reader(self._path).records()) as records:
                    async for found in records:
                        self._take(found)
            except KernelLogError as error:
                opened.cancel()
                self._heard(error)
                if time.monotonic() - began > LAST_DELAY:
                    failures = 0
                await asyncio.sleep(min(LAST_DELAY, FIRST_DELAY * 2.0 ** min(failures, 16)))
                failures += 1
            else:  # a recorded log, at its end
                await self._grown(before)

    async def _grown(self, before: object) -> None:
        """Until a recorded log is not as it was before it was read: it has grown, or is another boot's."""
        with changes(self._path.parent, self._again.set) as watched:
            while before == (self._ledger.boot_id, self._stamp()):
                self._again.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if watched else GROWTH_POLL):
                        await self._again.wait()

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _heard(self, trouble: KernelLogError | None) -> None:
        """The log can be read, or not."""
        if self._heard_since is not None and (trouble and trouble.reason) == (self._trouble and self._trouble.reason):
            return
        if trouble:
            _log.error("%s", trouble)
        elif self._trouble:
            _log.info("the kernel log %s is read again", self._path)
        if self._heard_since is None or (trouble is None) != (self._trouble is None):
            self._heard_since = time.time()
        self._trouble = trouble
        self._tell(new=True)

    def _take(self, found: Record | Lost | Unparsed) -> None:
        """One record. Those that were taken before a restart are passed over; a jump in the numbers is seen by the ledger."""
        if isinstance(found, Unparsed):
            self._unparsed += 1
        if not isinstance(found, Record) or (self._ledger.cursor is not None and found.seq <= self._ledger.cursor):
            return
        before = self._ledger
        taken = take(before, found, self._places, self._moment, self._hooks.trust_userspace())
        ledger = taken.ledger
        if ledger.lost and not before.lost:
            _log.warning("%d records of the kernel log were lost before record %d", ledger.lost, found.seq)
        new = len(ledger.faults) > len(before.faults)
        if taken.xid:
            self._look(AFTER_XID, new)
        elif taken.fallen:
            self._look(AFTER_FALLEN, new=False, why=taken.fallen)
        if new or ledger.faults is not before.faults or ledger.lost != before.lost or ledger.overflow != before.overflow:
            self._take_on(ledger, new)
        else:
            self._ledger = ledger
            if before.cursor is None:
                self._dirty.set()

    def _moment(self, record: Record) -> float:
        """When a record was written, Unix seconds: now for one that is read as it is written, else an estimate."""
        age = self._hooks.clock() - record.stamp_us / 1e6
        return max(0.0, time.time() - (age if age > LIVE else 0.0))

    # -- what follows

    def _take_on(self, ledger: Ledger, new: bool) -> None:
        """The faults are these now. The report goes first, the disk follows."""
        before, self._ledger = self._ledger, ledger
        if new:
            for key in ledger.faults.keys() - before.faults.keys():
                self._log_fault(ledger.faults[key])
        self._tell(new)
        self._dirty.set()

    def _log_fault(self, fault: Fault) -> None:
        if fault.attributed:
            _log.warning("%s on %s %s: %s", fault.type, fault.device_id or "switch", fault.bus_id, fault.message)

    def _tell(self, new: bool) -> None:
        """Tells the daemon that the status changed: what is new at once, what repeats itself at most once a second."""
        loop = asyncio.get_running_loop()
        wait = self._told_at + TELL_GAP - loop.time()
        if new or wait <= 0:
            self._tell_now()
        elif self._telling is None:
            self._telling = loop.call_later(wait, self._tell_now)

    def _tell_now(self) -> None:
        if self._telling:
            self._telling.cancel()
            self._telling = None
        self._told_at = asyncio.get_running_loop().time()
        self._judge_nobodys()
        self._hooks.changed()

    def _look(self, delay: float, new: bool, why: str = "") -> None:
        """Collects the GPUs `delay` seconds after this line; what repeats itself, ever more rarely.

        `why`: a line that is no XID; a program whose XIDs repeat all day must not delay the look at a GPU that fell off the bus.
        """
        loop = asyncio.get_running_loop()
        why = why if why in self._looks or len(self._looks) < LOOKS else ""
        due = self._looks.get(why, Looks()).due(loop.time(), delay, new)
        self._asking.add(why)
        if new or why not in self._looks:
            self._newest = due
        if self._looking is None or due < self._looking.when():
            if self._looking:
                self._looking.cancel()
            self._looking = loop.call_at(due, self._look_now)

    def _look_now(self) -> None:
        """Looks; and again for what came just before, since it is looked at when its time has come."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._looks |= {why: self._looks.get(why, Looks()).taken(now) for why in self._asking}
        self._asking.clear()
        self._looking = loop.call_at(self._newest, self._look_now) if self._newest > now + AFTER_XID / 2 else None
        self._hooks.want("xid")

    def _waiting(self) -> bool:
        """XIDs that are nobody's still wait for this boot's first inventory."""
        nobodys = self._ledger.unattributed
        if not nobodys or self._places.inventory or sum(fault.count for fault in nobodys) > faults.WAIT_RECORDS:
            return False
        return self._nobodys_since is not None and time.monotonic() - self._nobodys_since < faults.WAIT

    def _judge_nobodys(self) -> None:
        """XIDs of no known GPU: waited for as long as an inventory may still show it, then told, with a look at the GPUs."""
        nobodys = self._ledger.unattributed
        if not nobodys:
            self._nobodys_since = None
        elif self._nobodys_since is None:
            self._nobodys_since = time.monotonic()
            asyncio.get_running_loop().call_later(faults.WAIT + 1.0, self._tell_now)
        if self._waiting():
            return
        fresh = [fault for fault in nobodys if fault.key not in self._nobodys_told]
        for fault in fresh:
            self._nobodys_told.add(fault.key)
            _log.error("%s at %s: no GPU is known there: %s", fault.type, fault.bus_id, fault.message)
        if fresh:
            self._look(AFTER_XID, new=True)

    # -- keeping

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CURSOR_EVERY):
                    await self._dirty.wait()
            self._dirty.clear()
            if self._ledger is self._saved:
                continue
            await asyncio.sleep(KEEP_AFTER)
            await self._save()
            if self._unsaved:
                self._dirty.set()
            await asyncio.sleep(KEEP_RETRY if self._unsaved else KEEP_GAP)

    async def _save(self) -> None:
        ledger = self._ledger
        try:
            await asyncio.get_running_loop().run_in_executor(self._disk, fault_store.save, self._data_dir, ledger)
        except OSError as error:
            if self._unsaved != error.strerror:
                _log.error("cannot keep the faults in %s: %s; they are reported all the same", self._data_dir, error.strerror)
            self._unsaved = error.strerror or str(error)
            return
        if self._unsaved:
            _log.info("the faults are kept in %s again", self._data_dir)
        self._unsaved, self._saved = None, ledger
