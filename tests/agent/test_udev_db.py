"""udev's database is read as udevd writes it, and believed only about the disk that sysfs shows."""

import pytest

from agent.udev_db import decode, parse, same_device

ENTRY = r"""S:disk/by-id/ata-ST16000NM001G-2KK103_ZL2ABCDE
I:1876543
E:ID_MODEL=ST16000NM001G-2KK103
E:ID_MODEL_ENC=ST16000NM001G-2KK103\x20\x20\x20
E:ID_SERIAL_SHORT=ZL2ABCDE
E:ID_WWN=0x5000c500a1b2c3d4
E:ID_FS_LABEL=a=b
E:ID_EMPTY=
E:broken
G:systemd
"""


def test_reads_the_properties_and_passes_over_the_rest() -> None:
    assert parse(ENTRY) == {
        "ID_MODEL": "ST16000NM001G-2KK103",
        "ID_MODEL_ENC": r"ST16000NM001G-2KK103\x20\x20\x20",
        "ID_SERIAL_SHORT": "ZL2ABCDE",
        "ID_WWN": "0x5000c500a1b2c3d4",
        "ID_FS_LABEL": "a=b",
    }
    assert parse("") == {}


def test_decodes_what_udev_escapes() -> None:
    assert decode(r"PERC\x20H755\x20Front\x20\x20") == "PERC H755 Front"
    assert decode(r"\xc3\xa9\x") == r"é\x"


@pytest.mark.parametrize(
    ("model", "wwn", "same"),
    [
        ("ST16000NM001G-2K", "naa.5000c500a1b2c3d4", True),
        ("another", "naa.5000c500a1b2c3d4", True),  # the WWN decides
        ("ST16000NM001G-2K", "naa.5000c500ffffffff", False),  # the same model, another disk
        ("ST16000NM001G-2K", None, True),
        ("ST18000NM000J-2T", None, False),
        (None, None, False),
    ],
)
def test_an_entry_of_another_disk_is_not_believed(model: str | None, wwn: str | None, same: bool) -> None:
    assert same_device(parse(ENTRY), model, wwn) is same


def test_an_entry_that_names_no_wwn_is_not_of_a_disk_that_has_one() -> None:
    assert not same_device({"ID_MODEL": "M1"}, "M1", "naa.5000c500a1b2c3d4")
