"""Disks: NVMe, SCSI (SATA, USB, virtio), virtio-blk, md and device mapper, with mounts, swap and the udev database."""

from tests.hosts.compose.pci import Place
from tests.hosts.compose.tree import Machine

GB = 10**9


def nvme(
    m: Machine,
    place: Place,
    model: str,
    serial: str,
    firmware: str,
    size: int,
    eui: str = "",
    nguid: str = "",
    partitions: tuple[int, ...] = (),
    multipath: bool = False,
    sector: int = 512,
    udev: bool = True,
) -> str:
    """A controller with one namespace. `eui` 16 and `nguid` 32 digits. Gives the disk's name.

    With `multipath` the disk hangs at /sys/devices/virtual/nvme-subsystem and the controller has the path object nvmeXcYnZ.
    """
    number = m.next("nvme")
    name = f"nvme{number}n1"
    controller = f"{place.path}/nvme/nvme{number}"
    m.put_all(
        controller,
        {
            "model": f"{model:<40}",
            "serial": f"{serial:<20}",
            "firmware_rev": f"{firmware:<8}",
            "transport": "pcie",
            "numa_node": place.node,
            "address": place.path.rsplit("/", 1)[-1],
            "cntlid": 1,
            "state": "live",
            "subsysnqn": f"nqn.2014.08.org.nvmexpress:{serial}",
        },
    )
    m.link(f"{controller}/device", place.path)
    m.link(f"/sys/class/nvme/nvme{number}", controller)
    wwid = f"eui.{nguid or eui}" if nguid or eui else f"nvme.144d-{serial.encode().hex()}-{model.encode().hex()}-00000001"
    names: dict[str, str | int | None] = {"nsid": 1, "wwid": wwid, "eui": " ".join(_pairs(eui)) or None, "nguid": _nguid(nguid)}
    if multipath:
        subsystem = f"/sys/devices/virtual/nvme-subsystem/nvme-subsys{number}"
        m.put_all(
            subsystem, {"model": f"{model:<40}", "serial": f"{serial:<20}", "firmware_rev": f"{firmware:<8}", "iopolicy": "numa"}
        )
        m.link(f"{subsystem}/nvme{number}", controller)
        m.link(f"/sys/class/nvme-subsystem/nvme-subsys{number}", subsystem)
        _disk(
            m,
            f"{controller}/nvme{number}c{number}n1",
            f"nvme{number}c{number}n1",
            size,
            sector,
            sector,
            0,
            controller,
            hidden=True,
            extra=names,
        )
        home, parent = f"{subsystem}/{name}", subsystem
    else:
        home, parent = f"{controller}/{name}", controller
    device = _disk(m, home, name, size, sector, 4096 if sector == 4096 else 512, 0, parent, extra=names)
    _partitions(m, home, name, partitions, "p")
    if udev:
        by_id = f"nvme-{model}_{serial}".replace(" ", "_")
        _udev_disk(
            m,
            device,
            name,
            [by_id, f"nvme-{wwid}"],
            {
                "ID_SERIAL": by_id[5:],
                "ID_SERIAL_SHORT": serial,
                "ID_WWN": wwid,
                "ID_MODEL": model.replace(" ", "_"),
                "ID_REVISION": firmware,
                "ID_PATH": f"pci-{place.path.rsplit('/', 1)[-1]}-nvme-1",
            },
        )
    return name


def scsi(
    m: Machine,
    place: Place,
    between: str,
    vendor: str,
    model: str,
    revision: str,
    size: int,
    wwid: str = "",
    serial: str = "",
    rotational: int = 0,
    physical: int = 512,
    partitions: tuple[int, ...] = (),
    udev: dict[str, str] | None = None,
    removable: int = 0,
    inside: str = "",
) -> str:
    """A SCSI disk below its host: `between` is what lies above it, `ata1`, `usb2/2-3/2-3:1.0`, `virtio0`,
    `inside` below it, `port-0:0/end_device-0:0`. Gives the disk's name.
    """
    host = m.next("scsi-host")
    name = f"sd{chr(ord('a') + m.next('sd'))}"
    address = f"{host}:0:0:0"
    below = f"host{host}/{inside}" if inside else f"host{host}"
    device = f"{place.path}/{between}{'/' if between else ''}{below}/target{host}:0:0/{address}"
    m.put_all(
        device,
        {
            "vendor": f"{vendor:<8}",
            "model": f"{model:<16}",
            "rev": f"{revision:<4}",
            "type": 0,
            "wwid": wwid or None,
            "state": "running",
        },
    )
    if serial:
        text = f"{serial:>20}".encode() if vendor == "ATA" else serial.encode()
        m.put(f"{device}/vpd_pg80", b"\x00\x80" + len(text).to_bytes(2, "big") + text)
    if wwid.startswith("naa."):
        raw = bytes.fromhex(wwid[4:])
        m.put(f"{device}/vpd_pg83", b"\x00\x83" + (4 + len(raw)).to_bytes(2, "big") + bytes([0x01, 0x03, 0, len(raw)]) + raw)
    number = _disk(m, f"{device}/block/{name}", name, size, 512, physical, rotational, device, removable=removable)
    _partitions(m, f"{device}/block/{name}", name, partitions, "")
    if udev is not None:
        _udev_disk(m, number, name, [f"{udev.get('ID_BUS', 'scsi')}-{udev.get('ID_SERIAL', name)}"], udev)
    return name


def virtio_blk(m: Machine, place: Place, virtio: str, serial: str, size: int, partitions: tuple[int, ...] = ()) -> str:
    """A virtio-blk disk, `vda`. It has a serial only when the host gave it one."""
    name = f"vd{chr(ord('a') + m.next('vd'))}"
    device = f"{place.path}/{virtio}"
    m.put_all(device, {"vendor": "0x1af4", "device": "0x0002"})
    _disk(m, f"{device}/block/{name}", name, size, 512, 512, 1, device, extra={"serial": serial})
    _partitions(m, f"{device}/block/{name}", name, partitions, "")
    return name


def raid(m: Machine, level: str, members: tuple[str, ...], size: int, udev: bool = True) -> str:
    """An md array over partitions or disks (`nvme8n1p2`), clean. Gives its name."""
    name = f"md{m.next('md')}"
    folder = f"/sys/devices/virtual/block/{name}"
    device = _disk(
        m,
        folder,
        name,
        size,
        512,
        4096,
        0,
        None,
        extra={
            "md/level": level,
            "md/raid_disks": len(members),
            "md/metadata_version": "1.2",
            "md/array_state": "clean",
            "md/degraded": 0,
            "md/sync_action": "idle",
            "md/uuid": m.uuid(name),
        },
    )
    for slot, member in enumerate(members):
        m.put_all(f"{folder}/md/dev-{member}", {"state": "in_sync", "slot": slot, "size": size // 1024})
        m.link(f"{folder}/md/dev-{member}/block", _home(m, member))
        m.link(f"{folder}/md/rd{slot}", f"{folder}/md/dev-{member}")
        m.link(f"{folder}/slaves/{member}", _home(m, member))
        m.link(f"{_home(m, member)}/holders/{name}", folder)
    listed = " ".join(f"{member}[{slot}]" for slot, member in reversed(list(enumerate(members))))
    before = m.files.get("/proc/mdstat", b"Personalities : [raid0] [raid1] \n")
    assert isinstance(before, bytes)
    state = f"[{len(members)}/{len(members)}] [{'U' * len(members)}]"
    text = before.decode().replace("unused devices: <none>\n", "")
    m.put(
        "/proc/mdstat",
        f"{text}{name} : active {level} {listed}\n      {size // 1024} blocks super 1.2 {state}\n      bitmap: 1/4 "
        "pages [4KB], 65536KB chunk\n\n"
        "unused devices: <none>\n",
    )
    if udev:
        uuid = m.uuid(name).replace("-", "")
        colons = ":".join(uuid[i : i + 8] for i in range(0, 32, 8))
        _udev(
            m,
            f"b{device}",
            {"MD_LEVEL": level, "MD_DEVICES": str(len(members)), "MD_METADATA": "1.2", "MD_UUID": colons, "ID_FS_TYPE": "ext4"},
        )
    return name


def mapped(m: Machine, below: tuple[str, ...], name: str, uuid: str, size: int) -> str:
    """A device-mapper volume over partitions. Gives its kernel name, `dm-0`."""
    kernel = f"dm-{m.next('dm')}"
    folder = f"/sys/devices/virtual/block/{kernel}"
    _disk(m, folder, kernel, size, 512, 512, 0, None, extra={"dm/name": name, "dm/uuid": uuid, "dm/suspended": 0})
    for member in below:
        m.link(f"{folder}/slaves/{member}", _home(m, member))
        m.link(f"{_home(m, member)}/holders/{kernel}", folder)
    return kernel


def loops(m: Machine, count: int) -> None:
    """Loop devices, the first one in use by a snap: never disks of the host."""
    for index in range(count):
        _disk(m, f"/sys/devices/virtual/block/loop{index}", f"loop{index}", 66_000_000 if index == 0 else 0, 512, 512, 0, None)
    if count:
        m.put("/sys/devices/virtual/block/loop0/loop/backing_file", "/var/lib/snapd/snaps/core20_2318.snap")


def mounts(m: Machine, root: str, kind: str = "ext4", others: tuple[tuple[str, str, str], ...] = (), source: str = "") -> None:
    """/proc/self/mountinfo: `root` (a kernel name) at /, further (name, mount point, type). `source`: as mount names it."""
    rows = [("24", "0:22", "/sys", "sysfs", "sysfs"), ("25", "0:23", "/proc", "proc", "proc")]
    rows.append(("29", _number(m, root), "/", kind, source or f"/dev/{root}"))
    for index, (name, point, sort) in enumerate(others):
        rows.append((str(40 + index), _number(m, name), point, sort, f"/dev/{name}"))
    m.put(
        "/proc/self/mountinfo",
        "".join(f"{i} 1 {dev} / {point} rw,relatime shared:{i} - {sort} {source} rw\n" for i, dev, point, sort, source in rows),
    )
    m.put("/proc/mounts", "".join(f"{source} {point} {sort} rw,relatime 0 0\n" for _, _, point, sort, source in rows))


def swaps(m: Machine, areas: tuple[tuple[str, str, int], ...] = ()) -> None:
    """/proc/swaps: (path, type, KiB)."""
    head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    m.put("/proc/swaps", head + "".join(f"{path:<40}{kind}\t{kib}\t\t0\t\t-2\n" for path, kind, kib in areas))


def _disk(
    m: Machine,
    path: str,
    name: str,
    size: int,
    logical: int,
    physical: int,
    rotational: int,
    device: str | None,
    hidden: bool = False,
    removable: int = 0,
    extra: dict[str, str | int | None] | None = None,
) -> str:
    major = {"nvme": 259, "sd": 8, "md": 9, "dm": 253, "loop": 7, "vd": 252}[
        next(p for p in ("nvme", "sd", "md", "dm", "loop", "vd") if name.startswith(p))
    ]
    minor = m.next(f"minor{major}") * (16 if major in (8, 252) else 1)
    m.put_all(
        path,
        {"dev": f"{major}:{minor}", "size": size // 512, "removable": removable, "ro": 0, "hidden": int(hidden), **(extra or {})},
    )
    m.put_all(f"{path}/queue", {"rotational": rotational, "logical_block_size": logical, "physical_block_size": physical})
    if device:
        m.link(f"{path}/device", device)
    m.link(f"/sys/block/{name}", path)
    m.link(f"/sys/class/block/{name}", path)
    m.link(f"/sys/dev/block/{major}:{minor}", path)
    return f"{major}:{minor}"


def _partitions(m: Machine, home: str, name: str, sizes: tuple[int, ...], infix: str) -> None:
    for index, size in enumerate(sizes, 1):
        part = f"{home}/{name}{infix}{index}"
        major = "259" if name.startswith("nvme") else _number(m, name).split(":")[0]
        minor = m.next("minor259") if major == "259" else int(_number(m, name).split(":")[1]) + index
        m.put_all(part, {"partition": index, "size": size // 512, "dev": f"{major}:{minor}", "ro": 0})
        m.link(f"/sys/class/block/{name}{infix}{index}", part)
        m.link(f"/sys/dev/block/{major}:{minor}", part)


def _home(m: Machine, name: str) -> str:
    """The folder of a block device in /sys/devices."""
    return next(
        path.removesuffix("/dev") for path in m.files if path.endswith(f"/{name}/dev") and path.startswith("/sys/devices/")
    )


def _number(m: Machine, name: str) -> str:
    value = m.files[f"{_home(m, name)}/dev"]
    assert isinstance(value, bytes)
    return value.decode().strip()


def _udev_disk(m: Machine, number: str, name: str, by_id: list[str], properties: dict[str, str]) -> None:
    links = "".join(f"S:disk/by-id/{link}\n" for link in by_id)
    _udev(m, f"b{number}", {**properties, "ID_PART_TABLE_TYPE": "gpt"}, links)
    for link in by_id:
        m.link(f"/dev/disk/by-id/{link}", f"/dev/{name}")
    m.put(f"/dev/{name}", b"")


def _udev(m: Machine, key: str, properties: dict[str, str], links: str = "") -> None:
    body = "".join(f"E:{name}={value}\n" for name, value in properties.items())
    m.put(f"/run/udev/data/{key}", f"{links}I:{4_000_000 + len(m.files)}\n{body}G:systemd\nQ:systemd\nV:1\n")


def _pairs(digits: str) -> list[str]:
    return [digits[i : i + 2] for i in range(0, len(digits), 2)]


def _nguid(digits: str) -> str | None:
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}" if digits else None
