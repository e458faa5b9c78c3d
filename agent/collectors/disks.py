"""Section `disks`: the disks that are hardware of this node, and the md arrays made of them.

A disk is a whole block device of /sys/block that hangs on a bus of this machine. Left out: devices below /devices/virtual
(loop, dm, md, zram; the heads of NVMe multipath stay), NVMe path objects (`nvme0c1n1`), partitions, boot areas of eMMC,
CD-ROMs and floppies, drives without a medium (card readers, a BMC's empty virtual media), a BMC's virtual media with one
(removable, model `Virtual ...`), and disks reached over a network (iSCSI, Fibre Channel, NVMe-oF, rbd): those come and go
with the work. Two paths to one logical unit (same WWN, serial and size) are one disk.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import udev_db
from agent.collectors import Context, Files, sysfs
from agent.collectors.ata import Identify, identify, unit_serial
from agent.collectors.block import md_arrays, root_disks
from agent.collectors.pci import place

SECTOR = 512  # bytes: /sys/block/*/size counts these, whatever the disk's own sectors are
_NO_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd|nbd|zd|rbd|drbd|bcache)\d|nvme\d+c\d+n\d+$|mmcblk\d+(boot|rpmb|gp)")
_NETWORK = re.compile(r"/session\d+/|/rport-\d|/nvme-fabrics/")
_USB_DEVICE = re.compile(r"(.*/usb\d+(?:/\d+-[\d.]+)+)/")  # .../usb1/1-2/1-2.4 of .../usb1/1-2/1-2.4/1-2.4:1.0/host6/...
_BY_ID = "/dev/disk/by-id"
_NVME_HEAD = "/devices/virtual/nvme-subsystem/"
_SCSI_DISKS = (None, 0, 14, 20)  # SCSI peripheral device types: disk, reduced block commands, zoned disk; None: no SCSI

# Part of the device's path in sysfs -> how it is attached; the first that is found counts.
_TRANSPORTS = (
    (re.compile(r"/nvme\d+n\d+$"), "nvme"),
    (re.compile(r"/usb\d+/"), "usb"),
    (re.compile(r"/virtio\d+/"), "virtio"),
    (re.compile(r"/ata\d+/"), "sata"),
    (re.compile(r"/end_device-\d"), "sas"),
    (re.compile(r"/mmc_host/"), "mmc"),
    (re.compile(r"/vbd-\d"), "xen"),
    (re.compile(r"/vmbus|/VMBUS"), "vmbus"),
    (re.compile(r"/ndbus\d+/"), "pmem"),
)


@dataclass(frozen=True, slots=True)
class _Sources:
    """What one disk says of itself: its directory, the ATA identity where it has one, udev's entry when it is of this disk."""

    directory: str
    model: str | None
    wwn: str | None
    identify: Identify
    udev: Mapping[str, str]


def collect(ctx: Context) -> pb.DisksSection:
    """Reads /sys/block, udev's database or /dev/disk/by-id, and /proc/self/mountinfo. Never fails as a whole."""
    files = ctx.files
    names = files.names("/sys/block")
    root = root_disks(files)
    disks = [_disk(files, name, path, name in root) for name in names if (path := _physical(files, name))]
    return pb.DisksSection(
        disks=sorted(_units(disks), key=lambda d: (d.wwn or d.serial, d.model, d.bus_id, d.name)),
        md_arrays=md_arrays(files, names),
        unreadable=files.unreadable(),
    )


def _physical(files: Files, name: str) -> str | None:
    """The disk's path in /sys/devices, or None when this is no disk of the machine's own."""
    path = files.realpath(f"/sys/block/{name}")
    if path is None or _NO_DISK.match(name) or _NETWORK.search(path):
        return None
    if _NVME_HEAD in path:
        return _local_nvme_path(files, path)
    if "/devices/virtual/" in path or files.integer(f"{path}/device/type") not in _SCSI_DISKS:
        return None
    if files.integer(f"{path}/removable") == 1:
        virtual = (files.text(f"{path}/device/model") or "").startswith("Virtual")
        return None if virtual or not files.integer(f"{path}/size") else path
    return path


def _local_nvme_path(files: Files, head: str) -> str | None:
    """The head's path, when one of its subsystem's controllers (links `nvme3`) is not reached over a network."""
    return head if any(_controllers(files, head)) else None


def _controllers(files: Files, head: str) -> Iterator[str]:
    subsystem = head.rsplit("/", 1)[0]
    for name in files.names(subsystem):
        if re.fullmatch(r"nvme\d+", name) and (path := files.realpath(f"{subsystem}/{name}")) and not _NETWORK.search(path):
            yield path


def _disk(files: Files, name: str, path: str, root: bool) -> pb.Disk:
    found = _sources(files, path)
    controller = min(_controllers(files, path), default=path) if _NVME_HEAD in path else path
    bus, node = place(files, controller)
    sectors = sysfs.number(files.text(f"{path}/size"), bits=54)  # of 512 bytes; more is no disk
    return pb.Disk(
        name=name,
        model=_model(found),
        serial=_serial(files, found),
        wwn=found.wwn or _udev_wwn(found),
        bytes=sectors * SECTOR if sectors else None,
        rotational=_flag(files, f"{path}/queue/rotational"),
        transport=_transport(files, path),
        firmware=_firmware(files, found),
        logical_sector_bytes=sysfs.number(files.text(f"{path}/queue/logical_block_size")),
        physical_sector_bytes=sysfs.number(files.text(f"{path}/queue/physical_block_size")),
        numa_node=node,
        bus_id=bus,
        root=root,
    )


def _sources(files: Files, path: str) -> _Sources:
    model = _clean(files.text(f"{path}/device/model") or files.text(f"{path}/device/name"))
    wwn = next(filter(None, (_wwn(files.text(f"{path}/{place}")) for place in ("wwid", "device/wwid"))), None)
    identity = identify(files.bytes(f"{path}/device/vpd_pg89") or b"")
    entry = udev_db.entry(files.text(f"{path}/dev"))
    udev = udev_db.parse(files.text(entry) or "") if entry else {}
    udev = udev or udev_db.by_id(_links(files, path))
    return _Sources(path, model, wwn, identity, udev if udev_db.same_device(udev, model, wwn) else {})


def _links(files: Files, path: str) -> list[str]:
    """The names in /dev/disk/by-id that lead to the disk itself."""
    links = files.names(_BY_ID) if files.exists(_BY_ID) else []
    return [link for link in links if files.link(f"{_BY_ID}/{link}") == path.rsplit("/", 1)[-1]]


def _model(found: _Sources) -> str | None:
    """The model; of a SATA disk sysfs has 16 characters, which the ATA identity or udev (ID_MODEL_ENC) may complete."""
    whole = found.identify.model or udev_db.decode(found.udev.get("ID_MODEL_ENC", ""))
    return whole if len(found.model or "") >= 15 and whole.startswith(found.model or "") else found.model


def _serial(files: Files, found: _Sources) -> str | None:
    """NVMe and eMMC `device/serial`, virtio `serial`, SCSI's VPD page 80 or the ATA identity, else udev's, else the USB device's.

    scsi_id puts the WWN into ID_SERIAL_SHORT and the serial into ID_SCSI_SERIAL.
    """
    for path in ("device/serial", "serial"):
        if serial := _clean(files.text(f"{found.directory}/{path}")):
            return serial
    serial = unit_serial(files.bytes(f"{found.directory}/device/vpd_pg80") or b"") or found.identify.serial
    short = found.udev.get("ID_SERIAL_SHORT") if found.udev.get("ID_BUS") != "scsi" else None
    serial = serial or found.udev.get("ID_SCSI_SERIAL") or found.udev.get("SCSI_IDENT_SERIAL") or short
    usb = None if serial else _USB_DEVICE.match(found.directory)
    return _clean(files.text(f"{usb[1]}/serial")) if usb else serial


def _firmware(files: Files, found: _Sources) -> str | None:
    """NVMe `firmware_rev`; SCSI `rev`, which is half of a SATA disk's eight characters: the ATA identity or udev has all."""
    rev = _clean(files.text(f"{found.directory}/device/rev"))
    whole = found.identify.firmware or (found.udev.get("ID_REVISION") if found.udev.get("ID_BUS") == "ata" else None)
    if rev and whole and (whole.startswith(rev) or whole.endswith(rev)):
        return whole
    return _clean(files.text(f"{found.directory}/device/firmware_rev")) or rev


def _wwn(text: str | None) -> str | None:
    """`naa.5000c500a1b2c3d4`, `eui.0025385b71b00a1f`, `uuid....`. A t10 name (vendor, model, serial) is none, zeros are none.

    >>> _wwn("t10.ATA     ST16000NM001G-2KK103                    ZL2ABCDE"), _wwn("eui.0000000000000000")
    (None, None)
    """
    kind, _, digits = (text or "").strip().lower().partition(".")
    return f"{kind}.{digits}" if kind in ("naa", "eui", "uuid") and digits.strip("0-") else None


def _udev_wwn(found: _Sources) -> str | None:
    """ID_WWN_WITH_EXTENSION (a SCSI disk's whole page 83 name) or ID_WWN: `0x5000c500a1b2c3d4`, `eui.0025...`."""
    named = found.udev.get("ID_WWN_WITH_EXTENSION") or found.udev.get("ID_WWN") or ""
    return _wwn(f"naa.{named[2:]}" if named.startswith("0x") else named)


def _transport(files: Files, path: str) -> str | None:
    word = next((word for pattern, word in _TRANSPORTS if pattern.search(path)), None)
    if word == "sas" and files.text(f"{path}/device/vendor") == "ATA":
        return "sata"  # a SATA disk behind a SAS controller
    return word


def _units(disks: list[pb.Disk]) -> list[pb.Disk]:
    """One disk for each logical unit: names that share WWN, serial and size are paths to the same."""
    units: dict[object, pb.Disk] = {}
    for disk in sorted(disks, key=lambda d: (d.bus_id, d.name)):
        known = disk.wwn and disk.serial and disk.bytes
        first = units.setdefault((disk.wwn, disk.serial, disk.bytes) if known else disk.name, disk)
        first.root = first.root or disk.root
    return list(units.values())


def _flag(files: Files, path: str) -> bool | None:
    value = files.integer(path)
    return None if value is None else value == 1


def _clean(text: str | None) -> str | None:
    """Without the blanks and zero bytes that pad it on either side; nothing left is None."""
    return (text or "").strip(" \t\r\n\0") or None
