"""How block devices stand on each other: md arrays, and the disks below the root file system."""

import re
from collections.abc import Iterable, Sequence

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import udev_db
from agent.collectors import Files, sysfs

_STATES = ("faulty", "in_sync", "spare")  # of a member; the kernel adds others: `in_sync,write_mostly`
_DEPTH = 16  # devices on each other; more is a loop


def root_disks(files: Files) -> frozenset[str]:
    """Kernel names of the whole disks that hold the root file system.

    /proc/self/mountinfo, the last line for `/`: `29 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw`. A device number
    of a file system's own (major 0: btrfs) says nothing: then the source is followed, and btrfs names its other devices.
    """
    mount = _root_mount(files.text("/proc/self/mountinfo") or files.text("/proc/1/mountinfo") or "")
    if mount is None:
        return frozenset()
    number, source = mount
    if re.fullmatch(r"[1-9][0-9]*:[0-9]+", number):
        path = files.realpath(f"/sys/dev/block/{number}")
        return _disks_below(files, [path.rsplit("/", 1)[-1]] if path else [])
    name = _device_name(files, source)
    return _disks_below(files, _btrfs_devices(files, name) if name else [])


def _root_mount(mountinfo: str) -> tuple[str, str] | None:
    """Device number and source of the file system that is seen at `/`."""
    found = None
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        words, tail = fields.split(), rest.split()
        if len(words) > 4 and words[4] == "/" and len(tail) > 1:
            found = words[2], tail[1]
    return found


def _device_name(files: Files, source: str) -> str | None:
    """`/dev/mapper/vg-root` or `/dev/disk/by-uuid/...` as the kernel's name, `dm-0`."""
    if not source.startswith("/dev/"):
        return None
    if files.exists(f"/sys/class/block/{source[5:]}"):
        return source[5:]
    for name in files.names("/sys/block"):
        if name.startswith("dm-") and files.text(f"/sys/block/{name}/dm/name") == source.removeprefix("/dev/mapper/"):
            return name
    path = files.realpath(source)
    return path.rsplit("/", 1)[-1] if path else None


def _btrfs_devices(files: Files, name: str) -> list[str]:
    """All the devices of the btrfs that `name` belongs to; `name` alone when it is of none."""
    for fsid in files.names("/sys/fs/btrfs"):
        devices = files.names(f"/sys/fs/btrfs/{fsid}/devices")
        if name in devices:
            return devices
    return [name]


def _disks_below(files: Files, names: Iterable[str]) -> frozenset[str]:
    """Whole disks below the devices `names`: a partition stands on its disk, dm and md on their `slaves`."""
    disks: set[str] = set()
    level = set(names)
    for _ in range(_DEPTH):
        below: set[str] = set()
        for name in level:
            path = files.realpath(f"/sys/class/block/{name}") or files.realpath(f"/sys/block/{name}")
            if path is None:
                continue
            if files.exists(f"{path}/partition"):
                below.add(path.split("/")[-2])
            elif slaves := files.names(f"{path}/slaves"):
                below.update(slaves)
            else:
                disks.add(name)
        level = below
    return frozenset(disks)


def md_arrays(files: Files, names: Sequence[str]) -> list[pb.MdArray]:
    """The md arrays among the block devices `names`, from /sys/block/md*/md."""
    arrays = [_md_array(files, name) for name in names if re.match(r"md[\d_]", name) and files.exists(f"/sys/block/{name}/md")]
    return sorted(arrays, key=lambda a: (a.uuid, a.name))


def _md_array(files: Files, name: str) -> pb.MdArray:
    md = f"/sys/block/{name}/md"
    members = [_member(files, f"{md}/{entry}") for entry in files.names(md) if entry.startswith("dev-")]
    return pb.MdArray(
        name=name,
        level=files.value(f"{md}/level"),
        uuid=_md_uuid(files.text(f"{md}/uuid")) or _md_uuid(_udev_property(files, name, "MD_UUID")),
        members=sorted(members, key=lambda m: (m.slot if m.HasField("slot") else 1 << 31, m.name)),
    )


def _member(files: Files, path: str) -> pb.MdMember:
    """`slot` is a number or `none` (a spare); `state` words with commas: `in_sync,write_mostly`."""
    words = (files.text(f"{path}/state") or "").split(",")
    return pb.MdMember(
        name=path.rsplit("/dev-", 1)[-1],
        slot=sysfs.number(files.text(f"{path}/slot")),
        state=next((word for word in _STATES if word in words), words[0]) or None,
    )


def _md_uuid(text: str | None) -> str | None:
    """The array's UUID as mdadm prints it, `3aaa0122:29827cfa:5331ad66:ca767371`; sysfs groups it in another way."""
    digits = re.sub(r"[^0-9a-f]", "", (text or "").lower())
    return ":".join(digits[i : i + 8] for i in range(0, 32, 8)) if len(digits) == 32 and digits.strip("0") else None


def _udev_property(files: Files, name: str, key: str) -> str | None:
    entry = udev_db.entry(files.text(f"/sys/block/{name}/dev"))
    return udev_db.parse(files.text(entry) or "").get(key) if entry else None
