"""Processors: /proc/cpuinfo with all its stanzas, /sys/devices/system/{cpu,node,memory}, /proc/meminfo and /proc/stat."""

from dataclasses import dataclass, field

from tests.hosts.compose.flags import SAPPHIRE_RAPIDS, VMX
from tests.hosts.compose.tree import Machine, ranges

BUGS = {
    "GenuineIntel": "spectre_v1 spectre_v2 spec_store_bypass swapgs eibrs_pbrsb bhi",
    "AuthenticAMD": "sysret_ss_attrs spectre_v1 spectre_v2 spec_store_bypass retbleed smt_rsb srso",
}


@dataclass(frozen=True)
class Processor:
    """The kind of processor and how many. Caches are (level, type, KiB, CPUs that share one: `thread`, `l3`)."""

    vendor: str
    model: str
    family: int
    number: int
    stepping: int
    microcode: str
    base_mhz: int
    max_mhz: int
    sockets: int
    cores: int
    threads: int = 2
    l3_cores: int = 0  # cores that share a last-level cache; 0: the socket's
    l1: tuple[int, int] = (48, 32)
    l2: int = 2048
    l3: int = 107520
    flags: str = SAPPHIRE_RAPIDS
    midr: str = ""
    cpufreq: bool = True
    # CPU number -> (socket, core, thread). Bare metal counts the threads last; a VM counts a core's threads together.
    threads_last: bool = True

    @property
    def count(self) -> int:
        """CPUs of the host."""
        return self.sockets * self.cores * self.threads

    def where(self, cpu: int) -> tuple[int, int, int]:
        """(socket, core, thread) of a CPU."""
        if self.threads_last:
            thread, rest = divmod(cpu, self.sockets * self.cores)
            return (*divmod(rest, self.cores), thread)
        rest, thread = divmod(cpu, self.threads)
        return (*divmod(rest, self.cores), thread)


@dataclass(frozen=True)
class Node:
    """A NUMA node. `cpus` empty: memory only (a GPU's). `kib` is MemTotal; nodes of one `socket` are nearer."""

    id: int
    cpus: list[int] = field(default_factory=list)
    kib: int = 0
    socket: int = 0


def nodes_of(p: Processor, kib: int, per_socket: int = 1) -> list[Node]:
    """One node a socket (or more), the memory shared out evenly; the first has a little less, as firmware takes from it."""
    share = p.cores // per_socket
    total = p.sockets * per_socket
    members: list[list[int]] = [[] for _ in range(total)]
    for cpu in range(p.count):
        socket, core, _ = p.where(cpu)
        members[socket * per_socket + core // share].append(cpu)
    return [
        Node(i, cpus, kib // total - (1_684_212 if i == 0 and total > 1 else 0), i // per_socket)
        for i, cpus in enumerate(members)
    ]


def processors(
    m: Machine, p: Processor, nodes: list[Node], isolated: str = "", memory_blocks: tuple[int, int] | None = None
) -> None:
    """Everything about processors, NUMA and memory sizes. `memory_blocks`: bytes of one, and how many."""
    m.put("/proc/cpuinfo", _arm_cpuinfo(p) if p.midr else "".join(_x86_stanza(m, p, cpu) for cpu in range(p.count)))
    _cpu_folder(m, p, isolated)
    _node_folder(m, nodes)
    _meminfo(m, sum(n.kib for n in nodes))
    _stat(m, p.count)
    if memory_blocks:
        size, count = memory_blocks
        m.put("/sys/devices/system/memory/block_size_bytes", f"{size:x}")
        hole = (3 << 30) // size, (1 << 30) // size  # below 4 GiB lies the PCI window: the blocks are not numbered through
        for block in range(count):
            m.put(f"/sys/devices/system/memory/memory{block if block < hole[0] else block + hole[1]}/state", "online")


def _x86_stanza(m: Machine, p: Processor, cpu: int) -> str:
    socket, core, thread = p.where(cpu)
    mhz = p.base_mhz + int(m.digits(f"mhz{cpu}", 8), 16) % 900_000 / 1000
    apic = socket * 2 * 1 << (p.cores - 1).bit_length() | core * p.threads + thread
    amd = p.vendor == "AuthenticAMD"
    rows = [
        ("processor\t", cpu),
        ("vendor_id\t", p.vendor),
        ("cpu family\t", p.family),
        ("model\t\t", p.number),
        ("model name\t", p.model),
        ("stepping\t", p.stepping),
        ("microcode\t", p.microcode),
        ("cpu MHz\t\t", f"{mhz:.3f}"),
        ("cache size\t", f"{512 if amd else p.l3} KB"),
        ("physical id\t", socket),
        ("siblings\t", p.cores * p.threads),
        ("core id\t\t", core),
        ("cpu cores\t", p.cores),
        ("apicid\t\t", apic),
        ("initial apicid\t", apic),
        ("fpu\t\t", "yes"),
        ("fpu_exception\t", "yes"),
        ("cpuid level\t", 16 if amd else 32),
        ("wp\t\t", "yes"),
        ("flags\t\t", p.flags),
        *([("vmx flags\t", VMX)] if " vmx " in p.flags else []),
        ("bugs\t\t", BUGS[p.vendor]),
        ("bogomips\t", f"{2 * p.base_mhz:.2f}"),
        ("clflush size\t", 64),
        ("cache_alignment\t", 64),
        ("address sizes\t", "43 bits physical, 48 bits virtual" if amd else "52 bits physical, 57 bits virtual"),
    ]
    return (
        "".join(f"{key}: {value}\n" for key, value in rows)
        + "power management:"
        + (" ts ttp tm hwpstate cpb eff_freq_ro [13] [14]" if amd else "")
        + "\n\n"
    )


def _arm_cpuinfo(p: Processor) -> str:
    midr = int(p.midr, 16)
    rows = (
        f"BogoMIPS\t: 2000.00\nFeatures\t: {p.flags}\nCPU implementer\t: 0x{midr >> 24 & 0xFF:02x}\nCPU architecture: 8\n"
        f"CPU variant\t: 0x{midr >> 20 & 15:x}\nCPU part\t: 0x{midr >> 4 & 0xFFF:03x}\nCPU revision\t: {midr & 15}\n\n"
    )
    return "".join(f"processor\t: {cpu}\n{rows}" for cpu in range(p.count))


def _cpu_folder(m: Machine, p: Processor, isolated: str) -> None:
    folder = "/sys/devices/system/cpu"
    everyone = ranges(list(range(p.count)))
    m.put_all(
        folder,
        {
            "present": everyone,
            "online": everyone,
            "possible": everyone,
            "offline": "",
            "isolated": isolated,
            "smt/active": int(p.threads > 1),
            "smt/control": "on" if p.threads > 1 else "notsupported",
        },
    )
    members: dict[tuple[int, int], list[int]] = {}
    for cpu in range(p.count):
        members.setdefault(p.where(cpu)[:2], []).append(cpu)
    for cpu in range(p.count):
        socket, core, _ = p.where(cpu)
        m.put(f"{folder}/cpu{cpu}/topology/physical_package_id", socket)
        if p.midr or cpu == 0:  # x86 says the rest in /proc/cpuinfo: one CPU's will do, and the tree stays small
            package = ranges([other for (where, _), cpus in members.items() if where == socket for other in cpus])
            siblings = ranges(members[socket, core])
            m.put_all(f"{folder}/cpu{cpu}/topology", {"core_id": core, "core_cpus_list": siblings, "package_cpus_list": package})
    if p.midr:
        m.put(f"{folder}/cpu0/regs/identification/midr_el1", p.midr)
    _caches(m, p, members)
    if not p.midr:
        m.put(f"{folder}/modalias", _modalias(p))
    clock = "arch_sys_counter" if p.midr else "kvm-clock tsc acpi_pm" if "hypervisor" in p.flags.split() else "tsc hpet acpi_pm"
    m.put("/sys/devices/system/clocksource/clocksource0/available_clocksource", clock)
    if p.cpufreq:
        driver = "cppc_cpufreq" if p.midr else ("intel_pstate" if p.vendor == "GenuineIntel" else "acpi-cpufreq")
        m.put_all(
            f"{folder}/cpu0/cpufreq",
            {
                "cpuinfo_max_freq": p.max_mhz * 1000,
                "cpuinfo_min_freq": 800000,
                "scaling_max_freq": p.max_mhz * 1000,
                "scaling_driver": driver,
                "scaling_cur_freq": p.base_mhz * 1000 + 731,
                "base_frequency": p.base_mhz * 1000 if driver == "intel_pstate" else None,
            },
        )


def _modalias(p: Processor) -> str:
    """Family, model and the numbers of the feature bits; 009F is that of a guest."""
    bits = [*range(0x12), *range(0x17, 0x1B), 0x3B, 0x3D, *range(0x80, 0x86), 0x8D, 0x94, 0x99, *range(0x120, 0x126), 0x1C4]
    if "hypervisor" in p.flags.split():
        bits.append(0x9F)
    vendor = 2 if p.vendor == "AuthenticAMD" else 0
    return (
        f"cpu:type:x86,ven{vendor:04X}fam{p.family:04X}mod{p.number:04X}:feature:{''.join(f',{bit:04X}' for bit in sorted(bits))}"
    )


def _caches(m: Machine, p: Processor, members: dict[tuple[int, int], list[int]]) -> None:
    core0 = ranges(members[0, 0])
    sharing = p.l3_cores or p.cores
    l3 = ranges([cpu for core in range(sharing) for cpu in members[0, core]])
    rows = [
        (1, "Data", p.l1[0], core0),
        (1, "Instruction", p.l1[1], core0),
        (2, "Unified", p.l2, core0),
        (3, "Unified", p.l3, l3),
    ]
    for index, (level, kind, kib, cpus) in enumerate(rows):
        m.put_all(
            f"/sys/devices/system/cpu/cpu0/cache/index{index}",
            {"level": level, "type": kind, "size": f"{kib}K", "shared_cpu_list": cpus, "id": 0},
        )


def _node_folder(m: Machine, nodes: list[Node]) -> None:
    folder = "/sys/devices/system/node"
    ids = ranges([n.id for n in nodes])
    m.put_all(
        folder,
        {
            "online": ids,
            "possible": ids,
            "has_cpu": ranges([n.id for n in nodes if n.cpus]),
            "has_memory": ids,
            "has_normal_memory": ranges([n.id for n in nodes if n.cpus]),
        },
    )
    for node in nodes:
        free = node.kib // 2
        distances = " ".join(str(_distance(node, other)) for other in nodes)
        m.put_all(
            f"{folder}/node{node.id}",
            {
                "cpulist": ranges(node.cpus),
                "distance": distances,
                "meminfo": "".join(
                    f"Node {node.id} {key:<16}{value:>9} kB\n"
                    for key, value in (
                        ("MemTotal:", node.kib),
                        ("MemFree:", free),
                        ("MemUsed:", node.kib - free),
                        ("HugePages_Total:", 0),
                    )
                ).replace(f"Node {node.id} HugePages_Total:        0 kB", f"Node {node.id} HugePages_Total:     0"),
            },
        )


def _distance(a: Node, b: Node) -> int:
    """As firmware says in its SLIT: 10 itself, 12 another of the socket, 21 the other socket, 80 a GPU's memory."""
    if a.id == b.id:
        return 10
    return 80 if not a.cpus or not b.cpus else 12 if a.socket == b.socket else 21


def _meminfo(m: Machine, total: int) -> None:
    values = {
        "MemTotal": total,
        "MemFree": total // 2,
        "MemAvailable": total * 9 // 10,
        "Buffers": 1_204_112,
        "Cached": total // 5,
        "SwapTotal": 0,
        "SwapFree": 0,
        "Dirty": 1308,
        "AnonPages": 4_120_776,
        "Slab": 3_000_120,
        "VmallocTotal": 34359738367,
    }
    pages = (
        "".join(f"HugePages_{kind + ':':<11}{0:>3}\n" for kind in ("Total", "Free", "Rsvd", "Surp"))
        + "Hugepagesize:       2048 kB\n"
    )
    m.put("/proc/meminfo", "".join(f"{key + ':':<16}{value:>8} kB\n" for key, value in values.items()) + pages)


def _stat(m: Machine, count: int) -> None:
    def line(name: str, busy: int) -> str:
        return f"{name} {busy} 1204 {busy // 3} {busy * 40} 5120 0 {busy // 90} 0 0 0\n"

    tail = "intr 9120442\nctxt 182204117\nbtime 1732000000\nprocesses 412077\nprocs_running 3\nprocs_blocked 0\n"
    tail += "softirq 8012244 0 1 2 3 4 5 6 7 8 9\n"
    m.put("/proc/stat", line("cpu ", 81_204 * count) + "".join(line(f"cpu{cpu}", 80_000 + cpu) for cpu in range(count)) + tail)
