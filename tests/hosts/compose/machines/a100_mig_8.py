"""8 x A100-SXM4-40GB, 6 NVSwitches: MIG layouts, ECC and MIG changes that wait for a reset. 2 x EPYC 7742 in NPS4, cgroup v1."""

from typing import Any

from tests.hosts.compose import block, gpu, hgx, kmsg, net, pci, smbios
from tests.hosts.compose.cpu import Node, Processor, nodes_of, processors
from tests.hosts.compose.flags import ROME
from tests.hosts.compose.software import UBUNTU_2204, System, process, software
from tests.hosts.compose.tree import Machine, ranges

EPYC = Processor(
    "AuthenticAMD",
    "AMD EPYC 7742 64-Core Processor",
    23,
    49,
    0,
    "0x830107a",
    2250,
    3414,
    sockets=2,
    cores=64,
    l3_cores=4,
    l1=(32, 32),
    l2=512,
    l3=16384,
    flags=ROME,
)
# Root complex, its node, and how many GPUs share its switch.
COMPLEXES = ((0x01, 3, 2), (0x41, 1, 2), (0x81, 7, 2), (0xB1, 5, 2))
SWITCHES = tuple(f"0000:c{number}:00.0" for number in range(4, 10))
MIG_OFF, MIG_ON = [0, 0], [1, 1]
# Per GPU: answers that differ from a plain one. Layouts are (profile, GI id, MiB, first memory slice, slices).
LAYOUTS: tuple[list[tuple[str, int, int, int, int]], ...] = (
    [("1g.5gb", 7 + slot, 4864, slot, 1) for slot in range(7)],
    [("3g.20gb", 1, 19968, 0, 4), ("3g.20gb", 2, 19968, 4, 4)],
    [("4g.20gb", 1, 19968, 0, 4), ("2g.10gb", 5, 9856, 4, 2), ("1g.5gb", 13, 4864, 6, 1)],
    [("7g.40gb", 0, 40192, 0, 8)],
)
OTHERS: dict[int, dict[str, Any]] = {
    4: {"migMode": [0, 1]},
    5: {"eccMode": [1, 0]},
    6: {"migMode": MIG_ON, "migInstances": []},
    7: {"remappedRows": [1, 2, True, False], "eccAggregateTotal": 2, "eccAggregateDram": 2},
}


def compose() -> Machine:
    """The host."""
    m = Machine("a100-mig-8")
    software(
        m,
        System(
            "dgx-12",
            "5.15.0-113-generic",
            "#123~20.04.1-Ubuntu SMP Wed Jun 12 17:33:13 UTC 2024",
            "BOOT_IMAGE=/boot/vmlinuz-5.15.0-113-generic root=UUID=0c1a9d3e-5f4b-4b8e-8a44-2d1f6f0a7b21 ro "
            "systemd.unified_cgroup_hierarchy=0 "
            "amd_iommu=on iommu=pt mitigations=off isolcpus=managed_irq,domain,60-63 nohz_full=60-63",
            UBUNTU_2204.replace("22.04.4", "20.04.6")
            .replace("22.04", "20.04")
            .replace("Jammy Jellyfish", "Focal Fossa")
            .replace("jammy", "focal"),
            packages=(
                ("containerd", "1.7.12-0ubuntu2~20.04.1"),
                ("nvidia-container-toolkit", "1.14.6-1"),
                ("nvidia-fabricmanager-535", "535.183.06-1"),
            ),
            cgroup=1,
            pressure=False,
            iommu="ivhd0",
        ),
    )
    nodes = nodes_of(EPYC, 1_056_304_468, per_socket=4)
    processors(m, EPYC, nodes, isolated="60-63")
    _firmware(m)
    gpu.driver(m, "535.183.06", 12020, flavour="proprietary", confidential=False)
    for bus, node, count in COMPLEXES:
        _complex(m, hgx.switch(m, bus, node, ranges(nodes[node].cpus), 4), count)
    root = pci.root_complex("0000:c0", 4, ranges(nodes[4].cpus))
    for index, slot in enumerate(SWITCHES):
        pci.function(
            m, hgx.behind(m, root, 1 + index, 0xC4 + index, width=2), slot, gpu.NVSWITCH_A100, "nvidia-nvswitch", pci.Port(4, 2)
        )
    _storage(m, nodes)
    _network(m, pci.root_complex("0000:60", 2, ranges(nodes[2].cpus)))
    for name in ("lo", "docker0"):
        net.virtual(m, name, "" if name == "lo" else "02:42:9e:01:02:03", "" if name == "lo" else "bridge")
    block.loops(m, 2)
    block.mounts(m, "md0", others=(("md1", "/raid", "xfs"),))
    block.swaps(m, (("/swapfile", "file", 33_554_428),))
    kmsg.boot(m)
    process(m, 3107, "nv-fabricmanager")
    return m


def _complex(m: Machine, switch: hgx.Switch, count: int) -> None:
    for index in range(count):
        place, slot = switch.slot(2 * index)
        assert m.nvml is not None
        number = len(m.nvml["devices"])
        layout = LAYOUTS[number] if number < len(LAYOUTS) else []
        answers = OTHERS.get(number) or {"migMode": MIG_ON, "migInstances": gpu.mig(m, f"gpu{number}", gpu.A100, layout)}
        # A GPU in MIG mode has no NVLinks.
        links = {"error": "NOT_SUPPORTED"} if answers.get("migMode") == MIG_ON else gpu.links_to(SWITCHES, 12)
        gpu.gpu(m, place, slot, gpu.A100, gspFirmware={"error": "NOT_SUPPORTED"}, nvlinks=links, **answers)
        place, slot = switch.slot(2 * index + 1)
        hca = pci.function(
            m, place, slot, pci.Ids("15b3", "101b", "020700", "15b3:0006"), "mlx5_core", pci.Port(4, 16), sriov=(16, 0)
        )
        net.infiniband(
            m, hca, number, f"ib{number}", f"0c42a103{m.digits(f'hca{number}', 8)}", "20.39.3004", "MT_0000000223", "MT4123"
        )


def _firmware(m: Machine) -> None:
    dimms = tuple(
        smbios.Dimm(
            f"DIMM_P{cpu}_{channel}0",
            f"BANK {index}",
            65536,
            smbios.DDR4,
            3200,
            2933,
            "Micron Technology",
            "36ASF8G72PZ-3G2E1",
            m.digits(f"dimm{cpu}{channel}", 8).upper(),
        )
        for cpu in (0, 1)
        for index, channel in enumerate("ABCDEFGH")
    )
    smbios.firmware(
        m,
        smbios.Firmware(
            "NVIDIA",
            "DGXA100 920-23687-2530-000",
            "v1.0",
            m.decimal("system", 13),
            m.uuid("system"),
            "DGXA100",
            "DGX",
            board=("NVIDIA", "DGXA100 920-23687-2530-000", "555.06A00.0003", m.decimal("board", 13)),
            chassis=("NVIDIA", 0x17, "v1.0", m.decimal("chassis", 13)),
            bios=("American Megatrends Inc.", "1.21", "07/29/2023"),
            processors=tuple((f"P{n}", "Advanced Micro Devices, Inc.", EPYC.model, 64) for n in (0, 1)),
            arrays=2,
            dimms=dimms,
            smbios=(3, 2),
        ),
    )
    smbios.efi(m, secure_boot=None)


def _storage(m: Machine, nodes: list[Node]) -> None:
    """A mirror of two M.2 disks, and a stripe of four for scratch space."""
    root = pci.root_complex("0000:20", 0, ranges(nodes[0].cpus))
    disks = []
    for index in range(6):
        size = 1_920_383_410_176 if index < 2 else 3_840_755_982_336
        address = f"0000:{0x22 + index:02x}:00.0"
        place = pci.function(m, hgx.behind(m, root, 1 + index, 0x22 + index), address, hgx.NVME_SAMSUNG, "nvme", pci.Port(4, 4))
        model = "SAMSUNG MZ1LB1T9HALS-00007" if index < 2 else "KIOXIA KCM6DRUL3T84"
        eui = f"3634473052{m.digits(f'eui{index}', 6)}" if index < 2 else f"8ce38ee2{m.digits(f'eui{index}', 8)}"
        disks.append(
            block.nvme(
                m,
                place,
                model,
                m.digits(f"disk{index}", 12).upper(),
                "EDA7602Q" if index < 2 else "0106",
                size,
                eui,
                partitions=(536_870_912, 1_919_711_608_832) if index < 2 else (),
            )
        )
    block.raid(m, "raid1", (f"{disks[0]}p2", f"{disks[1]}p2"), 1_919_577_391_104)
    block.raid(m, "raid0", tuple(disks[2:]), 15_362_481_979_392)


def _network(m: Machine, root: pci.Place) -> None:
    """Two 100 GbE ports, and the mainboard's and the BMC's."""
    place = hgx.behind(m, root, 1, 0x61, width=16)
    for index in range(2):
        ids = pci.Ids("15b3", "101d", "020000", "15b3:0016")
        function = pci.function(m, place, f"0000:61:00.{index}", ids, "mlx5_core", pci.Port(4, 16), sriov=(8, 0))
        net.port(
            m, function, f"enp97s0f{index}np{index}", m.mac("0c:42:a1", f"eth{index}"), "mlx5_core", "22.39.3004 (MT_0000000359)"
        )
        net.hca(m, function, f"mlx5_{8 + index}", "MT4125", "22.39.3004", "MT_0000000359", f"0c42a10300b2{index:04x}", "Ethernet")
    board = pci.function(
        m,
        hgx.behind(m, root, 2, 0x62, 2, 1),
        "0000:62:00.0",
        pci.Ids("8086", "1533", "020000", "8086:1533", "03"),
        "igb",
        pci.Port(1, 1),
    )
    net.port(m, board, "enp98s0", m.mac("5c:ff:35", "igb"), "igb", "3.25, 0x800005cf", speed=1000)
    pci.function(m, hgx.behind(m, root, 3, 0x63, 2, 1), "0000:63:00.0", hgx.ASPEED_VGA, "ast")
    usb = pci.function(m, root, "0000:60:08.0", pci.Ids("1022", "148c", "0c0330", "1022:148c"), "xhci_hcd")
    net.port(
        m,
        usb,
        "enxfeff24a3b1c0",
        "fe:ff:24:a3:b1:c0",
        "cdc_ether",
        "CDC Ethernet Device",
        speed=425,
        between="usb1/1-2/1-2:1.0",
        bus_info="usb-0000:60:08.0-2",
    )
