"""The PCI layout of an HGX server: per root complex a PCIe switch with a GPU, an HCA and an NVMe slot below it."""

from dataclasses import dataclass

from tests.hosts.compose.pci import Ids, Place, Port, bridge, root_complex
from tests.hosts.compose.tree import Machine

CX7 = Ids("15b3", "1021", "020700", "15b3:0041")
CX7_ETHERNET = Ids("15b3", "1021", "020000", "15b3:0040")
CX7_VF = Ids("15b3", "101e", "020000", "15b3:0040")
ASPEED_VGA = Ids("1a03", "2000", "030000", "1a03:2000", "52")
NVME_SAMSUNG = Ids("144d", "a80a", "010802", "144d:aa8b")
NVME_MICRON = Ids("1344", "51c3", "010802", "1344:5100")
XHCI = Ids("8086", "1bcd", "0c0330", "15d9:1c74", "11")
I350 = Ids("8086", "1521", "020000", "15d9:1521", "01")
X710 = Ids("8086", "15ff", "020000", "15d9:0000", "02")
IOAT = Ids("8086", "0b25", "088000", "8086:0000")


@dataclass(frozen=True)
class Switch:
    """A PCIe switch below a root complex whose bus is `bus`; its devices are on buses bus+3, bus+4, ..."""

    machine: Machine
    upstream: Place
    bus: int
    generation: int

    def slot(self, index: int, width: int = 16) -> tuple[Place, str]:
        """The downstream port `index` (made on the way) and the address of the function behind it."""
        port = Port(self.generation, width)
        place = bridge(self.machine, self.upstream, f"0000:{self.bus + 2:02x}:{index:02x}.0", port, "1000", "c030")
        return place, f"0000:{self.bus + 3 + index:02x}:00.0"


def switch(m: Machine, bus: int, node: int, cpus: str, generation: int = 5) -> Switch:
    """Root port, upstream port; `slot` gives what is behind."""
    root = root_complex(f"0000:{bus:02x}", node, cpus)
    above = bridge(m, root, f"0000:{bus:02x}:01.0", Port(generation, 16))
    return Switch(m, bridge(m, above, f"0000:{bus + 1:02x}:00.0", Port(generation, 16), "1000", "c030"), bus, generation)


def behind(m: Machine, root: Place, device: int, bus: int, generation: int = 4, width: int = 4) -> Place:
    """A root port `device` of a host bridge with one device on `bus` behind it: gives where that hangs."""
    own = root.path.rsplit("pci", 1)[-1]
    return bridge(m, root, f"{own}:{device:02x}.0", Port(generation, width))
