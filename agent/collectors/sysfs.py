"""Parsers of the small texts that procfs and sysfs are made of: text or bytes in, value out, None for what is none.

A number that does not fit the message's field is None as well: a broken driver's answer must not fail a section.
"""

import re
from collections.abc import Iterable

MIB = 1 << 20
_GRAIN = 256 * MIB
_SUFFIXES = "KMGTPE"
_CPU_LIMIT = 1 << 16  # the kernel's largest CPU number is far below; a damaged list must not eat memory


def number(text: str | None, bits: int = 32, base: int = 10) -> int | None:
    """An unsigned number of at most `bits` bits: `"2100000\\n"` is 2100000, `"-1"` and `""` are None."""
    try:
        value = int((text or "").strip(), base)
    except ValueError:
        return None
    return value if 0 <= value < 1 << bits else None


def size(text: str | None) -> int | None:
    """The kernel's memparse form in bytes: a cache's `48K`, a command line's `1G`, plain `4096`.

    >>> size("32768K")
    33554432
    """
    match = re.fullmatch(r"(\d{1,19})([KMGTPE]?)", (text or "").strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        return None
    power = _SUFFIXES.index(match[2].upper()) + 1 if match[2] else 0
    value = int(match[1]) << (10 * power)
    return value if value < 1 << 64 else None


def cpu_list(text: str | None) -> list[int]:
    """A kernel list of CPUs or nodes, sorted, each once: `0-3,8` is [0, 1, 2, 3, 8]; what is no list is [].

    >>> cpu_list("0-1,252-255")
    [0, 1, 252, 253, 254, 255]
    """
    found: set[int] = set()
    for part in (text or "").strip().split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), re.ASCII)
        if match is None:
            continue
        first, last = int(match[1]), int(match[2] or match[1])
        found.update(range(first, min(last, _CPU_LIMIT) + 1))
    return sorted(found)


def colon_values(text: str) -> dict[str, str]:
    """Lines `key<blanks>: value`, as in one block of /proc/cpuinfo; the first of a key stands, empty values are left out."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator and value.strip():
            values.setdefault(key.strip(), value.strip())
    return values


def kilobytes(text: str | None, key: str) -> int | None:
    """A line of /proc/meminfo or of a node's `meminfo`, in bytes: `MemTotal:       24684084 kB`, `Node 0 MemTotal: 1 kB`."""
    match = re.search(rf"(?:^|\s){re.escape(key)}:\s+(\d{{1,16}}) kB", text or "", re.ASCII)
    return int(match[1]) << 10 if match else None


def rounded(size_bytes: int) -> int:
    """To the nearest 256 MiB: MemTotal moves with the kernel and the firmware's map, the hardware does not (A1)."""
    return (size_bytes + _GRAIN // 2) // _GRAIN * _GRAIN


def device_tree(data: bytes | None) -> str | None:
    """A string property of the device tree, which ends in NUL (the first of several): `b"NVIDIA Jetson AGX Orin\\0"`."""
    return (data or b"").split(b"\0")[0].decode(errors="replace").strip() or None


def memory_blocks(names: Iterable[str]) -> set[str]:
    """The memory blocks in a listing of /sys/devices/system/memory or of a NUMA node's directory: `memory0`, `memory32`, ..."""
    return {name for name in names if name.startswith("memory") and name[6:].isdecimal()}
