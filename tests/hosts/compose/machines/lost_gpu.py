"""8 x H100, the sixth fallen off the bus: no handle from NVML, its PCI function is there, the kernel log has its Xid 79."""

from tests.hosts.compose import block, gpu, hgx, kmsg, net, pci, smbios
from tests.hosts.compose.cpu import Processor, nodes_of, processors
from tests.hosts.compose.software import UBUNTU_2204, System, software
from tests.hosts.compose.tree import Machine, ranges

XEON = Processor(
    "GenuineIntel", "Intel(R) Xeon(R) Platinum 8462Y+", 6, 143, 8, "0x2b000603", 2800, 4100, sockets=2, cores=32, l3=61440
)
BUSES = (0x1A, 0x40, 0x53, 0x66, 0x9C, 0xC0, 0xD2, 0xE4)
SWITCHES = tuple(f"0000:{bus:02x}:00.0" for bus in range(0x05, 0x09))
LOST = 5


def compose() -> Machine:
    """The host."""
    m = Machine("lost-gpu")
    software(
        m,
        System(
            "xe-17",
            "5.15.0-119-generic",
            "#129-Ubuntu SMP Fri Aug 2 19:25:20 UTC 2024",
            "BOOT_IMAGE=/boot/vmlinuz-5.15.0-119-generic root=UUID=4a9e2c61-7d3b-4f80-b5a2-1c6e8d9f0b37 ro iommu=pt "
            "intel_iommu=on",
            UBUNTU_2204,
            packages=(
                ("containerd.io", "1.7.21-1"),
                ("nvidia-container-toolkit", "1.16.1-1"),
                ("nvidia-fabricmanager-550", "550.127.05-1"),
            ),
            iommu="dmar0",
        ),
    )
    nodes = nodes_of(XEON, 1_056_472_892)
    processors(m, XEON, nodes)
    cpus = [ranges(n.cpus) for n in nodes]
    _firmware(m)
    gpu.driver(m, "550.127.05", 12040)
    for index, bus in enumerate(BUSES):
        place = hgx.behind(m, pci.root_complex(f"0000:{bus:02x}", index // 4, cpus[index // 4]), 1, bus + 1, 5, 16)
        gpu.gpu(
            m,
            place,
            f"0000:{bus + 1:02x}:00.0",
            gpu.H100,
            group=index,
            nvlinks=gpu.links_to(SWITCHES, 18),
            fabric=gpu.FABRIC_DONE,
        )
    root = pci.root_complex("0000:00", 0, cpus[0])
    for index, slot in enumerate(SWITCHES):
        pci.function(
            m, hgx.behind(m, root, 0x10 + index, 5 + index, width=2), slot, gpu.NVSWITCH_H100, "nvidia-nvswitch", pci.Port(4, 2)
        )
    _board(m, root)
    _lose(m)
    return m


def _firmware(m: Machine) -> None:
    dimms = tuple(
        smbios.Dimm(
            f"{side}{slot}",
            "",
            65536,
            maker="00CE063200CE",
            part="M321R8GA0BB0-CQKVG",
            serial=m.digits(f"dimm{side}{slot}", 8).upper(),
        )
        for side in "AB"
        for slot in range(1, 9)
    )
    tag = m.decimal("tag", 7)
    smbios.firmware(
        m,
        smbios.Firmware(
            "Dell Inc.",
            "PowerEdge XE9680",
            "",
            tag,
            f"4c4c4544-0051-3510-8043-{m.digits('uuid', 12)}",
            "SKU=0BB5;ModelName=PowerEdge XE9680",
            "PowerEdge",
            board=("Dell Inc.", "0HP6YN", "A05", f".{tag}.CNWS300{m.decimal('board', 8)}."),
            chassis=("Dell Inc.", 0x17, "", tag),
            bios=("Dell Inc.", "2.2.7", "06/19/2024"),
            dimms=dimms,
            processors=tuple((f"CPU{n}", "Intel", XEON.model, 32) for n in (1, 2)),
        ),
    )
    smbios.efi(m, secure_boot=False)


def _board(m: Machine, root: pci.Place) -> None:
    place = pci.function(m, hgx.behind(m, root, 0x18, 0x0B), "0000:0b:00.0", hgx.NVME_MICRON, "nvme", pci.Port(4, 4))
    block.nvme(
        m,
        place,
        "Dell Ent NVMe v2 AGN MU U.2 1.6TB",
        f"S61ANA0{m.digits('root', 8).upper()}",
        "2.4.0",
        1_600_321_314_816,
        f"36314130{m.digits('eui', 8)}",
        partitions=(1_127_219_200, 1_599_192_858_624),
    )
    above = hgx.behind(m, root, 0x1A, 0x0D, 4, 16)
    for index in range(2):
        function = pci.function(m, above, f"0000:0d:00.{index}", hgx.CX7_ETHERNET, "mlx5_core", pci.Port(5, 16), sriov=(8, 0))
        net.port(
            m,
            function,
            f"ens3f{index}np{index}",
            m.mac("a0:88:c2", f"eth{index}"),
            "mlx5_core",
            "28.41.1000 (DEL0000000036)",
            speed=200_000,
        )
        net.hca(m, function, f"mlx5_{index}", "MT4129", "28.41.1000", "DEL0000000036", f"a088c20300f6{index:04x}", "Ethernet")
    net.virtual(m, "lo")
    block.mounts(m, "nvme0n1p2")
    block.swaps(m)


def _lose(m: Machine) -> None:
    """What is left of the GPU: no handle, an information file of question marks, and the driver's lines."""
    assert m.nvml is not None
    log = kmsg.boot(m)
    device = m.nvml["devices"][LOST]
    slot = device["pci"]["busId"][4:].lower()
    short = slot.rsplit(".", 1)[0]
    for text in (
        f"NVRM: GPU at PCI:{short}: {device['uuid']}",
        f"NVRM: GPU Board Serial Number: {device['serial']}",
        f"NVRM: Xid (PCI:{short}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        f"NVRM: GPU {slot}: GPU has fallen off the bus.",
        f"NVRM: GPU {slot}: GPU serial number is {device['serial']}.",
        f"NVRM: Xid (PCI:{short}): 154, pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x0 (None) to "
        "0x2 (Node Reboot Required)",
    ):
        log.say(text, 4, 170_204.4 + len(log.records) / 1000, "c")
    path = f"/proc/driver/nvidia/gpus/{slot}/information"
    before = m.files[path]
    assert isinstance(before, bytes)
    text = before.decode().replace(device["uuid"], "GPU-????????-????-????-????-????????????")
    m.put(path, text.replace(gpu.H100.vbios, "??.??.??.??.??"))
    m.nvml["devices"][LOST] = {"handle": {"error": "GPU_IS_LOST"}}
