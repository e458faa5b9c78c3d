"""A desktop with one RTX 4090: placeholder serials in its tables, SATA, USB, a card reader, root on LVM, no udevd database."""

from tests.hosts.compose import block, gpu, kmsg, net, pci, smbios
from tests.hosts.compose.cpu import Processor, nodes_of, processors
from tests.hosts.compose.flags import RYZEN
from tests.hosts.compose.hgx import behind
from tests.hosts.compose.software import DEBIAN_12, System, software
from tests.hosts.compose.tree import Machine

PROCESSOR = Processor(
    "AuthenticAMD",
    "AMD Ryzen 9 7950X 16-Core Processor",
    25,
    97,
    2,
    "0xa601206",
    4500,
    5881,
    sockets=1,
    cores=16,
    l3_cores=8,
    l1=(32, 32),
    l2=1024,
    l3=32768,
    flags=RYZEN,
)
FILL = "To Be Filled By O.E.M."


def compose() -> Machine:
    """The host."""
    m = Machine("geforce-workstation")
    software(
        m,
        System(
            "workbench",
            "6.1.0-25-amd64",
            "#1 SMP PREEMPT_DYNAMIC Debian 6.1.106-3 (2024-08-26)",
            "BOOT_IMAGE=/vmlinuz-6.1.0-25-amd64 root=/dev/mapper/bench--vg-root ro quiet splash password=hunter2",
            DEBIAN_12,
            packages=(("docker.io", "20.10.24+dfsg1-1+b3"), ("nvidia-driver", "535.183.01-1~deb12u1")),
            kvm=("kvm_amd", "1"),
        ),
    )
    nodes = nodes_of(PROCESSOR, 65_551_004)
    processors(m, PROCESSOR, nodes)
    dimms = tuple(
        smbios.Dimm(
            "DIMM 1",
            f"P0 CHANNEL {channel}",
            32768,
            speed=6000,
            configured=6000,
            maker="Unknown",
            part="CMK64GX5M2B6000C40",
            serial="00000000",
        )
        for channel in "AB"
    )
    empty = tuple(smbios.Dimm("DIMM 0", f"P0 CHANNEL {channel}", 0) for channel in "AB")
    smbios.firmware(
        m,
        smbios.Firmware(
            "ASRock",
            "X670E Taichi",
            FILL,
            FILL,
            "03000200-0400-0500-0006-000700080009",
            FILL,
            FILL,
            board=("ASRock", "X670E Taichi", "", FILL),
            chassis=(FILL, 3, FILL, FILL),
            bios=("American Megatrends International, LLC.", "2.02", "12/29/2023"),
            processors=(("AM5", "Advanced Micro Devices, Inc.", PROCESSOR.model, 16),),
            ecc=smbios.ECC_NONE,
            dimms=empty[:1] + dimms[:1] + empty[1:] + dimms[1:],
            bmc=False,
        ),
    )
    smbios.efi(m, secure_boot=True)
    gpu.driver(m, "535.183.01", 12020, flavour="proprietary", confidential=False)
    root = pci.root_complex("0000:00", -1, "0-31")
    place = behind(m, root, 1, 1, 5, 8)  # the slot has 8 lanes: the second one is used
    gpu.gpu(
        m, place, "0000:01:00.0", gpu.RTX_4090, link=pci.Port(4, 16, 1, 8), persistence=0, gspFirmware={"error": "NOT_SUPPORTED"}
    )
    pci.function(
        m, place, "0000:01:00.1", pci.Ids("10de", "22ba", "040300", "1043:889d", "a1"), "snd_hda_intel", pci.Port(4, 16, 1, 8)
    )
    _devices(m, root)
    for name in ("lo", "virbr0"):
        net.virtual(m, name, "" if name == "lo" else "52:54:00:0a:0b:0c", "" if name == "lo" else "bridge")
    block.loops(m, 2)
    volume = block.mapped(m, ("nvme0n1p3",), "bench--vg-root", f"LVM-{m.digits('lvm', 64)}", 1_900_000_000_256)
    block.mapped(m, ("nvme0n1p3",), "bench--vg-swap_1", f"LVM-{m.digits('lvm2', 64)}", 1_023_410_176)
    block.mounts(
        m,
        volume,
        others=(("nvme0n1p1", "/boot/efi", "vfat"), ("sdb1", "/media/stick", "vfat")),
        source="/dev/mapper/bench--vg-root",
    )
    block.swaps(m, (("/dev/dm-1", "partition", 999_420), ("/swapfile", "file", 8_388_604)))
    kmsg.boot(m)
    return m


def _devices(m: Machine, root: pci.Place) -> None:
    """Disks of every desktop kind. This maker's NVMe has no EUI and pads its serial on the left; sticks share serials."""
    place = pci.function(
        m, behind(m, root, 2, 2), "0000:02:00.0", pci.Ids("1e4b", "1202", "010802", "1e4b:1202"), "nvme", pci.Port(4, 4)
    )
    block.nvme(
        m,
        place,
        "FIKWOT FN955 2TB",
        f"{'AA' + m.decimal('nvme', 10):>20}",
        "SN14546",
        2_000_398_934_016,
        udev=False,
        partitions=(536_870_912, 511_705_088, 1_999_348_105_216),
    )
    sata = pci.function(m, root, "0000:00:17.0", pci.Ids("1022", "43f6", "010601", "1b21:1062"), "ahci")
    block.scsi(
        m,
        sata,
        "ata1",
        "ATA",
        "ST8000VN004-3CP1",
        "SC60",
        8_001_563_222_016,
        f"naa.5000c500{m.digits('sata', 8)}",
        f"WRQ{m.digits('wd', 5).upper()}",
        rotational=1,
        physical=4096,
        partitions=(8_001_561_821_184,),
    )
    usb = pci.function(m, root, "0000:00:14.0", pci.Ids("1022", "43f7", "0c0330", "1b21:1142"), "xhci_hcd")
    block.scsi(m, usb, "usb2/2-3/2-3:1.0", "SanDisk", "Ultra", "1.00", 61_524_148_224, removable=1, partitions=(61_523_099_648,))
    m.put_all(
        f"{usb.path}/usb2/2-3",
        {"manufacturer": "SanDisk", "product": "Ultra", "serial": "AAAABBBBCCCC3", "idVendor": "0781", "idProduct": "5581"},
    )
    block.scsi(m, usb, "usb1/1-7/1-7:1.0", "Generic-", "SD/MMC", "1.00", 0, removable=1)
    ethernet = pci.function(
        m,
        behind(m, root, 3, 5, 2, 1),
        "0000:05:00.0",
        pci.Ids("10ec", "8125", "020000", "1849:8125", "05"),
        "r8169",
        pci.Port(2, 1),
    )
    net.port(m, ethernet, "enp5s0", m.mac("a8:a1:59", "eth"), "r8169", "rtl8125b-2_0.0.2 07/13/20", speed=2500)
    wireless = pci.function(
        m, behind(m, root, 4, 6, 2, 1), "0000:06:00.0", pci.Ids("14c3", "0608", "028000", "1a3b:4680"), "mt7921e", pci.Port(2, 1)
    )
    net.port(m, wireless, "wlp6s0", m.mac("4c:d5:77", "wifi"), "mt7921e", "____010000-20230526130958", speed=0)
    m.put(f"{wireless.path}/net/wlp6s0/phy80211/index", 0)
