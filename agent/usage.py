"""Who uses GPUs: holds, VMs, and processes that have a GPU's device file open (SPEC A7). Reads /proc and /sys, asks no driver.

A process is named from `comm`, never from its command line, which holds other people's secrets. What cannot be looked at
counts as a user of every GPU: no permission is no proof that nobody is there.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.bus_id import sysfs_bus_id

from agent.collectors import Files
from agent.collectors.gpu_pci import is_stub
from agent.errors import Unreadable
from agent.holds import EVERY, Holds
from agent.host import Host
from agent.open_files import DRM_FILE, GPU_FILE, VM, of_process

# comm of NVIDIA's fabric manager, cut as the kernel does: it may have GPUs open while nobody computes, and a reset of a GPU on
# NVSwitches needs it to run. By its comm, for it may run in a container.
FABRIC_MANAGER = "nv-fabricmanager"[:15]

_UNIT = re.compile(r"/([^/\n]+)\.service(?:/|$)", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class User:
    """One user. `what`: `hold`, `vm`, `process`, `unknown`; `devices`: GPU UUIDs, `*` is every one, none: a VM without a GPU."""

    what: str
    name: str
    devices: tuple[str, ...]
    pid: int | None = None
    unit: str = ""

    def uses(self, wanted: Collection[str]) -> bool:
        """Whether it uses one of these GPUs."""
        return EVERY in self.devices or any(device in wanted for device in self.devices)

    def describe(self) -> dict[str, Any]:
        """For a command's answer."""
        row: dict[str, Any] = {"what": self.what, "name": self.name, "devices": list(self.devices)}
        return row if self.pid is None else row | {"pid": self.pid}


Opened = Callable[[Host, str], Iterable[str]]  # what a process has open; raises Unreadable


def users(
    host: Host, holds: Holds, gpus: Sequence[pb.Gpu], ignore_units: Collection[str] = (), opened: Opened = of_process
) -> tuple[User, ...]:
    """Everyone who uses GPUs or runs a VM. `gpus` are those of the last collection; services `ignore_units` do not count."""
    files = Files(host)
    found = [*_by_hold(holds, gpus), *_by_binding(files, gpus), *_by_file(files, gpus, opened)]
    ignored = {unit for unit in ignore_units if unit}
    return tuple(user for user in found if user.unit not in ignored and (user.what, user.name) != ("process", FABRIC_MANAGER))


def fabric_manager(host: Host) -> int | None:
    """The fabric manager's process id, by the names of all processes; None: it does not run."""
    files = Files(host)
    pids = (name for name in files.names("/proc") if name.isdigit())
    return next((int(pid) for pid in pids if files.text(f"/proc/{pid}/comm") == FABRIC_MANAGER), None)


# ---- holds


def _by_hold(holds: Holds, gpus: Sequence[pb.Gpu]) -> Iterator[User]:
    of_instance = {instance.uuid: gpu.uuid for gpu in gpus for instance in gpu.mig.instances}
    for hold in holds.held:
        # A MIG instance that is not known may be any GPU's.
        devices = {of_instance.get(d, EVERY if d.startswith("MIG-") else d) for d in hold.devices}
        yield User("hold", f"{hold.id} ({hold.kind}) of {hold.owner}", tuple(sorted(devices)))
    for name, why in holds.unreadable:
        yield User("hold", f"{name}: {why}", (EVERY,))


# ---- VMs


def _by_binding(files: Files, gpus: Iterable[pb.Gpu]) -> Iterator[User]:
    """GPUs whose function is bound to a VM's driver now, whatever the last collection said."""
    for gpu in gpus:
        driver = files.link(f"{_function(gpu)}/driver") or ""
        if is_stub(pb.PciFunction(driver=driver)) or (gpu.assigned and not driver):
            yield User("vm", driver or "assigned", (gpu.uuid,))


def _function(gpu: pb.Gpu) -> str:
    return f"/sys/bus/pci/devices/{sysfs_bus_id(gpu.bus_id) if gpu.bus_id else 'unknown'}"


# ---- processes


def _by_file(files: Files, gpus: Sequence[pb.Gpu], opened_by: Opened) -> Iterator[User]:
    minors = _minors(files, gpus)
    drm = {name: gpu.uuid for gpu in gpus for name in files.names(f"{_function(gpu)}/drm")}
    hidden = 0
    for pid in (name for name in files.names("/proc") if name.isdigit()):
        try:
            opened = list(opened_by(files.host, pid))
        except Unreadable:
            hidden += 1
            continue
        devices = sorted({device for file in opened if (device := _device(file, minors, drm))})
        if devices or VM in opened:
            name, unit = files.text(f"/proc/{pid}/comm") or "?", _unit(files.text(f"/proc/{pid}/cgroup") or "")
            yield User("vm" if VM in opened else "process", name, tuple(devices), int(pid), unit)
    if hidden:
        yield User("unknown", f"{hidden} processes whose open files bcd may not see", (EVERY,))


def _device(file: str, minors: Mapping[int, str], drm: Mapping[str, str]) -> str | None:
    """The GPU whose device file this is; `*` when it is that of a GPU that is not known, None when it is none."""
    if match := GPU_FILE.search(file):
        return minors.get(int(match[1]), EVERY)
    match = DRM_FILE.search(file)
    return drm.get(match[1]) if match else None


def _minors(files: Files, gpus: Iterable[pb.Gpu]) -> dict[int, str]:
    """Minor number -> UUID: of the collection, else of the driver's /proc/driver/nvidia/gpus/0000:18:00.0/information:

    Model:           NVIDIA H100 80GB HBM3
    Device Minor:    3
    """
    found = {gpu.minor: gpu.uuid for gpu in gpus if gpu.HasField("minor")}
    for gpu in gpus:
        if gpu.bus_id and not gpu.HasField("minor"):
            text = files.text(f"/proc/driver/nvidia/gpus/{sysfs_bus_id(gpu.bus_id)}/information") or ""
            if match := _MINOR.search(text):
                found[int(match[1])] = gpu.uuid
    return found


def _unit(cgroup: str) -> str:
    """The systemd service of a process, from /proc/PID/cgroup.

    >>> _unit("0::/system.slice/nvidia-dcgm.service")
    'nvidia-dcgm'
    """
    match = _UNIT.search(cgroup)
    return match[1] if match else ""
