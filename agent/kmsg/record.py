"""One record of /dev/kmsg as one read() returns it (Linux, Documentation/ABI/testing/dev-kmsg).

    4,1227,5678901,c,caller=T1946;NVRM: Xid (PCI:0000:5d:00): 79, pid=12, name=caf\\xc3\\xa9, GPU has fallen off the bus.
     SUBSYSTEM=pci
     DEVICE=+pci:0000:5d:00.0

The flag `c` (printed as a continuation) is no reason to join records: the NVIDIA driver prints every message that way.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# priority, sequence, microseconds, flags; further fields (caller=..., future ones) are skipped up to the first `;`.
_PREFIX = re.compile(rb"([0-9]{1,10}),([0-9]{1,20}),([0-9]{1,20}),([^,;\n]*)(?:,[^;\n]*)?;")
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")
_MAX_SEQUENCE = (1 << 64) - 1
KERNEL = 0  # the facility that only the kernel can use


@dataclass(frozen=True, slots=True)
class Record:
    """A record. `priority` is facility x 8 + level; `seq` goes up by one a record since boot; `stamp_us` is the kernel's
    local_clock() in microseconds, which drifts from every other clock and can step back: order is `seq`.

    `text` and the dictionary (`SUBSYSTEM`, `DEVICE`) are decoded: escapes first, then UTF-8 with replacement characters.
    """

    seq: int
    priority: int
    stamp_us: int
    flags: str
    text: str
    dictionary: Mapping[str, str] = field(default_factory=dict)

    @property
    def facility(self) -> int:
        """0 is the kernel; a process that writes to /dev/kmsg gets 1 or what it names, never 0."""
        return self.priority >> 3

    @property
    def level(self) -> int:
        """0 emergency ... 7 debug."""
        return self.priority & 7


@dataclass(frozen=True, slots=True)
class Unparsed:
    """Bytes that are no record of /dev/kmsg. They are counted and passed over, never an error."""

    data: bytes


def parse(data: bytes) -> Record | Unparsed:
    """One record. Never raises."""
    prefix = _PREFIX.match(data)
    if prefix is None:
        return Unparsed(data)
    priority, seq, stamp, flags = prefix.groups()
    if (number := int(seq)) > _MAX_SEQUENCE:
        return Unparsed(data)
    text, _, rest = data[prefix.end() :].partition(b"\n")
    return Record(number, int(priority), int(stamp), decoded(flags), decoded(text), _dictionary(rest) if rest else {})


def decoded(data: bytes) -> str:
    """Text as the kernel escapes it: `\\x` and two lower-case digits are a byte, any other backslash is itself."""
    if b"\\" in data:
        data = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), data)
    return data.decode("utf-8", "replace")


def _dictionary(lines: bytes) -> dict[str, str]:
    pairs = (line[1:].partition(b"=") for line in lines.split(b"\n") if line.startswith(b" "))
    return {decoded(key): decoded(value) for key, equals, value in pairs if equals}
