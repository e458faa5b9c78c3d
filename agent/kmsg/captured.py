"""Faults in captured kernel logs: what dmesg, journalctl, syslog, talosctl or a copy of /dev/kmsg put in front of the text.

    [ 2718.281828] [  T1946] NVRM: Xid (PCI:0000:18:00): 43, pid=2863, name=python, Ch 00000010
    Mar  5 09:14:02 gpu-node-1 kernel: [ 9917.412034] NVRM: Xid (PCI:0000:18:00): 43, pid=2863, name=python, Ch 00000010
    10.1.2.3: kern: warning: [2025-01-17T14:55:41.102938475Z]: NVRM: Xid (PCI:0000:18:00): 43, pid=2863, name=python, Ch 00000010
    4,6611,99120034,c,caller=T2863;NVRM: Xid (PCI:0000:18:00): 43, pid=2863, name=python, Ch 00000010

Lines tell their form each by itself, so one file may mix them, as bug reports do. A syslog tag other than `kernel` is a
program that quotes; where a line names its facility, only the kernel's counts, unless user space is trusted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from agent.kmsg import record, xid

CHUNK = 1 << 16  # bytes read at a time: what is searched is still in the processor's cache
LINE_MAX = 1 << 16  # bytes of a line that are looked at; no message is near it

_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)"
_DATE = r"(?:\w+\.? )?\w+\.? +\d{1,2} \d\d:\d\d(?::\d\d(?: \d{4})?)?"  # `Tue Mar  5 09:14:02 2024`, `Mar 5 09:14`
_ENVELOPE = re.compile(
    r"(?:<(?P<priority>\d{1,4})>"  # dmesg --raw
    r"|(?P<decoded>[a-z]\w*) *:\w+ *: "  # dmesg -x
    rf"|\S+: (?P<talos>\w+): \w+: \[(?P<talos_time>{_ISO})\]: "
    rf"|(?P<wall>\w{{3}} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|{_ISO}) \S+ kernel: "  # syslog, journalctl
    rf"|(?P<iso>{_ISO}) )?"  # dmesg --time-format iso
    rf"(?:\[ *(?P<stamp>\+?\d+\.\d+|{_DATE})\](?: ?\[ *[TC]\d+\])? )?"  # dmesg; its caller
    r"(?P<text>(?:NVRM: Xid|nvidia-nvswitch).*)",
    re.DOTALL,
)
_MARK = re.compile(rb"Xid \(")  # in XID and SXid lines alike; one literal is what `re` finds at the speed of memory


class Source(Protocol):
    """A binary file."""

    def read1(self, size: int = ..., /) -> bytes:
        """At most `size` bytes, as many as are there now; empty at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Captured:
    """A fault in a captured log. `time` is the envelope's, as it was written: seconds since boot (`2718.281828`), a date, or
    None where there was none. `line` counts from 1, None where lines are not counted."""

    fault: xid.Xid | xid.Sxid
    time: str | None
    line: int | None = None


def parse(line: bytes, trust_userspace: bool = False) -> Captured | None:
    """The fault in one line, old drivers' addresses included; None when it holds none. Never raises."""
    raw = record.parse(line)
    if isinstance(raw, record.Record):
        kernel, text = raw.facility == record.KERNEL, raw.text
        time: str | None = f"{raw.stamp_us // 1_000_000}.{raw.stamp_us % 1_000_000:06d}"
    else:
        match = _ENVELOPE.match(line.decode("utf-8", "replace"))
        if match is None:
            return None
        kernel, text = _of_kernel(match), match["text"]
        time = match["wall"] or match["talos_time"] or match["iso"] or match["stamp"]
    if not kernel and not trust_userspace:
        return None
    fault = xid.parse(text, legacy=True)
    return Captured(fault, time) if fault else None


def scan(source: Source, numbered: bool = False, trust_userspace: bool = False) -> Iterator[Captured | None]:
    """Every fault in a log of any size, in constant memory; None after each stretch of it that has been looked through.

    `numbered` counts lines, which takes as long as all the rest. Raises what reading raises.
    """
    rest = b""
    before = 1 if numbered else None  # the number of the first line of `data`
    while chunk := source.read1(CHUNK):
        data = rest + chunk
        whole = data.rfind(b"\n") + 1
        yield from _faults(data, whole, before, trust_userspace)
        if before is not None:
            before += data.count(b"\n", 0, whole)
        rest = data[whole:] if len(data) - whole <= LINE_MAX else data[whole : whole + LINE_MAX]
        yield None
    yield from _faults(rest, len(rest), before, trust_userspace)


def _faults(data: bytes, whole: int, first: int | None, trust_userspace: bool) -> Iterator[Captured]:
    """The faults in the lines of data[:whole], of which the first has the number `first`."""
    at, counted, number = 0, 0, first
    while mark := _MARK.search(data, at, whole):
        start = data.rfind(b"\n", 0, mark.start()) + 1
        end = data.find(b"\n", mark.end(), whole)
        at = whole if end < 0 else end
        found = parse(data[start : min(at, start + LINE_MAX)], trust_userspace)
        if found is None or (isinstance(found.fault, xid.Sxid) and found.fault.detail):
            continue  # details of an NVSwitch's event are no further events
        if number is not None:
            number += data.count(b"\n", counted, start)
            counted = start
        yield Captured(found.fault, found.time, number)


def _of_kernel(match: re.Match[str]) -> bool:
    """Whether the envelope does not say another facility than the kernel's."""
    if match["priority"] is not None:
        return int(match["priority"]) >> 3 == record.KERNEL
    return (match["decoded"] or match["talos"] or "kern") == "kern"
