"""VPD pages as disks return them, and as broken ones do."""

import pytest

from agent.collectors.ata import Identify, identify, unit_serial

SERIAL_PAGE = bytes.fromhex("00800014") + b"            ZL2ABCDE"


def page89(model: str, serial: str, firmware: str) -> bytes:
    """An ATA information page with these names, words swapped as on the wire."""
    words = bytearray(b"\0" * 20 + serial.encode().ljust(20) + b"\0" * 6 + firmware.encode().ljust(8) + model.encode().ljust(40))
    words[0::2], words[1::2] = bytes(words[1::2]), bytes(words[0::2])
    return bytes.fromhex("00890238") + b"\0" * 56 + bytes(words).ljust(512, b"\0")


def test_reads_the_serial_without_its_padding() -> None:
    assert unit_serial(SERIAL_PAGE) == "ZL2ABCDE"


@pytest.mark.parametrize(
    "page", [b"", b"\0\x80", SERIAL_PAGE[:-1], b"\0\x83" + SERIAL_PAGE[2:], bytes.fromhex("00800004") + b"    "]
)
def test_no_serial_from_an_absent_cut_or_other_page(page: bytes) -> None:
    assert unit_serial(page) is None


def test_reads_the_names_of_the_identify_answer() -> None:
    page = page89("SAMSUNG MZ7L33T8HBLT-00A07", "S6ESNE0T100001", "JXTC604Q")
    assert identify(page) == Identify("SAMSUNG MZ7L33T8HBLT-00A07", "S6ESNE0T100001", "JXTC604Q")


def test_no_names_from_a_cut_page() -> None:
    page = page89("M", "S", "F")
    assert identify(page[:300]) == identify(b"") == identify(b"\0\x80" + page[2:]) == Identify()
