"""Section `nics`: the network ports that are hardware of this node, and its InfiniBand and RoCE adapters (HCAs).

A port is a network interface with a device behind it (`device`), USB ones included (a BMC shows one to its host, driver
`cdc_ether`). Left out: interfaces below /devices/virtual (bridges, bonds, veth, VLANs), SR-IOV functions (`physfn`) and
sub-functions, their representors on a switch-mode adapter (`phys_port_name` pf0vf3), IPoIB children (`parent`).

Nothing here asks a link: counters, state and rate move, and reading an HCA's counters costs its firmware.
"""

import re

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors import Context, Files, sysfs
from agent.collectors.pci import function_directory, is_virtual, place
from agent.host import EthtoolInfo

_KINDS = {1: "ethernet", 32: "infiniband"}  # ARPHRD_* of if_arp.h, as /sys/class/net/*/type shows them
_PERMANENT = 0  # NET_ADDR_PERM of netdevice.h: the address is the hardware's own
_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf|hpf)")
_SUBFUNCTION = re.compile(r"/mlx5_core\.sf\.\d+/")
_INFINIBAND = "InfiniBand"
_UNKNOWN_FIRMWARE = ("n/a", "unknown")


def collect(ctx: Context) -> pb.NicsSection:
    """Reads /sys/class/net, /sys/class/infiniband and the ethtool ioctl. Never fails as a whole."""
    nics = [_nic(ctx, name, path) for name in ctx.files.names("/sys/class/net") if (path := _port(ctx.files, name))]
    hcas = [
        _hca(ctx.files, name, path) for name in ctx.files.names("/sys/class/infiniband") if (path := _adapter(ctx.files, name))
    ]
    return pb.NicsSection(
        nics=sorted(nics, key=lambda n: (n.bus_id, n.port, n.permanent_mac, n.name)),
        hcas=sorted(hcas, key=lambda h: (h.bus_id, h.name)),
        unreadable=ctx.files.unreadable(),
    )


def _port(files: Files, name: str) -> str | None:
    """The interface's path in /sys/devices, or None when this is no physical port."""
    path = _hardware(files, f"/sys/class/net/{name}")
    if path is None or files.integer(f"{path}/type") not in _KINDS or files.exists(f"{path}/parent"):
        return None
    return None if _REPRESENTOR.match(files.text(f"{path}/phys_port_name") or "") else path


def _adapter(files: Files, name: str) -> str | None:
    return _hardware(files, f"/sys/class/infiniband/{name}")


def _hardware(files: Files, link: str) -> str | None:
    """Where a class device really is, when a whole device is behind it: no SR-IOV function, no sub-function, nothing virtual."""
    path = files.realpath(link)
    if path is None or "/devices/virtual/" in path or _SUBFUNCTION.search(path) or not files.exists(f"{path}/device"):
        return None
    return None if is_virtual(files, f"{path}/device") else path


def _nic(ctx: Context, name: str, path: str) -> pb.Nic:
    files, said = ctx.files, ctx.host.ethtool(name)
    function = function_directory(path)
    bus, node = place(files, path)
    return pb.Nic(
        name=name,
        permanent_mac=_mac(files, path, said),
        driver=files.link(f"{path}/device/driver") or said.driver,
        firmware=None if (said.firmware or "").lower() in _UNKNOWN_FIRMWARE else said.firmware,
        bus_id=bus,
        numa_node=node,
        kind=_kind(files, path),
        sriov_total=sysfs.number(files.text(f"{function}/sriov_totalvfs")) if function else None,
        sriov_configured=sysfs.number(files.text(f"{function}/sriov_numvfs")) if function else None,
        port=sysfs.number(files.text(f"{path}/dev_port")),
    )


def _kind(files: Files, path: str) -> str:
    return "wlan" if files.exists(f"{path}/phy80211") else _KINDS[files.integer(f"{path}/type") or 1]


def _mac(files: Files, path: str, said: EthtoolInfo) -> str | None:
    """The hardware's own address, from the driver, or from `address` while the kernel says that it is the permanent one.

    An InfiniBand address has 20 bytes, of which the last 8, the port's GUID, are the hardware's: the others are a queue pair's
    number and the subnet's prefix, which a reboot may change (`00:00:10:49:fe:80:00:00:00:00:00:00:b8:3f:d2:03:00:00:00:01`).
    """
    mac = said.permanent_mac
    if mac is None and files.integer(f"{path}/addr_assign_type") == _PERMANENT:
        mac = files.value(f"{path}/address")
    octets = (mac or "").lower().split(":")
    octets = octets[-8:] if len(octets) == 20 else octets
    return ":".join(octets) if any(octet.strip("0") for octet in octets) else None


def _hca(files: Files, name: str, path: str) -> pb.Hca:
    """`hca_type` and `board_id` are not there for every driver."""
    bus, node = place(files, path)
    numbers = [number for name in files.names(f"{path}/ports") if (number := sysfs.number(name)) is not None]
    return pb.Hca(
        name=name,
        type=files.value(f"{path}/hca_type"),
        firmware=files.value(f"{path}/fw_ver"),
        board_id=files.value(f"{path}/board_id"),
        node_guid=_guid(files.value(f"{path}/node_guid")),
        bus_id=bus,
        numa_node=node,
        ports=[_hca_port(files, f"{path}/ports/{number}", number) for number in sorted(numbers)],
    )


def _hca_port(files: Files, path: str, number: int) -> pb.HcaPort:
    """An InfiniBand port's GUID is the second half of its first GID, `fe80:0000:0000:0000:b83f:d203:0000:0001`.

    A RoCE port has none of its own: its GIDs come and go with the interface's addresses.
    """
    layer = files.value(f"{path}/link_layer")
    gid = files.value(f"{path}/gids/0") if layer == _INFINIBAND else None
    return pb.HcaPort(number=number, guid=_guid(gid), link_layer=layer)


def _guid(text: str | None) -> str | None:
    """The last four groups, `b83f:d203:0000:0001`; zeros are none."""
    groups = (text or "").lower().split(":")[-4:]
    return ":".join(groups) if len(groups) == 4 and any(group.strip("0") for group in groups) else None
