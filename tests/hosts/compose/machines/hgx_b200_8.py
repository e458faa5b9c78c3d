"""HGX B200: NVSwitches are no PCI functions; four ConnectX-7 functions (VPD says SW_MNG) lead to them. NVMe with multipath."""

from tests.hosts.compose import block, gpu, hgx, kmsg, net, pci, smbios
from tests.hosts.compose.cpu import Processor, nodes_of, processors
from tests.hosts.compose.software import UBUNTU_2404, System, process, software
from tests.hosts.compose.tree import Machine, ranges

XEON = Processor(
    "GenuineIntel", "INTEL(R) XEON(R) PLATINUM 8570", 6, 207, 2, "0x210002b3", 2100, 4000, sockets=2, cores=56, l3=307200
)
BUSES = (0x17, 0x3A, 0x4D, 0x5D, 0x97, 0xBA, 0xCD, 0xDD)


def compose() -> Machine:
    """The host."""
    m = Machine("hgx-b200-8")
    software(
        m,
        System(
            "b200-r3-u18",
            "6.8.0-1025-nvidia",
            "#27-Ubuntu SMP PREEMPT_DYNAMIC Mon Mar 17 18:09:41 UTC 2025",
            "BOOT_IMAGE=/boot/vmlinuz-6.8.0-1025-nvidia root=UUID=3e6f8a10-9b2d-4a5c-b7e1-64f0d2c98b17 ro iommu=pt "
            "nvidia-drm.modeset=1 pci=realloc=off",
            UBUNTU_2404,
            packages=(
                ("containerd.io", "1.7.27-1"),
                ("nvidia-container-toolkit", "1.17.5-1"),
                ("nvidia-fabricmanager-570", "570.133.20-1"),
                ("nvlsm", "2025.03.1-1"),
            ),
            iommu="dmar0",
        ),
    )
    nodes = nodes_of(XEON, 2_113_402_116)
    processors(m, XEON, nodes)
    cpus = [ranges(n.cpus) for n in nodes]
    _firmware(m)
    gpu.driver(m, "570.133.20", 12080)
    for index, bus in enumerate(BUSES):
        _gpu_group(m, index, hgx.switch(m, bus, index // 4, cpus[index // 4]))
    root = pci.root_complex("0000:00", 0, cpus[0])
    _bridges(m, root)
    _board(m, root)
    net.virtual(m, "lo")
    block.mounts(m, "nvme8n1p2", others=(("nvme8n1p1", "/boot/efi", "vfat"),))
    block.swaps(m)
    kmsg.boot(m)
    process(m, 2764, "nv-fabricmanager")
    return m


def _firmware(m: Machine) -> None:
    dimms = tuple(
        smbios.Dimm(
            f"P{cpu}-DIMM{channel}{slot}",
            f"P{cpu - 1}_Node0_Channel{ord(channel) - 65}_Dimm{slot - 1}",
            65536,
            speed=5600,
            maker="SK Hynix",
            part="HMCG94AGBRA191N",
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
            "SYS-A22GA-NBRT",
            "0123456789",
            f"E{m.decimal('system', 14)}",
            f"00000000-0000-0000-0000-7cc255{m.digits('mac', 6)}",
            "To be filled by O.E.M.",
            "Family",
            board=("Supermicro", "X14DBG-GD", "1.01", f"WM{m.decimal('board', 10)}"),
            chassis=("Supermicro", 0x17, "0123456789", f"CA22A{m.decimal('chassis', 10)}"),
            bios=("American Megatrends International, LLC.", "1.3a", "02/21/2025"),
            dimms=dimms,
            processors=tuple((f"CPU{n}", "Intel(R) Corporation", XEON.model, 56) for n in (1, 2)),
            smbios=(3, 7),
        ),
    )
    smbios.efi(m, secure_boot=True)


def _gpu_group(m: Machine, index: int, switch: hgx.Switch) -> None:
    place, slot = switch.slot(0)
    gpu.gpu(m, place, slot, gpu.B200, nvlinks=gpu.links_to((), 18), fabric=gpu.FABRIC_DONE)
    place, slot = switch.slot(1)
    hca = pci.function(m, place, slot, hgx.CX7, "mlx5_core", pci.Port(5, 16), sriov=(16, 0))
    net.infiniband(
        m,
        hca,
        index if index < 4 else index + 4,
        f"ibp{int(slot[5:7], 16)}s0",
        f"7c8c0903{m.digits(f'hca{index}', 8)}",
        "28.43.2566",
    )
    place, slot = switch.slot(2, width=4)
    disk = pci.function(m, place, slot, hgx.NVME_SAMSUNG, "nvme", pci.Port(5, 4, 5, 2 if index == 5 else 4))
    block.nvme(
        m,
        disk,
        "SAMSUNG MZWLO3T8HCLS-00A07",
        f"S795NC0{m.digits(f'disk{index}', 8).upper()}",
        "OPPA4B5Q",
        3_840_755_982_336,
        nguid=f"3637394e52{m.digits(f'nguid{index}', 22)}",
        multipath=True,
    )


def _bridges(m: Machine, root: pci.Place) -> None:
    """The functions through which the fabric manager reaches the NVSwitches: InfiniBand without a network of its own."""
    for board in range(2):
        place = hgx.behind(m, root, 0x10 + board, 0x05 + board, 5, 2)
        for index in range(2):
            number = 4 + 2 * board + index
            function = pci.function(m, place, f"0000:{0x05 + board:02x}:00.{index}", hgx.CX7, "mlx5_core", pci.Port(5, 16, 5, 2))
            fields = {
                "PN": "692-9X760-00SE-S00",
                "EC": "A3",
                "SN": m.digits(f"bridge{board}", 12).upper(),
                "V3": m.digits(f"bridge{board}-v3", 32),
                "VA": "MLX:MN=MLNX:CSKU=V2:UUID=V3:PCI=V0:MODL=CX7:SMDL=SW_MNG",
                "V0": "PCIeGen5 x2",
            }
            m.put(f"{function.path}/vpd", pci.vpd("Nvidia ConnectX-7 bridge, HGX B200 baseboard", fields))
            net.infiniband(
                m,
                function,
                number,
                f"ibp{5 + board}s0f{index}",
                f"7c8c0903{m.digits(f'bridge{board}{index}', 8)}",
                "28.43.2566",
                "NVD0000000050",
            )


def _board(m: Machine, root: pci.Place) -> None:
    """System disk, a BlueField-3 with two ports in Ethernet mode, 10 GbE, BMC."""
    place = pci.function(m, hgx.behind(m, root, 0x18, 0x0B), "0000:0b:00.0", hgx.NVME_MICRON, "nvme", pci.Port(4, 4))
    block.nvme(
        m,
        place,
        "Micron_7450_MTFDKBG1T9TFR",
        f"2409{m.digits('root', 8).upper()}",
        "E2MU200",
        1_920_383_410_176,
        nguid=f"000000000000000100a0752{m.digits('rn', 9)}",
        partitions=(1_127_219_200, 1_919_254_953_984),
    )
    place = hgx.behind(m, root, 0x1A, 0x0D, 5, 16)
    for index in range(2):
        function = pci.function(
            m,
            place,
            f"0000:0d:00.{index}",
            pci.Ids("15b3", "a2dc", "020000", "15b3:0009", "01"),
            "mlx5_core",
            pci.Port(5, 16),
            sriov=(16, 0),
        )
        net.port(
            m,
            function,
            f"ens12f{index}np{index}",
            m.mac("a0:88:c2", f"bf{index}"),
            "mlx5_core",
            "32.43.2566 (MT_0000000884)",
            speed=400_000,
        )
        net.hca(
            m, function, f"mlx5_{12 + index}", "MT41692", "32.43.2566", "MT_0000000884", f"a088c20300c3{index:04x}", "Ethernet"
        )
    function = pci.function(m, hgx.behind(m, root, 0x1C, 0x03, 2, 1), "0000:03:00.0", hgx.ASPEED_VGA, "ast")
    ethernet = pci.function(
        m, hgx.behind(m, root, 0x1D, 0x04, 3, 4), "0000:04:00.0", hgx.X710, "i40e", pci.Port(3, 4), sriov=(64, 0)
    )
    net.port(m, ethernet, "eno1np0", m.mac("7c:c2:55", "x710"), "i40e", "9.20 0x8000d95e 22.0.9", speed=10_000)
