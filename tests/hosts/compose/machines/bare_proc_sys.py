"""Nothing but root/proc and root/sys of a small machine, as somebody would copy them: no host.json, no /etc, no /dev, no GPU."""

from tests.hosts.compose import block, hgx, net, pci
from tests.hosts.compose.cpu import Processor, nodes_of, processors
from tests.hosts.compose.flags import ICE_LAKE
from tests.hosts.compose.software import System, software
from tests.hosts.compose.tree import Machine

XEON = Processor(
    "GenuineIntel",
    "Intel(R) Xeon(R) E-2336 CPU @ 2.90GHz",
    6,
    167,
    1,
    "0x5d",
    2900,
    4800,
    sockets=1,
    cores=6,
    l1=(48, 32),
    l2=512,
    l3=12288,
    flags=ICE_LAKE,
)


def compose() -> Machine:
    """The host."""
    m = Machine("bare-proc-sys")
    software(
        m,
        System(
            "edge-3",
            "6.8.0-45-generic",
            "#45-Ubuntu SMP PREEMPT_DYNAMIC Fri Aug 30 12:02:04 UTC 2024",
            "BOOT_IMAGE=/vmlinuz root=/dev/sda2 ro",
        ),
    )
    processors(m, XEON, nodes_of(XEON, 32_601_344))
    root = pci.root_complex("0000:00", -1, "0-11")
    sata = pci.function(m, root, "0000:00:17.0", pci.Ids("8086", "43d2", "010601", "1028:0a6c"), "ahci")
    block.scsi(
        m,
        sata,
        "ata3",
        "ATA",
        "INTEL SSDSC2KB48",
        "0132",
        480_103_981_056,
        f"naa.55cd2e41{m.digits('sata', 8)}",
        "PHYF1234567890AB",
        physical=4096,
        partitions=(1_127_219_200, 478_974_836_736),
    )
    ethernet = pci.function(m, hgx.behind(m, root, 0x1C, 4, 2, 1), "0000:04:00.0", hgx.I350, "igb", pci.Port(2, 4))
    net.port(m, ethernet, "eno1", m.mac("3c:ec:ef", "eth"), "igb", speed=1000)
    net.virtual(m, "lo")
    block.mounts(m, "sda2")
    block.swaps(m)
    m.files = {path: value for path, value in m.files.items() if path.startswith(("/proc/", "/sys/"))}
    m.facts = None
    return m
