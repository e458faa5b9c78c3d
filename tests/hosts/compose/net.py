"""Network: physical ports, what is only virtual, InfiniBand HCAs, and what ethtool answers of each."""

from tests.hosts.compose.pci import Place
from tests.hosts.compose.tree import Machine

IPOIB_HEAD = "00:00:10:29:fe:80:00:00:00:00:00:00"  # QPN and subnet prefix before the port GUID


def port(
    m: Machine,
    place: Place,
    name: str,
    mac: str,
    driver: str,
    firmware: str = "",
    dev_port: int = 0,
    speed: int = 100_000,
    kind: int = 1,
    between: str = "",
    permanent: str | None = "",
    bus_info: str = "",
) -> None:
    """A port of a PCI function (`between`: `virtio1`, `usb1/1-4/1-4:2.0`). `kind` 1 is Ethernet, 32 InfiniBand.

    `permanent` "" is the same as `mac`, None: the driver does not tell.
    """
    device = f"{place.path}/{between}" if between else place.path
    _interface(m, f"{device}/net/{name}", name, mac, kind, dev_port, speed, assigned=0)
    m.link(f"{device}/net/{name}/device", device)
    if between:
        bus = f"/sys/bus/{'virtio' if between.startswith('virtio') else 'usb'}/drivers/{driver}"
        m.link(f"{device}/driver", bus)
        m.link(f"{bus}/{between.rsplit('/', 1)[-1]}", device)
        m.put(f"{device}/modalias", "virtio:d00000001v00001AF4" if between.startswith("virtio") else "usb:v046BpFFB0")
    answer = {
        "driver": driver,
        "firmware": firmware or None,
        "busInfo": bus_info or place.path.rsplit("/", 1)[-1],
        "permanentMac": mac if permanent == "" else permanent,
    }
    assert m.facts is not None
    m.facts.setdefault("ethtool", {})[name] = {key: value for key, value in answer.items() if value}


def virtual(m: Machine, name: str, mac: str = "", kind: str = "") -> None:
    """lo, veth, bond and bridges: below /devices/virtual, never a NIC. `kind`: `bridge`."""
    path = f"/sys/devices/virtual/net/{name}"
    _interface(
        m, path, name, mac or "00:00:00:00:00:00", 772 if name == "lo" else 1, 0, 10_000, assigned=0 if name == "lo" else 1
    )
    if kind == "bridge":
        m.put(f"{path}/bridge/stp_state", 0)


def hca(
    m: Machine,
    place: Place,
    name: str,
    kind: str | None,
    firmware: str,
    board: str,
    guid: str,
    link_layer: str = "InfiniBand",
    ports: int = 1,
) -> None:
    """An RDMA device: `kind` is the hca_type (`MT4129`; None: the driver has no such file), `guid` 16 digits."""
    path = f"{place.path}/infiniband/{name}"
    m.put_all(
        path,
        {
            "node_guid": _guid(guid),
            "sys_image_guid": _guid(guid),
            "node_type": "1: CA",
            "fw_ver": firmware,
            "hca_type": kind,
            "board_id": board,
        },
    )
    m.link(f"{path}/device", place.path)
    m.link(f"/sys/class/infiniband/{name}", path)
    for number in range(1, ports + 1):
        state = {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)" if link_layer == "InfiniBand" else "200 Gb/sec (4X HDR)",
        }
        own = (
            f"{int(guid, 16) + number - 1:016x}" if link_layer == "InfiniBand" else f"{(int(guid, 16) ^ 0x0200000000000000):016x}"
        )
        m.put_all(
            f"{path}/ports/{number}",
            {"link_layer": link_layer, **state, "lid": "0x2a" if link_layer == "InfiniBand" else "0x0", "gids/0": _gid(own)},
        )


def infiniband(
    m: Machine,
    place: Place,
    number: int,
    interface: str,
    guid: str,
    firmware: str = "28.39.3560",
    board: str = "MT_0000000838",
    kind: str = "MT4129",
) -> None:
    """A ConnectX port in InfiniBand mode: the HCA and its IPoIB interface."""
    hca(m, place, f"mlx5_{number}", kind, firmware, board, guid)
    address = f"{IPOIB_HEAD}:{':'.join(guid[i : i + 2] for i in range(0, 16, 2))}"
    port(m, place, interface, address, "mlx5_core", f"{firmware} ({board})", kind=32, speed=400_000, permanent=None)


def _interface(m: Machine, path: str, name: str, mac: str, kind: int, dev_port: int, speed: int, assigned: int) -> None:
    m.put_all(
        path,
        {
            "address": mac,
            "addr_len": len(mac.split(":")),
            "addr_assign_type": assigned,
            "type": kind,
            "dev_port": dev_port,
            "dev_id": "0x0",
            "ifindex": m.next("ifindex") + 1,
            "operstate": "up",
            "speed": speed,
            "mtu": 1500,
            "flags": "0x1003",
            "uevent": f"INTERFACE={name}\nIFINDEX={m.seen['ifindex'] + 1}",
        },
    )
    m.link(f"/sys/class/net/{name}", path)


def _guid(digits: str) -> str:
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4))


def _gid(digits: str) -> str:
    return f"fe80:0000:0000:0000:{_guid(digits)}"
