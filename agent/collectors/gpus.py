"""Section `gpus`: NVIDIA's functions on PCI (gpu_pci), the driver, and each GPU as NVML tells it (gpu_facts).

NVML is opened only where a GPU is there that should answer it. GPUs that NVML does not list and that are remembered, or named by
the driver's procfs, stay: lost while their function is the driver's, assigned while a VM's stub has it. A GPU that NVML lists in
an error hides none of the others.
"""

import re
from collections.abc import Iterable, Sequence

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors import Context, Files, gpu_pci
from agent.collectors.gpu_facts import IDENTITY, Device, Lost, cuda_version, describe, flag, identify, number, text
from agent.errors import SectionFailed
from agent.nvml import HANDLE, NvmlError
from agent.nvml_queries import ABSENT

_REASONS = {
    "DRIVER_NOT_LOADED": "DriverNotLoaded",
    "LIBRARY_NOT_FOUND": "LibraryNotFound",
    "LIB_RM_VERSION_MISMATCH": "VersionMismatch",
    "NO_PERMISSION": "NoPermission",
    "GPU_IS_LOST": "GpuLost",
    "RESET_REQUIRED": "GpuLost",
}
_WHAT_TO_DO = {
    "DriverNotLoaded": "the library is there, the kernel module is not: `modprobe nvidia`, and see the kernel log",
    "LibraryNotFound": "no libnvidia-ml.so.1 that can be loaded: install the driver's user-space part",
    "VersionMismatch": "the loaded kernel module is of another version than the library: reload it, or reboot",
    "NoPermission": "this process may not open /dev/nvidiactl or a GPU's device file",
    "GpuLost": "a GPU does not answer the driver any more: see the kernel log for its XID",
    "Error": "see the kernel log for lines of NVRM",
}
# What of a known GPU is kept while NVML cannot tell it: what it is, not how it was.
_REMEMBERED = (
    "uuid", "name", "serial", "board_part_number", "bus_id", "device_id", "subsystem_id", "vram_bytes", "architecture",
    "compute_capability",
)  # fmt: skip
_MODULE = re.compile(r"NVRM version:.*?(?P<open>Open )?Kernel Module.*?\s(?P<version>\d+\.\d+(?:\.\d+)*)\s")
_LIBRARY = "libnvidia-ml.so."
_LIBRARY_PLACES = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64",
)  # fmt: skip


def collect(ctx: Context) -> pb.GpusSection:
    """The section. Raises SectionFailed when a GPU's identity differs between two reads."""
    section = pb.GpusSection(pci_functions=gpu_pci.functions(ctx.files))
    failures: set[str] = set()
    if any(gpu_pci.expects_nvml(function) for function in section.pci_functions):
        try:
            ctx.nvml.open()
            try:
                section.gpus.extend(_ask(ctx, section, failures))
            finally:
                ctx.nvml.close()
        except NvmlError as error:
            section.error.CopyFrom(_failure(error))
    section.gpus.extend(_unlisted(ctx, section))
    _driver(ctx.files, section.driver)
    if not section.driver.ListFields():
        section.ClearField("driver")
    section.gpus.sort(key=lambda gpu: (gpu.uuid, gpu.bus_id))
    unreadable = {item.path: item for item in [*ctx.files.unreadable(), *_unreadable(failures)]}
    section.unreadable.extend(unreadable[path] for path in sorted(unreadable))
    return section


def _failure(error: NvmlError) -> pb.NvmlFailure:
    reason = _REASONS.get(error.code, "Error")
    return pb.NvmlFailure(reason=reason, message=f"{error}; {_WHAT_TO_DO[reason]}")


def _unreadable(functions: Iterable[str]) -> list[pb.Unreadable]:
    return [pb.Unreadable(path=function) for function in sorted(functions)]


# ---------------------------------------------------------------- NVML is open


def _ask(ctx: Context, section: pb.GpusSection, failures: set[str]) -> list[pb.Gpu]:
    """The GPUs that NVML lists, and what it says of the driver. Raises NvmlError when it does not answer after all."""
    confidential = _ask_driver(ctx, section.driver, failures)
    devices = [Device(ctx.nvml, index) for index in range(ctx.nvml.count())]
    listed = [(device, _first(device, confidential)) for device in devices if _reachable(device, failures)]
    for device, gpu in listed:
        if gpu.state == "ok":
            _again(device, gpu)
    gpus = []
    by_bus = {function.bus_id: function for function in section.pci_functions}
    answering = {gpu.uuid for _, gpu in listed if gpu.state == "ok"}
    known = [gpu for gpu in ctx.known if gpu.uuid not in answering]  # those that moved to another slot are not lost in the old
    for device, gpu in listed:
        if gpu.state == "lost":
            gpu = _remembered(_same(known, gpu) or gpu, "lost")
        if not gpu.uuid and gpu.state == "lost":
            failures |= device.failures
            continue
        if function := by_bus.get(gpu.bus_id):
            gpu_pci.locate(ctx.files, gpu, function)
            _width(ctx.files, device, gpu, function)
        gpu.unreadable.extend(_unreadable(device.failures))
        gpus.append(gpu)
    _distinct(gpus)
    return gpus


def _ask_driver(ctx: Context, driver: pb.NvidiaDriver, failures: set[str]) -> str | None:
    """NVML's answers about the driver, into `driver`; returns the mode of confidential compute."""

    def answer(query: str) -> object:
        try:
            return ctx.nvml.system(query)
        except NvmlError as error:
            if error.code not in ABSENT:
                failures.add(error.function)
            return None

    fields = {
        "library_version": text(answer("driverVersion")),
        "nvml_version": text(answer("nvmlVersion")),
        "cuda_version": cuda_version(answer("cudaDriverVersion")),
    }
    for name, value in fields.items():
        if value is not None:
            setattr(driver, name, value)
    state = answer("confidentialCompute")
    modes = [flag(mode) for mode in state] if isinstance(state, (list, tuple)) else []
    if len(modes) != 2 or modes[0] is None:
        return None
    driver.confidential_compute = modes[0]
    return ("devtools" if modes[1] else "on") if modes[0] else "off"


def _reachable(device: Device, failures: set[str]) -> bool:
    """Whether NVML gives a handle. Raises NvmlError without the permission to ask: then nothing is known of that GPU."""
    try:
        device.nvml.device(device.index, "uuid")
    except NvmlError as error:
        if error.function == HANDLE and error.code == "NO_PERMISSION":
            raise
        if error.function == HANDLE:
            failures.add(HANDLE)
            return False
    return True


def _first(device: Device, confidential: str | None) -> pb.Gpu:
    gpu = pb.Gpu(index=device.index, state="ok")
    try:
        identify(device, gpu)
        describe(device, gpu, confidential)
    except Lost:
        gpu.state = "lost"
    return gpu


def _again(device: Device, gpu: pb.Gpu) -> None:
    """The second read of the identity (A1). Raises SectionFailed when it differs; a GPU that is lost by now is lost."""
    again = pb.Gpu()
    try:
        identify(device, again)
    except Lost:
        gpu.state = "lost"
    for name in IDENTITY:
        first, second = getattr(gpu, name), getattr(again, name)
        if first and second and first != second:
            raise SectionFailed(
                "IdentityUnstable",
                f"GPU {gpu.index}: {name} was {first!r}, and {second!r} a moment later: the driver restarts or confuses GPUs",
            )


def _distinct(gpus: Sequence[pb.Gpu]) -> None:
    for name in ("uuid", "bus_id"):
        values = [value for gpu in gpus if (value := getattr(gpu, name))]
        if twice := sorted({value for value in values if values.count(value) > 1}):
            raise SectionFailed("IdentityUnstable", f"two GPUs say that their {name} is {', '.join(twice)}")


def _width(files: Files, device: Device, gpu: pb.Gpu, function: pb.PciFunction) -> None:
    """The lower of the GPU's maximum and its slot's: a x16 GPU in a x8 slot is x8."""
    if gpu.state == "lost":
        return
    try:
        own = number(device.ask("maxPcieWidth"))
    except Lost:
        own = None
    if widths := [*([own] if own else []), *gpu_pci.link_widths(files, function)]:
        gpu.pcie_max.width = min(widths)


# ---------------------------------------------------------------- GPUs that NVML does not list


def _unlisted(ctx: Context, section: pb.GpusSection) -> list[pb.Gpu]:
    """GPUs whose function is there: lost where NVML answers and should list them, assigned where a stub has a known one."""
    uuids, buses = {gpu.uuid for gpu in section.gpus}, {gpu.bus_id for gpu in section.gpus}
    found = []
    for function in section.pci_functions:
        if function.bus_id in buses:
            continue
        if gpu_pci.is_stub(function):
            gpu = _same(ctx.known, pb.Gpu(bus_id=function.bus_id))
        elif gpu_pci.expects_nvml(function) and not section.HasField("error"):
            gpu = _lost(ctx, function)
        else:
            continue
        if gpu is None or gpu.uuid in uuids:
            continue
        stub = gpu_pci.is_stub(function)
        gpu = _remembered(gpu, "ok" if stub else "lost")
        gpu.assigned = stub
        gpu.bus_id = function.bus_id
        gpu_pci.locate(ctx.files, gpu, function)
        uuids.add(gpu.uuid)
        found.append(gpu)
    return found


def _lost(ctx: Context, function: pb.PciFunction) -> pb.Gpu | None:
    """The GPU of a function that NVML does not list. The driver's word on which it is goes before what is remembered."""
    gpu = gpu_pci.identity(ctx.files, function)
    if known := _same(ctx.known, gpu):
        gpu.MergeFrom(_remembered(known, "lost"))
    return gpu if gpu.uuid else None


def _same(known: Iterable[pb.Gpu], gpu: pb.Gpu) -> pb.Gpu | None:
    """The known GPU with this one's UUID, or, where it could not be read, with its bus id."""
    name = "uuid" if gpu.uuid else "bus_id"
    return next((k for k in known if k.uuid and getattr(gpu, name) and getattr(k, name) == getattr(gpu, name)), None)


def _remembered(known: pb.Gpu, state: str) -> pb.Gpu:
    gpu = pb.Gpu(state=state)
    for name in _REMEMBERED:
        if value := getattr(known, name):
            setattr(gpu, name, value)
    return gpu


# ---------------------------------------------------------------- the driver, from files


def _driver(files: Files, driver: pb.NvidiaDriver) -> None:
    """The loaded module, and the library's version where NVML did not say it.

    /proc/driver/nvidia/version, first line:
        NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024
        NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U16-I3-A01-6-3)
    """
    if match := _MODULE.search(files.text("/proc/driver/nvidia/version") or ""):
        driver.module_version = match["version"]
        driver.flavour = "open" if match["open"] else "proprietary"
    elif version := files.value("/sys/module/nvidia/version"):
        driver.module_version = version
    if not driver.library_version and (version := _library_version(files)):
        driver.library_version = version


def _library_version(files: Files) -> str | None:
    """From the link that the loader follows: `libnvidia-ml.so.1 -> libnvidia-ml.so.550.90.07`."""
    for place in _LIBRARY_PLACES:
        version = (files.link(f"{place}/{_LIBRARY}1") or "").removeprefix(_LIBRARY)
        if re.fullmatch(r"\d+(\.\d+)+", version):
            return version
    return None
