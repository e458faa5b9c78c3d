"""The kernel command line as values. It holds secrets, so that only names are shown, and values of an allow-list (SPEC A1)."""

import re
from collections.abc import Iterator

from agent.collectors import sysfs

_SHOWN = frozenset(
    {
        "hugepages",
        "hugepagesz",
        "default_hugepagesz",
        "isolcpus",
        "nohz_full",
        "intel_iommu",
        "amd_iommu",
        "iommu",
        "pci",
        "psi",
        "mitigations",
        "crashkernel",
        "transparent_hugepage",
    }
)
_SHOWN_PREFIX = "nvidia"  # nvidia.NVreg_..., nvidia-drm.modeset
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")

Argument = tuple[str, str | None]


def arguments(text: str) -> list[Argument]:
    """The kernel's arguments in their order, values and all, as Documentation/admin-guide/kernel-parameters.rst defines them.

        BOOT_IMAGE=/vmlinuz-5.15.0 ro hugepagesz=1G hugepages=16 dyndbg="file drivers/usb/* +p" -- --init-argument

    Double quotes hold blanks together, around a value or a whole argument; so do single ones around a value (systemd's reading;
    to the kernel the rest would be names, and shown). What stands behind `--` is for init and no kernel argument.
    """
    found: list[Argument] = []
    for word in _words(text):
        if word == "--":
            break
        name, separator, value = word.partition("=")
        found.append((name, value if separator else None))
    return found


def shown(argument: Argument) -> Argument | None:
    """The argument as a section may show it: its value only if the allow-list has its name (`-` and `_` are the same to the
    kernel); None for a word that is not shaped like a parameter's name, which may be a piece of anything."""
    name, value = argument
    if not _NAME.fullmatch(name):
        return None
    plain = name.replace("-", "_")
    return name, value if plain in _SHOWN or plain.startswith(_SHOWN_PREFIX) else None


def hugepages(line: list[Argument]) -> dict[int | None, int]:
    """Page size in bytes -> pages reserved; size None is the kernel's default where the line does not name it.

    `hugepages=` belongs to the `hugepagesz=` before it, and without one to `default_hugepagesz=`, wherever that stands. Counts
    per node (`hugepages=0:8,1:8`) are summed. The first count of a size stands: the kernel ignores a second one.

    >>> hugepages(arguments("default_hugepagesz=1G hugepages=8 hugepagesz=2M hugepages=512"))
    {1073741824: 8, 2097152: 512}
    """
    default = next((sysfs.size(value) for name, value in line if name == "default_hugepagesz"), None)
    page, found = default, dict[int | None, int]()
    for name, value in line:
        if name == "hugepagesz":
            page = sysfs.size(value) or 0
        elif name == "hugepages" and page != 0 and (count := _count(value or "")):
            found.setdefault(page, count)
    return found


def _count(value: str) -> int | None:
    counts = [sysfs.number(part.rsplit(":", 1)[-1]) for part in value.split(",")]
    total = sum(count for count in counts if count)
    return None if None in counts else total


def _words(text: str) -> Iterator[str]:
    """Blanks divide, except between quotes; an opening quote without its end reaches to the end of the line."""
    for match in re.finditer(r"""(?:"[^"]*(?:"|$)|='[^']*'|\S)+""", text):
        yield match[0].replace('"', "")
