"""Section `nics` over small trees, as real machines have them."""

import errno
from collections.abc import Mapping
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors.nics import collect
from agent.host import EthtoolInfo
from tests.agent.collectors.tree import Content, Link, context

FUNCTION = "/sys/devices/pci0000:37/0000:37:01.0/0000:38:00.0"
ETH = f"{FUNCTION}/net/eth0"
MLX = EthtoolInfo("mlx5_core", "28.39.1002 (MT_0000000838)", "0000:38:00.0", "b8:3f:d2:00:00:01")


def port(path: str, **attributes: Content) -> dict[str, Content]:
    """A network interface at `path`; its device is two directories up, as in sysfs."""
    name = path.rsplit("/", 1)[-1]
    files: dict[str, Content] = {
        f"/sys/class/net/{name}": Link("../.." + path.removeprefix("/sys")),
        f"{path}/device": Link(f"../../../{path.split('/')[-3]}"),
        f"{path}/type": "1\n",
        f"{path}/dev_port": "0\n",
    }
    return files | {f"{path}/{key}": value for key, value in attributes.items()}


def hca(path: str, **attributes: Content) -> dict[str, Content]:
    name = path.rsplit("/", 1)[-1]
    files: dict[str, Content] = {
        f"/sys/class/infiniband/{name}": Link("../.." + path.removeprefix("/sys")),
        f"{path}/device": Link(f"../../../{path.split('/')[-3]}"),
    }
    return files | {f"{path}/{key.replace('__', '/')}": value for key, value in attributes.items()}


def section(
    tmp_path: Path,
    *trees: Mapping[str, Content],
    interfaces: Mapping[str, EthtoolInfo] | None = None,
    errors: Mapping[str, int] | None = None,
) -> pb.NicsSection:
    merged = {path: content for tree in trees for path, content in tree.items()}
    return collect(context(tmp_path, merged, interfaces=interfaces, errors=errors))


def test_an_ethernet_port_whole(tmp_path: Path) -> None:
    tree = port(ETH, dev_port="1\n") | {
        f"{FUNCTION}/numa_node": "0\n",
        f"{FUNCTION}/sriov_totalvfs": "16\n",
        f"{FUNCTION}/sriov_numvfs": "0\n",
        f"{FUNCTION}/driver": Link("../../../../bus/pci/drivers/mlx5_core"),
    }
    [nic] = section(tmp_path, tree, interfaces={"eth0": MLX}).nics
    assert nic == pb.Nic(
        name="eth0",
        permanent_mac="b8:3f:d2:00:00:01",
        driver="mlx5_core",
        firmware="28.39.1002 (MT_0000000838)",
        bus_id="00000000:38:00.0",
        numa_node=0,
        kind="ethernet",
        sriov_total=16,
        sriov_configured=0,
        port=1,
    )
    assert nic.HasField("sriov_configured")


def test_what_nobody_says_is_absent(tmp_path: Path) -> None:
    [nic] = section(tmp_path, port(ETH), {f"{FUNCTION}/numa_node": "-1\n"}, interfaces={"eth0": EthtoolInfo(firmware="N/A")}).nics
    assert nic == pb.Nic(name="eth0", bus_id="00000000:38:00.0", kind="ethernet", port=0)


def test_only_physical_ports(tmp_path: Path) -> None:
    virtual: dict[str, Content] = {
        "/sys/class/net/br0": Link("../../devices/virtual/net/br0"),
        "/sys/devices/virtual/net/br0/type": "1\n",
    }
    function = port(f"{FUNCTION.removesuffix('.0')}.2/net/eth0v0") | {
        f"{FUNCTION.removesuffix('.0')}.2/physfn": Link("../0000:38:00.0")
    }
    trees: list[Mapping[str, Content]] = [
        virtual,
        function,
        port(f"{FUNCTION}/mlx5_core.sf.2/net/en3f0pf0sf88"),
        port(f"{FUNCTION}/net/eth0_0", phys_port_name="pf0vf0\n"),
        port(f"{FUNCTION}/net/ib0.8001", type="32\n", parent="ib0\n"),
        port(f"{FUNCTION}/net/can0", type="280\n"),
        {"/sys/class/net/bonding_masters": "bond0\n"},
        {"/sys/class/net/gone": Link("../../devices/nowhere/net/gone")},
    ]
    assert list(section(tmp_path, *trees).nics) == []


def test_the_uplink_of_a_switch_mode_adapter_is_a_port(tmp_path: Path) -> None:
    assert len(section(tmp_path, port(ETH, phys_port_name="p0\n")).nics) == 1


def test_a_port_name_that_the_driver_does_not_support_is_no_failure(tmp_path: Path) -> None:
    found = section(tmp_path, port(ETH), errors={f"{ETH}/phys_port_name": errno.EOPNOTSUPP})
    assert len(found.nics) == 1
    assert not found.unreadable


@pytest.mark.parametrize(
    ("assigned", "address", "mac"),
    [
        ("0\n", "B8:3F:D2:00:00:01\n", "b8:3f:d2:00:00:01"),
        ("3\n", "b8:3f:d2:00:00:01\n", ""),  # set by someone: a bond's, say
        ("1\n", "02:00:00:00:00:01\n", ""),  # random
        ("0\n", "00:00:00:00:00:00\n", ""),
    ],
)
def test_without_the_drivers_answer_only_a_permanent_address_counts(
    tmp_path: Path, assigned: str, address: str, mac: str
) -> None:
    assert section(tmp_path, port(ETH, addr_assign_type=assigned, address=address)).nics[0].permanent_mac == mac


def test_an_infiniband_port_is_named_by_its_guid(tmp_path: Path) -> None:
    macs = (
        "00:00:10:49:fe:80:00:00:00:00:00:00:b8:3f:d2:03:00:00:00:01",
        "00:00:07:21:fe:c0:00:00:00:00:00:00:b8:3f:d2:03:00:00:00:01",
    )
    for mac in macs:  # another queue pair and subnet after a reboot
        [nic] = section(
            tmp_path, port(f"{FUNCTION}/net/ib0", type="32\n"), interfaces={"ib0": EthtoolInfo(permanent_mac=mac)}
        ).nics
        assert (nic.kind, nic.permanent_mac) == ("infiniband", "b8:3f:d2:03:00:00:00:01")


def test_a_bmc_shows_its_host_a_usb_port(tmp_path: Path) -> None:
    path = "/sys/devices/pci0000:00/0000:00:14.0/usb1/1-14/1-14.2/1-14.2:2.0/net/enxbe3af2b6059f"
    driver = {
        "/sys/devices/pci0000:00/0000:00:14.0/usb1/1-14/1-14.2/1-14.2:2.0/driver": Link("../../../../bus/usb/drivers/cdc_ether")
    }
    [nic] = section(tmp_path, port(path, addr_assign_type="0\n", address="be:3a:f2:b6:05:9f\n"), driver).nics
    assert (nic.kind, nic.driver, nic.permanent_mac, nic.bus_id) == (
        "ethernet",
        "cdc_ether",
        "be:3a:f2:b6:05:9f",
        "00000000:00:14.0",
    )


def test_a_wireless_port_is_no_ethernet_port(tmp_path: Path) -> None:
    assert section(tmp_path, port(f"{FUNCTION}/net/wlp1s0", phy80211=None)).nics[0].kind == "wlan"


def test_ports_sort_by_bus_id_and_port_not_by_name(tmp_path: Path) -> None:
    other = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0"
    trees = [port(f"{FUNCTION}/net/aaa", dev_port="1\n"), port(f"{FUNCTION}/net/bbb"), port(f"{other}/net/ccc")]
    assert [n.name for n in section(tmp_path, *trees).nics] == ["ccc", "bbb", "aaa"]


def test_an_infiniband_adapter_whole(tmp_path: Path) -> None:
    tree = hca(
        f"{FUNCTION}/infiniband/mlx5_0",
        hca_type="MT4129\n",
        fw_ver="28.39.1002\n",
        board_id="MT_0000000838\n",
        node_guid="b83f:d203:0000:0001\n",
        ports__1__link_layer="InfiniBand\n",
        ports__1__gids__0="fe80:0000:0000:0000:b83f:d203:0000:0001\n",
        ports__10__link_layer="InfiniBand\n",
        ports__2__link_layer="Ethernet\n",
        ports__2__gids__0="fe80:0000:0000:0000:ba3f:d2ff:fe00:0001\n",
    )
    [found] = section(tmp_path, tree, {f"{FUNCTION}/numa_node": "1\n"}).hcas
    assert found == pb.Hca(
        name="mlx5_0",
        type="MT4129",
        firmware="28.39.1002",
        board_id="MT_0000000838",
        node_guid="b83f:d203:0000:0001",
        bus_id="00000000:38:00.0",
        numa_node=1,
        ports=[
            pb.HcaPort(number=1, guid="b83f:d203:0000:0001", link_layer="InfiniBand"),
            pb.HcaPort(number=2, link_layer="Ethernet"),
            pb.HcaPort(number=10, link_layer="InfiniBand"),
        ],
    )


def test_an_adapter_without_a_type_and_with_an_empty_guid(tmp_path: Path) -> None:
    [found] = section(tmp_path, hca(f"{FUNCTION}/infiniband/efa_0", node_guid="0000:0000:0000:0000\n")).hcas
    assert found == pb.Hca(name="efa_0", bus_id="00000000:38:00.0")


def test_virtual_adapters_are_left_out(tmp_path: Path) -> None:
    function = f"{FUNCTION.removesuffix('.0')}.3"
    trees = [
        hca(f"{function}/infiniband/mlx5_9") | {f"{function}/physfn": Link("../0000:38:00.0")},
        hca("/sys/devices/virtual/infiniband/rxe0"),
    ]
    assert list(section(tmp_path, *trees).hcas) == []


def test_reads_no_counter_no_state_and_no_rate(tmp_path: Path) -> None:
    path = f"{FUNCTION}/infiniband/mlx5_0"
    moving = ["ports/1/state", "ports/1/rate", "ports/1/counters", "ports/1/hw_counters", "ports/1/phys_state"]
    denied = {f"{path}/{name}": errno.EIO for name in moving} | {
        f"{ETH}/{name}": errno.EIO for name in ("speed", "operstate", "carrier")
    }
    found = section(tmp_path, hca(path, ports__1__link_layer="InfiniBand\n"), port(ETH), errors=denied)
    assert not found.unreadable


def test_a_guid_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = f"{FUNCTION}/infiniband/mlx5_0"
    found = section(tmp_path, hca(path), errors={f"{path}/node_guid": errno.EACCES})
    assert [(u.path, u.errno) for u in found.unreadable] == [(f"{path}/node_guid", errno.EACCES)]
