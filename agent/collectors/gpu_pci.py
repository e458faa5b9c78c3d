"""NVIDIA's functions on the PCI bus, from sysfs: GPUs, their audio and USB functions, NVSwitches (vendor 10de, class 0680);
and what the driver's procfs says of a GPU."""

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.bus_id import bus_id, sysfs_bus_id

from agent.collectors import Files, sysfs
from agent.collectors.pci import is_function, is_virtual, numa_node

_DEVICES = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_STUBS = ("pci-stub", "xen-pciback", "pciback")  # beside vfio-pci and the variant drivers, nvgrace_gpu_vfio_pci
_WIDTHS = range(1, 33)  # lanes; the kernel says 0 or 255 for a link that it does not know


def functions(files: Files) -> list[pb.PciFunction]:
    """All of vendor 10de, sorted by bus id. Of the others, which can be hundreds, only `vendor` is read."""
    names = (name for name in files.names(_DEVICES) if files.value(f"{_DEVICES}/{name}/vendor") == _NVIDIA)
    found = (_function(files, name, bus_id(name)) for name in names)
    return sorted((function for function in found if function), key=lambda f: f.bus_id)


def is_gpu(function: pb.PciFunction) -> bool:
    """Display controllers: VGA (0300) and 3D (0302). A vGPU host's SR-IOV functions are parts of one."""
    return function.class_code.startswith("03") and not function.virtual_function


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
    directories = [_directory(function)] + ([parent] if is_function(parent.rsplit("/", 1)[-1]) else [])
    widths = (files.integer(f"{directory}/max_link_width") for directory in directories)
    return [width for width in widths if width is not None and width in _WIDTHS]


def identity(files: Files, function: pb.PciFunction) -> pb.Gpu:
    """A GPU as PCI and the loaded module know it without NVML, from /proc/driver/nvidia/gpus/0000:18:00.0/information:

        Model:           NVIDIA H100 80GB HBM3
        GPU UUID:        GPU-2640f7c5-58ba-4407-a356-95c87de7ca51
        GPU Excluded:            No

    Without a UUID where the module has none (`GPU-????????-...`: it never reached the GPU), and where it was told to leave the
    GPU alone (NVreg_ExcludedGpus): nothing is wrong with that.
    """
    path = f"/proc/driver/nvidia/gpus/{sysfs_bus_id(function.bus_id)}/information"
    said = sysfs.colon_values(files.text(path) or "")
    uuid, name = said.get("GPU UUID", ""), said.get("Model", "")
    gpu = pb.Gpu(bus_id=function.bus_id, device_id=function.device_id)
    if uuid and "?" not in uuid and said.get("GPU Excluded") != "Yes":
        gpu.uuid = uuid
    if name and name != "Unknown":
        gpu.name = name
    if function.subsystem_id:
        gpu.subsystem_id = function.subsystem_id
    return gpu


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
    if (node := numa_node(files, directory)) is not None:
        function.numa_node = node
    function.virtual_function = is_virtual(files, directory)
    return function


def _hex(files: Files, path: str) -> str:
    return (files.value(path) or "").removeprefix("0x")
