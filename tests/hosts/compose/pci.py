"""PCI: functions below their bridges in /sys/devices, with the links of /sys/bus/pci and /sys/class."""

from dataclasses import dataclass

from tests.hosts.compose.tree import Machine

GTS = {1: "2.5 GT/s PCIe", 2: "5.0 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe", 6: "64.0 GT/s PCIe"}


@dataclass(frozen=True)
class Ids:
    """What a function is. `subsystem` is `10de:16c1`; `code` the class, `030200`."""

    vendor: str
    device: str
    code: str
    subsystem: str = "0000:0000"
    revision: str = "00"


@dataclass(frozen=True)
class Port:
    """PCIe link of a function: its maximum and what it runs at now. Generation 0: no link (conventional PCI)."""

    generation: int = 0
    width: int = 0
    generation_now: int = 0
    width_now: int = 0


@dataclass(frozen=True)
class Place:
    """Where functions hang: path of the parent device and what they inherit of it."""

    path: str
    node: int
    cpus: str


def slot_of(bus_id: str) -> str:
    """`0000:18:00.0` of `00000000:18:00.0`, and the other way round it is NVML's."""
    return bus_id[4:].lower()


def root_complex(domain_bus: str, node: int, cpus: str) -> Place:
    """A host bridge: `0000:15`. `node` -1: firmware does not say."""
    return Place(f"/sys/devices/pci{domain_bus}", node, cpus)


def function(
    m: Machine,
    parent: Place,
    address: str,
    ids: Ids,
    driver: str | None = None,
    port: Port = Port(),
    group: int | None = None,
    sriov: tuple[int, int] | None = None,
) -> Place:
    """A function and its links. `driver` None: bound to nothing; `sriov` (total, configured) VFs."""
    path = f"{parent.path}/{address}"
    vendor, device = ids.subsystem.split(":")
    m.put_all(
        path,
        {
            "class": f"0x{ids.code}",
            "vendor": f"0x{ids.vendor}",
            "device": f"0x{ids.device}",
            "subsystem_vendor": f"0x{vendor}",
            "subsystem_device": f"0x{device}",
            "numa_node": parent.node,
            "local_cpulist": parent.cpus,
            "uevent": _uevent(address, ids, driver),
        },
    )
    _link(m, path, port)
    m.link(f"{path}/subsystem", "/sys/bus/pci")
    m.link(f"/sys/bus/pci/devices/{address}", path)
    if driver:
        bind(m, path, driver)
    if sriov:
        m.put_all(path, {"sriov_totalvfs": sriov[0], "sriov_numvfs": sriov[1]})
    if group is not None:
        iommu_group(m, path, group)
    return Place(path, parent.node, parent.cpus)


def bridge(m: Machine, parent: Place, address: str, port: Port, vendor: str = "8086", device: str = "352a") -> Place:
    """A root port or switch port: only what says something of the link below it."""
    path = f"{parent.path}/{address}"
    m.put_all(path, {"class": "0x060400", "vendor": f"0x{vendor}", "device": f"0x{device}", "numa_node": parent.node})
    _link(m, path, port)
    m.link(f"/sys/bus/pci/devices/{address}", path)
    m.link(f"{path}/driver", "/sys/bus/pci/drivers/pcieport")
    m.put("/sys/bus/pci/drivers/pcieport/uevent", b"")
    return Place(path, parent.node, parent.cpus)


def bind(m: Machine, path: str, driver: str) -> None:
    """The driver's link and the module it comes from."""
    m.link(f"{path}/driver", f"/sys/bus/pci/drivers/{driver}")
    m.link(f"/sys/bus/pci/drivers/{driver}/{path.rsplit('/', 1)[-1]}", path)


def virtual_function(m: Machine, physical: Place, index: int, address: str, ids: Ids, driver: str) -> Place:
    """An SR-IOV function beside its physical one."""
    parent = Place(physical.path.rsplit("/", 1)[0], physical.node, physical.cpus)
    place = function(m, parent, address, ids, driver)
    m.link(f"{place.path}/physfn", physical.path)
    m.link(f"{physical.path}/virtfn{index}", place.path)
    return place


def iommu_group(m: Machine, path: str, group: int) -> None:
    """Membership in an IOMMU group, both ways."""
    folder = f"/sys/kernel/iommu_groups/{group}"
    m.link(f"{path}/iommu_group", folder)
    m.link(f"{folder}/devices/{path.rsplit('/', 1)[-1]}", path)
    m.put(f"{folder}/type", "DMA-FQ")


def vpd(name: str, fields: dict[str, str]) -> bytes:
    """Vital product data: identifier string, read-only fields, end tag (PCI 3.0, appendix I)."""
    body = b"".join(key.encode() + bytes([len(value)]) + value.encode() for key, value in fields.items())
    body += b"RV\x01\x00"
    title = name.encode()
    return b"\x82" + len(title).to_bytes(2, "little") + title + b"\x90" + len(body).to_bytes(2, "little") + body + b"\x78"


def _link(m: Machine, path: str, port: Port) -> None:
    if port.generation:
        m.put_all(
            path,
            {
                "max_link_speed": GTS[port.generation],
                "max_link_width": port.width,
                "current_link_speed": GTS[port.generation_now or port.generation],
                "current_link_width": port.width_now or port.width,
            },
        )


def _uevent(address: str, ids: Ids, driver: str | None) -> str:
    first = f"DRIVER={driver}\n" if driver else ""
    vendor, device = ids.subsystem.upper().split(":")
    code = f"bc{ids.code[:2]}sc{ids.code[2:4]}i{ids.code[4:]}"
    alias = f"pci:v0000{ids.vendor.upper()}d0000{ids.device.upper()}sv0000{vendor}sd0000{device}{code}"
    return (
        f"{first}PCI_CLASS={ids.code.lstrip('0').upper()}\nPCI_ID={ids.vendor.upper()}:{ids.device.upper()}\n"
        f"PCI_SUBSYS_ID={ids.subsystem.upper()}\nPCI_SLOT_NAME={address}\nMODALIAS={alias}\n"
    )
