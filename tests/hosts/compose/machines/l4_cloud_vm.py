"""A cloud VM with one L4, as bcd without privileges sees it: firmware serials, tables and the kernel log are not readable."""

from tests.hosts.compose import block, gpu, net, pci, smbios
from tests.hosts.compose.cpu import Processor, nodes_of, processors
from tests.hosts.compose.flags import CASCADE_LAKE_GUEST
from tests.hosts.compose.software import DEBIAN_12, System, software
from tests.hosts.compose.tree import Machine

CPU = Processor(
    "GenuineIntel",
    "Intel(R) Xeon(R) CPU @ 2.20GHz",
    6,
    85,
    7,
    "0xffffffff",
    2200,
    0,
    sockets=1,
    cores=2,
    l1=(32, 32),
    l2=1024,
    l3=39424,
    flags=CASCADE_LAKE_GUEST,
    cpufreq=False,
)
VIRTIO = {"scsi": ("1004", "010000", "1af4:0008"), "rng": ("1005", "00ff00", "1af4:0004")}
UNREADABLE = ("product_serial", "product_uuid", "board_serial", "chassis_serial")
EPERM, EACCES = 1, 13


def compose() -> Machine:
    """The host."""
    m = Machine("l4-cloud-vm")
    software(
        m,
        System(
            "inference-7f9c",
            "6.1.0-25-cloud-amd64",
            "#1 SMP PREEMPT_DYNAMIC Debian 6.1.106-3 (2024-08-26)",
            "BOOT_IMAGE=/boot/vmlinuz-6.1.0-25-cloud-amd64 root=PARTUUID=5e1f7a93-5c2f-4d0b-8d36-9b6f1f0e8c11 ro "
            "console=ttyS0,38400n8 psi=1",
            DEBIAN_12,
            packages=(("containerd.io", "1.7.22-1"), ("nvidia-container-toolkit", "1.16.2-1")),
            temperature=False,
        ),
    )
    processors(m, CPU, nodes_of(CPU, 16_334_012), memory_blocks=(128 << 20, 128))
    smbios.firmware(
        m,
        smbios.Firmware(
            "Google",
            "Google Compute Engine",
            "",
            f"GoogleCloud-{m.digits('serial', 32).upper()}",
            m.uuid("system"),
            board=("Google", "Google Compute Engine", "", f"Board-GoogleCloud-{m.digits('serial', 32).upper()}"),
            chassis=("Google", 1, "", ""),
            bios=("Google", "Google", "08/06/2024"),
            processors=(("CPU 0", "Google", "", 2),),
            dimms=(smbios.Dimm("DIMM 0", "", 16384, smbios.RAM_UNKNOWN, 0, 0, "Google", "", ""),),
            bmc=False,
            tpm=True,
            smbios=(2, 4),
            entry_64=False,
        ),
    )
    smbios.efi(m, secure_boot=False)
    paths = [f"{folder}/{name}" for folder in ("/sys/class/dmi/id", "/sys/devices/virtual/dmi/id") for name in UNREADABLE]
    paths += [f"/sys/firmware/dmi/tables/{name}" for name in ("DMI", "smbios_entry_point")]
    assert m.facts is not None
    m.facts["errors"] = {**dict.fromkeys(sorted(paths), EACCES), "/dev/kmsg": EPERM}
    gpu.driver(m, "550.90.07", 12040, confidential=False)
    root = pci.root_complex("0000:00", -1, "0-3")
    gpu.gpu(m, root, "0000:00:03.0", gpu.L4, link=pci.Port(), virtualizationMode=1)
    _devices(m, root)
    for name, kind in (("lo", ""), ("docker0", "bridge"), ("veth8c1d2e3", "")):
        net.virtual(m, name, "" if name == "lo" else m.mac("02:42:ac", name), kind)
    block.loops(m, 1)
    block.mounts(m, "sda1", others=(("sda15", "/boot/efi", "vfat"), ("nvme0n1", "/scratch", "ext4")))
    block.swaps(m)
    return m


def _devices(m: Machine, root: pci.Place) -> None:
    """A persistent disk on virtio-scsi (its name is its only serial), a local one whose serial all of them share, gVNIC."""
    host = pci.function(m, root, "0000:00:04.0", _virtio("scsi"), "virtio-pci")
    pci.function(m, root, "0000:00:06.0", _virtio("rng"), "virtio-pci")
    block.scsi(
        m,
        host,
        "virtio0",
        "Google",
        "PersistentDisk",
        "1",
        107_374_182_400,
        physical=4096,
        partitions=(107_238_899_712,),
        udev={
            "ID_SCSI": "1",
            "ID_VENDOR": "Google",
            "ID_MODEL": "PersistentDisk",
            "ID_BUS": "scsi",
            "ID_SERIAL": "0Google_PersistentDisk_persistent-disk-0",
            "ID_SERIAL_SHORT": "persistent-disk-0",
        },
    )
    disk = next(path.removesuffix("/dev") for path in m.files if path.endswith("/sda/dev"))
    m.put_all(f"{disk}/sda15", {"partition": 15, "size": 253_952, "dev": "8:15", "ro": 0})
    m.link("/sys/class/block/sda15", f"{disk}/sda15")
    m.link("/sys/dev/block/8:15", f"{disk}/sda15")
    local = pci.function(m, root, "0000:00:05.0", pci.Ids("1ae0", "001f", "010802", "1ae0:001f", "01"), "nvme")
    block.nvme(m, local, "nvme_card", "nvme_card", "2", 402_653_184_000, sector=4096)
    nic = pci.function(m, root, "0000:00:07.0", pci.Ids("1ae0", "0042", "020000", "1ae0:0058"), "gvnic")
    net.port(m, nic, "ens7", m.mac("42:01:0a", "eth"), "gve", "1.0.0", permanent=None)


def _virtio(kind: str) -> pci.Ids:
    device, code, subsystem = VIRTIO[kind]
    return pci.Ids("1af4", device, code, subsystem)
