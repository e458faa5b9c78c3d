import errno
from pathlib import Path
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors import smbios
from agent.collectors.cpu import collect, parse_cpuinfo
from agent.host import Host
from tests.agent.collectors import dmi
from tests.agent.collectors.tree import ARM, Content, context

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"


def xeon_block(cpu: int, package: int, core: int, mhz: str = "2000.000", cores: int = 2) -> str:
    """A processor of /proc/cpuinfo of a Xeon Platinum 8480C, flags shortened."""
    return (
        f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
        "model name\t: Intel(R) Xeon(R) Platinum 8480C\nstepping\t: 8\nmicrocode\t: 0x2b000590\n"
        f"cpu MHz\t\t: {mhz}\ncache size\t: 107520 KB\nphysical id\t: {package}\nsiblings\t: {2 * cores}\n"
        f"core id\t\t: {core}\ncpu cores\t: {cores}\napicid\t\t: {cpu}\nfpu\t\t: yes\nwp\t\t: yes\n"
        "flags\t\t: fpu vme de sse2 amx_tile avx512f sse2\nbugs\t\t: spectre_v1\nbogomips\t: 4000.00\npower management:\n\n"
    )


def xeon(mhz: str = "2000.000") -> dict[str, Content]:
    """Two sockets of two cores with two threads; CPU n+4 is n's sibling."""
    files: dict[str, Content] = {
        "/proc/cpuinfo": "".join(xeon_block(n, n % 4 // 2, n % 2, mhz) for n in range(8)),
        f"{CPU}/present": "0-7\n",
        f"{CPU}/online": "0-7\n",
        f"{CPU}/isolated": "2-3,6-7\n",
        f"{CPU}/smt/active": "1\n",
        f"{CPU}/cpu0/cpufreq/base_frequency": "2000000\n",
        f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": "3800000\n",
        f"{CPU}/cpu0/topology/core_cpus_list": "0,4\n",
        f"{NODE}/online": "0-1\n",
        f"{NODE}/has_cpu": "0-1\n",
    }
    rows = [("1", "Data", "48K", "0,4"), ("1", "Instruction", "32K", "0,4"), ("2", "Unified", "2048K", "0,4")]
    for index, row in enumerate([*rows, ("3", "Unified", "107520K", "0-1,4-5")]):
        for name, text in zip(("level", "type", "size", "shared_cpu_list"), row, strict=True):
            files[f"{CPU}/cpu0/cache/index{index}/{name}"] = text + "\n"
    for node, cpus, distance in ((0, "0-1,4-5", "10 21"), (1, "2-3,6-7", "21 10")):
        files[f"{NODE}/node{node}/cpulist"] = cpus + "\n"
        files[f"{NODE}/node{node}/distance"] = distance + "\n"
        files[f"{NODE}/node{node}/meminfo"] = f"\nNode {node} MemTotal:       1056441196 kB\nNode {node} MemFree:  1 kB\n"
    return files


def grace() -> dict[str, Content]:
    """Two Grace CPUs of two cores each, and the memory of two GPUs as nodes of their own."""
    block = (
        "BogoMIPS\t: 2000.00\nFeatures\t: fp asimd evtstrm sve2 bf16\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
        "CPU variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 0\n\n"
    )
    files: dict[str, Content] = {
        "/proc/cpuinfo": "".join(f"processor\t: {n}\n{block}" for n in range(4)),
        f"{CPU}/present": "0-3\n",
        f"{CPU}/online": "0-3\n",
        f"{CPU}/isolated": "\n",
        f"{CPU}/cpu0/regs/identification/midr_el1": "0x00000000410fd4f0\n",
        f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": "3402000\n",
        f"{CPU}/cpu0/acpi_cppc/nominal_freq": "3402\n",
        f"{NODE}/online": "0-3\n",
        f"{NODE}/has_cpu": "0-1\n",
    }
    for cpu, package in ((0, 0), (1, 0), (2, 1), (3, 1)):
        topology = f"{CPU}/cpu{cpu}/topology"
        files[f"{topology}/physical_package_id"] = f"{package}\n"
        files[f"{topology}/package_cpus_list"] = "0-1\n" if package == 0 else "2-3\n"
        files[f"{topology}/core_cpus_list"] = f"{cpu}\n"
    for node, cpus in ((0, "0-1"), (1, "2-3"), (2, ""), (3, "")):
        files[f"{NODE}/node{node}/cpulist"] = cpus + "\n"
        files[f"{NODE}/node{node}/distance"] = "10 40 80 120\n" if node == 0 else "40 10 120 80\n"
        files[f"{NODE}/node{node}/meminfo"] = f"Node {node} MemTotal:       501000000 kB\n"
    return files


def test_xeon(tmp_path: Path) -> None:
    section = collect(context(tmp_path, xeon()))
    distances = ([pb.NumaDistance(node=0, distance=a), pb.NumaDistance(node=1, distance=b)] for a, b in ((10, 21), (21, 10)))
    assert section == pb.CpuSection(
        vendor="GenuineIntel",
        model="Intel(R) Xeon(R) Platinum 8480C",
        family=6,
        model_number=143,
        stepping=8,
        microcode="0x2b000590",
        sockets=2,
        cores=4,
        threads=8,
        online_threads=8,
        smt=True,
        base_mhz=2000,
        max_mhz=3800,
        caches=[
            pb.CpuCache(level=1, type="Data", bytes=48 << 10, count=4),
            pb.CpuCache(level=1, type="Instruction", bytes=32 << 10, count=4),
            pb.CpuCache(level=2, type="Unified", bytes=2 << 20, count=4),
            pb.CpuCache(level=3, type="Unified", bytes=105 << 20, count=2),
        ],
        flags=["amx_tile", "avx512f", "de", "fpu", "sse2", "vme"],
        isolated_cpus="2-3,6-7",
        numa_nodes=[
            pb.NumaNode(id=n, cpus=cpus, memory_bytes=4030 * (256 << 20), distances=next(distances))
            for n, cpus in ((0, "0-1,4-5"), (1, "2-3,6-7"))
        ],
    )


def test_clock_of_the_moment_changes_nothing(tmp_path: Path) -> None:
    idle, busy = xeon("800.000"), xeon("3791.224")
    busy[f"{CPU}/cpu0/cpufreq/scaling_cur_freq"] = "3791224\n"
    assert collect(context(tmp_path / "a", idle)) == collect(context(tmp_path / "b", busy))


def test_grace_is_named_by_its_midr_and_keeps_gpu_memory_out(tmp_path: Path) -> None:
    section = collect(context(tmp_path, grace(), uname=ARM))
    assert (section.vendor, section.model, section.midr) == ("ARM", "Neoverse-V2", "0x00000000410fd4f0")
    assert (section.sockets, section.cores, section.threads, section.smt) == (2, 4, 4, False)
    assert (section.base_mhz, section.max_mhz) == (3402, 3402)
    assert list(section.flags) == ["asimd", "bf16", "evtstrm", "fp", "sve2"]
    assert not section.HasField("family")
    assert not section.HasField("isolated_cpus")
    assert [(node.id, [(d.node, d.distance) for d in node.distances]) for node in section.numa_nodes] == [
        (0, [(0, 10), (1, 40)]),
        (1, [(0, 40), (1, 10)]),
    ]


def test_section_is_the_same_with_and_without_the_gpu_driver(tmp_path: Path) -> None:
    loaded, bare = grace(), grace()
    for node in (2, 3):
        bare[f"{NODE}/node{node}/meminfo"] = f"Node {node} MemTotal:       0 kB\n"
    unlisted = {path: text for path, text in bare.items() if "/node2/" not in path and "/node3/" not in path}
    unlisted |= {f"{NODE}/online": "0-1\n", f"{NODE}/node0/distance": "10 40\n", f"{NODE}/node1/distance": "40 10\n"}
    sections = [collect(context(tmp_path / str(n), files)) for n, files in enumerate((loaded, bare, unlisted))]
    assert sections[0] == sections[1] == sections[2]


def test_midr_is_put_together_from_cpuinfo_where_sysfs_has_none(tmp_path: Path) -> None:
    files = grace()
    del files[f"{CPU}/cpu0/regs/identification/midr_el1"]
    assert collect(context(tmp_path, files, uname=ARM)).midr == "0x00000000410fd4f0"


def test_an_arm_core_that_no_table_knows_is_named_by_the_firmware(tmp_path: Path) -> None:
    new = {f"{CPU}/cpu0/regs/identification/midr_el1": "0x00000000410ffff0\n"}
    table = dmi.table(dmi.processor("Vacant", status=0x00), dmi.processor("NVIDIA Vera A01"))
    told = grace() | new | {smbios.TABLE: table, smbios.ENTRY_POINT: dmi.ENTRY_3_5}
    section = collect(context(tmp_path / "dmi", told, uname=ARM))
    assert (section.vendor, section.model) == ("ARM", "NVIDIA Vera A01")
    assert not collect(context(tmp_path / "none", grace() | new, uname=ARM)).HasField("model")


def test_firmware_renames_no_core_that_is_known(tmp_path: Path) -> None:
    told = grace() | {smbios.TABLE: dmi.table(dmi.processor("Grace A02"))}
    assert collect(context(tmp_path, told, uname=ARM)).model == "Neoverse-V2"


def test_unknown_package_id_leaves_sockets_absent(tmp_path: Path) -> None:
    files = grace() | {f"{CPU}/cpu0/topology/physical_package_id": "-1\n"}
    section = collect(context(tmp_path, files, uname=ARM))
    assert not section.HasField("sockets")
    assert section.cores == 4


def test_sockets_are_absent_where_a_package_has_no_list(tmp_path: Path) -> None:
    files = grace()
    del files[f"{CPU}/cpu2/topology/package_cpus_list"]
    assert not collect(context(tmp_path, files, uname=ARM)).HasField("sockets")


def test_offline_cpus_are_present_and_not_online(tmp_path: Path) -> None:
    files = xeon() | {f"{CPU}/online": "0-5\n", "/proc/cpuinfo": "".join(xeon_block(n, n % 4 // 2, n % 2) for n in range(6))}
    section = collect(context(tmp_path, files))
    assert (section.threads, section.online_threads) == (8, 6)


def test_first_online_cpu_is_asked_when_cpu0_is_offline(tmp_path: Path) -> None:
    files = xeon() | {f"{CPU}/online": "1-7\n", f"{CPU}/cpu1/cpufreq/cpuinfo_max_freq": "3700000\n"}
    assert collect(context(tmp_path, files)).max_mhz == 3700


def test_package_ids_need_not_count_from_zero() -> None:
    info = parse_cpuinfo("".join(xeon_block(n, (3, 36)[n % 2], 0, cores=24) for n in range(4)).encode())
    assert info.packages == {"3": 24, "36": 24}
    assert info.threads == 4


def test_repeated_core_ids_within_a_package_do_not_lose_cores(tmp_path: Path) -> None:
    files = {"/proc/cpuinfo": "".join(xeon_block(n, 0, n % 2, cores=4) for n in range(8))}
    assert collect(context(tmp_path, files)).cores == 4


def test_bare_cpuinfo_is_enough(tmp_path: Path) -> None:
    section = collect(context(tmp_path, {"/proc/cpuinfo": "".join(xeon_block(n, 0, n % 2) for n in range(4))}))
    assert (section.sockets, section.cores, section.threads, section.online_threads, section.smt) == (1, 2, 4, 4, True)
    assert not section.HasField("max_mhz")


@pytest.mark.parametrize(
    ("model", "expected"),
    [("Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", 2500), ("AMD EPYC 9654 96-Core Processor", None)],
)
def test_base_clock_from_intels_name(tmp_path: Path, model: str, expected: int | None) -> None:
    text = xeon_block(0, 0, 0).replace("Intel(R) Xeon(R) Platinum 8480C", model)
    section = collect(context(tmp_path, {"/proc/cpuinfo": text}))
    assert (section.base_mhz if section.HasField("base_mhz") else None) == expected


def test_power9_with_v100_has_sparse_nodes(tmp_path: Path) -> None:
    files: dict[str, Content] = {
        "/proc/cpuinfo": "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 3783.000000MHz\n"
        "revision\t: 2.2 (pvr 004e 1202)\n\ntimebase\t: 512000000\nplatform\t: PowerNV\nmodel\t\t: 8335-GTH\n",
        f"{NODE}/online": "0,8,252-255\n",
        f"{NODE}/has_cpu": "0,8\n",
    }
    for node, cpus in ((0, "0-3"), (8, "4-7"), (252, ""), (253, ""), (254, ""), (255, "")):
        files[f"{NODE}/node{node}/cpulist"] = cpus + "\n"
        files[f"{NODE}/node{node}/distance"] = "40 10 80 80 80 80\n" if node == 8 else "10 40 80 80 80 80\n"
    section = collect(context(tmp_path, files))
    assert section.model == "POWER9, altivec supported"
    assert not section.HasField("model_number")
    assert [node.id for node in section.numa_nodes] == [0, 8]
    assert [(d.node, d.distance) for d in section.numa_nodes[1].distances] == [(0, 40), (8, 10)]


def test_s390_without_processor_lines(tmp_path: Path) -> None:
    text = (
        "vendor_id       : IBM/S390\n# processors    : 2\nfeatures\t: esan3 zarch\n\nprocessor 0: version = 00,  machine = 8561\n"
    )
    section = collect(context(tmp_path, {"/proc/cpuinfo": text, f"{CPU}/online": "0-1\n"}))
    assert (section.vendor, section.online_threads) == ("IBM/S390", 2)
    assert not section.HasField("model")


def test_node_memory_is_its_blocks_where_there_are_some(tmp_path: Path) -> None:
    files = xeon() | {"/sys/devices/system/memory/block_size_bytes": "80000000\n"}
    files |= {f"{NODE}/node0/memory{n}": None for n in range(3)} | {f"{NODE}/node0/memory_side_cache": None}
    nodes = collect(context(tmp_path, files)).numa_nodes
    assert [node.memory_bytes for node in nodes] == [6 << 30, 4030 * (256 << 20)]


def test_distances_are_absent_when_columns_do_not_match_the_nodes(tmp_path: Path) -> None:
    files = xeon() | {f"{NODE}/node0/distance": "10 21 30\n"}
    nodes = collect(context(tmp_path, files)).numa_nodes
    assert (len(nodes[0].distances), len(nodes[1].distances)) == (0, 2)


def test_cache_without_a_size_is_left_out_and_an_uneven_count_absent(tmp_path: Path) -> None:
    files = xeon() | {f"{CPU}/cpu0/cache/index0/size": "", f"{CPU}/cpu0/cache/index3/shared_cpu_list": "0-2\n"}
    caches = collect(context(tmp_path, files)).caches
    assert [(cache.level, cache.type) for cache in caches] == [(1, "Instruction"), (2, "Unified"), (3, "Unified")]
    assert not caches[2].HasField("count")


def test_broken_numbers_are_absent(tmp_path: Path) -> None:
    text = (
        xeon_block(0, 0, 0)
        .replace("cpu family\t: 6", "cpu family\t: 99999999999")
        .replace("stepping\t: 8", "stepping\t: unknown")
    )
    files = {"/proc/cpuinfo": text, f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": "<unknown>\n", f"{CPU}/present": "garbage\n"}
    section = collect(context(tmp_path, files))
    assert not any(section.HasField(name) for name in ("family", "stepping", "max_mhz"))
    assert section.threads == 1


def test_unreadable_source_is_named(tmp_path: Path) -> None:
    section = collect(context(tmp_path, xeon(), errors={"/proc/cpuinfo": errno.EACCES}))
    assert list(section.unreadable) == [pb.Unreadable(path="/proc/cpuinfo", errno=errno.EACCES)]
    assert not section.HasField("vendor")
    assert section.threads == 8


def test_empty_host_gives_an_empty_section(tmp_path: Path) -> None:
    assert collect(context(tmp_path)) == pb.CpuSection()


def test_one_read_a_fact_not_one_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (context(tmp_path / name, xeon()) for name in ("small", "large"))
    (tmp_path / "large/proc/cpuinfo").write_text("".join(xeon_block(n, n % 4 // 2, n) for n in range(256)))
    (tmp_path / "large/sys/devices/system/cpu/online").write_text("0-255\n")
    reads: list[str] = []
    real = Host.read

    def counted(self: Host, path: str, *rest: Any) -> bytes:
        reads.append(path)
        return real(self, path, *rest)

    monkeypatch.setattr(Host, "read", counted)
    collect(small)
    first = len(reads)
    collect(large)
    assert len(reads) == 2 * first
