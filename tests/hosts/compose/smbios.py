"""Firmware: SMBIOS tables as bytes, /sys/class/dmi/id as the kernel derives it from them, EFI, BMC and TPM.

Layouts are those of the SMBIOS specification 3.5 (DSP0134).
"""

import struct
import uuid as uuids
from dataclasses import dataclass, field

from tests.hosts.compose.tree import Machine

DDR4, DDR5, LPDDR5, RAM_UNKNOWN = 0x1A, 0x22, 0x23, 0x07
ECC_NONE, ECC_SINGLE, ECC_MULTI = 3, 5, 6


@dataclass(frozen=True)
class Dimm:
    """One memory device (type 17). `mib` 0 is an empty slot."""

    locator: str
    bank: str
    mib: int
    kind: int = DDR5
    speed: int = 4800
    configured: int = 4800
    maker: str = ""
    part: str = ""
    serial: str = ""


@dataclass(frozen=True)
class Firmware:
    """What the maker put into the tables. An empty text is no string at all."""

    vendor: str
    product: str
    version: str = ""
    serial: str = ""
    uuid: str = ""
    sku: str = ""
    family: str = ""
    board: tuple[str, str, str, str] = ("", "", "", "")  # vendor, name, version, serial
    chassis: tuple[str, int, str, str] = ("", 0x17, "", "")  # vendor, type, version, serial
    bios: tuple[str, str, str] = ("", "", "")  # vendor, version, date
    processors: tuple[tuple[str, str, str, int], ...] = ()  # socket, maker, version, cores
    ecc: int = ECC_MULTI
    arrays: int = 1  # memory arrays (type 16) that share out the DIMMs
    dimms: tuple[Dimm, ...] = ()
    bmc: bool = True
    tpm: bool = True
    smbios: tuple[int, int] = (3, 5)
    entry_64: bool = True


@dataclass
class _Tables:
    data: bytearray = field(default_factory=bytearray)
    count: int = 0
    largest: int = 0

    def add(self, kind: int, handle: int, body: bytes, strings: list[str]) -> None:
        texts = b"".join(text.encode() + b"\0" for text in strings) or b"\0"
        entry = struct.pack("<BBH", kind, 4 + len(body), handle) + body + texts + b"\0"
        self.data += entry
        self.count += 1
        self.largest = max(self.largest, len(entry))


class _Strings:
    """The string set of one structure: a text becomes its number, from 1; an empty one is 0."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str) -> int:
        if not text:
            return 0
        self.texts.append(text)
        return len(self.texts)


def firmware(m: Machine, f: Firmware) -> None:
    """Writes all of it."""
    tables = _Tables()
    _platform(tables, f)
    _processors(tables, f)
    _memory(tables, f)
    if f.bmc:
        tables.add(38, 0x2600, struct.pack("<BBBBQBB", 1, 0x20, 0x20, 0xFF, 0xCA3, 0, 0), [])
    if f.tpm:
        tables.add(43, 0x2B00, struct.pack("<4sBBIIBQI", b"IFX\0", 2, 0, 0x70055, 0, 1, 0x10, 0), ["TPM INFINEON"])
    tables.add(127, 0x7F00, b"", [])
    folder = "/sys/firmware/dmi/tables"
    m.put(f"{folder}/DMI", bytes(tables.data))
    m.put(f"{folder}/smbios_entry_point", _entry_point_64(tables, f) if f.entry_64 else _entry_point_32(tables, f))
    _dmi_id(m, f)
    _classes(m, f)


def efi(m: Machine, secure_boot: bool | None) -> None:
    """Booted by UEFI; `secure_boot` None: the variable is absent. A variable is 4 bytes of attributes and the value."""
    m.put("/sys/firmware/efi/fw_platform_size", 64)
    if secure_boot is not None:
        name = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
        m.put(f"/sys/firmware/efi/efivars/{name}", struct.pack("<IB", 6, secure_boot))


def _platform(t: _Tables, f: Firmware) -> None:
    s = _Strings()
    body = struct.pack(
        "<BBHBBQHBBBBH", s(f.bios[0]), s(f.bios[1]), 0xF000, s(f.bios[2]), 0xFF, 0x4BF9B880, 0x0D03, 5, 32, 255, 255, 32
    )
    t.add(0, 0x0000, body, s.texts)
    s = _Strings()
    names = (s(f.vendor), s(f.product), s(f.version), s(f.serial))
    t.add(1, 0x0001, struct.pack("<4B16sBBB", *names, _uuid_bytes(f), 6, s(f.sku), s(f.family)), s.texts)
    s = _Strings()
    t.add(2, 0x0002, struct.pack("<6BBHBB", *map(s, f.board), 0, 9, 0, 3, 10, 0), s.texts)
    s = _Strings()
    vendor, kind, version, serial = f.chassis
    body = struct.pack("<6B", s(vendor), kind, s(version), s(serial), 0, 3) + struct.pack("<BBBIBBBBB", 3, 3, 3, 0, 8, 4, 0, 0, 0)
    t.add(3, 0x0003, body, s.texts)


def _uuid_bytes(f: Firmware) -> bytes:
    """Since 2.6 the first three groups are little-endian; before, all of it as written. No UUID: all zeros."""
    if not f.uuid:
        return bytes(16)
    value = uuids.UUID(f.uuid)
    return value.bytes_le if f.smbios >= (2, 6) else value.bytes


def _processors(t: _Tables, f: Firmware) -> None:
    for index, (socket, maker, version, cores) in enumerate(f.processors):
        s = _Strings()
        few = min(cores, 255)
        body = struct.pack("<BBBBQB", s(socket), 3, 0xB3, s(maker), 0xBFEBFBFF000806F8, s(version))
        body += struct.pack(
            "<BHHHBBHHHBBBBBBHHHHH",
            0x90,
            100,
            4000,
            2000,
            0x41,
            0x3F,
            0x700,
            0x701,
            0x702,
            0,
            0,
            0,
            few,
            few,
            min(2 * cores, 255),
            0xFC,
            0xB3,
            cores,
            cores,
            2 * cores,
        )
        t.add(4, 0x0400 + index, body, s.texts)


def _memory(t: _Tables, f: Firmware) -> None:
    if not f.dimms:
        return
    share = len(f.dimms) // f.arrays
    for array in range(f.arrays):
        capacity = sum(d.mib for d in f.dimms[array * share : (array + 1) * share]) << 20
        body = struct.pack("<BBBIHHQ", 3, 3, f.ecc, 0x80000000, 0xFFFE, share, capacity)
        t.add(16, 0x1000 + array, body, [])
    for index, dimm in enumerate(f.dimms):
        s = _Strings()
        t.add(17, 0x1100 + index, _dimm(dimm, f, s, 0x1000 + index // share), s.texts)


def _dimm(d: Dimm, f: Firmware, s: _Strings, array: int) -> bytes:
    """An empty slot keeps its locators and says so in its strings, as AMI's firmware does."""
    empty = d.mib == 0
    width = 0xFFFF if empty else (80 if f.ecc != ECC_NONE else 64)
    size, extended = (0x7FFF, d.mib) if d.mib >= 0x7FFF else (d.mib, 0)
    kind = 2 if empty else d.kind
    maker, part, serial = ("NO DIMM",) * 3 if empty else (d.maker, d.part, d.serial)
    body = struct.pack(
        "<HHHHHBBBBBHH",
        array,
        0xFFFE,
        width,
        0xFFFF if empty else 64,
        size,
        9,
        0,
        s(d.locator),
        s(d.bank),
        kind,
        0 if empty else 0x2080,
        0 if empty else d.speed,
    )
    body += struct.pack(
        "<BBBBBIHHHH",
        s(maker),
        s(serial),
        0,
        s(part),
        0 if empty else 2,
        extended,
        0 if empty else d.configured,
        1100,
        1100,
        1100,
    )
    if f.smbios >= (3, 2):
        body += struct.pack("<BHBHHHHQQQQ", 3, 8, 0, 0, 0, 0, 0, 0, d.mib << 20, 0, 0)
    if f.smbios >= (3, 3):
        body += struct.pack("<II", 0, 0)
    return body


def _entry_point_64(t: _Tables, f: Firmware) -> bytes:
    body = bytearray(struct.pack("<5sBBBBBBBIQ", b"_SM3_", 0, 24, *f.smbios, 0, 1, 0, len(t.data), 0x6E3C9000))
    body[5] = -sum(body) & 0xFF
    return bytes(body)


def _entry_point_32(t: _Tables, f: Firmware) -> bytes:
    major, minor = f.smbios
    inner = bytearray(struct.pack("<5sBHIHB", b"_DMI_", 0, len(t.data), 0xF6B20, t.count, major << 4 | minor))
    inner[5] = -sum(inner) & 0xFF
    outer = bytearray(struct.pack("<4sBBBBHB5s", b"_SM_", 0, 31, major, minor, t.largest, 0, bytes(5)) + inner)
    outer[4] = -sum(outer) & 0xFF
    return bytes(outer)


def _dmi_id(m: Machine, f: Firmware) -> None:
    """A file exists where the table has a string index, so absent texts have no file."""
    folder = "/sys/devices/virtual/dmi/id"
    values: dict[str, str | bytes | int | None] = {
        "bios_vendor": f.bios[0] or None,
        "bios_version": f.bios[1] or None,
        "bios_date": f.bios[2] or None,
        "bios_release": "5.32",
        "sys_vendor": f.vendor or None,
        "product_name": f.product or None,
        "product_version": f.version or None,
        "product_serial": f.serial or None,
        "product_uuid": f.uuid or None,
        "product_sku": f.sku or None,
        "product_family": f.family or None,
        "board_vendor": f.board[0] or None,
        "board_name": f.board[1] or None,
        "board_version": f.board[2] or None,
        "board_serial": f.board[3] or None,
        "chassis_vendor": f.chassis[0] or None,
        "chassis_type": f.chassis[1],
        "chassis_version": f.chassis[2] or None,
        "chassis_serial": f.chassis[3] or None,
    }
    m.put_all(folder, values)
    packed = f"dmi:bvn{f.bios[0]}:bvr{f.bios[1]}:bd{f.bios[2]}:svn{f.vendor}:pn{f.product}:pvr{f.version}:"
    m.put(f"{folder}/modalias", packed.replace(" ", ""))
    m.link("/sys/class/dmi/id", folder)


def _classes(m: Machine, f: Firmware) -> None:
    if f.bmc:
        folder = "/sys/devices/platform/IPI0001:00/ipmi/ipmi0"
        m.put(f"{folder}/dev", "239:0")
        m.link("/sys/class/ipmi/ipmi0", folder)
    if f.tpm:
        folder = "/sys/devices/pnp0/00:04/tpm/tpm0"
        m.put(f"{folder}/tpm_version_major", 2)
        m.link("/sys/class/tpm/tpm0", folder)
