"""A host in a temporary directory, made from a dict: what a collector's test needs and no more.

ctx = context(tmp_path, {"/proc/swaps": "Filename...", "/sys/class/net/eth0": Link("../../devices/pci0000:00/net/eth0")})
section = collect(ctx)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors import Context, Files, Options
from agent.host import EthtoolInfo, Host, Uname
from agent.nvml import Nvml, NvmlError

X86 = Uname("Linux", "gpu-01", "5.15.0-112-generic", "#122-Ubuntu SMP", "x86_64")
ARM = Uname("Linux", "gb200-01", "6.8.0-1013-nvidia-64k", "#14-Ubuntu SMP", "aarch64")


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link; `target` as it is written, absolute ones are absolute on the host."""

    target: str


# What stands at a path: a file's bytes or text, a link, or None for an empty directory.
Content = bytes | str | Link | None


def plant(root: Path, files: Mapping[str, Content]) -> Path:
    """Writes host paths below `root`, parents included; returns `root`. What is there already is replaced."""
    for path, content in files.items():
        here = root / path.lstrip("/")
        here.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            here.unlink(missing_ok=True)
            here.symlink_to(content.target)
        elif content is None:
            here.mkdir(exist_ok=True)
        else:
            here.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


@dataclass(frozen=True)
class TreeHost(Host):
    """The host of a tree; the facts that are no file are handed in."""

    facts: Uname = X86
    interfaces: Mapping[str, EthtoolInfo] = field(default_factory=dict)

    def uname(self) -> Uname:
        return self.facts

    def ethtool(self, interface: str) -> EthtoolInfo:
        return self.interfaces.get(interface, EthtoolInfo())

    def uptime(self) -> float:
        return 86400.0


class NoNvml:
    """A host without libnvidia-ml.so.1."""

    def open(self) -> None:
        raise NvmlError("nvmlInit_v2", "LIBRARY_NOT_FOUND")

    def close(self) -> None:
        pass

    def count(self) -> int:
        raise AssertionError("asked before it was opened")

    def system(self, query: str) -> object:
        raise AssertionError("asked before it was opened")

    def device(self, index: int, query: str) -> object:
        raise AssertionError("asked before it was opened")


def context(
    root: Path,
    files: Mapping[str, Content] | None = None,
    *,
    errors: Mapping[str, int] | None = None,
    uname: Uname = X86,
    interfaces: Mapping[str, EthtoolInfo] | None = None,
    nvml: Nvml | None = None,
    known: tuple[pb.Gpu, ...] = (),
    options: Options | None = None,
) -> Context:
    """What a collector is handed, over the tree below `root` with `files` added; `errors` as in Host."""
    host = TreeHost(plant(root, files or {}), errors or {}, uname, interfaces or {})
    return Context(Files(host), nvml or NoNvml(), known, options or Options())
