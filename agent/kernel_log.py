"""What this boot's kernel log says to who looks once (doctor, `bcd diag`): the daemon's ledger, and the records behind it."""

import asyncio
import contextlib
import stat
from dataclasses import dataclass
from pathlib import Path

from agent.driver_log import take
from agent.fault_store import Stored
from agent.faults import Ledger, Places
from agent.kmsg.reader import KernelLogError, Reader
from agent.kmsg.record import Record

DEVICE = Path("/dev/kmsg")
_QUIET = 0.1  # seconds without a record: the end of what is there
_PATIENCE = 5.0  # seconds for all of it: a log in which records keep coming is not read to its end
_NOBODY = Places()


@dataclass(frozen=True, slots=True)
class Look:
    """The ledger of this boot, None when nothing is known of it. `error`: why the log was not read to its end; empty: it was.

    `reason`: one word for it, as of the condition KernelLogUnavailable (`absent`, `permission`, `ended`), where there is one.
    """

    ledger: Ledger | None
    error: str = ""
    reason: str = ""


def path_of(host_dir: Path | None) -> Path:
    """Where a host's kernel log is."""
    return DEVICE if host_dir is None else host_dir / "kmsg"


async def look(path: Path, stored: Stored, booted_at: float = 0.0, trust_userspace: bool = False) -> Look:
    """Reads what is there now. `booted_at`: Unix seconds, for the faults' times. Never raises for what happens in the field.

    A pipe is not read: its records would be taken from the daemon that follows it.
    """
    known = stored.faults if stored.cursor is not None else None
    try:
        if stat.S_ISFIFO(path.stat().st_mode):
            return Look(known, f"{path} is a pipe, which only one can read")
    except OSError:
        pass  # the reader names it better
    ring = _Ring(stored.faults, booted_at, trust_userspace)
    try:
        ended = await ring.read(Reader(path, stored.cursor))
    except KernelLogError as error:
        return Look(known, str(error), error.reason)
    return Look(ring.ledger, "" if ended else f"{path} was not read to its end within {_PATIENCE:g} s")


class _Ring:
    """The ledger while the log is read."""

    def __init__(self, ledger: Ledger, booted_at: float, trust_userspace: bool) -> None:
        self.ledger = ledger
        self._booted_at = booted_at
        self._trust_userspace = trust_userspace

    async def read(self, reader: Reader) -> bool:
        """Reads until nothing more is there; False: records kept coming. Raises KernelLogError."""
        task = asyncio.create_task(self._consume(reader))
        try:
            for _ in range(round(_PATIENCE / _QUIET)):
                before = reader.taken
                done, _ = await asyncio.wait({task}, timeout=_QUIET)
                if done:
                    task.result()
                if done or reader.taken == before:  # not the cursor: the records before the daemon's take their time too
                    return True
            return False
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _consume(self, reader: Reader) -> None:
        async with contextlib.aclosing(reader.records()) as records:
            async for found in records:
                if isinstance(found, Record):
                    self.ledger = take(self.ledger, found, _NOBODY, self._moment, self._trust_userspace).ledger

    def _moment(self, record: Record) -> float:
        return self._booted_at + record.stamp_us / 1e6
