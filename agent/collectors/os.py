"""Section `os`: the distribution, the kernel and how it was started, and the container software that is installed.

Sources: /etc/os-release, uname, /proc/cmdline, /proc/pressure, /sys, the package manager's files. No program is run.
"""

import re
from collections.abc import Mapping

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors import Context, Files, cmdline, packages, sysfs
from agent.errors import Unreadable

# Runtime -> its packages by name (Docker's, Debian's, Ubuntu's, Microsoft's), and its program for hosts without dpkg.
_RUNTIMES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "containerd": (("containerd.io", "containerd", "moby-containerd"), "containerd"),
    "crio": (("cri-o",), "crio"),
    "docker": (("docker-ce", "docker.io", "moby-engine"), "dockerd"),
}
_PROGRAM_FOLDERS = ("/usr/bin", "/usr/local/bin")
_TOOLKITS = ("nvidia-container-toolkit", "nvidia-container-toolkit-base")
_FABRIC_MANAGER = re.compile(r"nvidia-fabricmanager(-\d+)?")  # the branch is part of the name in NVIDIA's repository
_WANTED_PREFIXES = ("containerd", "moby-", "cri-o", "docker", "nvidia-container-toolkit", "nvidia-fabricmanager")
_LIBRARY_FOLDERS = ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")


def collect(ctx: Context) -> pb.OsSection:
    """The section. `hugepages` is what the command line reserves, not the count of the moment."""
    files, uname = ctx.files, ctx.host.uname()
    release = os_release(files.text("/etc/os-release") or files.text("/usr/lib/os-release") or "")
    line = cmdline.arguments(files.text("/proc/cmdline") or "")
    installed = packages.dpkg_versions(files.bytes(packages.DPKG_STATUS) or b"", _WANTED_PREFIXES)
    section = pb.OsSection(
        distro_id=release.get("ID"),
        distro_version=release.get("VERSION_ID"),
        pretty_name=release.get("PRETTY_NAME"),
        kernel_release=uname.release or None,
        architecture=uname.machine or None,
        hostname=uname.hostname or None,
        kernel_command_line=_shown(line),
        cgroup_version=_cgroup_version(files),
        psi=_psi(files, ctx),
        kvm=_kvm(files),
        iommu=_iommu(files),
        hugepages=_hugepages(line),
        container_runtimes=_runtimes(files, installed),
        nvidia_container_toolkit_version=_first(installed, _TOOLKITS) or _toolkit_library(files),
        fabric_manager_version=_fabric_manager(installed),
    )
    section.unreadable.extend(files.unreadable())
    return section


def os_release(text: str) -> dict[str, str]:
    """os-release(5): shell assignments. Quotes around a value are taken off, `\\` before a quote, `$`, backquote or itself too.

        PRETTY_NAME="Ubuntu 22.04.4 LTS"
        ID=ubuntu
        VERSION_ID="22.04"

    Comments and lines of another form are skipped; of a repeated key the last stands, as in a shell; empty values are left out.
    """
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.strip().partition("=")
        if separator and not key.startswith("#"):
            values[key] = _unquoted(value.strip())
    return {key: value for key, value in values.items() if value}


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] == "'":
        return value[1:-1]
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = value[1:-1]
    return re.sub(r"\\([\"'$`\\])", r"\1", value)


def _shown(line: list[cmdline.Argument]) -> list[pb.KernelArgument]:
    arguments = [argument for item in line if (argument := cmdline.shown(item))]
    arguments.sort(key=lambda argument: (argument[0], argument[1] or ""))
    return [pb.KernelArgument(key=key, value=value) for key, value in arguments]


def _hugepages(line: list[cmdline.Argument]) -> list[pb.Hugepages]:
    found = cmdline.hugepages(line)
    return [pb.Hugepages(page_bytes=page, count=found[page]) for page in sorted(found, key=lambda page: page or 0)]


def _cgroup_version(files: Files) -> int | None:
    """2 where the unified hierarchy is the one at /sys/fs/cgroup; 1 where controllers are mounted below it (hybrid too):

    `32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu` in /proc/self/mountinfo.
    """
    if files.exists("/sys/fs/cgroup/cgroup.controllers"):
        return 2
    if " - cgroup " in (files.text("/proc/self/mountinfo") or "") or files.names("/sys/fs/cgroup"):
        return 1
    return None


def _psi(files: Files, ctx: Context) -> bool | None:
    """Whether /proc/pressure/cpu answers `some avg10=0.00 ...`; with `psi=0` it is there and gives EOPNOTSUPP."""
    try:
        return ctx.host.read("/proc/pressure/cpu").startswith(b"some ")
    except Unreadable as error:
        if error.absent:
            return False
        files.failures[error.path] = error.errno
        return None


def _kvm(files: Files) -> pb.Kvm:
    """Also by sysfs: a sandboxed service sees no /dev/kvm. `nested` of the module that is loaded: `Y` or `1`, `N` or `0`."""
    states = [files.value(f"/sys/module/{module}/parameters/nested") for module in ("kvm_intel", "kvm_amd")]
    nested = next((state in ("Y", "1") for state in states if state in ("Y", "1", "N", "0")), None)
    return pb.Kvm(available=files.exists("/dev/kvm") or files.exists("/sys/class/misc/kvm"), nested=nested)


def _iommu(files: Files) -> bool | None:
    """On when devices are in groups, or IOMMUs are registered. Absent: no /sys/kernel to ask, or no permission."""
    if files.names("/sys/kernel/iommu_groups") or files.names("/sys/class/iommu"):
        return True
    asked = files.exists("/sys/kernel") and "/sys/kernel/iommu_groups" not in files.failures
    return False if asked else None


def _runtimes(files: Files, installed: Mapping[str, str]) -> list[pb.ContainerRuntime]:
    """By package, else by program, then without a version."""
    found = []
    for name, (names, program) in _RUNTIMES.items():
        version = _first(installed, names)
        if version or any(files.exists(f"{folder}/{program}") for folder in _PROGRAM_FOLDERS):
            found.append(pb.ContainerRuntime(name=name, version=version))
    return found


def _first(installed: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((installed[name] for name in names if name in installed), None)


def _fabric_manager(installed: Mapping[str, str]) -> str | None:
    """Of several branches the newest: only one can be installed, the others are left from an upgrade."""
    versions = [version for name, version in installed.items() if _FABRIC_MANAGER.fullmatch(name)]
    return max(versions, key=lambda version: [sysfs.number(part) or 0 for part in version.split(".")], default=None)


def _toolkit_library(files: Files) -> str | None:
    """Without dpkg: the toolkit's library is of its release, `libnvidia-container.so.1 -> libnvidia-container.so.1.15.0`."""
    if not any(files.exists(f"{folder}/nvidia-ctk") for folder in _PROGRAM_FOLDERS):
        return None
    for folder in _LIBRARY_FOLDERS:
        target = files.link(f"{folder}/libnvidia-container.so.1") or ""
        if match := re.search(r"\.so\.(\d+\.\d+\.\d+)$", target):
            return match[1]
    return None
