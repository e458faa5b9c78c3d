"""A GB200 compute tray: two Grace (ARM64), four GPUs whose memory is NUMA nodes without CPUs, one NVLink domain over the rack."""

from tests.hosts.compose import block, gpu, hgx, kmsg, net, pci, smbios
from tests.hosts.compose.cpu import Node, Processor, processors
from tests.hosts.compose.flags import GRACE
from tests.hosts.compose.software import UBUNTU_2404, System, software
from tests.hosts.compose.tree import Machine, ranges

CPU = Processor(
    "ARM",
    "Neoverse-V2",
    8,
    0xD4F,
    0,
    "",
    3375,
    3375,
    sockets=2,
    cores=72,
    threads=1,
    l1=(64, 64),
    l2=1024,
    l3=116736,
    flags=GRACE,
    midr="0x00000000410fd4f0",
)
GPUS = (
    ("0008:01:00.0", 0, 2),
    ("0009:01:00.0", 0, 10),
    ("0018:01:00.0", 1, 18),
    ("0019:01:00.0", 1, 26),
)  # address, socket, memory node
CLUSTER, CLIQUE = "6f8b1c2d-93a4-4e57-8d10-2b7c5e9f3a61", 32766


def compose() -> Machine:
    """The host."""
    m = Machine("gb200-tray")
    software(
        m,
        System(
            "rack7-tray11",
            "6.8.0-1021-nvidia-64k",
            "#23-Ubuntu SMP PREEMPT_DYNAMIC Mon Feb  3 21:55:30 UTC 2025",
            "BOOT_IMAGE=/boot/vmlinuz-6.8.0-1021-nvidia-64k root=UUID=8d2c1f7e-4b0a-49f6-a1c3-95e7d6b8f042 ro "
            "iommu.passthrough=1 init_on_alloc=0 pci=pcie_bus_safe",
            UBUNTU_2404,
            "aarch64",
            packages=(
                ("containerd.io", "1.7.27-1"),
                ("nvidia-container-toolkit", "1.17.5-1"),
                ("nvidia-imex-570", "570.133.20-1"),
            ),
            iommu="smmu3.0x0000000011000000",
            temperature=False,
        ),
    )
    cpus = [list(range(72)), list(range(72, 144))]
    own = [Node(socket, cpus[socket], 502_811_904 - socket * 66_112, socket) for socket in (0, 1)]
    memory = [Node(node, [], 193_658_880, socket) for _, socket, node in GPUS]
    processors(m, CPU, [*own, *memory])
    _firmware(m)
    gpu.driver(m, "570.133.20", 12080)
    for index, (address, socket, node) in enumerate(GPUS):
        root = pci.root_complex(address[:7].replace(":01", ":00"), socket, ranges(cpus[socket]))
        place = pci.bridge(m, root, f"{address[:4]}:00:00.0", pci.Port(5, 16), "10de", "22b1")
        fabric = {"clusterUuid": CLUSTER, "cliqueId": CLIQUE, "state": 3, "status": 0}
        gpu.gpu(m, place, address, gpu.GB200, index, memoryNumaNode=node, nvlinks=gpu.links_to((), 18), fabric=fabric)
    _network(m, [ranges(c) for c in cpus])
    _storage(m, [ranges(c) for c in cpus])
    net.virtual(m, "lo")
    block.mounts(m, "nvme0n1p2", others=(("nvme0n1p1", "/boot/efi", "vfat"),))
    block.swaps(m)
    kmsg.boot(m)
    return m


def _firmware(m: Machine) -> None:
    dimms = tuple(
        smbios.Dimm(
            "LP5x_0", f"CPU{cpu}", 491_520, smbios.LPDDR5, 6400, 6400, "Micron", "MT62F4G64D8EK-020", m.decimal(f"dimm{cpu}", 10)
        )
        for cpu in (0, 1)
    )
    smbios.firmware(
        m,
        smbios.Firmware(
            "NVIDIA",
            "GB200 NVL",
            "A01",
            m.decimal("system", 13),
            m.uuid("system"),
            "699-24764-0001-TS3",
            "Blackwell",
            board=("NVIDIA", "P4764", "699-24764-0001-TS3", m.decimal("board", 13)),
            chassis=("NVIDIA", 0x17, "", m.decimal("chassis", 13)),
            bios=("NVIDIA", "02.03.19", "20250131"),
            processors=tuple((f"G1:0.{n}", "NVIDIA", "Grace A02", 72) for n in (0, 1)),
            ecc=smbios.ECC_SINGLE,
            dimms=dimms,
            smbios=(3, 6),
        ),
    )
    smbios.efi(m, secure_boot=False)


def _behind(m: Machine, domain: str, cpus: list[str], port: pci.Port) -> pci.Place:
    """A root port of the socket's own domain: 0000 to 000f are the first's, 0010 on the second's."""
    socket = int(domain, 16) >> 4
    return pci.bridge(m, pci.root_complex(f"{domain}:00", socket, cpus[socket]), f"{domain}:00:00.0", port, "10de", "22b8")


def _network(m: Machine, cpus: list[str]) -> None:
    for index, domain in enumerate(("0000", "0002", "0010", "0012")):
        place = _behind(m, domain, cpus, pci.Port(5, 16))
        hca = pci.function(m, place, f"{domain}:01:00.0", hgx.CX7, "mlx5_core", pci.Port(5, 16), sriov=(8, 0))
        net.infiniband(
            m,
            hca,
            index,
            f"ibP{int(domain, 16) or ''}p1s0".replace("ibPp", "ibp"),
            f"5c25730{m.digits(f'hca{index}', 9)}",
            "28.43.2566",
        )
    place = _behind(m, "0006", cpus, pci.Port(5, 16))
    for index in range(2):
        function = pci.function(
            m,
            place,
            f"0006:01:00.{index}",
            pci.Ids("15b3", "a2dc", "020000", "15b3:0051", "01"),
            "mlx5_core",
            pci.Port(5, 16),
            sriov=(16, 0),
        )
        net.port(
            m,
            function,
            f"enP6p1s0f{index}np{index}",
            m.mac("5c:25:73", f"bf{index}"),
            "mlx5_core",
            "32.43.2566 (NVD0000000033)",
            speed=400_000,
        )
        net.hca(
            m, function, f"mlx5_{4 + index}", "MT41692", "32.43.2566", "NVD0000000033", f"5c25730300d4{index:04x}", "Ethernet"
        )
    place = pci.function(
        m,
        _behind(m, "0007", cpus, pci.Port(2, 1)),
        "0007:01:00.0",
        pci.Ids("8086", "1533", "020000", "8086:1533", "03"),
        "igb",
        pci.Port(1, 1),
    )
    net.port(m, place, "enP7p1s0", m.mac("5c:25:73", "i210"), "igb", "3.30, 0x8000079c", speed=1000)


def _storage(m: Machine, cpus: list[str]) -> None:
    """The boot disk and four data disks. Firmware of this maker gives no NUMA node to the last one's domain."""
    place = pci.function(m, _behind(m, "0005", cpus, pci.Port(4, 4)), "0005:01:00.0", hgx.NVME_SAMSUNG, "nvme", pci.Port(4, 4))
    block.nvme(
        m,
        place,
        "SAMSUNG MZTL21T9HCJR-00A07",
        f"S6S2NS0{m.digits('root', 8).upper()}",
        "GDC7202Q",
        1_920_383_410_176,
        f"36533230{m.digits('eui', 8)}",
        partitions=(1_127_219_200, 1_919_254_953_984),
    )
    for index, domain in enumerate(("0001", "0003", "0011", "0013")):
        above = _behind(m, domain, cpus, pci.Port(5, 4))
        if index == 3:
            above = pci.Place(above.path, -1, ranges(list(range(144))))
        place = pci.function(
            m, above, f"{domain}:01:00.0", pci.Ids("1e0f", "001f", "010802", "1e0f:0001", "01"), "nvme", pci.Port(5, 4)
        )
        block.nvme(
            m,
            place,
            "KIOXIA KCD81VUG3T84",
            m.digits(f"disk{index}", 12).upper(),
            "CC0ZQ001",
            3_840_755_982_336,
            f"8ce38ee3{m.digits(f'e{index}', 8)}",
        )
