"""RebootRequired: what the next boot would make other than it is (SPEC A6). bcd reads the boot configuration, it writes none."""

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors import cmdline
from agent.collectors.cmdline import Argument
from agent.conditions.module import Module
from agent.errors import Unreadable
from agent.host import Host

_GIB = 1 << 30
_ISOLATION = ("isolcpus", "nohz_full")
_IOMMU = ("intel_iommu", "amd_iommu", "iommu", "iommu.passthrough", "iommu.strict")
_GRUB = ("/boot/grub/grub.cfg", "/boot/grub2/grub.cfg", "/boot/efi/EFI/redhat/grub.cfg")
_ENTRIES = "/boot/loader/entries"
_GRUB_LINE = re.compile(r"^[ \t]*linux(?:efi|16)?[ \t]+\S+[ \t]+(.*)$", re.MULTILINE)
_ENTRY_LINE = re.compile(r"^options[ \t]+(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is read for it. `now` and `configured` are kernel command lines; None: that one is not known.

    `module` is the version of the driver on disk; `distro` the packages that ask for a reboot (None: none does); `failed_resets`
    the UUIDs of GPUs whose reset failed in this boot.
    """

    now: str | None = None
    configured: str | None = None
    module: str | None = None
    distro: tuple[str, ...] | None = None
    failed_resets: frozenset[str] = frozenset()


def read(host: Host, module: Module, failed_resets: Collection[str]) -> Waiting:
    """All of it."""
    line = _text(host, "/proc/cmdline")
    return Waiting(line, configured(host), module.version(host), reboot_packages(host), frozenset(failed_resets))


def reboot_packages(host: Host) -> tuple[str, ...] | None:
    """The packages that made the distribution ask for a reboot (Debian's /run/reboot-required); None: it does not ask."""
    if not host.exists("/run/reboot-required"):
        return None
    return tuple(sorted(set((_text(host, "/run/reboot-required.pkgs") or "").split())))


def configured(host: Host) -> str | None:
    """The command line of the next boot, as the boot loader will give it: GRUB's first entry, the boot loader specification's
    newest, or kernel-install's; None when there is none of them, or none that may be read.

        menuentry 'Ubuntu' ... {
                linux   /boot/vmlinuz-5.15.0-1053-nvidia root=UUID=6d1f0c52 ro console=tty0 default_hugepagesz=1G hugepages=64
    """
    for path in _GRUB:
        if found := _GRUB_LINE.search(_text(host, path) or ""):
            return found[1]
    names = []
    with contextlib.suppress(Unreadable):
        names = [name for name in host.listdir(_ENTRIES) if name.endswith(".conf") and "rescue" not in name]
    for name in sorted(names, key=_by_version, reverse=True):
        found = _ENTRY_LINE.search(_text(host, f"{_ENTRIES}/{name}") or "")
        if found and "$" not in found[1]:  # variables of GRUB's environment: not known here
            return found[1]
    return _text(host, "/etc/kernel/cmdline") or None


def codes(waiting: Waiting, section: pb.GpusSection | None) -> dict[str, str]:
    """Reason code -> what waits, in words, in the order of the SPEC."""
    gpus = list(section.gpus) if section else []
    found = {
        "Hugepages1G": _differs(waiting, _hugepages),
        "IsolatedCpus": _differs(waiting, _values(_ISOLATION)),
        "Iommu": _differs(waiting, _values(_IOMMU)),
        "EccPending": _gpus(g for g in gpus if g.ecc.HasField("pending") and g.ecc.current != g.ecc.pending),
        "MigPending": _gpus(g for g in gpus if mig_waits(g)),
        "MigResetFailed": _gpus(g for g in gpus if mig_waits(g) and g.uuid in waiting.failed_resets),
        "DriverSwap": _swap(waiting, section),
        "Distro": None if waiting.distro is None else ", ".join(waiting.distro) or "/run/reboot-required",
    }
    return {code: words for code, words in found.items() if words}


def mig_waits(gpu: pb.Gpu) -> bool:
    """Whether its MIG mode is another after the next reset."""
    return gpu.mig.HasField("pending") and gpu.mig.current != gpu.mig.pending


def _gpus(gpus: Iterable[pb.Gpu]) -> str | None:
    return ", ".join(sorted(gpu.uuid for gpu in gpus)) or None


def _swap(waiting: Waiting, section: pb.GpusSection | None) -> str | None:
    loaded = section.driver.module_version if section else ""
    others = {"on disk": waiting.module or "", "of the library": section.driver.library_version if section else ""}
    words = [f"{version} {where}" for where, version in others.items() if loaded and version and version != loaded]
    return f"{loaded} is loaded, {' and '.join(words)}" if words else None


def _differs(waiting: Waiting, read: Callable[[list[Argument]], Mapping[str, str]]) -> str | None:
    """What the configured line sets that the running one does not. What somebody took out of the line is not missed."""
    if waiting.now is None or waiting.configured is None:
        return None
    now, then = (read(cmdline.arguments(line)) for line in (waiting.now, waiting.configured))
    return ", ".join(f"{name}={value}" for name, value in then.items() if now.get(name) != value) or None


def _hugepages(line: list[Argument]) -> dict[str, str]:
    pages = cmdline.hugepages(line).get(_GIB)
    return {"hugepages of 1 GiB": str(pages)} if pages else {}


def _values(names: Collection[str]) -> Callable[[list[Argument]], Mapping[str, str]]:
    return lambda line: {name: value or "" for name, value in line if name in names}


def _by_version(name: str) -> list[int | str]:
    return [f"{int(part):09}" if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _text(host: Host, path: str) -> str | None:
    try:
        return host.read(path).decode(errors="replace").strip()
    except Unreadable:
        return None
