"""NVIDIA's functions on the PCI bus, from sysfs: GPUs, their audio and USB functions, NVSwitches (vendor 10de, class 0680)."""

import re

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.bus_id import bus_id, sysfs_bus_id

from agent.collectors import Files
from agent.collectors.sysfs import number

_DEVICES = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_STUBS = ("pci-stub", "xen-pciback", "pciback")  # beside vfio-pci and the variant drivers, nvgrace_gpu_vfio_pci
_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_WIDTHS = range(1, 33)  # lanes; the kernel says 0 or 255 for a link that it does not know


def functions(files: Files) -> list[pb.PciFunction]:
    """All of vendor 10de, sorted by bus id. Of the others, which can be hundreds, only `vendor` is read."""
    names = (name for name in files.names(_DEVICES) if files.value(f"{_DEVICES}/{name}/vendor") == _NVIDIA)
    found = (_function(files, name, bus_id(name)) for name in names)
    return sorted((function for function in found if function), key=lambda f: f.bus_id)


def is_gpu(function: pb.PciFunction) -> bool:
    """Display controllers: VGA (0300) and 3D (0302)."""
    return function.class_code.startswith("03")


def is_stub(function: pb.PciFunction) -> bool:
    """Whether it is bound to a driver that holds it for a VM: A1's *assigned*."""
    return "vfio" in function.driver or function.driver in _STUBS


def expects_nvml(function: pb.PciFunction) -> bool:
    """Whether NVML should list it: a GPU that is bound to `nvidia`, or to nothing, which is a driver that did not come."""
    return is_gpu(function) and function.driver in ("", "nvidia")


def locate(files: Files, gpu: pb.Gpu, function: pb.PciFunction) -> None:
    """Writes what the bus says of where the GPU is: NUMA node, and the CPUs near it (`local_cpulist`: `0-47,96-143`)."""
    if function.HasField("numa_node"):
        gpu.numa_node = function.numa_node
    if cpus := files.value(f"{_directory(function)}/local_cpulist"):
        gpu.cpu_affinity = cpus


def link_widths(files: Files, function: pb.PciFunction) -> list[int]:
    """`max_link_width` of the function and of the port above it, its slot; those that say a width.

    The port is the parent in `/sys/devices/pci0000:16/0000:16:01.0/0000:18:00.0`; on a VM's root bus there is none.
    """
    path = files.realpath(_directory(function)) or ""
    parent = path.rsplit("/", 1)[0]
    directories = [_directory(function)] + ([parent] if _FUNCTION.fullmatch(parent.rsplit("/", 1)[-1]) else [])
    widths = (files.integer(f"{directory}/max_link_width") for directory in directories)
    return [width for width in widths if width is not None and width in _WIDTHS]


def _directory(function: pb.PciFunction) -> str:
    return f"{_DEVICES}/{sysfs_bus_id(function.bus_id)}"


def _function(files: Files, name: str, form: str | None) -> pb.PciFunction | None:
    """One function from its directory: `device` 0x2330, `subsystem_vendor` 0x10de, `class` 0x030200, `driver` -> .../nvidia."""
    if form is None:
        return None
    directory = f"{_DEVICES}/{name}"
    function = pb.PciFunction(
        bus_id=form, device_id=_hex(files, f"{directory}/device"), class_code=_hex(files, f"{directory}/class")
    )
    vendor, device = _hex(files, f"{directory}/subsystem_vendor"), _hex(files, f"{directory}/subsystem_device")
    if vendor.strip("0") and device:
        function.subsystem_id = f"{vendor}:{device}"
    if driver := files.link(f"{directory}/driver"):
        function.driver = driver
    node = number(files.value(f"{directory}/numa_node"), bits=31)
    if node is not None:
        function.numa_node = node
    return function


def _hex(files: Files, path: str) -> str:
    return (files.value(path) or "").removeprefix("0x")
