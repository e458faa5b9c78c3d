"""Which PCI function a device hangs on, from the device's own path in sysfs."""

import re

from bettercompute.contract.bus_id import bus_id

from agent.collectors import Files, sysfs

_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def is_function(name: str) -> bool:
    """Whether a directory's name is a PCI function's: `0000:18:00.0`, with domains of up to eight digits."""
    return _FUNCTION.fullmatch(name) is not None


def function_directory(path: str) -> str | None:
    """The directory of the nearest PCI function on the way to a device; None when it is on no PCI bus.

    >>> function_directory("/sys/devices/pci0000:80/0000:80:01.1/0000:81:00.0/nvme/nvme0/nvme0n1")
    '/sys/devices/pci0000:80/0000:80:01.1/0000:81:00.0'
    """
    parts = path.split("/")
    for last in range(len(parts) - 1, 0, -1):
        if is_function(parts[last]):
            return "/".join(parts[: last + 1])
    return None


def place(files: Files, path: str | None) -> tuple[str | None, int | None]:
    """Bus id (NVML's form) and NUMA node of the PCI function that a device hangs on."""
    directory = function_directory(path or "")
    if directory is None:
        return None, None
    return bus_id(directory.rsplit("/", 1)[-1]), numa_node(files, directory)


def numa_node(files: Files, directory: str) -> int | None:
    """The NUMA node of the PCI function in `directory`; -1 is none."""
    return sysfs.number(files.text(f"{directory}/numa_node"), bits=31)


def is_virtual(files: Files, directory: str) -> bool:
    """Whether this is an SR-IOV function of another one: `physfn` is a link, which leads nowhere in a part of a /sys."""
    return files.link(f"{directory}/physfn") is not None
