"""The SMBIOS table as values: /sys/firmware/dmi/tables/DMI and its smbios_entry_point (DMTF DSP0134, section 6 and 7).

A structure is a header (type, length, handle), a formatted area of `length` bytes with the header, then its strings:

    01 1b 01 00  01 02 03 04 <uuid: 16 bytes> 06 05 06  "Supermicro\\0" "SYS-821GE-TNHR\\0" ... \\0
    type 1, 27 bytes, handle 0x0001; byte 4 is the manufacturer: string number 1

A fair share of tables in the field have structural faults. What is sound is used, what is not is skipped; nothing here raises.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

TABLE = "/sys/firmware/dmi/tables/DMI"
ENTRY_POINT = "/sys/firmware/dmi/tables/smbios_entry_point"
LIMIT = 1 << 20  # bytes: ten times the table of a host with 64 DIMMs; a larger one is a fault and named as EFBIG

BIOS, SYSTEM, BOARD, CHASSIS, PROCESSOR, MEMORY_ARRAY, MEMORY_DEVICE, IPMI_DEVICE, END = 0, 1, 2, 3, 4, 16, 17, 38, 127
_HEADER = 4
_MODERN = (2, 6)  # since then the UUID's first three fields are little-endian
# Firmware that writes these means 2.3 and 2.6.
_MISWRITTEN = {(2, 31): (2, 3), (2, 33): (2, 3), (2, 51): (2, 6)}
_PRINTABLE = frozenset(range(0x20, 0x7F))

# The kernel's name below /sys/class/dmi/id -> structure type, offset of the string's number.
_STRINGS = {
    "bios_vendor": (BIOS, 0x04),
    "bios_version": (BIOS, 0x05),
    "bios_date": (BIOS, 0x08),
    "sys_vendor": (SYSTEM, 0x04),
    "product_name": (SYSTEM, 0x05),
    "product_version": (SYSTEM, 0x06),
    "product_serial": (SYSTEM, 0x07),
    "board_vendor": (BOARD, 0x04),
    "board_name": (BOARD, 0x05),
    "board_version": (BOARD, 0x06),
    "board_serial": (BOARD, 0x07),
    "chassis_vendor": (CHASSIS, 0x04),
    "chassis_version": (CHASSIS, 0x06),
    "chassis_serial": (CHASSIS, 0x07),
}
IDENTITY = (*_STRINGS, "product_uuid", "chassis_type")

# Type 16, "Use": what is not the system's own memory. 4 video, 5 flash, 6 non-volatile, 7 cache.
_OTHER_USES = (4, 5, 6, 7)
# Type 16, "Error Correction". 1 other and 2 unknown say nothing.
_ECC = {3: "none", 4: "parity", 5: "single-bit", 6: "multi-bit", 7: "crc"}
# Type 17, "Memory Type". 1 other and 2 unknown say nothing.
_MEMORY_TYPES = {
    0x03: "DRAM",
    0x07: "RAM",
    0x09: "Flash",
    0x0F: "SDRAM",
    0x12: "DDR",
    0x13: "DDR2",
    0x14: "DDR2 FB-DIMM",
    0x18: "DDR3",
    0x19: "FBD2",
    0x1A: "DDR4",
    0x1B: "LPDDR",
    0x1C: "LPDDR2",
    0x1D: "LPDDR3",
    0x1E: "LPDDR4",
    0x1F: "Logical non-volatile device",
    0x20: "HBM",
    0x21: "HBM2",
    0x22: "DDR5",
    0x23: "LPDDR5",
    0x24: "HBM3",
}


@dataclass(frozen=True, slots=True)
class Structure:
    """One structure: `data` is the formatted area with its header; `text` its strings as bytes, the first is number 1."""

    type: int
    handle: int
    data: bytes
    text: tuple[bytes, ...]

    def number(self, offset: int, width: int) -> int | None:
        """Little-endian field of `width` bytes; None behind the end of the structure (an older version's)."""
        if offset + width > len(self.data):
            return None
        return int.from_bytes(self.data[offset : offset + width], "little")

    def string(self, offset: int) -> str | None:
        """The string whose number stands at `offset`, its printable ASCII as the kernel shows it; empty is None."""
        index = self.number(offset, 1) or 0
        if not 0 < index <= len(self.text):
            return None
        return bytes(c for c in self.text[index - 1] if c in _PRINTABLE).decode("ascii").strip() or None


@dataclass(frozen=True, slots=True)
class Table:
    """A host's SMBIOS table. `version` is (2, 8) and the like; an empty table is a host without one."""

    structures: tuple[Structure, ...] = ()
    version: tuple[int, int] = _MODERN

    def of(self, kind: int) -> list[Structure]:
        """The structures of one type, in the table's order."""
        return [s for s in self.structures if s.type == kind]


@dataclass(frozen=True, slots=True)
class MemoryDevice:
    """A filled slot (type 17). `bytes` absent: the firmware does not know."""

    handle: int
    locator: str | None
    bank: str | None
    bytes: int | None
    type: str | None
    speed_mts: int | None
    configured_mts: int | None
    manufacturer: str | None
    part: str | None
    serial: str | None


@dataclass(frozen=True, slots=True)
class Memory:
    """The system's memory as types 16 and 17 tell it. `slots` counts filled and empty ones; absent: no type 17 at all."""

    devices: list[MemoryDevice] = field(default_factory=list)
    slots: int | None = None
    ecc: str | None = None


def parse(data: bytes | None, entry_point: bytes | None = None) -> Table:
    """The table's bytes and its entry point's, either absent. Never raises."""
    return Table(tuple(_structures(data or b"")), version(entry_point or b"") or _MODERN)


def version(entry_point: bytes) -> tuple[int, int] | None:
    """Major and minor version of an entry point: 64-bit (`_SM3_`), 32-bit (`_SM_`) or the old `_DMI_` (in BCD).

    >>> version(b"_SM3_" + bytes([0x5A, 24, 3, 5, 0]) + bytes(14))
    (3, 5)
    """
    if entry_point.startswith(b"_SM3_") and len(entry_point) > 8:
        return entry_point[7], entry_point[8]
    if entry_point.startswith(b"_SM_") and len(entry_point) > 7:
        found = entry_point[6], entry_point[7]
        return _MISWRITTEN.get(found, found)
    if entry_point.startswith(b"_DMI_") and len(entry_point) > 14:
        return entry_point[14] >> 4, entry_point[14] & 0x0F
    return None


def identity(table: Table) -> dict[str, str]:
    """What /sys/class/dmi/id shows, under the same names, from the first structure of each type; absent ones are left out."""
    found: dict[str, str] = {}
    for name, (kind, offset) in _STRINGS.items():
        first = next(iter(table.of(kind)), None)
        if first and (text := first.string(offset)):
            found[name] = text
    if systems := table.of(SYSTEM):
        found |= {"product_uuid": text} if (text := uuid(systems[0], table.version)) else {}
    if chassis := table.of(CHASSIS):
        found["chassis_type"] = str((chassis[0].number(0x05, 1) or 0) & 0x7F)  # bit 7: has a lock
    return found


def uuid(system: Structure, table_version: tuple[int, int]) -> str | None:
    """Type 1's UUID, lower case. Before 2.6 all fields were big-endian. All zeros (none) and all ones (not set) are None."""
    raw = system.data[0x08:0x18]
    if len(raw) < 16 or raw in (b"\0" * 16, b"\xff" * 16):
        return None
    if table_version >= _MODERN:
        raw = raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:]
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def virtual_machine(table: Table) -> bool | None:
    """Type 0, characteristics extension byte 2, bit 4: the table describes a virtual machine. None: not said."""
    bios = next(iter(table.of(BIOS)), None)
    bits = bios.number(0x13, 1) if bios else None
    return None if bits is None else bool(bits & 0x10)


def processor(table: Table) -> str | None:
    """Type 4, "Processor Version", of the first filled socket: `Intel(R) Xeon(R) Platinum 8480C`, `Grace A02`."""
    filled = (s for s in table.of(PROCESSOR) if (s.number(0x18, 1) or 0) & 0x40)  # status, bit 6: socket populated
    return next((text for s in filled if (text := s.string(0x10))), None)


def memory(table: Table) -> Memory:
    """The system's own memory: arrays for video, flash, non-volatile memory or cache do not count, nor do their devices."""
    arrays = {s.handle: s for s in table.of(MEMORY_ARRAY)}
    foreign = {handle for handle, s in arrays.items() if s.number(0x05, 1) in _OTHER_USES}
    slots = [s for s in table.of(MEMORY_DEVICE) if s.number(0x04, 2) not in foreign]
    kinds = {_ECC.get(s.number(0x06, 1) or 0) for handle, s in arrays.items() if handle not in foreign} - {None}
    ecc = "mixed" if len(kinds) > 1 else next(iter(kinds), None)
    return Memory([_device(s) for s in slots if _filled(s)], len(slots) or None, ecc)


def _filled(slot: Structure) -> bool:
    return slot.number(0x0C, 2) not in (None, 0)


def _device(slot: Structure) -> MemoryDevice:
    return MemoryDevice(
        handle=slot.handle,
        locator=slot.string(0x10),
        bank=slot.string(0x11),
        bytes=_device_bytes(slot),
        type=_MEMORY_TYPES.get(slot.number(0x12, 1) or 0),
        speed_mts=_speed(slot, 0x15, 0x54),
        configured_mts=_speed(slot, 0x20, 0x58),
        manufacturer=slot.string(0x17),
        part=slot.string(0x1A),
        serial=slot.string(0x18),
    )


def _device_bytes(slot: Structure) -> int | None:
    """Offset 0x0C: MiB, or KiB with bit 15; 0xFFFF unknown; 0x7FFF: 32 GB or more, in MiB at 0x1C (bit 31 reserved)."""
    size = slot.number(0x0C, 2)
    if size is None or size == 0xFFFF:
        return None
    if size == 0x7FFF:
        extended = (slot.number(0x1C, 4) or 0) & 0x7FFFFFFF
        return extended << 20 or None
    return (size & 0x7FFF) << (10 if size & 0x8000 else 20)


def _speed(slot: Structure, offset: int, extended: int) -> int | None:
    """MT/s. 0 is unknown; 0xFFFF: 65,535 MT/s or more, in the extended field (3.3)."""
    speed = slot.number(offset, 2)
    if speed == 0xFFFF:
        speed = (slot.number(extended, 4) or 0) & 0x7FFFFFFF
    return speed or None


def _structures(data: bytes) -> Iterator[Structure]:
    position = 0
    while position + _HEADER <= len(data):
        kind, length = data[position], data[position + 1]
        if kind == END:
            return
        strings = position + length
        if length < _HEADER or strings > len(data):
            # No length to go by: the next structure starts behind the next pair of NULs, if there is one.
            behind = data.find(b"\0\0", position + _HEADER)
            if behind < 0:
                return
            position = behind + 2
            continue
        end = data.find(b"\0\0", strings)
        end = len(data) if end < 0 else end
        text = tuple(data[strings:end].split(b"\0")) if end > strings else ()
        yield Structure(kind, int.from_bytes(data[position + 2 : position + 4], "little"), data[position:strings], text)
        position = end + 2
