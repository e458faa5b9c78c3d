"""The recorded hosts of tests/hosts, and what may happen to a copy of one: a GPU lost, disks swapped, a reboot, an hour gone by.

    directory = copy("h100-sxm-8", tmp_path)
    lose_gpu(directory, 3)

Every change edits the copy as the kernel and the driver would show it, so the same directory serves the collectors, `bcd --host`
and the whole daemon. GPU indexes are NVML's, positions in nvml.json.
"""

import json
import os
import random
import re
import shutil
import uuid as uuids
from collections.abc import Callable
from pathlib import Path
from typing import Any

_MEMORY_STEP = 32 << 10  # KiB
_FOLDER = Path(__file__).resolve().parent / "hosts"
HOSTS: dict[str, Path] = {
    path.name: path for path in sorted(_FOLDER.iterdir()) if (path / "root").is_dir()
}  # name -> directory, in the order of names


def copy(name: str, tmp_path: Path) -> Path:
    """A copy of a recorded host that may be changed, `tmp_path/<name>`. Raises KeyError, FileExistsError."""
    target = tmp_path / name
    shutil.copytree(HOSTS[name], target, symlinks=True)
    return target


# -- GPUs


def slot_of(directory: Path, index: int) -> str:
    """The PCI address (`0000:18:00.0`) of a GPU."""
    bus_id: str = _nvml(directory)["devices"][index]["pci"]["busId"]
    return bus_id[4:].lower()


def drop_gpu(directory: Path, index: int) -> None:
    """The GPU is gone: neither NVML nor PCI shows it. The ones behind it move up by one index."""
    slot = slot_of(directory, index)
    nvml = _nvml(directory)
    del nvml["devices"][index]
    _write(directory / "nvml.json", nvml)
    _remove_function(directory, slot)
    shutil.rmtree(directory / f"root/proc/driver/nvidia/gpus/{slot}", ignore_errors=True)


def lose_gpu(directory: Path, index: int) -> None:
    """The GPU has fallen off the bus: its handle cannot be had, its function is still there, and the kernel log says Xid 79."""
    slot = slot_of(directory, index)
    nvml = _nvml(directory)
    nvml["devices"][index] = {"handle": {"error": "GPU_IS_LOST"}}
    _write(directory / "nvml.json", nvml)
    text = f"NVRM: Xid (PCI:{slot.rsplit('.', 1)[0]}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    append_kmsg(directory, text, level=4)


def wear_out_gpu(directory: Path, index: int) -> None:
    """The GPU's memory is worn out: uncorrectable errors, and no spare row is left for them. It goes on answering NVML."""
    slot = slot_of(directory, index).rsplit(".", 1)[0]
    nvml = _nvml(directory)
    errors = {"eccVolatileTotal": 3, "eccVolatileDram": 3, "eccAggregateTotal": 11, "eccAggregateDram": 11}
    nvml["devices"][index] |= {**errors, "remappedRows": [1, 8, False, True]}
    _write(directory / "nvml.json", nvml)
    for text in (
        f"NVRM: GPU at PCI:{slot}: {nvml['devices'][index]['uuid']}",
        f"NVRM: GPU Board Serial Number: {nvml['devices'][index]['serial']}",
        f"NVRM: Xid (PCI:{slot}): 48, pid=21044, name=python3, An uncorrectable double bit error (DBE) has been detected on GPU "
        "in the framebuffer at partition 5, subpartition 0.",
        f"NVRM: Xid (PCI:{slot}): 64, pid='<unknown>', name=<unknown>, Row Remapper: Failed to remap row at address 0x1a2f3c00 "
        "due to DBE",
    ):
        append_kmsg(directory, text, level=4)


def bind_vfio(directory: Path, index: int) -> None:
    """The GPU is handed to a VM: its function is bound to `vfio-pci` and NVML lists it no more."""
    slot = slot_of(directory, index)
    nvml = _nvml(directory)
    del nvml["devices"][index]
    _write(directory / "nvml.json", nvml)
    shutil.rmtree(directory / f"root/proc/driver/nvidia/gpus/{slot}", ignore_errors=True)
    root = directory / "root"
    function = (root / f"sys/bus/pci/devices/{slot}").resolve()
    old = os.readlink(function / "driver").rsplit("/", 1)[-1]
    (root / f"sys/bus/pci/drivers/{old}/{slot}").unlink()
    link = root / f"sys/bus/pci/drivers/vfio-pci/{slot}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(function, link.parent))
    (function / "driver").unlink()
    (function / "driver").symlink_to(os.path.relpath(link.parent, function))
    _edit(function / "uevent", lambda text: text.replace(f"DRIVER={old}", "DRIVER=vfio-pci"))


def nvml_init_error(directory: Path, code: str) -> None:
    """nvmlInit fails with `code`: `DRIVER_NOT_LOADED`, `LIB_RM_VERSION_MISMATCH`, `NO_PERMISSION`, ..."""
    _write(directory / "nvml.json", {**_nvml(directory), "init": {"error": code}})


def hang(directory: Path, query: str, index: int = 0) -> None:
    """An NVML call never returns: `init`, one of SYSTEM_QUERIES, or one of DEVICE_QUERIES (or `handle`) of GPU `index`."""
    nvml = _nvml(directory)
    if query in ("init", "count"):
        nvml[query] = {"hang": True}
    elif query in nvml["system"]:
        nvml["system"][query] = {"hang": True}
    else:
        nvml["devices"][index][query] = {"hang": True}
    _write(directory / "nvml.json", nvml)


def another_machine(directory: Path, seed: int) -> None:
    """The same model of host, another machine: its GPUs, its board's UUID and serial and its disks are its own."""
    dice = random.Random(seed)
    for index in range(len(_nvml(directory)["devices"])):
        put_gpu(directory, index, _uuid(dice), str(dice.randrange(10**12, 10**13)))
    for name in ("product_uuid", "product_serial", "board_serial", "chassis_serial"):
        _edit_if_there(directory / f"root/sys/class/dmi/id/{name}", lambda text: _another(text, dice))


def put_gpu(directory: Path, index: int, uuid: str, serial: str) -> None:
    """The GPU in this place is another of the same model. (Its MIG instances, if it has any, are others too.)"""
    nvml = _nvml(directory)
    device = nvml["devices"][index]
    was, number = gpu_of(directory, index)
    dice = random.Random(uuid)
    device |= {"uuid": uuid, "serial": serial}
    for instance in device.get("migInstances") or ():
        instance["uuid"] = _uuid(dice, "MIG")
    _write(directory / "nvml.json", nvml)
    told = [directory / "kmsg", *(directory / "root/proc/driver/nvidia/gpus").glob("*/information")]
    for path in told:
        _edit_if_there(path, lambda text: text.replace(was, uuid).replace(number, serial))


def gpu_of(directory: Path, index: int) -> tuple[str, str]:
    """UUID and serial of a GPU."""
    device = _nvml(directory)["devices"][index]
    return device["uuid"], device["serial"]


def merge_mig(directory: Path, index: int) -> None:
    """Somebody took away a GPU's last MIG instance."""
    nvml = _nvml(directory)
    nvml["devices"][index]["migInstances"].pop()
    _write(directory / "nvml.json", nvml)


def say_xid(directory: Path, index: int, xid: int, text: str) -> None:
    """The driver logs an XID of a GPU."""
    slot = slot_of(directory, index).rsplit(".", 1)[0]
    append_kmsg(directory, f"NVRM: Xid (PCI:{slot}): {xid}, {text}", level=4)


# -- disks


def swap_disk(directory: Path, name: str) -> None:
    """Another disk of the same model stands in the bay of NVMe disk `name`: other serial, EUI and NGUID, same place and name."""
    root = directory / "root"
    disk = (root / f"sys/block/{name}").resolve()
    above = (disk / "device").resolve()  # the controller; with multipath the subsystem, which has links to its controllers
    controllers = [above, *(path.resolve() for path in above.glob("nvme[0-9]*") if path.is_symlink())]
    serial, wwid = (above / "serial").read_text().strip(), (disk / "wwid").read_text().strip()
    new_serial = _next_serial(serial)
    for path in (path for folder in controllers for namespace in folder.glob("nvme*n[0-9]*") for path in namespace.iterdir()):
        if path.name in ("wwid", "nguid", "eui"):
            _edit(path, _next_identity)

    def replaced(text: str) -> str:
        return text.replace(serial, new_serial).replace(wwid, _next_identity(wwid))

    names = [folder / name for folder in controllers for name in ("serial", "subsysnqn")]
    for path in [*names, *_udev_files(root, serial)]:
        _edit_if_there(path, replaced)
    for link in (root / "dev/disk/by-id").glob("*"):
        if replaced(link.name) != link.name:
            link.rename(link.with_name(replaced(link.name)))


def swap_disk_names(directory: Path, a: str, b: str) -> None:
    """The next boot found NVMe disks `a` and `b` the other way round: their names swap (`nvme0`, `nvme0n1`, `nvme0n1p1`)."""
    root = directory / "root"
    first, second = a.removesuffix("n1"), b.removesuffix("n1")

    def renamed(name: str) -> str:
        return re.sub(rf"\b({first}|{second})(?=n\d|\b)", lambda found: second if found[1] == first else first, name)

    controllers = [(root / f"sys/block/{name}/device").resolve().parent for name in (a, b)]
    linked = [
        root / path for path in ("sys/block", "sys/class/block", "sys/class/nvme", "sys/dev/block", "sys/devices/virtual/block")
    ]
    for folder in [*controllers, *linked]:
        _rename_below(folder, renamed)
    numbers = [(root / f"sys/block/{name}/dev").read_text().strip() for name in (a, b)]
    for file in ("proc/mdstat", "proc/self/mountinfo", "proc/mounts", "proc/swaps"):
        _edit_if_there(root / file, renamed)
    for name, number in zip((a, b), reversed(numbers), strict=True):
        disk = (root / f"sys/block/{name}").resolve()
        (disk / "dev").write_text(f"{number}\n")
        link = root / f"sys/dev/block/{number}"
        link.unlink()
        link.symlink_to(os.path.relpath(disk, link.parent))
    _swap_udev(root, numbers[0], numbers[1], renamed)


# -- time


def new_boot(directory: Path) -> None:
    """The host was rebooted: another boot id, uptime and counters from the start, a kernel log without faults."""
    facts = _facts(directory)
    before = facts.get("bootId", "00000000-0000-4000-8000-000000000000")
    boot = before[:-4] + f"{(int(before[-4:], 16) + 1) & 0xFFFF:04x}"
    path = directory / "root/proc/sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{boot}\n")
    if (directory / "host.json").exists():
        _write(directory / "host.json", {**facts, "bootId": boot, "uptime": 61.5})
    _edit_if_there(directory / "root/proc/uptime", lambda _: "61.50 3020.44\n")
    _edit_if_there(directory / "root/sys/kernel/uevent_seqnum", lambda _: "9120\n")
    if (directory / "kmsg").exists():
        lines = (directory / "kmsg").read_text().splitlines(keepends=True)
        fault = next((number for number, line in enumerate(lines) if "NVRM: GPU at PCI:" in line or "NVRM: Xid" in line), None)
        (directory / "kmsg").write_text("".join(lines[:fault]))


def move_telemetry(directory: Path, seed: int) -> None:
    """Time passes on an idle host. Everything that moves without the hardware changing moves; no section may."""
    root, dice = directory / "root", random.Random(seed)
    _edit_if_there(
        root / "proc/cpuinfo",
        lambda text: re.sub(r"(cpu MHz\t+: )[\d.]+", lambda f: f"{f[1]}{dice.uniform(800, 3800):.3f}", text),
    )
    jitter = dice.randrange(-9_000, 9_000)
    _edit_if_there(root / "proc/meminfo", lambda text: _moved_memory(text, dice, jitter))
    for path in root.glob("sys/devices/system/node/node*/meminfo"):
        _edit(path, lambda text: _moved_memory(text, dice, jitter // 2))
    _edit_if_there(root / "proc/stat", lambda text: re.sub(r"\d{3,}", lambda f: str(int(f[0]) + dice.randrange(9_000)), text))
    for path in root.glob("proc/pressure/*"):
        _edit(path, lambda text: re.sub(r"avg10=[\d.]+", f"avg10={dice.uniform(0, 40):.2f}", text))
    _edit_if_there(root / "proc/uptime", lambda _: f"{dice.uniform(200_000, 300_000):.2f} 9120331.12\n")
    _edit_if_there(root / "proc/loadavg", lambda _: f"{dice.uniform(0, 9):.2f} 1.00 1.00 2/4000 {dice.randrange(90_000)}\n")
    _edit_if_there(root / "sys/kernel/uevent_seqnum", lambda text: f"{int(text) + dice.randrange(900)}\n")
    for path in [*root.glob("sys/class/thermal/*/temp"), *root.glob("sys/class/hwmon/*/temp*_input")]:
        path.write_text(f"{dice.randrange(30_000, 80_000)}\n")
    for path in root.glob("sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq"):
        path.write_text(f"{dice.randrange(800_000, 3_800_000)}\n")
    _move_links(root, dice)
    if (directory / "nvml.json").exists():
        _move_readings(directory, dice)


def append_kmsg(directory: Path, text: str, level: int = 6) -> None:
    """The kernel says one more line."""
    path = directory / "kmsg"
    records = [line for line in path.read_text().splitlines() if line[:1] != " "] if path.exists() else []
    sequence, stamp = (int(part) for part in records[-1].split(",")[1:3]) if records else (0, 1_000_000)
    with path.open("a") as file:
        file.write(f"{level},{sequence + 1},{stamp + 1_000_000},-;{text}\n")


def _move_links(root: Path, dice: random.Random) -> None:
    """PCIe links of GPUs and of the ports above them run slower and narrower when idle, faster and wider under load."""
    for link in sorted((root / "sys/bus/pci/devices").glob("*")):
        function = link.resolve()
        if (function / "current_link_width").exists():
            widest = int((function / "max_link_width").read_text())
            (function / "current_link_width").write_text(f"{dice.choice([w for w in (1, 2, 4, 8, 16) if w <= widest])}\n")
            (function / "current_link_speed").write_text(f"{dice.choice(['2.5', '8.0', '16.0'])} GT/s PCIe\n")


def _move_readings(directory: Path, dice: random.Random) -> None:
    """What NVML says of the moment, where it says it."""
    nvml = _nvml(directory)
    for device in nvml.get("devices", ()):
        moved = {
            "currentPcieWidth": dice.choice((1, 8, 16)),
            "currentPcieGeneration": dice.choice((1, 3, 4)),
            "utilization": [dice.randrange(101), dice.randrange(101)],
            "temperature": dice.randrange(25, 85),
            "powerUsage": dice.randrange(40_000, 690_000),
            "memoryUsed": dice.randrange(1 << 33),
            "processes": [{"pid": dice.randrange(1, 90_000), "usedBytes": 1 << 30}],
            "pcieReplayCounter": dice.randrange(900),
        }
        device.update({query: value for query, value in moved.items() if query in device})
    _write(directory / "nvml.json", nvml)


def _moved_memory(text: str, dice: random.Random, jitter: int) -> str:
    """Totals lie within 9 MB of one figure however often they move: the nearest 32 MiB, which the jitter does not leave."""

    def moved(found: re.Match[str]) -> str:
        if "MemTotal" in found[1]:
            return f"{found[1]}{(int(found[2]) + _MEMORY_STEP // 2) // _MEMORY_STEP * _MEMORY_STEP + jitter}"
        return f"{found[1]}{max(int(found[2]) + dice.randrange(-90_000, 90_000), 0)}"

    return re.sub(r"((?:MemTotal|MemFree|MemUsed|MemAvailable|Cached|Buffers|Dirty|Slab):\s+)(\d+)", moved, text)


def _remove_function(directory: Path, slot: str) -> None:
    """A PCI function and every link that leads to it; its sibling functions too: they went with the board."""
    root = directory / "root"
    for link in (root / "sys/bus/pci/devices").glob(f"{slot.rsplit('.', 1)[0]}.*"):
        function = link.resolve()
        for other in [
            link,
            *(root / "sys/bus/pci/drivers").glob(f"*/{link.name}"),
            *(root / "sys/kernel/iommu_groups").glob(f"*/devices/{link.name}"),
        ]:
            other.unlink()
        shutil.rmtree(function)


def _rename_below(folder: Path, renamed: Callable[[str], str]) -> None:
    """Renames what has the names in it, deepest first; links are written anew, for their targets have new names too."""
    for here, folders, names in os.walk(folder, topdown=False):
        for name in names + folders:
            path = Path(here, name)
            if path.is_symlink():
                _relink(path, renamed)
            if renamed(name) != name:
                path.rename(path.with_name(f"{renamed(name)}.new"))
    for here, folders, names in os.walk(folder, topdown=False):
        for name in names + folders:
            if name.endswith(".new"):
                Path(here, name).rename(Path(here, name.removesuffix(".new")))


def _relink(path: Path, renamed: Callable[[str], str]) -> None:
    target = os.readlink(path)
    if renamed(target) != target:
        path.unlink()
        path.symlink_to(renamed(target))


def _swap_udev(root: Path, first: str, second: str, renamed: Callable[[str], str]) -> None:
    """Device numbers go with the names: both database entries change places, /dev/disk/by-id points to the new names."""
    data = root / "run/udev/data"
    paths = [data / f"b{first}", data / f"b{second}"]
    if all(path.exists() for path in paths):
        texts = [path.read_text() for path in paths]
        paths[0].write_text(texts[1])
        paths[1].write_text(texts[0])
    for link in (root / "dev/disk/by-id").glob("*"):
        _relink(link, renamed)


def _udev_files(root: Path, serial: str) -> list[Path]:
    return [path for path in (root / "run/udev/data").glob("b*") if serial in path.read_text()]


def _next_serial(serial: str) -> str:
    """`S64HNE0F657BADF` becomes `S64HNE0F657SW01`, that `...SW02`."""
    count = int(serial[-2:]) + 1 if re.search(r"SW\d\d$", serial) else 1
    return f"{serial[:-4]}SW{count % 100:02}"


def _next_identity(text: str) -> str:
    """An EUI-64, NGUID or WWID with another end: its last two hexadecimal digits count up."""
    return re.sub(r"[0-9a-f]{2}(?=\s*$)", lambda found: f"{(int(found[0], 16) + 1) & 0xFF:02x}", text)


def _nvml(directory: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((directory / "nvml.json").read_text())
    return value


def _facts(directory: Path) -> dict[str, Any]:
    path = directory / "host.json"
    value: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return value


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def _edit(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text()))


def _edit_if_there(path: Path, change: Callable[[str], str]) -> None:
    if path.exists():
        _edit(path, change)


def _uuid(dice: random.Random, prefix: str = "GPU") -> str:
    return f"{prefix}-{uuids.UUID(int=dice.getrandbits(128), version=4)}"


def _another(text: str, dice: random.Random) -> str:
    """Other digits in the same form."""
    return re.sub(r"[0-9]", lambda _: str(dice.randrange(10)), text)
