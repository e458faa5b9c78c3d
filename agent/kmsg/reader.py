"""DOOR. The kernel log as records, one after the other, as long as it lives: /dev/kmsg, or a recorded host's `kmsg`.

A recorded log is a regular file (it is replayed once and ends) or a FIFO (whoever writes into it may come and go). Both hold
what successive reads of /dev/kmsg gave, end to end: a line that begins with a blank belongs to the record before it.
"""

import asyncio
import errno
import os
import re
import stat
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.errors import FieldError
from agent.kmsg.record import Record, Unparsed, parse

# Bytes. A record takes up to 8192 on older kernels (CONSOLE_EXT_LOG_MAX) and 2048 on newer ones; one that does not fit is lost.
RECORD_MAX = 16384
_BETWEEN = re.compile(rb"\n(?=[^ ])")
_BATCH = 64  # records between two turns of the event loop, when they come faster than they are taken

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.ELOOP)
_REFUSED = (errno.EPERM, errno.EACCES)
_HINTS = {
    "absent": "containers often come without it: give them the device, character 1:11",
    "permission": "reading it needs CAP_SYSLOG, and a systemd unit without ProtectKernelLogs=yes",
    "ended": "bcd opens it again",
}


class KernelLogError(FieldError):
    """The kernel log cannot be read (any more). `reason` is `absent`, `permission` or `ended`: that of KernelLogUnavailable."""

    def __init__(self, reason: str, path: Path, happened: str) -> None:
        super().__init__(f"reading the kernel log {path}: {happened}; {_HINTS[reason]}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Lost:
    """`count` records were overwritten before they were read: what the sequence number jumped by."""

    count: int


class Reader:
    """Reads one kernel log. `after` is the sequence number of the last record already taken: it begins behind that one.

    `taken` counts the records read, those up to `after` and those that do not parse included.
    """

    def __init__(self, path: Path = Path("/dev/kmsg"), after: int | None = None) -> None:
        self._path = path
        self._after = after
        self.taken = 0

    async def records(self) -> AsyncGenerator[Record | Lost | Unparsed, None]:
        """Every record from the oldest that is kept on (or behind `after`), and where some are missing, how many.

        Ends only with a regular file. Raises KernelLogError. Close it (`contextlib.aclosing`) to give the descriptor back.
        """
        fd, kind = self._open()
        regular = stat.S_ISREG(kind)
        cut = _Stream() if regular or stat.S_ISFIFO(kind) else _Device()
        order = _Order(self._after)
        try:
            while True:
                data = self._read(fd)
                for record in cut.records(data):
                    for found in order.add(parse(record)):
                        yield found
                    self.taken += 1
                    if self.taken % _BATCH == 0:
                        await asyncio.sleep(0)
                if data is None:
                    await _readable(fd)
                elif not data:
                    break
        finally:
            os.close(fd)
        if not regular:
            raise KernelLogError("ended", self._path, "it ended")

    def _read(self, fd: int) -> bytes | None:
        """One read. None: nothing now, or a record that was overwritten or did not fit, which the next one's sequence shows."""
        try:
            return os.read(fd, RECORD_MAX)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EINVAL):
                return None
            raise self._refused(error) from error

    def _open(self) -> tuple[int, int]:
        """The open descriptor and its st_mode. A FIFO is opened for writing too: it does not end when its writers leave."""
        try:
            fifo = stat.S_ISFIFO(os.stat(self._path).st_mode)
            flags = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (os.O_RDWR if fifo else os.O_RDONLY)
            fd = os.open(self._path, flags)
        except OSError as error:
            raise self._refused(error) from error
        return fd, os.fstat(fd).st_mode

    def _refused(self, error: OSError) -> KernelLogError:
        reason = "absent" if error.errno in _ABSENT else "permission" if error.errno in _REFUSED else "ended"
        return KernelLogError(reason, self._path, os.strerror(error.errno or errno.EIO))


class _Order:
    """Where a log begins and where it has gaps, by sequence numbers."""

    def __init__(self, after: int | None) -> None:
        self._after = after
        self._last = after

    def add(self, found: Record | Unparsed) -> Iterator[Record | Lost | Unparsed]:
        """What `found` is to whoever reads: nothing when it was taken before, and what is missing in front of it."""
        if isinstance(found, Record):
            if self._after is not None and found.seq <= self._after:
                return
            if self._last is not None and found.seq > self._last + 1:
                yield Lost(found.seq - self._last - 1)
            self._last = found.seq
        yield found


class _Device:
    """Records out of reads of which each gives one."""

    def records(self, data: bytes | None) -> Iterable[bytes]:
        """The record that a read gave; None: nothing now, empty: the end."""
        return (data,) if data else ()


class _Stream:
    """Records out of reads that begin and end anywhere. Lines that begin with a blank and have no record are passed over."""

    def __init__(self) -> None:
        self._rest = b""

    def records(self, data: bytes | None) -> Iterable[bytes]:
        """The records that are now known to be whole. None: nothing more is there now, empty: the end."""
        if data:
            *whole, self._rest = _BETWEEN.split(self._rest + data)
            if len(self._rest) > RECORD_MAX:  # no record is that long; all up to the next one is passed over
                whole.append(self._rest[:RECORD_MAX])
                self._rest = b" "
        elif data is None and not self._rest.endswith(b"\n"):
            whole = []
        else:
            whole, self._rest = [self._rest], b""
        return [record for record in whole if record and not record.startswith(b" ")]


async def _readable(fd: int) -> None:
    """Waits until a read of `fd` gives something or fails."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
