"""Section `cpu`: processors, caches and the NUMA nodes that have CPUs.

Sources: /proc/cpuinfo, /sys/devices/system/cpu, /sys/devices/system/node. Nothing that moves: `cpu MHz` differs between the CPUs
of one host and changes by the second. A fact that all CPUs share is read from the first one that is online, so that a host
with 500 threads costs no 500 reads.
"""

import re
from collections.abc import Container
from dataclasses import dataclass

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract import arm_cores

from agent.collectors import Context, Files, arm, smbios, sysfs

_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
_BLOCK_SIZE = "/sys/devices/system/memory/block_size_bytes"


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """`first`: the first processor's lines; `threads`: how many processors; `packages`: physical id -> cores, 0 when not said."""

    first: dict[str, str]
    threads: int
    packages: dict[str, int]


def collect(ctx: Context) -> pb.CpuSection:
    """The section; works on x86-64 and ARM64, and finds what is there on others."""
    files = ctx.files
    info = parse_cpuinfo(files.bytes("/proc/cpuinfo") or b"")
    online = sysfs.cpu_list(files.text(f"{_CPU}/online"))
    present = sysfs.cpu_list(files.text(f"{_CPU}/present"))
    first = f"{_CPU}/cpu{online[0] if online else 0}"
    core = arm_cores.core(files.value(f"{first}/regs/identification/midr_el1") or arm.midr_of(info.first))
    siblings = len(sysfs.cpu_list(_first_of(files, f"{first}/topology", "core_cpus_list", "thread_siblings_list")))
    online_threads = len(online) or info.threads
    model = info.first.get("model name") or (core.model if core else None) or info.first.get("cpu") or _dmi_model(files)
    section = pb.CpuSection(
        vendor=info.first.get("vendor_id") or (core.vendor if core else None),
        model=model,
        family=sysfs.number(info.first.get("cpu family")),
        model_number=sysfs.number(info.first.get("model")),
        stepping=sysfs.number(info.first.get("stepping")),
        microcode=info.first.get("microcode"),
        sockets=len(info.packages) or _sockets(files, online),
        cores=sum(info.packages.values()) or _cores(online_threads, siblings),
        threads=len(present) or online_threads or None,
        online_threads=online_threads or None,
        smt=_smt(files, info, siblings),
        base_mhz=_base_mhz(files, first, model or ""),
        max_mhz=_mhz(files, f"{first}/cpufreq/cpuinfo_max_freq"),
        caches=_caches(files, first, online_threads),
        flags=sorted(set((info.first.get("flags") or info.first.get("Features") or "").split())),
        isolated_cpus=files.value(f"{_CPU}/isolated"),
        numa_nodes=_numa_nodes(files),
        midr=core.midr if core else None,
    )
    section.unreadable.extend(files.unreadable())
    return section


def parse_cpuinfo(data: bytes) -> CpuInfo:
    """The file as it is, half a megabyte on a large host: only the first block is taken apart. A block of x86, shortened:

        processor       : 0
        vendor_id       : GenuineIntel
        model name      : Intel(R) Xeon(R) Platinum 8480C
        physical id     : 0
        siblings        : 112
        cpu cores       : 56
        flags           : fpu vme de ...

    `cpu cores` is the package's count of cores; the core ids repeat within one on some AMD machines, so they are not counted.
    Architectures without `processor` lines, or with a first block of another kind (s390), have no threads here.
    """
    blocks = [block for block in data.split(b"\n\n") if re.match(rb"\s*processor\s*:", block)]
    packages: dict[str, int] = {}
    for block in blocks:
        package = _field(block, b"\nphysical id")
        if package is not None and package not in packages:
            packages[package] = sysfs.number(_field(block, b"\ncpu cores"), bits=16) or 0
    if not all(packages.values()):  # a package that does not count its cores: no sum of them either
        packages = dict.fromkeys(packages, 0)
    first = sysfs.colon_values((blocks[0] if blocks else data).decode(errors="replace"))
    return CpuInfo(first, len(blocks), packages)


def _field(block: bytes, key: bytes) -> str | None:
    start = block.find(key)
    if start < 0:
        return None
    return block[start + len(key) :].split(b"\n", 1)[0].decode(errors="replace").strip(" \t:") or None


def _dmi_model(files: Files) -> str | None:
    """What the firmware calls the processor, where neither the kernel nor the table of cores has a name: a new ARM part."""
    return smbios.processor(smbios.parse(files.bytes(smbios.TABLE, smbios.LIMIT), files.bytes(smbios.ENTRY_POINT)))


def _first_of(files: Files, directory: str, *names: str) -> str | None:
    """A file that newer kernels renamed: the first of its names that says something."""
    return next((text for name in names if (text := files.value(f"{directory}/{name}"))), None)


def _sockets(files: Files, online: list[int]) -> int | None:
    """For hosts whose cpuinfo does not say: one package's list of CPUs after the other. A package id of -1 is unknown."""
    left, sockets = list(online), 0
    while left:
        topology = f"{_CPU}/cpu{left[0]}/topology"
        if sysfs.number(files.value(f"{topology}/physical_package_id")) is None:
            return None
        package = set(sysfs.cpu_list(_first_of(files, topology, "package_cpus_list", "core_siblings_list")))
        if left[0] not in package:
            return None
        left = [cpu for cpu in left if cpu not in package]
        sockets += 1
    return sockets or None


def _cores(threads: int, siblings: int) -> int | None:
    """From the first core's threads, where they divide the host's; else it is not known."""
    return threads // siblings or None if siblings and threads % siblings == 0 else None


def _smt(files: Files, info: CpuInfo, siblings: int) -> bool | None:
    """/sys/devices/system/cpu/smt/active (4.19 and newer); before, whether the first core has two threads."""
    active = files.value(f"{_CPU}/smt/active")
    if active in ("0", "1"):
        return active == "1"
    if siblings:
        return siblings > 1
    threads, cores = (sysfs.number(info.first.get(key)) for key in ("siblings", "cpu cores"))
    return threads > cores if threads and cores else None


def _mhz(files: Files, path: str) -> int | None:
    """cpufreq writes kHz: `3800000`."""
    kilohertz = sysfs.number(files.value(path), bits=42)
    return kilohertz // 1000 or None if kilohertz else None


def _base_mhz(files: Files, first: str, model: str) -> int | None:
    """intel_pstate's base_frequency (kHz), else ACPI CPPC's nominal_freq (MHz), else an Intel name that ends in `@ 2.70GHz`."""
    base = _mhz(files, f"{first}/cpufreq/base_frequency") or sysfs.number(files.value(f"{first}/acpi_cppc/nominal_freq"))
    if base:
        return base
    match = re.search(r"@ (\d{1,2}\.\d{2})GHz", model)
    return round(float(match[1]) * 1000) or None if match else None


def _caches(files: Files, first: str, threads: int) -> list[pb.CpuCache]:
    """The first CPU's caches, cpu0/cache/index*/{level,type,size,shared_cpu_list}: `3`, `Unified`, `107520K`, `0-55,112-167`.

    The count is the host's threads divided by those that share one; absent where that does not come out even.
    """
    caches = []
    for index in files.names(f"{first}/cache"):
        here = f"{first}/cache/{index}"
        level = sysfs.number(files.value(f"{here}/level")) if index.startswith("index") else None
        size = sysfs.size(files.value(f"{here}/size")) if level else None
        if not level or not size:
            continue
        shared = len(sysfs.cpu_list(files.value(f"{here}/shared_cpu_list")))
        kind = files.value(f"{here}/type") or ""
        caches.append(pb.CpuCache(level=level, type=kind, bytes=size, count=_cores(threads, shared)))
    return sorted(caches, key=lambda cache: (cache.level, cache.type, cache.bytes))


def _numa_nodes(files: Files) -> list[pb.NumaNode]:
    """The nodes that have CPUs: others are a GPU's memory (Grace, POWER9), there only while its driver is loaded.

    Ids can be sparse (`0,8,252-255`); a node's `distance` has one column for each online node, in the order of their ids.
    """
    existing = sorted(int(name[4:]) for name in files.names(_NODE) if name.startswith("node") and name[4:].isdecimal())
    columns = sysfs.cpu_list(files.value(f"{_NODE}/online")) or existing
    with_cpu = files.value(f"{_NODE}/has_cpu")
    candidates = existing if with_cpu is None else [n for n in sysfs.cpu_list(with_cpu) if n in existing]
    cpus = {node: text for node in candidates if (text := files.value(f"{_NODE}/node{node}/cpulist"))}
    return [_numa_node(files, node, text, columns, cpus.keys()) for node, text in cpus.items()]


def _numa_node(files: Files, node: int, cpus: str, columns: list[int], listed: Container[int]) -> pb.NumaNode:
    row = [sysfs.number(word) for word in (files.value(f"{_NODE}/node{node}/distance") or "").split()]
    pairs = zip(columns, row, strict=True) if len(columns) == len(row) else ()
    distances = [pb.NumaDistance(node=to, distance=far) for to, far in pairs if to in listed and far is not None]
    return pb.NumaNode(id=node, cpus=cpus, memory_bytes=_node_memory(files, node), distances=distances)


def _node_memory(files: Files, node: int) -> int | None:
    """The node's memory blocks, else its MemTotal rounded: that one moves with the kernel, and grows where it frees lazily."""
    blocks = sysfs.memory_blocks(files.names(f"{_NODE}/node{node}"))
    size = sysfs.number(files.value(_BLOCK_SIZE), bits=48, base=16)
    if blocks and size:
        return len(blocks) * size
    total = sysfs.kilobytes(files.text(f"{_NODE}/node{node}/meminfo"), "MemTotal")
    return None if total is None else sysfs.rounded(total)
