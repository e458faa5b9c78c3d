"""The eight collectors, one file each, and the table of them.

A collector is `collect(ctx: Context) -> Message`: it reads through `ctx` and returns its section's message, lists sorted.
It raises SectionFailed when the section as a whole cannot be told; everything smaller is an absent field, and a file that is
there but cannot be read is in the section's `unreadable` (Files does that by itself). One more section costs a message in
inventory.proto, a row in bettercompute.contract.sections, a file and a row here.

Order matters only for a hang: `gpus` asks the driver and comes last, so that the other seven are out before it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from os import fsencode, stat_result  # never `import os` here: the section's module `os` takes that name in this package
from pathlib import Path
from typing import TypeVar

from bettercompute.agent.v1 import inventory_pb2 as pb
from google.protobuf.message import Message

from agent.errors import Unreadable
from agent.host import MAX_FILE, Host
from agent.nvml import Nvml, PynvmlNvml

T = TypeVar("T")

# Section name -> module with `collect`. Imported when first collected: the child of a hardware event that concerns disks
# must not pay for pynvml.
COLLECTORS: Mapping[str, str] = {
    "system": "agent.collectors.system",
    "os": "agent.collectors.os",
    "cpu": "agent.collectors.cpu",
    "memory": "agent.collectors.memory",
    "disks": "agent.collectors.disks",
    "nics": "agent.collectors.nics",
    "images": "agent.collectors.images",
    "gpus": "agent.collectors.gpus",
}
# What else a child of the driver is asked for: name -> module with `run(ctx: Context, arguments: Mapping[str, object]) -> bytes`,
# which raises FieldError for what happens in the field. Like `gpus`, each of them may hang in the driver. One more costs a file
# and a row here; agent/collection.py runs them and hands their bytes back.
TASKS: Mapping[str, str] = {
    "readings": "agent.collectors.readings",
    "probe": "agent.collectors.probe",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The settings that change what is collected. `cri_socket` is a path on the host; empty: not asked."""

    image_dir: str = "/var/lib/bcd/images"
    cri_socket: str = ""


@dataclass
class Files:
    """Reads of one section. A file that is absent gives None; one that cannot be read gives None and is remembered."""

    host: Host
    failures: dict[str, int] = field(default_factory=dict)

    def bytes(self, path: str, limit: int = MAX_FILE, follow: bool = True) -> bytes | None:
        """The file's bytes, or None. More than `limit` bytes, or a link that is not to be followed: not read."""
        return self._attempt(lambda: self.host.read(path, limit, follow))

    def text(self, path: str) -> str | None:
        """The file's text without blanks at its ends (bytes that are not UTF-8 replaced), or None."""
        data = self.bytes(path)
        return None if data is None else data.decode(errors="replace").strip()

    def value(self, path: str) -> str | None:
        """Like text, but an empty file is None too."""
        return self.text(path) or None

    def integer(self, path: str) -> int | None:
        """A file that holds one decimal number; None when it holds something else."""
        try:
            return int(self.text(path) or "")
        except ValueError:
            return None

    def names(self, path: str) -> list[str]:
        """The names in a directory, sorted; [] when it is absent or cannot be read (then it is remembered)."""
        return self._attempt(lambda: self.host.listdir(path)) or []

    def link(self, path: str) -> str | None:
        """The last component of a link's target (`driver -> ../../bus/pci/drivers/nvidia` gives `nvidia`), or None."""
        target = self._attempt(lambda: self.host.readlink(path))
        return target.rsplit("/", 1)[-1] if target else None

    def realpath(self, path: str) -> str | None:
        """The host path with its links followed, or None."""
        return self._attempt(lambda: self.host.realpath(path))

    def stat(self, path: str, follow: bool = True) -> stat_result | None:
        """stat(2) of the path (lstat(2) without `follow`), or None."""
        return self._attempt(lambda: self.host.stat(path, follow))

    def exists(self, path: str) -> bool:
        """Whether the path is there."""
        return self.host.exists(path)

    def unreadable(self) -> list[pb.Unreadable]:
        """What could not be read, sorted by path: a section's `unreadable`."""
        return [pb.Unreadable(path=printable(path), errno=number) for path, number in sorted(self.failures.items())]

    def _attempt(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except Unreadable as error:
            if not error.absent:
                self.failures[error.path] = error.errno
            return None


def printable(name: str) -> str:
    """A file's name as text for a message: what is not UTF-8 in it (the kernel allows any bytes) is replaced."""
    return fsencode(name).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Context:
    """What one collector is handed. `known` is the GPUs that bcd remembers by bus id (this boot's inventories first)."""

    files: Files
    nvml: Nvml
    known: tuple[pb.Gpu, ...] = ()
    options: Options = Options()

    @property
    def host(self) -> Host:
        """The host that `files` reads."""
        return self.files.host


def open_doors(host: str | None, library: str) -> tuple[Host, Nvml]:
    """A child's doors: this host's (None) or a recorded one's, whose recording answers unless `library` is a libnvidia-ml.so.1.

    Raises UserError for what is no recorded host.
    """
    if host is None:
        return Host(), PynvmlNvml(library)
    from agent.recorded import open_host, open_nvml  # a child on a real host does without

    return open_host(Path(host)), PynvmlNvml(library) if library else open_nvml(Path(host))


def collect(name: str, host: Host, nvml: Nvml, known: tuple[pb.Gpu, ...] = (), options: Options | None = None) -> Message:
    """Section `name` of `host`. Raises SectionFailed, KeyError for an unknown name."""
    module = import_module(COLLECTORS[name])
    message: Message = module.collect(Context(Files(host), nvml, known, options or Options()))
    return message


def run(name: str, ctx: Context, arguments: Mapping[str, object]) -> bytes:
    """The answer of task `name`. Raises FieldError, KeyError for an unknown name."""
    answer: bytes = import_module(TASKS[name]).run(ctx, arguments)
    return answer
