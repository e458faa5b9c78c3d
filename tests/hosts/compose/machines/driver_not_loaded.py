"""2 x A10 whose kernel module is not loaded: functions bound to nothing, and NVML says so. BIOS boot, disks behind Intel VMD."""

from tests.hosts.compose import block, gpu, hgx, kmsg, net, pci, smbios
from tests.hosts.compose.cpu import Processor, nodes_of, processors
from tests.hosts.compose.flags import ICE_LAKE
from tests.hosts.compose.software import System, software
from tests.hosts.compose.tree import Link, Machine

XEON = Processor(
    "GenuineIntel",
    "Intel(R) Xeon(R) Silver 4314 CPU @ 2.40GHz",
    6,
    106,
    6,
    "0xd0003d1",
    2400,
    3400,
    sockets=1,
    cores=16,
    l1=(48, 32),
    l2=1280,
    l3=24576,
    flags=ICE_LAKE,
)
LIBRARY = "550.54.15"


def compose() -> Machine:
    """The host."""
    m = Machine("driver-not-loaded")
    software(
        m,
        System(
            "render-2",
            "5.15.0-118-generic",
            "#128-Ubuntu SMP Fri Jul 5 09:28:59 UTC 2024",
            "BOOT_IMAGE=/vmlinuz-5.15.0-118-generic root=UUID=b7c1d2e3-0f4a-4b5c-9d6e-7f8091a2b3c4 ro modprobe.blacklist=nouveau",
            packages=(("docker.io", "24.0.7-0ubuntu2~22.04.1"), ("libnvidia-compute-550", "550.54.15-0ubuntu1")),
        ),
    )
    processors(m, XEON, nodes_of(XEON, 263_897_088))
    dimms = tuple(
        smbios.Dimm(
            f"DIMM{channel}1",
            "NODE 1",
            32768,
            smbios.DDR4,
            3200,
            2666,
            "Samsung",
            "M393A4K40EB3-CWE",
            m.digits(f"dimm{channel}", 8).upper(),
        )
        for channel in "ABCDEFGH"
    )
    smbios.firmware(
        m,
        smbios.Firmware(
            "Supermicro",
            "SYS-120GQ-TNRT",
            "0123456789",
            f"S{m.decimal('system', 14)}",
            f"00000000-0000-0000-0000-3cecef{m.digits('mac', 6)}",
            "To be filled by O.E.M.",
            "SMC X12",
            board=("Supermicro", "X12SPG-NF", "1.01A", f"ZM{m.decimal('board', 10)}"),
            chassis=("Supermicro", 0x17, "0123456789", f"C1200{m.decimal('chassis', 9)}"),
            bios=("American Megatrends International, LLC.", "1.8", "02/15/2024"),
            dimms=dimms,
            tpm=False,
            processors=(("CPU1", "Intel(R) Corporation", XEON.model, 16),),
            smbios=(3, 4),
        ),
    )
    m.nvml = {"init": {"error": "DRIVER_NOT_LOADED"}, "system": {}, "devices": []}
    m.files["/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"] = Link(f"libnvidia-ml.so.{LIBRARY}")
    m.put(f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{LIBRARY}", b"")
    for index, bus in enumerate((0x30, 0x4B)):
        place = hgx.behind(m, pci.root_complex(f"0000:{bus:02x}", -1, "0-31"), 2, bus + 1, 4, 16)
        pci.function(
            m, place, f"0000:{bus + 1:02x}:00.0", gpu.A10.ids, None, pci.Port(4, 16, 4, 8 if index else 16), sriov=(32, 0)
        )
    root = pci.root_complex("0000:00", -1, "0-31")
    _vmd(m)
    ethernet = hgx.behind(m, root, 0x1C, 4, 3, 4)
    for index in range(2):
        function = pci.function(
            m,
            ethernet,
            f"0000:04:00.{index}",
            pci.Ids("8086", "1563", "020000", "15d9:0000", "01"),
            "ixgbe",
            pci.Port(3, 4),
            sriov=(63, 0),
        )
        net.port(m, function, f"eno{index + 1}", m.mac("3c:ec:ef", f"x550{index}"), "ixgbe", "0x80000b2b, 1.2684.0", speed=10_000)
    net.virtual(m, "lo")
    block.loops(m, 1)
    block.mounts(m, "nvme0n1p2")
    block.swaps(m)
    log = kmsg.boot(m)
    log.say("nvidia: module verification failed: signature and/or required key missing - tainting kernel", 3, 12.0)
    return m


def _vmd(m: Machine) -> None:
    """Two NVMe disks in a PCI domain of five digits, below the volume management device. One has an EUI of zeros."""
    root = pci.root_complex("0000:64", -1, "0-31")
    vmd = pci.function(m, root, "0000:64:00.5", pci.Ids("8086", "28c0", "010400", "15d9:0000", "04"), "vmd")
    for index in range(2):
        place = pci.bridge(m, pci.Place(f"{vmd.path}/pci10000:00", -1, "0-31"), f"10000:00:{2 + 2 * index:02x}.0", pci.Port(4, 4))
        disk = pci.function(
            m, place, f"10000:0{1 + index}:00.0", pci.Ids("8086", "0b60", "010802", "8086:8008"), "nvme", pci.Port(4, 4)
        )
        block.nvme(
            m,
            disk,
            "INTEL SSDPF2KX038TZ",
            f"PHAC{m.digits(f'disk{index}', 10).upper()}3P8AGN",
            "9CV10320",
            3_840_755_982_336,
            "0000000000000000" if index else f"5cd2e4{m.digits('eui', 10)}",
            partitions=() if index else (1_048_576, 3_840_753_885_184),
        )
