"""Names of ARM cores by MIDR_EL1, which is all that an ARM host says of them: both sides name processors by it (SPEC B2, Labels).

Sources: Arm ARM, D19.2; the parts' reference manuals; the kernel's arch/arm64/include/asm/cputype.h lists the same numbers. One
more core costs a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass

IMPLEMENTERS: Mapping[int, str] = {
    0x41: "ARM",
    0x42: "Broadcom",
    0x43: "Cavium",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x50: "APM",
    0x51: "Qualcomm",
    0x61: "Apple",
    0x6D: "Microsoft",
    0xC0: "Ampere",
}
# (implementer, part number) -> name
PARTS: Mapping[tuple[int, int], str] = {
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD04): "Cortex-A35",
    (0x41, 0xD05): "Cortex-A55",
    (0x41, 0xD06): "Cortex-A65",
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD09): "Cortex-A73",
    (0x41, 0xD0A): "Cortex-A75",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD0D): "Cortex-A77",
    (0x41, 0xD0E): "Cortex-A76AE",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD41): "Cortex-A78",
    (0x41, 0xD42): "Cortex-A78AE",
    (0x41, 0xD44): "Cortex-X1",
    (0x41, 0xD46): "Cortex-A510",
    (0x41, 0xD47): "Cortex-A710",
    (0x41, 0xD48): "Cortex-X2",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4A): "Neoverse-E1",
    (0x41, 0xD4B): "Cortex-A78C",
    (0x41, 0xD4C): "Cortex-X1C",
    (0x41, 0xD4D): "Cortex-A715",
    (0x41, 0xD4E): "Cortex-X3",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD80): "Cortex-A520",
    (0x41, 0xD81): "Cortex-A720",
    (0x41, 0xD82): "Cortex-X4",
    (0x41, 0xD83): "Neoverse-V3AE",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD85): "Cortex-X925",
    (0x41, 0xD87): "Cortex-A725",
    (0x41, 0xD8E): "Neoverse-N3",
    (0x43, 0x0A1): "ThunderX",
    (0x43, 0x0AF): "ThunderX2",
    (0x46, 0x001): "A64FX",
    (0x48, 0xD01): "Kunpeng-920",
    (0x4E, 0x004): "Carmel",
    (0x4E, 0x010): "Olympus",
    (0x50, 0x000): "X-Gene",
    (0x6D, 0xD49): "Azure-Cobalt-100",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}
_BITS = 64


@dataclass(frozen=True, slots=True)
class Core:
    """A kind of core; `midr` in sysfs' form. `vendor` and `model` absent: not in the table."""

    midr: str
    vendor: str | None
    model: str | None


def core(midr: str | None) -> Core | None:
    """The core of a MIDR as sysfs writes it, `0x00000000410fd4f0`: implementer 41, variant 0, part d4f, revision 0.

    None for what is no number, or 0.

    >>> core("0x00000000410fd4f0").model
    'Neoverse-V2'
    """
    try:
        value = int((midr or "").strip(), 16)
    except ValueError:
        return None
    if not 0 < value < 1 << _BITS:
        return None
    implementer, part = value >> 24 & 0xFF, value >> 4 & 0xFFF
    return Core(f"0x{value:016x}", IMPLEMENTERS.get(implementer), PARTS.get((implementer, part)))
