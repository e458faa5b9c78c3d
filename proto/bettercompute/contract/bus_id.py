"""PCI bus ids in NVML's form, the only one that this project compares, stores or shows (SPEC, Names)."""

import re

_FORM = re.compile(r"^(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})(?:\.([0-7]))?$")


def bus_id(text: str) -> str | None:
    """`0000:ca:00.0`, `ca:00.0` or `0000:ca:00` as `00000000:CA:00.0`; None when it is not a bus id.

    >>> bus_id("10001:84:00.0")
    '00010001:84:00.0'
    """
    match = _FORM.match(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):08X}:{int(bus, 16):02X}:{int(device, 16):02X}.{function or '0'}"


def sysfs_bus_id(nvml_form: str) -> str:
    """The kernel's spelling: `00000000:CA:00.0` as `0000:ca:00.0`. Raises ValueError for another form."""
    domain, rest = nvml_form.split(":", 1)
    return f"{int(domain, 16):04x}:{rest.lower()}"
