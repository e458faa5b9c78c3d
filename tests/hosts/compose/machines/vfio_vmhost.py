"""A host of VMs: 4 x L40S on vfio-pci, no NVIDIA driver, IOMMU groups, nested KVM, RAID, SAS disks, functions given away."""

from tests.hosts.compose import block, gpu, hgx, kmsg, net, pci, smbios
from tests.hosts.compose.cpu import Processor, nodes_of, processors
from tests.hosts.compose.software import ROCKY_9, System, software
from tests.hosts.compose.tree import Machine, ranges

XEON = Processor(
    "GenuineIntel", "Intel(R) Xeon(R) Gold 6426Y", 6, 143, 8, "0x2b0005c0", 2500, 4100, sockets=2, cores=16, l3=38400
)


def compose() -> Machine:
    """The host."""
    m = Machine("vfio-vmhost")
    software(
        m,
        System(
            "kvm-04.example.net",
            "5.14.0-427.13.1.el9_4.x86_64",
            "#1 SMP PREEMPT_DYNAMIC Wed May 1 19:11:28 UTC 2024",
            "BOOT_IMAGE=(hd0,gpt2)/vmlinuz-5.14.0-427.13.1.el9_4.x86_64 root=/dev/mapper/rl-root ro intel_iommu=on "
            "iommu=pt vfio-pci.ids=10de:26b9 "
            "default_hugepagesz=1G hugepagesz=1G hugepages=192 hugepagesz=2M hugepages=1024 isolcpus=4-31 "
            "transparent_hugepage=never",
            ROCKY_9,
            kvm=("kvm_intel", "Y"),
            iommu="dmar0",
        ),
    )
    nodes = nodes_of(XEON, 528_000_512)
    processors(m, XEON, nodes, isolated="4-31")
    cpus = [ranges(n.cpus) for n in nodes]
    _firmware(m)
    for index, bus in enumerate((0x25, 0x4A, 0xA1, 0xC6)):
        place = hgx.behind(m, pci.root_complex(f"0000:{bus:02x}", index // 2, cpus[index // 2]), 1, bus + 1, 4, 16)
        pci.function(
            m,
            place,
            f"0000:{bus + 1:02x}:00.0",
            gpu.L40S.ids,
            "vfio-pci",
            pci.Port(4, 16, 1, 16),
            group=18 + index,
            sriov=(32, 0),
        )
    _storage(m, pci.root_complex("0000:00", 0, cpus[0]))
    _network(m, pci.root_complex("0000:80", 1, cpus[1]))
    for name, kind in (("lo", ""), ("virbr0", "bridge"), ("br0", "bridge"), ("vnet3", "")):
        net.virtual(m, name, "" if name == "lo" else m.mac("52:54:00", name), kind)
    block.mounts(m, "dm-0", "xfs", others=(("sda2", "/boot", "xfs"),), source="/dev/mapper/rl-root")
    block.swaps(m, (("/dev/dm-1", "partition", 4_194_300),))
    m.put("/usr/libexec/qemu-kvm", b"")
    kmsg.boot(m, gpus=False)
    return m


def _firmware(m: Machine) -> None:
    dimms = tuple(
        smbios.Dimm(
            f"{side}{slot}",
            "",
            32768 if slot <= 8 else 0,
            speed=4800,
            configured=4400,
            maker="00AD063200AD",
            part="HMCG88AEBRA168N",
            serial=m.digits(f"dimm{side}{slot}", 8).upper(),
        )
        for side in "AB"
        for slot in range(1, 17)
    )
    tag = m.decimal("tag", 7)
    smbios.firmware(
        m,
        smbios.Firmware(
            "Dell Inc.",
            "PowerEdge R760xa",
            "",
            tag,
            f"4c4c4544-0034-3010-8052-{m.digits('uuid', 12)}",
            "SKU=0B7D;ModelName=PowerEdge R760xa",
            "PowerEdge",
            board=("Dell Inc.", "0D3TGY", "A02", f".{tag}.CNFCP00{m.decimal('board', 8)}."),
            chassis=("Dell Inc.", 0x17, "", tag),
            bios=("Dell Inc.", "2.1.5", "03/14/2024"),
            dimms=dimms,
            processors=tuple((f"CPU{n}", "Intel", XEON.model, 16) for n in (1, 2)),
        ),
    )
    smbios.efi(m, secure_boot=True)


def _storage(m: Machine, root: pci.Place) -> None:
    """A RAID controller's volume (no disk of its own name), two SAS disks behind an HBA, LVM on the first."""
    raid = pci.function(
        m,
        hgx.behind(m, root, 1, 1, 4, 8),
        "0000:01:00.0",
        pci.Ids("1000", "10e2", "010400", "1028:1ae0"),
        "megaraid_sas",
        pci.Port(4, 8),
        group=40,
    )
    wwid = f"naa.6d094660{m.digits('perc', 24)}"
    block.scsi(
        m,
        raid,
        "",
        "DELL",
        "PERC H755 Front",
        "5.16",
        959_656_755_200,
        wwid,
        wwid[4:],
        partitions=(629_145_600, 1_073_741_824, 957_950_304_256),
        udev={
            "ID_SCSI": "1",
            "ID_VENDOR": "DELL",
            "ID_MODEL": "PERC_H755_Front",
            "ID_BUS": "scsi",
            "ID_SERIAL": f"3{wwid[4:]}",
            "ID_SERIAL_SHORT": wwid[4:],
            "ID_WWN": f"0x{wwid[4:20]}",
            "ID_WWN_WITH_EXTENSION": f"0x{wwid[4:]}",
        },
    )
    hba = pci.function(
        m,
        hgx.behind(m, root, 2, 2, 4, 8),
        "0000:02:00.0",
        pci.Ids("1000", "00e6", "010700", "1028:200b"),
        "mpt3sas",
        pci.Port(4, 8),
        group=41,
    )
    for index in range(2):
        naa = f"5000c500{m.digits(f'sas{index}', 8)}"
        block.scsi(
            m,
            hba,
            "",
            "SEAGATE",
            "ST16000NM004J",
            "E004",
            16_000_900_661_248,
            f"naa.{naa}",
            f"ZR5{m.digits(f's{index}', 5).upper()}0000C2",
            rotational=1,
            physical=4096,
            inside=f"port-1:{index}/end_device-1:{index}",
            udev={
                "ID_SCSI": "1",
                "ID_VENDOR": "SEAGATE",
                "ID_MODEL": "ST16000NM004J",
                "ID_BUS": "scsi",
                "ID_SERIAL": f"3{naa}",
                "ID_SERIAL_SHORT": naa,
                "ID_WWN": f"0x{naa}",
                "ID_WWN_WITH_EXTENSION": f"0x{naa}",
            },
        )
    for name, size in (("root", 75_161_927_680), ("swap", 4_294_967_296)):
        block.mapped(m, ("sda3",), f"rl-{name}", f"LVM-{m.digits(f'lvm-{name}', 64)}", size)


def _network(m: Machine, root: pci.Place) -> None:
    """Two 25 GbE ports; of the first, two of four virtual functions belong to VMs, and two are idle in the host."""
    place = hgx.behind(m, root, 1, 0x81, 3, 8)
    for index in range(2):
        ids = pci.Ids("15b3", "101f", "020000", "15b3:0013")
        function = pci.function(
            m, place, f"0000:81:00.{index}", ids, "mlx5_core", pci.Port(4, 8), group=50 + index, sriov=(8, 4 if index == 0 else 0)
        )
        net.port(
            m,
            function,
            f"ens1f{index}np{index}",
            m.mac("94:6d:ae", f"eth{index}"),
            "mlx5_core",
            "26.39.3560 (DEL0000000031)",
            speed=25_000,
        )
        net.hca(m, function, f"mlx5_{index}", "MT4127", "26.39.3560", "DEL0000000031", f"946dae0300e5{index:04x}", "Ethernet")
        for number in range(4 if index == 0 else 0):
            driver = "vfio-pci" if number < 2 else "mlx5_core"
            vf = pci.virtual_function(
                m, function, number, f"0000:81:00.{number + 2}", pci.Ids("15b3", "101e", "020000", "15b3:0013"), driver
            )
            pci.iommu_group(m, vf.path, 60 + number)
            if driver == "mlx5_core":
                net.port(
                    m,
                    vf,
                    f"ens1f0v{number}",
                    m.mac("2a:77:10", f"vf{number}"),
                    "mlx5_core",
                    "26.39.3560 (DEL0000000031)",
                    permanent=None,
                )
    lom = hgx.behind(m, root, 2, 0x82, 2, 1)
    for index in range(2):
        ids = pci.Ids("14e4", "165f", "020000", "1028:0a6b")
        function = pci.function(m, lom, f"0000:82:00.{index}", ids, "tg3", pci.Port(2, 1), group=52 + index)
        net.port(m, function, f"eno{index + 1}", m.mac("ec:2a:72", f"lom{index}"), "tg3", "FFV22.71.3 bc 5720-v1.39", speed=1000)
