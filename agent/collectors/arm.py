"""Names of ARM cores by MIDR_EL1, which is all that an ARM /proc/cpuinfo says of them (Arm ARM, D19.2; the parts' reference
manuals; the kernel's arch/arm64/include/asm/cputype.h lists the same numbers)."""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.collectors import sysfs


@dataclass(frozen=True, slots=True)
class Core:
    """A kind of core. `model` absent: a part that is not in the table."""

    midr: str
    vendor: str | None
    model: str | None


_IMPLEMENTERS = {
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
_PARTS = {
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD09): "Cortex-A73",
    (0x41, 0xD0A): "Cortex-A75",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD42): "Cortex-A78AE",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD83): "Neoverse-V3AE",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD8E): "Neoverse-N3",
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


def core(midr: str | None) -> Core | None:
    """The core of a MIDR as sysfs writes it, `0x00000000410fd4f0`: implementer 41, variant 0, part d4f, revision 0.

    >>> core("0x00000000410fd4f0").model
    'Neoverse-V2'
    """
    value = sysfs.number(midr, bits=64, base=16)
    if not value:
        return None
    implementer, part = value >> 24 & 0xFF, value >> 4 & 0xFFF
    return Core(f"0x{value:016x}", _IMPLEMENTERS.get(implementer), _PARTS.get((implementer, part)))


def midr_of(cpuinfo: Mapping[str, str]) -> str | None:
    """MIDR_EL1 put together from a block of /proc/cpuinfo, for kernels that do not show the register.

    CPU implementer : 0x41
    CPU architecture: 8
    CPU variant     : 0x0
    CPU part        : 0xd4f
    CPU revision    : 0
    """
    fields = [
        sysfs.number(cpuinfo.get(f"CPU {name}"), bits=bits, base=0)
        for name, bits in (("implementer", 8), ("variant", 4), ("part", 12), ("revision", 4))
    ]
    if None in fields:
        return None
    implementer, variant, part, revision = (field or 0 for field in fields)
    # 0xf: the architecture is told by the ID registers, as on every 64-bit core.
    return f"0x{implementer << 24 | variant << 20 | 0xF << 16 | part << 4 | revision:016x}"
