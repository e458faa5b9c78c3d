"""What a SCSI or SATA disk says in its vital product data pages, as sysfs caches them. Pure.

`device/vpd_pg80` (unit serial number) and `device/vpd_pg89` (ATA information, SAT-4): byte 1 is the page's number, bytes 2-3
the length of what follows. A serial page of a Seagate disk:

    00 80 00 14 20 20 20 20 20 20 20 20 20 20 20 20 5a 4c 32 41 42 43 44 45    |............ZL2ABCDE|

Page 89 holds the disk's IDENTIFY DEVICE answer from byte 60 on: 16-bit words, in whose texts each word's first character is
the high byte (ACS-4): words 10-19 the serial, 23-26 the firmware revision, 27-46 the model.
"""

from dataclasses import dataclass

_IDENTIFY = 60


@dataclass(frozen=True, slots=True)
class Identify:
    """An ATA disk's own names; "" where it did not say."""

    model: str = ""
    serial: str = ""
    firmware: str = ""


def unit_serial(page: bytes) -> str | None:
    """The serial of VPD page 80; None for another page, an empty or a cut one."""
    return _text(_payload(page, 0x80)) or None


def identify(page: bytes) -> Identify:
    """The names in VPD page 89; all "" for another page or a cut one."""
    if not _payload(page, 0x89) or len(page) < _IDENTIFY + 512:
        return Identify()
    return Identify(model=_words(page, 27, 46), serial=_words(page, 10, 19), firmware=_words(page, 23, 26))


def _payload(page: bytes, number: int) -> bytes:
    if len(page) < 4 or page[1] != number:
        return b""
    length = int.from_bytes(page[2:4], "big")
    return page[4 : 4 + length] if len(page) >= 4 + length else b""


def _words(page: bytes, first: int, last: int) -> str:
    raw = page[_IDENTIFY + 2 * first : _IDENTIFY + 2 * (last + 1)]
    return _text(bytes(raw[i ^ 1] for i in range(len(raw))))


def _text(raw: bytes) -> str:
    return raw.decode("ascii", errors="replace").strip(" \0")
