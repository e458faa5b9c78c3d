"""Section `memory`: how much there is, in which DIMMs, with which ECC.

Sources: SMBIOS types 16 and 17, /sys/devices/system/memory, /proc/meminfo, /proc/swaps.
"""

import re

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors import Context, Files, smbios, sysfs

_BLOCKS = "/sys/devices/system/memory"
_NODES = "/sys/devices/system/node"


def collect(ctx: Context) -> pb.MemorySection:
    """The section. `total_source` names what the total came from; a source without permission is in `unreadable`."""
    files = ctx.files
    memory = smbios.memory(smbios.parse(files.bytes(smbios.TABLE, smbios.LIMIT), files.bytes(smbios.ENTRY_POINT)))
    total, source = _total(files, memory)
    devices = sorted(memory.devices, key=lambda d: (d.locator or "", d.bank or "", d.serial or "", d.handle))
    return pb.MemorySection(
        total_bytes=total,
        total_source=source,
        dimms=[_dimm(device) for device in devices],
        ecc=memory.ecc,
        swap=swap_areas(files.text("/proc/swaps") or ""),
        slots=memory.slots,
        unreadable=files.unreadable(),
    )


def swap_areas(text: str) -> list[pb.SwapArea]:
    """/proc/swaps, sorted by path; sizes stand there in KiB, blanks in a path as `\\040`.

        Filename        Type       Size     Used  Priority
        /swap.img       file       8388604  0     -2
        /dev/zram0      partition  16777212 0     100

    zram is left out: it is main memory compressed, sized by a service at boot, and no hardware.
    """
    areas = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < 3 or words[0].startswith("/dev/zram"):
            continue
        kilobytes = sysfs.number(words[2], bits=54)
        if kilobytes is not None:
            areas.append(pb.SwapArea(path=_unescaped(words[0]), type=words[1], bytes=kilobytes << 10))
    return sorted(areas, key=lambda area: (area.path, area.type, area.bytes))


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _dimm(device: smbios.MemoryDevice) -> pb.Dimm:
    return pb.Dimm(
        locator=device.locator,
        bank=device.bank,
        bytes=device.bytes,
        type=device.type,
        speed_mts=device.speed_mts,
        configured_mts=device.configured_mts,
        manufacturer=device.manufacturer,
        part=device.part,
        serial=device.serial,
    )


def _total(files: Files, memory: smbios.Memory) -> tuple[int | None, str | None]:
    """The DIMMs' sum; else (none, or one whose size the firmware does not know) the memory blocks; else MemTotal, rounded."""
    sizes = [device.bytes for device in memory.devices]
    if sizes and None not in sizes:
        return sum(size for size in sizes if size), "dimms"
    if blocks := _block_bytes(files):
        return blocks, "memory-blocks"
    total = sysfs.kilobytes(files.text("/proc/meminfo"), "MemTotal")
    return (sysfs.rounded(total), "meminfo") if total else (None, None)


def _block_bytes(files: Files) -> int | None:
    """block_size_bytes (hexadecimal, `8000000`) times the blocks that are there, online or not.

    Without those of NUMA nodes that have no CPU: a GPU's memory (Grace, POWER9) shows up there while its driver is loaded.
    """
    size = sysfs.number(files.value(f"{_BLOCKS}/block_size_bytes"), bits=48, base=16)
    if not size:
        return None
    blocks = sysfs.memory_blocks(files.names(_BLOCKS))
    with_cpu = files.value(f"{_NODES}/has_cpu")
    if with_cpu is not None:
        cpu_nodes = {f"node{n}" for n in sysfs.cpu_list(with_cpu)}
        for node in files.names(_NODES):
            if re.fullmatch(r"node\d+", node) and node not in cpu_nodes:
                blocks.difference_update(files.names(f"{_NODES}/{node}"))
    return size * len(blocks) or None
