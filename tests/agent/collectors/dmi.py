"""SMBIOS tables as bytes, as DSP0134 lays them out: for the tests of what reads them."""

import struct
import uuid as uuids
from collections.abc import Iterable

ENTRY_3_5 = b"_SM3_" + bytes([0x5A, 24, 3, 5, 0, 1, 0]) + struct.pack("<IQ", 0x4000, 0x7F000000)
ENTRY_2_8 = b"_SM_" + bytes([0x5A, 31, 2, 8]) + struct.pack("<HB5s5s", 0x100, 0, b"", b"_DMI_") + bytes(10)
ENTRY_2_4 = b"_SM_" + bytes([0x5A, 31, 2, 4]) + ENTRY_2_8[8:]
UUID = "4c4c4544-0042-3510-8052-b4c04f4e3132"


def structure(kind: int, handle: int, body: bytes, strings: Iterable[str] = ()) -> bytes:
    """Header, formatted area, strings: `body` is what stands behind the header."""
    text = b"".join(s.encode("latin-1") + b"\0" for s in strings)
    return struct.pack("<BBH", kind, 4 + len(body), handle) + body + (text or b"\0") + b"\0"


def bios(vendor: str = "American Megatrends International, LLC.", extension2: int = 0x0D) -> bytes:
    """Type 0; bit 4 of `extension2` says that this is a virtual machine."""
    body = struct.pack("<BBHBBQBB", 1, 2, 0xF000, 3, 0xFF, 0x1B9A80, 3, extension2)
    return structure(0, 0, body, [vendor, "2.1a", "05/21/2024"])


def system(product: str = "SYS-821GE-TNHR", vendor: str = "Supermicro", uuid: bytes | None = None) -> bytes:
    """Type 1, the UUID in the order of 2.6 and newer."""
    raw = uuids.UUID(UUID).bytes_le if uuid is None else uuid
    return structure(1, 1, bytes([1, 2, 3, 4]) + raw + bytes([6, 0, 0]), [vendor, product, "0123456789", "A512345X4123456"])


def board(handle: int = 2, name: str = "X13DEG-OAD") -> bytes:
    """Type 2."""
    return structure(2, handle, bytes([1, 2, 3, 4, 0, 9, 0, 3, 0, 10, 0]), ["Supermicro", name, "1.01", "UM23AS601234"])


def chassis(kind: int = 0x17) -> bytes:
    """Type 3; bit 7 of `kind` says that it has a lock."""
    return structure(3, 3, bytes([1, kind, 3, 2, 0, 3, 3, 3, 2]), ["Supermicro", "C8210FM41N20088", "Default string"])


def processor(name: str, handle: int = 4, status: int = 0x41) -> bytes:
    """Type 4 of SMBIOS 3.0; bit 6 of `status` says that the socket is filled."""
    body = bytes([1, 3, 0xFE, 2]) + bytes(8) + bytes([3, 0]) + struct.pack("<HHH", 100, 3400, 3400) + bytes([status, 6])
    return structure(4, handle, body.ljust(44, b"\0"), ["CPU0", "NVIDIA", name])


def array(handle: int = 0x20, ecc: int = 6, use: int = 3) -> bytes:
    """Type 16: 6 is multi-bit ECC, use 3 system memory."""
    return structure(16, handle, struct.pack("<BBBIHH", 3, use, ecc, 0x80000000, 0xFFFE, 16))


def dimm(
    handle: int,
    size: int = 0x7FFF,
    extended_mib: int = 65536,
    locator: str = "P1-DIMMA1",
    bank: str = "P0_Node0_Channel0_Dimm0",
    serial: str = "80CE012344F0A1B2C3",
    speed: int = 5600,
    in_array: int = 0x20,
    kind: int = 0x22,
) -> bytes:
    """Type 17 of SMBIOS 3.2, 0x54 bytes: 64 GB of DDR5 unless told otherwise; `size` is the 16-bit field as it stands."""
    body = struct.pack("<HHHHHBBBBBHHBBBBBIHHHH", in_array, 0xFFFE, 80, 64, size, 9, 0, 1, 2, kind, 0x2080, speed, 3, 4, 5, 6, 2,
                       extended_mib, min(speed, 4800) if speed != 0xFFFF else 0xFFFF, 1100, 1100, 1100)  # fmt: skip
    body = body.ljust(0x50, b"\0") + struct.pack("<II", 70000, 68000)  # extended speeds (3.3)
    return structure(17, handle, body, [locator, bank, "Samsung", serial, "P1-DIMMA1_AssetTag", "M321R8GA0BB0-CQKZJ"])


def empty_slot(handle: int, in_array: int = 0x20) -> bytes:
    """Type 17 of a slot with nothing in it."""
    return dimm(handle, size=0, extended_mib=0, serial="NO DIMM", in_array=in_array)


def table(*structures: bytes) -> bytes:
    """The table, with its end."""
    return b"".join(structures) + structure(127, 0xFEFF, b"")
