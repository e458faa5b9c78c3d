"""Processors: /proc/cpuinfo with all its stanzas, /sys/devices/system/{cpu,node,memory}, /proc/meminfo and /proc/stat."""

from dataclasses import dataclass, field

from tests.hosts.compose.tree import Machine, ranges

INTEL = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush dts acpi mmx fxsr sse sse2 ss ht tm pbe syscall nx "
    "pdpe1gb rdtscp lm constant_tsc art arch_perfmon pebs bts rep_good nopl xtopology nonstop_tsc cpuid aperfmperf tsc_known_freq pni "
    "pclmulqdq dtes64 monitor ds_cpl vmx smx est tm2 ssse3 sdbg fma cx16 xtpr pdcm pcid dca sse4_1 sse4_2 x2apic movbe popcnt "
    "tsc_deadline_timer aes xsave avx f16c rdrand lahf_lm abm 3dnowprefetch cpuid_fault epb cat_l3 cat_l2 cdp_l3 intel_ppin cdp_l2 ssbd mba "
    "ibrs ibpb stibp ibrs_enhanced tpr_shadow flexpriority ept vpid ept_ad fsgsbase tsc_adjust bmi1 avx2 smep bmi2 erms invpcid cqm rdt_a "
    "avx512f avx512dq rdseed adx smap avx512ifma clflushopt clwb intel_pt avx512cd sha_ni avx512bw avx512vl xsaveopt xsavec xgetbv1 xsaves "
    "cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local split_lock_detect avx_vnni avx512_bf16 wbnoinvd dtherm ida arat pln pts vnmi avx512vbmi "
    "umip pku ospke waitpkg avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg tme avx512_vpopcntdq la57 rdpid bus_lock_detect "
    "cldemote movdiri movdir64b enqcmd fsrm md_clear serialize tsxldtrk pconfig arch_lbr ibt amx_bf16 avx512_fp16 amx_tile amx_int8 flush_l1d "
    "arch_capabilities"
)
INTEL_ICELAKE = " ".join(
    f
    for f in INTEL.split()
    if not f.startswith("amx")
    and f
    not in (
        "avx_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "bus_lock_detect",
        "cldemote",
        "movdiri",
        "movdir64b",
        "enqcmd",
        "serialize",
        "tsxldtrk",
        "arch_lbr",
        "ibt",
        "waitpkg",
        "cdp_l2",
        "cat_l2",
    )
)
INTEL_GUEST = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ss ht syscall nx pdpe1gb rdtscp lm "
    "constant_tsc rep_good nopl xtopology nonstop_tsc cpuid tsc_known_freq pni pclmulqdq ssse3 fma cx16 pcid sse4_1 sse4_2 x2apic movbe popcnt "
    "aes xsave avx f16c rdrand hypervisor lahf_lm abm 3dnowprefetch invpcid_single ssbd ibrs ibpb stibp ibrs_enhanced fsgsbase tsc_adjust bmi1 "
    "hle avx2 smep bmi2 erms invpcid rtm mpx avx512f avx512dq rdseed adx smap clflushopt clwb avx512cd avx512bw avx512vl xsaveopt xsavec "
    "xgetbv1 xsaves arat avx512_vnni md_clear arch_capabilities"
)
EPYC = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx mmxext fxsr_opt pdpe1gb "
    "rdtscp lm constant_tsc rep_good nopl nonstop_tsc cpuid extd_apicid aperfmperf rapl pni pclmulqdq monitor ssse3 fma cx16 sse4_1 sse4_2 "
    "x2apic movbe popcnt aes xsave avx f16c rdrand lahf_lm cmp_legacy svm extapic cr8_legacy abm sse4a misalignsse 3dnowprefetch osvw ibs "
    "skinit wdt tce topoext perfctr_core perfctr_nb bpext perfctr_llc mwaitx cpb cat_l3 cdp_l3 hw_pstate ssbd mba ibrs ibpb stibp vmmcall "
    "fsgsbase bmi1 avx2 smep bmi2 cqm rdt_a rdseed adx smap clflushopt clwb sha_ni xsaveopt xsavec xgetbv1 cqm_llc cqm_occup_llc "
    "cqm_mbm_total cqm_mbm_local clzero irperf xsaveerptr rdpru wbnoinvd amd_ppin arat npt lbrv svm_lock nrip_save tsc_scale vmcb_clean "
    "flushbyasid decodeassists pausefilter pfthreshold avic v_vmsave_vmload vgif v_spec_ctrl umip rdpid overflow_recov succor smca sev sev_es"
)
RYZEN = EPYC.replace(" ibs", " ibs").replace(
    " sev sev_es",
    " avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512_bf16 avx512vbmi "
    "avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg avx512_vpopcntdq erms fsrm pku ospke",
)
GRACE = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 sm4 asimddp sha512 sve "
    "asimdfhm dit uscat ilrcpc flagm sb paca pacg dcpodp sve2 sveaes svepmull svebitperm svesha3 svesm4 flagm2 frint svei8mm svebf16 i8mm "
    "bf16 dgh bti"
)
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
    flags: str = INTEL
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
    """A NUMA node. `cpus` empty: memory only (a GPU's). `kib` is MemTotal."""

    id: int
    cpus: list[int] = field(default_factory=list)
    kib: int = 0


def nodes_of(p: Processor, kib: int, per_socket: int = 1) -> list[Node]:
    """One node a socket (or more), the memory shared out evenly; the first has a little less, as firmware takes from it."""
    share = p.cores // per_socket
    total = p.sockets * per_socket
    members: list[list[int]] = [[] for _ in range(total)]
    for cpu in range(p.count):
        socket, core, _ = p.where(cpu)
        members[socket * per_socket + core // share].append(cpu)
    return [Node(i, cpus, kib // total - (1_684_212 if i == 0 and total > 1 else 0)) for i, cpus in enumerate(members)]


def processors(
    m: Machine, p: Processor, nodes: list[Node], isolated: str = "", memory_blocks: tuple[int, int] | None = None
) -> None:
    """Everything about processors, NUMA and memory sizes. `memory_blocks` (bytes of one, how many) of /sys/devices/system/memory."""
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
        m.put_all(f"{folder}/cpu{cpu}/topology", {"physical_package_id": socket, "core_id": core})
        if p.midr or cpu == 0:
            m.put(f"{folder}/cpu{cpu}/topology/thread_siblings_list", ranges(members[socket, core]))
        if p.midr:
            m.put(f"{folder}/cpu{cpu}/regs/identification/midr_el1", p.midr)
    _caches(m, p, members)
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
            "has_normal_memory": ids,
        },
    )
    for node in nodes:
        free = node.kib // 2
        distances = " ".join(str(10 if n.id == node.id else 21 if n.cpus and node.cpus else 80) for n in nodes)
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
    pages = "HugePages_Total:       0\nHugePages_Free:        0\nHugePages_Rsvd:        0\nHugePages_Surp:        0\nHugepagesize:       2048 kB\n"
    m.put("/proc/meminfo", "".join(f"{key + ':':<16}{value:>8} kB\n" for key, value in values.items()) + pages)


def _stat(m: Machine, count: int) -> None:
    def line(name: str, busy: int) -> str:
        return f"{name} {busy} 1204 {busy // 3} {busy * 40} 5120 0 {busy // 90} 0 0 0\n"

    tail = "intr 9120442\nctxt 182204117\nbtime 1732000000\nprocesses 412077\nprocs_running 3\nprocs_blocked 0\nsoftirq 8012244 0 1 2 3 4 5 6 7 8 9\n"
    m.put("/proc/stat", line("cpu ", 81_204 * count) + "".join(line(f"cpu{cpu}", 80_000 + cpu) for cpu in range(count)) + tail)
