import random
import uuid as uuids

import pytest

from agent.collectors import smbios
from tests.agent.collectors import dmi


def _memory(*structures: bytes) -> smbios.Memory:
    return smbios.memory(smbios.parse(dmi.table(*structures), dmi.ENTRY_3_5))


def test_identity_has_the_kernels_names_and_first_structures() -> None:
    table = smbios.parse(dmi.table(dmi.bios(), dmi.system(), dmi.board(), dmi.board(9, "Riser"), dmi.chassis()), dmi.ENTRY_3_5)
    assert smbios.identity(table) == {
        "bios_vendor": "American Megatrends International, LLC.",
        "bios_version": "2.1a",
        "bios_date": "05/21/2024",
        "sys_vendor": "Supermicro",
        "product_name": "SYS-821GE-TNHR",
        "product_version": "0123456789",
        "product_serial": "A512345X4123456",
        "product_uuid": dmi.UUID,
        "board_vendor": "Supermicro",
        "board_name": "X13DEG-OAD",
        "board_version": "1.01",
        "board_serial": "UM23AS601234",
        "chassis_vendor": "Supermicro",
        "chassis_version": "Default string",
        "chassis_serial": "C8210FM41N20088",
        "chassis_type": "23",
    }
    assert set(smbios.identity(table)) == set(smbios.IDENTITY)


@pytest.mark.parametrize(
    ("entry_point", "raw"),
    [
        (dmi.ENTRY_3_5, uuids.UUID(dmi.UUID).bytes_le),
        (dmi.ENTRY_2_8, uuids.UUID(dmi.UUID).bytes_le),
        (dmi.ENTRY_2_4, uuids.UUID(dmi.UUID).bytes),  # the order changed at 2.6
        (None, uuids.UUID(dmi.UUID).bytes_le),  # no entry point to tell: every machine of the last fifteen years
    ],
)
def test_uuid_order_follows_the_version(entry_point: bytes | None, raw: bytes) -> None:
    table = smbios.parse(dmi.table(dmi.system(uuid=raw)), entry_point)
    assert smbios.identity(table)["product_uuid"] == dmi.UUID


@pytest.mark.parametrize("raw", [bytes(16), b"\xff" * 16])
def test_uuid_is_absent_when_firmware_has_none(raw: bytes) -> None:
    assert "product_uuid" not in smbios.identity(smbios.parse(dmi.table(dmi.system(uuid=raw))))


@pytest.mark.parametrize(
    ("entry_point", "expected"),
    [
        (dmi.ENTRY_3_5, (3, 5)),
        (dmi.ENTRY_2_8, (2, 8)),
        (b"_SM_" + bytes([0, 31, 2, 31]), (2, 3)),
        (b"_SM_" + bytes([0, 31, 2, 51]), (2, 6)),
        (b"_DMI_" + bytes(9) + b"\x24", (2, 4)),
        (b"_SM3_", None),
        (b"_DMI_", None),
        (b"", None),
        (b"garbage that is no entry point", None),
    ],
)
def test_version_of_each_entry_point(entry_point: bytes, expected: tuple[int, int] | None) -> None:
    assert smbios.version(entry_point) == expected


def test_chassis_type_has_no_lock_bit() -> None:
    assert smbios.identity(smbios.parse(dmi.table(dmi.chassis(0x80 | 0x1C))))["chassis_type"] == "28"


def test_strings_are_printable_ascii_without_blanks_at_their_ends() -> None:
    table = smbios.parse(dmi.table(dmi.system(product="  R760xa\x07\xa0  ", vendor="   ")))
    found = smbios.identity(table)
    assert found["product_name"] == "R760xa"
    assert "sys_vendor" not in found


def test_string_number_without_its_string_is_absent() -> None:
    one = dmi.structure(1, 1, bytes([1, 2, 7, 0]) + bytes(16) + bytes(3), ["Dell Inc."])
    found = smbios.identity(smbios.parse(dmi.table(one)))
    assert found == {"sys_vendor": "Dell Inc."}


def test_structure_of_an_older_version_has_no_later_fields() -> None:
    old = dmi.structure(17, 0x40, dmi.dimm(0x40)[4:0x15], ["DIMM_A", "BANK 0"])  # SMBIOS 2.1: ends before the speed
    device = _memory(dmi.array(), old).devices[0]
    assert (device.locator, device.speed_mts, device.serial, device.configured_mts) == ("DIMM_A", None, None, None)
    assert device.bytes is None  # and so is the extended size, which this one counts on


@pytest.mark.parametrize(
    ("size", "extended", "expected"),
    [
        (0x7FFF, 65536, 64 << 30),
        (0x7FFF, 32768, 32 << 30),
        (0x7FFF, 0x80000000 | 131072, 128 << 30),  # bit 31 is reserved
        (0x7FFF, 0, None),
        (16384, 0, 16 << 30),
        (0x8000 | 512, 0, 512 << 10),  # bit 15: KiB
        (0xFFFF, 0, None),
    ],
)
def test_size_of_a_dimm(size: int, extended: int, expected: int | None) -> None:
    assert _memory(dmi.array(), dmi.dimm(0x40, size=size, extended_mib=extended)).devices[0].bytes == expected


@pytest.mark.parametrize(("speed", "expected"), [(5600, (5600, 4800)), (0, (None, None)), (0xFFFF, (70000, 68000))])
def test_speed_of_a_dimm(speed: int, expected: tuple[int | None, int | None]) -> None:
    device = _memory(dmi.array(), dmi.dimm(0x40, speed=speed)).devices[0]
    assert (device.speed_mts, device.configured_mts) == expected


def test_slots_are_the_filled_and_the_empty() -> None:
    memory = _memory(dmi.array(), dmi.dimm(0x40), dmi.empty_slot(0x41), dmi.dimm(0x42, locator="P1-DIMMB1"))
    assert memory.slots == 3
    assert [device.locator for device in memory.devices] == ["P1-DIMMA1", "P1-DIMMB1"]
    device = memory.devices[0]
    assert (device.type, device.manufacturer, device.part) == ("DDR5", "Samsung", "M321R8GA0BB0-CQKZJ")


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([6, 6], "multi-bit"),
        ([5], "single-bit"),
        ([3], "none"),
        ([6, 3], "mixed"),
        ([6, 2], "multi-bit"),
        ([2], None),
        ([], None),
    ],
)
def test_ecc_is_mixed_when_arrays_disagree(kinds: list[int], expected: str | None) -> None:
    assert _memory(*(dmi.array(0x20 + n, ecc=kind) for n, kind in enumerate(kinds))).ecc == expected


def test_memory_of_another_use_does_not_count() -> None:
    flash = dmi.dimm(0x50, size=0x8000 | 32, extended_mib=0, in_array=0x21, kind=0x09)
    memory = _memory(dmi.array(), dmi.array(0x21, ecc=3, use=5), dmi.dimm(0x40), flash)
    assert (memory.slots, len(memory.devices), memory.ecc) == (1, 1, "multi-bit")


def test_virtual_machine_bit() -> None:
    assert smbios.virtual_machine(smbios.parse(dmi.table(dmi.bios(extension2=0x1C)))) is True
    assert smbios.virtual_machine(smbios.parse(dmi.table(dmi.bios()))) is False
    assert smbios.virtual_machine(smbios.parse(dmi.table(dmi.structure(0, 0, bytes(8))))) is None
    assert smbios.virtual_machine(smbios.parse(b"")) is None


def test_faulty_structure_is_skipped_and_the_sound_ones_stay() -> None:
    no_length = bytes([17, 2, 0x44, 0]) + b"\x07\x07\0\0"
    memory = _memory(dmi.array(), dmi.dimm(0x40), no_length, dmi.dimm(0x41))
    assert [device.handle for device in memory.devices] == [0x40, 0x41]


def test_nothing_behind_the_end_counts() -> None:
    assert smbios.parse(dmi.table(dmi.system()) + dmi.board()).of(smbios.BOARD) == []


def test_truncated_table_gives_what_was_whole() -> None:
    whole = dmi.table(dmi.array(), dmi.dimm(0x40), dmi.dimm(0x41))
    found = [len(smbios.memory(smbios.parse(whole[:size])).devices) for size in range(len(whole) + 1)]
    assert found[0] == 0
    assert found == sorted(found)
    assert found[-1] == 2


def test_no_bytes_make_it_raise() -> None:
    chance = random.Random(7)
    whole = dmi.table(dmi.bios(), dmi.system(), dmi.board(), dmi.chassis(), dmi.array(), dmi.dimm(0x40))
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        table = smbios.parse(bytes(data), bytes(data[: chance.randrange(32)]))
        smbios.identity(table)
        smbios.memory(table)
        smbios.virtual_machine(table)
    assert smbios.parse(bytes(1 << 16)).structures == ()
