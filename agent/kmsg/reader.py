"""DOOR. The kernel log as records, one after the other, as long as it lives: /dev/kmsg, or a recorded host's `kmsg`.

A recorded log is a regular file (it is replayed once and ends) or a FIFO (whoever writes into it may come and go). Both hold
what successive reads of /dev/kmsg gave, end to end: a line that begins with a blank belongs to the record before it.
"""

import asyncio
import errno
import os
import re
import stat
from collections.abc import AsyncIterator, Iterator
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
    """Reads one kernel log. `after` is the sequence number of the last record already taken: it begins behind that one."""

    def __init__(self, path: Path = Path("/dev/kmsg"), after: int | None = None) -> None:
        self._path = path
        self._after = after

    async def records(self) -> AsyncIterator[Record | Lost | Unparsed]:
        """Every record from the oldest that is kept on (or behind `after`), and where some are missing, how many.

        Ends only with a regular file. Raises KernelLogError. Close it (`contextlib.aclosing`) to give the descriptor back.
        """
        fd, kind = self._open()
        last = self._after
        taken = 0
        try:
            async for data in self._raw(fd, kind):
                found = parse(data)
                if isinstance(found, Record):
                    if self._after is not None and found.seq <= self._after:
                        continue
                    if last is not None and found.seq > last + 1:
                        yield Lost(found.seq - last - 1)
                    last = found.seq
                yield found
                taken += 1
                if taken % _BATCH == 0:
                    await asyncio.sleep(0)
        finally:
            os.close(fd)

    async def _raw(self, fd: int, kind: int) -> AsyncIterator[bytes]:
        """The bytes of one record after the other."""
        stream = _Stream() if stat.S_ISREG(kind) or stat.S_ISFIFO(kind) else None
        while (data := self._read(fd)) != b"":
            if data is None:
                for record in stream.complete() if stream else ():
                    yield record
                await _readable(fd)
            else:
                for record in stream.add(data) if stream else (data,):
                    yield record
        if stream is None or stat.S_ISFIFO(kind):
            raise KernelLogError("ended", self._path, "it ended")
        for record in stream.end():
            yield record

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


class _Stream:
    """Records out of reads that begin and end anywhere. Lines that begin with a blank and have no record are passed over."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> Iterator[bytes]:
        """The records that are known to be whole: another one begins behind them."""
        *whole, self._rest = _BETWEEN.split(self._rest + data)
        if len(self._rest) > RECORD_MAX:  # no record is that long; all up to the next one is passed over
            whole.append(self._rest[:RECORD_MAX])
            self._rest = b" "
        return (record for record in whole if not record.startswith(b" "))

    def complete(self) -> Iterator[bytes]:
        """The last record, when its line is whole: nothing more is there now."""
        return self.end() if self._rest.endswith(b"\n") else iter(())

    def end(self) -> Iterator[bytes]:
        """What is left."""
        rest, self._rest = self._rest, b""
        return iter(()) if not rest or rest.startswith(b" ") else iter((rest,))


async def _readable(fd: int) -> None:
    """Waits until a read of `fd` gives something or fails."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
