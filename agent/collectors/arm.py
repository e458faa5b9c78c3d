"""The MIDR of an ARM core from /proc/cpuinfo. What core it is: bettercompute/contract/arm_cores.py."""

from collections.abc import Mapping

from agent.collectors import sysfs


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
