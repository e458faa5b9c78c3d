"""`bcd xid`: the XIDs and SXids in captured kernel logs, and what each means for the node. Reads any log in constant memory."""

import gzip
import json
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, TextIO

from bettercompute.contract import xids

from agent import render
from agent.errors import FieldError
from agent.kmsg.captured import Captured, Source, scan
from agent.kmsg.xid import Xid

STDIN = "-"
MAX_ROWS = 10_000  # (XID, GPU) pairs: no host has them, a forged log may
_GZIP = b"\x1f\x8b"
_COLUMNS = ("fault", "bus id", "count", "first", "last", "meaning", "scope", "action")


@dataclass(slots=True)
class Row:
    """One XID of one GPU, or SXid of one switch. Times as the log writes them, None where it has none.

    `message` and `policy` are those of the worst record, the last of equals (Xid 154 says what the driver asks for now).
    """

    kind: str
    code: int
    bus_id: str
    message: str
    policy: xids.XidPolicy
    count: int = 0
    first: str | None = None
    last: str | None = None

    def add(self, message: str, policy: xids.XidPolicy, time: str | None) -> None:
        """One more record."""
        if _rank(policy) >= _rank(self.policy):
            self.message, self.policy = message, policy
        self.count += 1
        self.first = self.first or time
        self.last = time or self.last

    def as_dict(self) -> dict[str, object]:
        """The row of `--json`. Without a time in the log, or a meaning in the table, it has no such key."""
        policy = self.policy
        optional = {"firstTime": self.first, "lastTime": self.last, "meaning": policy.name}
        return {
            "kind": self.kind,
            "xid": self.code,
            "busId": self.bus_id,
            "count": self.count,
            **{key: value for key, value in optional.items() if value is not None},
            "scope": policy.scope,
            "severity": policy.severity,
            "action": policy.action,
            "policy": policy.policy,
            "known": policy.known,
            "message": self.message,
        }

    def as_cells(self) -> tuple[str, ...]:
        """The row of the table."""
        name = f"{'Xid' if self.kind == 'xid' else 'SXid'}{self.code}"
        meaning = self.policy.name or f"not in the table: {_printable(self.message)}"
        return (
            name,
            self.bus_id,
            str(self.count),
            self.first or "",
            self.last or "",
            meaning,
            self.policy.scope,
            self.policy.action,
        )


class Table:
    """What was found, in the order of first appearance: the first fault is often the cause of the others."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int, str], Row] = {}
        self.left_out = 0  # records of pairs beyond MAX_ROWS

    def add(self, found: Iterable[Captured | None]) -> None:
        """Counts all of a log's records."""
        for one in found:
            if one is not None:
                self._count(one)

    def _count(self, one: Captured) -> None:
        fault = one.fault
        kind = _kind(one)
        policy = (xids.policy if kind == "xid" else xids.sxid_policy)(fault.code, fault.message)
        key = (kind, fault.code, fault.bus_id)
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= MAX_ROWS:
                self.left_out += 1
                return
            row = self.rows[key] = Row(kind, fault.code, fault.bus_id, fault.message, policy)
        row.add(fault.message, policy, one.time)


def run(files: Sequence[str], form: str, trust_userspace: bool) -> int:
    """Reads the files (`-` is standard input) and prints what `form` says: `table`, `json`, or `each`.

    What cannot be read is said on standard error, and the others are read. 0: all were read, with or without a fault in
    them; 1: some were not, or not to their end; 2: none was.
    """
    table = Table()
    opened: list[str] = []
    failed = False
    for name in files:
        try:
            with _opened(name) as source:
                opened.append(name)
                found = scan(source, form == "each", trust_userspace)
                if form == "each":
                    _print_each(found, name if len(files) > 1 else None, sys.stdout)
                else:
                    table.add(found)
        except FieldError as error:
            failed = True
            sys.stderr.write(f"bcd: {error}\n")
    if not opened:
        return 2
    if form == "json":
        sys.stdout.write(json.dumps([row.as_dict() for row in table.rows.values()], indent=2) + "\n")
    elif form == "table":
        _draw(table, sys.stdout)
    if table.left_out:
        sys.stderr.write(f"bcd: xid: {table.left_out} more records, of more than {MAX_ROWS} XIDs and bus ids, are left out\n")
    return 1 if failed else 0


def _print_each(found: Iterable[Captured | None], file: str | None, out: TextIO) -> None:
    """One JSON object a fault, as soon as its stretch of the log has been read: `journalctl -kf | bcd xid --each` keeps up."""
    for one in found:
        if one is None:
            out.flush()
            continue
        fault = one.fault
        line: dict[str, object] = {"line": one.line, "kind": _kind(one), "xid": fault.code, "busId": fault.bus_id}
        out.write(json.dumps(line | {"message": fault.message} | ({"file": file} if file else {})) + "\n")


def _draw(table: Table, out: TextIO) -> None:
    if not table.rows:
        out.write("no XIDs found\n")
        return
    rows = tuple(row.as_cells() for row in table.rows.values())
    shown = [index for index in range(len(_COLUMNS)) if any(row[index] for row in rows)]
    columns = tuple(_COLUMNS[index] for index in shown)
    render.draw([render.Block("faults", columns=columns, rows=tuple(tuple(row[index] for index in shown) for row in rows))], out)


@contextmanager
def _opened(name: str) -> Iterator[Source]:
    """The log, unpacked when gzip has packed it (nvidia-bug-report.log.gz). Raises FieldError that names it."""
    if name == STDIN:
        if sys.stdin.isatty():
            sys.stderr.write("bcd: xid: reading standard input; name a FILE, or end it with Ctrl-D\n")
        _end(sys.stdin.buffer)
        yield _Log("standard input", sys.stdin.buffer)
        return
    try:
        file = open(name, "rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise FieldError(f"xid: cannot read {name}: {error.strerror}") from error
    with file:
        _end(file)
        yield _Log(name, file)


def _end(file: BinaryIO) -> None:
    """/dev/kmsg has no end: what it holds now is read."""
    if stat.S_ISCHR(os.fstat(file.fileno()).st_mode) and not file.isatty():
        os.set_blocking(file.fileno(), False)


class _Log:
    """A binary file whose errors name it."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self._name = name
        self._file: Any = file  # buffered, as `open` gives it: it can peek
        self._packed: gzip.GzipFile | None = None
        self._begun = False

    def read1(self, size: int = -1, /) -> bytes:
        """At most `size` bytes. Raises FieldError."""
        try:
            if not self._begun:
                self._begun = True
                self._packed = gzip.GzipFile(fileobj=self._file) if self._file.peek(2)[:2] == _GZIP else None
            data: bytes = (self._packed or self._file).read1(size)
            return data
        except (OSError, EOFError, zlib.error) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise FieldError(f"xid: cannot read {self._name} to its end: {reason}") from error


def _kind(found: Captured) -> str:
    return "xid" if isinstance(found.fault, Xid) else "sxid"


def _rank(policy: xids.XidPolicy) -> int:
    """Higher is worse."""
    return -xids.table().severities.index(policy.severity)


def _printable(text: str) -> str:
    """Without what would move a terminal's cursor: a process chooses its name."""
    return "".join(char if char.isprintable() else "?" for char in text)
