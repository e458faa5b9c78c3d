"""8 x H100 80GB HBM3 on an HGX board with 4 NVSwitches, 8 InfiniBand HCAs, 2 x 100 GbE with virtual functions, 2 x Xeon 8480C."""

from tests.hosts.compose import block, gpu, hgx, kmsg, net, pci, smbios
from tests.hosts.compose.cpu import Processor, nodes_of, processors
from tests.hosts.compose.software import System, process, software
from tests.hosts.compose.tree import Machine, ranges

XEON = Processor("GenuineIntel", "Intel(R) Xeon(R) Platinum 8480C", 6, 143, 8, "0x2b000590", 2000, 3800, sockets=2, cores=56)
BUSES = (0x15, 0x27, 0x37, 0x5A, 0x97, 0xA8, 0xB7, 0xD8)  # root complex of each GPU; 18, 2a, 3a, 5d, 9a, ab, ba, db are the GPUs'
SWITCHES = ("0000:07:00.0", "0000:08:00.0", "0000:09:00.0", "0000:0a:00.0")
DATA_DISK, ROOT_DISK = 3_840_755_982_336, 960_197_124_096


def compose() -> Machine:
    """The host."""
    m = Machine("h100-sxm-8")
    software(
        m,
        System(
            "gpu-a07",
            "5.15.0-1053-nvidia",
            "#54-Ubuntu SMP Thu Mar 28 14:01:38 UTC 2024",
            "BOOT_IMAGE=/boot/vmlinuz-5.15.0-1053-nvidia root=UUID=6d1f0c52-2a7e-4f3a-9c1e-0b8f5d7a2e11 ro console=tty0 "
            "console=ttyS0,115200n8 "
            "iommu=pt intel_iommu=on pci=realloc=off default_hugepagesz=1G hugepagesz=1G hugepages=64 crashkernel=512M "
            "nvidia.NVreg_RestrictProfilingToAdminUsers=0",
            packages=(
                ("containerd.io", "1.7.19-1"),
                ("docker-ce", "5:27.1.1-1~ubuntu.22.04~jammy"),
                ("nvidia-container-toolkit", "1.16.1-1"),
                ("nvidia-fabricmanager-550", "550.90.07-1"),
                ("libc6", "2.35-0ubuntu3.8"),
                ("datacenter-gpu-manager", "1:3.3.7"),
            ),
            kvm=("kvm_intel", "Y"),
            iommu="dmar0",
        ),
    )
    m.put("/usr/bin/containerd", b"")
    m.put("/usr/bin/dockerd", b"")
    nodes = nodes_of(XEON, 2_113_488_724)
    processors(m, XEON, nodes)
    cpus = [ranges(n.cpus) for n in nodes]
    _firmware(m)
    gpu.driver(m, "550.90.07", 12040)
    for index, bus in enumerate(BUSES):
        _gpu_group(m, index, hgx.switch(m, bus, index // 4, cpus[index // 4]))
    root = pci.root_complex("0000:00", 0, cpus[0])
    for index, slot in enumerate(SWITCHES):
        pci.function(
            m,
            hgx.behind(m, root, 0x10 + index, 7 + index, width=2),
            slot,
            gpu.NVSWITCH_H100,
            "nvidia-nvswitch",
            pci.Port(4, 2),
            group=60 + index,
        )
    _board(m, root)
    _network(m, cpus[0])
    for name, mac, kind in (
        ("lo", "", ""),
        ("docker0", "02:42:5c:aa:10:01", "bridge"),
        ("veth2f1c0a9", "da:5c:11:20:33:01", ""),
        ("bond0", "b8:3f:d2:7a:10:40", ""),
    ):
        net.virtual(m, name, mac, kind)
    block.loops(m, 4)
    block.mounts(m, "md0", others=(("nvme8n1p1", "/boot/efi", "vfat"),))
    block.swaps(m)
    _log(m)
    process(m, 2311, "nv-fabricmanager")
    return m


def _firmware(m: Machine) -> None:
    dimms = tuple(
        smbios.Dimm(
            f"P{cpu}-DIMM{channel}{slot}",
            f"P{cpu - 1}_Node{(ord(channel) - 65) // 4}_Channel{(ord(channel) - 65) % 4}_Dimm{slot - 1}",
            65536,
            maker="Samsung",
            part="M321R8GA0BB0-CQKZJ",
            serial=m.digits(f"dimm{cpu}{channel}{slot}", 8).upper(),
        )
        for cpu in (1, 2)
        for channel in "ABCDEFGH"
        for slot in (1, 2)
    )
    smbios.firmware(
        m,
        smbios.Firmware(
            "Supermicro",
            "SYS-821GE-TNHR",
            "0123456789",
            f"S{m.decimal('system', 6)}X3B{m.decimal('system2', 5)}",
            m.uuid("system"),
            "To be filled by O.E.M.",
            "Family",
            board=("Supermicro", "X13DEG-OAD", "1.01", f"OM{m.decimal('board', 10)}"),
            chassis=("Supermicro", 0x17, "0123456789", f"C8A0LAN{m.decimal('chassis', 8)}"),
            bios=("American Megatrends International, LLC.", "2.1.V1", "03/08/2024"),
            dimms=dimms,
            processors=tuple((f"CPU{n}", "Intel(R) Corporation", XEON.model, 56) for n in (1, 2)),
        ),
    )
    smbios.efi(m, secure_boot=False)


def _gpu_group(m: Machine, index: int, switch: hgx.Switch) -> None:
    """A GPU, its HCA (at 8, not 16 lanes for the third: a worn riser) and a data disk behind one switch."""
    place, slot = switch.slot(0)
    gpu.gpu(m, place, slot, gpu.H100, group=2 * index, nvlinks=gpu.links_to(SWITCHES, 18), fabric=gpu.FABRIC_DONE)
    place, slot = switch.slot(1, width=8 if index == 2 else 16)
    hca = pci.function(
        m, place, slot, hgx.CX7, "mlx5_core", pci.Port(5, 16, 5, 8 if index == 2 else 16), group=2 * index + 1, sriov=(16, 0)
    )
    net.infiniband(m, hca, index, f"ibp{int(slot[5:7], 16)}s0", f"b83fd203{m.digits(f'hca{index}', 8)}")
    place, slot = switch.slot(2, width=4)
    disk = pci.function(m, place, slot, hgx.NVME_SAMSUNG, "nvme", pci.Port(4, 4), group=30 + index)
    block.nvme(
        m,
        disk,
        "SAMSUNG MZQL23T8HCLS-00A07",
        f"S64HNE0{m.digits(f'disk{index}', 8).upper()}",
        "GDC5602Q",
        DATA_DISK,
        eui=f"36344830{m.digits(f'eui{index}', 8)}",
        nguid=f"3634483052{m.digits(f'nguid{index}', 22)}",
    )


def _board(m: Machine, root: pci.Place) -> None:
    """On the mainboard: the two system disks (a mirror), BMC graphics, USB with the BMC's network port, 1 GbE, DMA engines."""
    members = []
    for index in range(2):
        address = f"0000:{0x0B + index:02x}:00.0"
        place = pci.function(m, hgx.behind(m, root, 0x18 + index, 0x0B + index), address, hgx.NVME_MICRON, "nvme", pci.Port(4, 4))
        name = block.nvme(
            m,
            place,
            "Micron_7450_MTFDKBA960TFR",
            f"2333{m.digits(f'root{index}', 8).upper()}",
            "E2MU200",
            ROOT_DISK,
            nguid=f"000000000000000100a0752{m.digits(f'rnguid{index}', 9)}",
            partitions=(1_127_219_200, 959_067_815_936),
        )
        members.append(f"{name}p2")
    block.raid(m, "raid1", (members[0], members[1]), 958_931_894_272)
    pci.function(m, hgx.behind(m, root, 0x1C, 0x03, 2, 1), "0000:03:00.0", hgx.ASPEED_VGA, "ast")
    usb = pci.function(m, root, "0000:00:14.0", hgx.XHCI, "xhci_hcd")
    net.port(
        m,
        usb,
        "enxbe3af2b6059f",
        "be:3a:f2:b6:05:9f",
        "cdc_ether",
        "CDC Ethernet Device",
        speed=425,
        between="usb1/1-14/1-14.3/1-14.3:2.0",
        bus_info="usb-0000:00:14.0-14.3",
    )
    pci.function(m, root, "0000:00:01.0", hgx.IOAT, "idxd")
    for index in range(2):
        place = pci.function(
            m, hgx.behind(m, root, 0x1D, 0x04, 2, 1), f"0000:04:00.{index}", hgx.I350, "igb", pci.Port(2, 1), sriov=(7, 0)
        )
        net.port(m, place, f"eno{index + 1}", m.mac("3c:ec:ef", f"igb{index}"), "igb", "1.63, 0x80001100", speed=1000)


def _network(m: Machine, cpus: str) -> None:
    """A two-port ConnectX-7 in Ethernet mode. The bond lends both ports one address, the permanent ones differ. One has 2 VFs."""
    switch = hgx.switch(m, 0x48, 0, cpus)
    place, slot = switch.slot(0)
    mac = m.mac("b8:3f:d2", "eth")
    for index in range(2):
        address = f"{slot[:-1]}{index}"
        permanent = f"{mac[:-2]}{int(mac[-2:], 16) & 0xFE | index:02x}"
        function = pci.function(
            m, place, address, hgx.CX7_ETHERNET, "mlx5_core", pci.Port(5, 16), sriov=(8, 2 if index == 0 else 0)
        )
        name = f"ens5f{index}np{index}"
        net.port(
            m, function, name, "b8:3f:d2:7a:10:40", "mlx5_core", "28.39.3560 (MT_0000000834)", speed=200_000, permanent=permanent
        )
        net.hca(m, function, f"mlx5_{8 + index}", "MT4129", "28.39.3560", "MT_0000000834", f"b83fd20300a1{index:04x}", "Ethernet")
        for number in range(2 if index == 0 else 0):
            vf = pci.virtual_function(m, function, number, f"{slot[:-4]}00.{number + 2}", hgx.CX7_VF, "mlx5_core")
            net.port(
                m,
                vf,
                f"ens5f0v{number}",
                m.mac("5a:11:22", f"vf{number}"),
                "mlx5_core",
                "28.39.3560 (MT_0000000834)",
                permanent=None,
            )
            net.hca(
                m, vf, f"mlx5_{10 + number}", "MT4126", "28.39.3560", "MT_0000000834", f"00000000000{number + 1:05x}", "Ethernet"
            )


def _log(m: Machine) -> None:
    log = kmsg.boot(m)
    for index, slot in enumerate(SWITCHES):
        log.say(f"nvidia-nvswitch{index}: open (major=510)", 6, 16.1 + index / 10)
        log.say(f"nvidia-nvswitch {slot}: enabling device (0140 -> 0142)", 6, 16.5 + index / 10)
    log.say("mlx5_core 0000:19:00.0: firmware version: 28.39.3560", 6, 20.0, device="pci:0000:19:00.0")
    log.say("md/raid1:md0: active with 2 out of 2 mirrors", 6, 21.0)
    log.say("EXT4-fs (md0): mounted filesystem with ordered data mode. Opts: (null)", 6, 22.0)
