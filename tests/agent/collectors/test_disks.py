"""Section `disks` over small trees, as real machines have them."""

import errno
from collections.abc import Mapping
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors.disks import collect
from tests.agent.collectors.test_ata import SERIAL_PAGE, page89
from tests.agent.collectors.tree import Content, Link, context

NVME = "/sys/devices/pci0000:80/0000:80:01.1/0000:81:00.0/nvme/nvme0/nvme0n1"
SATA = "/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda"
SAS = "/sys/devices/pci0000:17/0000:17:00.0/host1/port-1:0/end_device-1:0/target1:0:0/1:0:0:0/block/sdb"
USB = "/sys/devices/pci0000:00/0000:00:14.0/usb1/1-5/1-5:1.0/host7/target7:0:0/7:0:0:0/block/sdc"
VIRTIO = "/sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda"
LOOP = "/sys/devices/virtual/block/loop0"


def block(path: str, number: str = "8:0", /, **attributes: Content) -> dict[str, Content]:
    """A whole disk at `path`; attributes by name, `device__model` is `device/model`."""
    name = path.rsplit("/", 1)[-1]
    up = "../.." + path.removeprefix("/sys")
    files: dict[str, Content] = {
        f"/sys/block/{name}": Link(".." + path.removeprefix("/sys")),
        f"/sys/class/block/{name}": Link(up),
        f"/sys/dev/block/{number}": Link(up),
        f"{path}/dev": number + "\n",
        f"{path}/size": "2000409264\n",
    }
    return files | {f"{path}/{key.replace('__', '/')}": value for key, value in attributes.items()}


def partition(disk: str, name: str, number: str) -> dict[str, Content]:
    path = f"{disk}/{name}"
    up = "../.." + path.removeprefix("/sys")
    return {f"/sys/class/block/{name}": Link(up), f"/sys/dev/block/{number}": Link(up), f"{path}/partition": "1\n"}


def root(number: str, source: str, kind: str = "ext4") -> dict[str, Content]:
    first = "20 1 0:2 / / rw - rootfs rootfs rw\n22 27 0:21 / /proc rw - proc proc rw\n"
    last = f"27 1 {number} / / rw,relatime shared:1 - {kind} {source} rw\n"
    return {"/proc/self/mountinfo": first + last}


def disks(tmp_path: Path, *trees: Mapping[str, Content], errors: Mapping[str, int] | None = None) -> list[pb.Disk]:
    return list(section(tmp_path, *trees, errors=errors).disks)


def section(tmp_path: Path, *trees: Mapping[str, Content], errors: Mapping[str, int] | None = None) -> pb.DisksSection:
    merged = {path: content for tree in trees for path, content in tree.items()}
    return collect(context(tmp_path, merged, errors=errors))


def nvme(
    path: str = NVME, number: str = "259:0", wwid: str = "eui.0025385b71b00a1f", serial: str = "     S5GYNA0R700123"
) -> dict[str, Content]:
    return block(
        path,
        number,
        wwid=wwid,
        device__model="SAMSUNG MZQL23T8HCLS-00A07             ",
        device__serial=serial,
        device__firmware_rev="GDC5602Q",
        queue__rotational="0\n",
        queue__logical_block_size="512\n",
        queue__physical_block_size="4096\n",
    )


def test_an_nvme_disk_whole(tmp_path: Path) -> None:
    function = "/sys/devices/pci0000:80/0000:80:01.1/0000:81:00.0"
    [disk] = disks(tmp_path, nvme(), {f"{function}/numa_node": "1\n"})
    assert disk == pb.Disk(
        name="nvme0n1",
        model="SAMSUNG MZQL23T8HCLS-00A07",
        serial="S5GYNA0R700123",
        wwn="eui.0025385b71b00a1f",
        bytes=2000409264 * 512,
        rotational=False,
        transport="nvme",
        firmware="GDC5602Q",
        logical_sector_bytes=512,
        physical_sector_bytes=4096,
        numa_node=1,
        bus_id="00000000:81:00.0",
    )


def test_what_sysfs_does_not_say_is_absent(tmp_path: Path) -> None:
    [disk] = disks(tmp_path, block(VIRTIO), {"/sys/devices/pci0000:00/0000:00:02.0/numa_node": "-1\n"})
    assert disk == pb.Disk(name="vda", bytes=2000409264 * 512, transport="virtio", bus_id="00000000:00:02.0")
    assert not disk.HasField("serial")
    assert not disk.HasField("numa_node")
    assert not disk.HasField("rotational")


def test_a_domain_of_five_digits(tmp_path: Path) -> None:
    path = "/sys/devices/pci0000:80/0000:80:05.5/pci10001:80/10001:80:02.0/10001:84:00.0/nvme/nvme1/nvme1n1"
    assert disks(tmp_path, nvme(path))[0].bus_id == "00010001:84:00.0"


def test_only_physical_disks(tmp_path: Path) -> None:
    subsystem = "/sys/devices/virtual/nvme-subsystem/nvme-subsys1"
    trees: list[Mapping[str, Content]] = [
        block(LOOP, "7:0"),
        block("/sys/devices/virtual/block/dm-0", "253:0"),
        block("/sys/devices/virtual/block/zram0", "252:0"),
        block(NVME.replace("nvme0n1", "nvme0c0n1"), "259:9"),
        block("/sys/devices/pci0000:00/0000:00:17.0/ata2/host1/target1:0:0/1:0:0:0/block/sr0", "11:0", device__type="5\n"),
        block("/sys/devices/platform/floppy.0/block/fd0", "2:0"),
        block("/sys/devices/platform/host3/session1/target3:0:0/3:0:0:1/block/sdi", "8:1"),
        block("/sys/devices/virtual/nvme-fabrics/ctl/nvme4/nvme4n1", "259:4"),
        block(f"{subsystem}/nvme5n1", "259:5"),
        {
            f"{subsystem}/nvme5": Link("../../nvme-fabrics/ctl/nvme5"),
            "/sys/devices/virtual/nvme-fabrics/ctl/nvme5/transport": "tcp",
        },
        block("/sys/devices/rbd/0/block/rbd0", "251:0"),
        block("/sys/devices/platform/x/mmc_host/mmc0/mmc0:0001/block/mmcblk0/mmcblk0boot0", "179:8"),
    ]
    assert disks(tmp_path, *trees) == []


def test_the_head_of_nvme_multipath_is_a_disk_on_its_controllers_bus(tmp_path: Path) -> None:
    head = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1"
    function = "/sys/devices/pci0000:80/0000:80:01.1/0000:81:00.0"
    trees = nvme(head) | {
        "/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0": Link(
            "../../../pci0000:80/0000:80:01.1/0000:81:00.0/nvme/nvme0"
        ),
        f"{function}/nvme/nvme0/transport": "pcie\n",
        f"{function}/numa_node": "0\n",
    }
    [disk] = disks(tmp_path, trees)
    assert (disk.transport, disk.bus_id, disk.numa_node, disk.serial) == ("nvme", "00000000:81:00.0", 0, "S5GYNA0R700123")


@pytest.mark.parametrize(
    ("path", "vendor", "transport"),
    [
        (SATA, "ATA     ", "sata"),
        (SAS, "SEAGATE ", "sas"),
        (SAS, "ATA     ", "sata"),  # behind a SAS controller
        (USB, "SanDisk ", "usb"),
        ("/sys/devices/pci0000:00/0000:00:04.0/virtio3/host0/target0:0:1/0:0:1:0/block/sda", "QEMU", "virtio"),
        ("/sys/devices/pci0000:00/0000:00:05.0/host0/target0:2:0/0:2:0:0/block/sda", "BROADCOM", ""),
    ],
)
def test_the_transport_is_told_by_the_path(tmp_path: Path, path: str, vendor: str, transport: str) -> None:
    assert disks(tmp_path, block(path, device__vendor=vendor))[0].transport == transport


@pytest.mark.parametrize(
    ("path", "wwid", "wwn"),
    [
        (NVME, "eui.0000000000000000", ""),
        (NVME, "uuid.6b0c9d3e-2f1a-4c43-9d1e-aaaaaaaaaaaa", "uuid.6b0c9d3e-2f1a-4c43-9d1e-aaaaaaaaaaaa"),
        (NVME, "nvme.1af4-31-51454d55-00000001", ""),
        (NVME, "naa.0000000000000000", ""),
        (NVME, "t10.ATA     QEMU HARDDISK                           QM00001", ""),
        (NVME, "NAA.5000C500A1B2C3D4\n", "naa.5000c500a1b2c3d4"),
    ],
)
def test_a_wwn_is_one_only_when_it_names_this_disk_alone(tmp_path: Path, path: str, wwid: str, wwn: str) -> None:
    assert disks(tmp_path, block(path, wwid=wwid))[0].wwn == wwn


def test_a_sata_disk_is_named_whole_by_its_identify_page(tmp_path: Path) -> None:
    whole = {
        "device__vpd_pg89": page89("SAMSUNG MZ7L33T8HBLT-00A07", "S6ESNE0T100001", "JXTC604Q"),
        "device__vpd_pg80": SERIAL_PAGE,
    }
    [disk] = disks(tmp_path, block(SATA, device__model="SAMSUNG MZ7L33T8", device__rev="604Q", device__vendor="ATA", **whole))
    assert (disk.model, disk.firmware, disk.serial) == ("SAMSUNG MZ7L33T8HBLT-00A07", "JXTC604Q", "ZL2ABCDE")


UDEV = r"""E:ID_BUS=ata
E:ID_MODEL=SAMSUNG_MZ7L33T8HBLT-00A07
E:ID_MODEL_ENC=SAMSUNG\x20MZ7L33T8HBLT-00A07
E:ID_REVISION=JXTC604Q
E:ID_SERIAL_SHORT=S6ESNE0T100001
E:ID_WWN=0x5002538f00000001
"""


def test_udev_fills_in_what_sysfs_does_not_have(tmp_path: Path) -> None:
    [disk] = disks(tmp_path, block(SATA, device__model="SAMSUNG MZ7L33T8", device__rev="604Q"), {"/run/udev/data/b8:0": UDEV})
    assert (disk.serial, disk.wwn) == ("S6ESNE0T100001", "naa.5002538f00000001")
    assert (disk.model, disk.firmware) == ("SAMSUNG MZ7L33T8HBLT-00A07", "JXTC604Q")


def test_a_stale_udev_entry_is_not_believed(tmp_path: Path) -> None:
    [disk] = disks(tmp_path, block(SATA, device__model="ST16000NM001G-2K", device__rev="SN03"), {"/run/udev/data/b8:0": UDEV})
    assert (disk.serial, disk.wwn, disk.model, disk.firmware) == ("", "", "ST16000NM001G-2K", "SN03")


def test_without_udevs_database_its_links_still_say(tmp_path: Path) -> None:
    links: dict[str, Content] = {
        "/dev/disk/by-id/ata-SAMSUNG_MZ7L33T8HBLT-00A07_S6ESNE0T100001": Link("../../sda"),
        "/dev/disk/by-id/ata-SAMSUNG_MZ7L33T8HBLT-00A07_S6ESNE0T100001-part1": Link("../../sda1"),
        "/dev/disk/by-id/wwn-0x5002538f00000001": Link("../../sda"),
        "/dev/disk/by-id/ata-ST16000NM001G-2KK103_ZL2ABCDE": Link("../../sdb"),
    }
    found = disks(
        tmp_path, links, block(SATA, device__model="SAMSUNG MZ7L33T8"), block(SAS, "8:16", device__model="MG08ACA16TEY")
    )
    assert [(d.name, d.serial, d.wwn) for d in found] == [("sdb", "", ""), ("sda", "S6ESNE0T100001", "naa.5002538f00000001")]


def test_the_serial_of_a_sas_disk_is_not_its_wwn(tmp_path: Path) -> None:
    entry = "E:ID_BUS=scsi\nE:ID_WWN=0x5000c500a1b2c3d4\nE:ID_SERIAL_SHORT=35000c500a1b2c3d4\nE:ID_SCSI_SERIAL=ZL2ABCDE0000\n"
    [disk] = disks(tmp_path, block(SAS, device__wwid="naa.5000c500a1b2c3d4", device__rev="E004"), {"/run/udev/data/b8:0": entry})
    assert (disk.serial, disk.wwn, disk.firmware) == ("ZL2ABCDE0000", "naa.5000c500a1b2c3d4", "E004")


def test_drives_without_a_medium_and_virtual_media_are_left_out(tmp_path: Path) -> None:
    empty = block(USB, removable="1\n", size="0\n", device__model="Card  Reader")
    iso = block(USB.replace("sdc", "sdd"), "8:48", removable="1\n", device__model="Virtual HDisk0 ")
    stick = block(USB.replace("sdc", "sde"), "8:64", removable="1\n", device__model="Ultra Fit")
    assert [d.name for d in disks(tmp_path, empty, iso, stick)] == ["sde"]


def test_a_fixed_disk_that_reports_no_size_stays(tmp_path: Path) -> None:
    [disk] = disks(tmp_path, block(NVME, size="0\n"))
    assert not disk.HasField("bytes")


@pytest.mark.parametrize("junk", ["", "junk\n", "-1\n", "9" * 40, "\0\0\xff"])
def test_a_number_that_is_none_is_absent(tmp_path: Path, junk: str) -> None:
    function = {"/sys/devices/pci0000:80/0000:80:01.1/0000:81:00.0/numa_node": junk}
    [disk] = disks(tmp_path, block(NVME, size=junk, queue__logical_block_size=junk, queue__rotational=junk, dev=junk), function)
    assert not any(disk.HasField(name) for name in ("bytes", "logical_sector_bytes", "numa_node"))


def test_two_paths_to_one_unit_are_one_disk(tmp_path: Path) -> None:
    named: dict[str, Content] = {"device__wwid": "naa.5000c500a1b2c3d4", "device__vpd_pg80": SERIAL_PAGE}
    second = "/sys/devices/pci0000:65/0000:65:00.0/host2/port-2:0/end_device-2:0/target2:0:0/2:0:0:0/block/sdq"
    found = disks(tmp_path, block(second, "65:0", **named), block(SAS, "8:16", **named), root("65:0", "/dev/sdq"))
    assert [(d.name, d.root) for d in found] == [("sdb", True)]


def test_two_disks_with_one_serial_and_no_wwn_stay_two(tmp_path: Path) -> None:
    media: dict[str, Content] = {"device__vpd_pg80": bytes.fromhex("0080000d") + b"AAAABBBBCCCC3"}
    assert len(disks(tmp_path, block(SATA, **media), block(USB, "8:32", **media))) == 2


def test_names_do_not_order_disks_that_have_a_wwn(tmp_path: Path) -> None:
    other = NVME.replace("0000:81:00.0/nvme/nvme0/nvme0n1", "0000:82:00.0/nvme/nvme1/nvme1n1")
    found = disks(tmp_path, nvme(wwid="eui.0025385b71b00bbb"), nvme(other, "259:1", wwid="eui.0025385b71b00aaa"))
    assert [d.name for d in found] == ["nvme1n1", "nvme0n1"]


def test_a_serial_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    found = section(tmp_path, block(SATA), errors={f"{SATA}/device/vpd_pg80": errno.EACCES})
    assert [(u.path, u.errno) for u in found.unreadable] == [(f"{SATA}/device/vpd_pg80", errno.EACCES)]
    assert not found.disks[0].HasField("serial")


# -- the root file system


def test_the_root_partition_is_on_its_disk(tmp_path: Path) -> None:
    found = disks(tmp_path, nvme(), partition(NVME, "nvme0n1p2", "259:2"), block(SATA), root("259:2", "/dev/nvme0n1p2"))
    assert {d.name: d.root for d in found} == {"nvme0n1": True, "sda": False}


def test_root_on_lvm_on_md_is_on_every_member(tmp_path: Path) -> None:
    dm, md = "/sys/devices/virtual/block/dm-0", "/sys/devices/virtual/block/md0"
    trees: list[Mapping[str, Content]] = [
        block(SATA, "8:0"),
        partition(SATA, "sda2", "8:2"),
        block(SAS, "8:16"),
        block(USB, "8:32"),
        block(dm, "253:0", slaves__md0=Link("../../md0"), dm__name="vg-root\n"),
        block(md, "9:0", slaves__sda2=Link("../../x/sda2"), slaves__sdb=Link("../../x/sdb")),
        root("253:0", "/dev/mapper/vg-root"),
    ]
    assert {d.name: d.root for d in disks(tmp_path, *trees)} == {"sda": True, "sdb": True, "sdc": False}


@pytest.mark.parametrize("source", ["/dev/sda2", "/dev/mapper/vg-root", "/dev/disk/by-label/root"])
def test_btrfs_hides_its_device_number_and_names_its_devices(tmp_path: Path, source: str) -> None:
    trees: list[Mapping[str, Content]] = [
        block(SATA, "8:0"),
        partition(SATA, "sda2", "8:2"),
        block(SAS, "8:16"),
        block("/sys/devices/virtual/block/dm-0", "253:0", slaves__sda2=Link("../../x"), dm__name="vg-root\n"),
        {"/dev/disk/by-label/root": Link("../../sda2"), "/dev/sda2": ""},
        {f"/sys/fs/btrfs/0a1b/devices/{name}": Link("../../x") for name in ("sda2", "sdb")},
        root("0:31", source, "btrfs"),
    ]
    expected = {"sda": True, "sdb": "mapper" not in source}
    assert {d.name: d.root for d in disks(tmp_path, *trees)} == expected


@pytest.mark.parametrize("source", ["overlay", "rpool/ROOT/ubuntu", "/dev/nothing"])
def test_a_root_that_is_on_no_block_device_marks_none(tmp_path: Path, source: str) -> None:
    assert not any(d.root for d in disks(tmp_path, block(SATA), root("0:30", source, "overlay")))


def test_slaves_that_go_in_a_circle_end(tmp_path: Path) -> None:
    dm = "/sys/devices/virtual/block/dm-0"
    assert disks(tmp_path, block(dm, "253:0", **{"slaves__dm-0": Link(".")}), root("253:0", "/dev/dm-0")) == []


# -- md arrays


def test_md_arrays_with_their_members_in_slot_order(tmp_path: Path) -> None:
    md = "/sys/devices/virtual/block/md0"
    members = {
        "nvme1n1p1": ("0", "in_sync"),
        "nvme0n1p1": ("1", "in_sync,write_mostly"),
        "sdb1": ("none", "spare"),
        "sdc1": ("none", "faulty,blocked"),
    }
    tree = block(md, "9:0", md__level="raid1\n")
    for name, (slot, state) in members.items():
        tree |= {f"{md}/md/dev-{name}/slot": f"{slot}\n", f"{md}/md/dev-{name}/state": f"{state}\n"}
    entry = {"/run/udev/data/b9:0": "E:MD_UUID=3aaa0122:29827cfa:5331ad66:ca767371\n"}
    [array] = section(tmp_path, tree, entry).md_arrays
    assert (array.name, array.level, array.uuid) == ("md0", "raid1", "3aaa0122:29827cfa:5331ad66:ca767371")
    assert [(m.name, m.slot if m.HasField("slot") else None, m.state) for m in array.members] == [
        ("nvme1n1p1", 0, "in_sync"),
        ("nvme0n1p1", 1, "in_sync"),
        ("sdb1", None, "spare"),
        ("sdc1", None, "faulty"),
    ]


def test_the_array_itself_knows_its_uuid_better_than_udev(tmp_path: Path) -> None:
    tree = block("/sys/devices/virtual/block/md127", "9:127", md__uuid="3aaa0122-2982-7cfa-5331-ad66ca767371\n")
    [array] = section(tmp_path, tree, {"/run/udev/data/b9:127": "E:MD_UUID=ffffffff:0:0:0\n"}).md_arrays
    assert (array.uuid, array.HasField("level")) == ("3aaa0122:29827cfa:5331ad66:ca767371", False)


def test_a_host_without_sysfs_has_no_disks(tmp_path: Path) -> None:
    assert section(tmp_path, {"/proc/version": "x"}) == pb.DisksSection()


@pytest.mark.parametrize("device", ["usb1/1-5", "usb1/1-5/1-5.3"])
def test_a_usb_disk_without_a_serial_of_its_own_has_its_usb_device_s(tmp_path: Path, device: str) -> None:
    port = device.rsplit("/", 1)[-1]
    usb = f"/sys/devices/pci0000:00/0000:00:14.0/{device}"
    disk = f"{usb}/{port}:1.0/host7/target7:0:0/7:0:0:0/block/sdc"
    serials = {f"{usb}/serial": "4C530001230101113254\n", "/sys/devices/pci0000:00/0000:00:14.0/usb1/serial": "0000:00:14.0\n"}
    assert [d.serial for d in disks(tmp_path / "a", block(disk, device__model="Ultra\n"), serials)] == ["4C530001230101113254"]
    own = block(disk, device__model="Ultra\n", device__vpd_pg80=SERIAL_PAGE)
    assert [d.serial for d in disks(tmp_path / "b", own, serials)] == ["ZL2ABCDE"]
    assert not disks(tmp_path / "c", block(disk, device__model="Ultra\n"))[0].HasField("serial")


@pytest.mark.parametrize(("kind", "disk"), [("0", True), ("14", True), ("20", True), ("1", False), ("5", False), ("13", False)])
def test_scsi_disks_are_those_of_a_disk_s_device_type(tmp_path: Path, kind: str, disk: bool) -> None:
    assert bool(disks(tmp_path, block(SAS, device__type=kind + "\n"))) is disk
