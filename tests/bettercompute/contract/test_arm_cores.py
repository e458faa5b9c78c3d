"""ARM cores by MIDR."""

import pytest
from bettercompute.contract.arm_cores import IMPLEMENTERS, PARTS, Core, core


@pytest.mark.parametrize(
    ("midr", "vendor", "model"),
    [
        ("0x00000000410fd4f0", "ARM", "Neoverse-V2"),
        ("0x00000000413fd0c1", "ARM", "Neoverse-N1"),
        ("0x00000000411fd401", "ARM", "Neoverse-V1"),
        ("0x000000004e0f0100", "NVIDIA", "Olympus"),
        ("0x00000000c00fac30", "Ampere", "Ampere-1"),
        ("0x00000000410ffff0", "ARM", None),
        ("0x00000000ff0fd4f0", None, None),
    ],
)
def test_core_of_a_midr(midr: str, vendor: str | None, model: str | None) -> None:
    assert core(midr) == Core(midr, vendor, model)


@pytest.mark.parametrize("midr", [None, "", "0x0", "nonsense", "-1", "0x1" + "0" * 16])
def test_no_core_without_a_midr(midr: str | None) -> None:
    assert core(midr) is None


def test_any_spelling_of_the_register_is_one_core() -> None:
    assert core(" 410FD4F0\n") == core("0x00000000410fd4f0")


def test_every_part_is_of_a_known_implementer_and_fits_a_label() -> None:
    assert {implementer for implementer, _ in PARTS} <= set(IMPLEMENTERS)
    assert len(set(PARTS.values())) == len(PARTS)
    assert all(part < 1 << 12 and name.replace("-", "").isalnum() for (_, part), name in PARTS.items())
