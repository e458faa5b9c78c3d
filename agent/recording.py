"""The doors that record what goes through them, and the child process of `bcd capture` (`python -m agent.recording`).

The child collects every section through a Recorder and a RecordingNvml. Files go into DIR/root at once; all else it tells its
parent (agent/recorder.py) as lines of JSON on standard output while it happens, so that a driver call that never returns is
the last thing the parent heard of: `{"fact": ["errors", "/sys/...", 13]}`, `{"nvml": ["device", 0, "uuid"]}` when a call
begins, the same with `"answer"` when it has returned, and `{"section": "cpu", "failed": null}` at the end of each.
"""

import contextlib
import errno
import json
import math
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

from agent import pressure
from agent.collectors import COLLECTORS, Context, Files, Options, collect, open_doors, run
from agent.conditions import external
from agent.conditions.reboot import reboot_packages
from agent.errors import FieldError, Unreadable
from agent.host import MAX_FILE, CriImage, EthtoolInfo, Host, Uname
from agent.nvml import Nvml, NvmlError
from agent.usage import fabric_manager

Note = Callable[[dict[str, object]], None]
_TASKS = ("readings", "probe")  # of agent.collectors.TASKS, those that doctor, diagnoses and the daemon ask of a recorded host


@dataclass(frozen=True)
class Recorder(Host):
    """A host that answers as `source` does, and copies what it answers below `out` and into `note`.

    Links stay links, with those that a path runs through. A file that was only listed or looked for is there, empty, and so is
    one file of a directory that was only listed or looked for: git keeps no directory without one. What is absent leaves nothing.
    """

    source: Host = field(default_factory=Host)
    out: Path = Path()
    note: Note = print

    def read(self, path: str, limit: int = MAX_FILE, follow: bool = True) -> bytes:
        """As the source's; copies the bytes."""
        try:
            data = self.source.read(path, limit, follow)
        except Unreadable as error:
            self._failed(error, errno.EISDIR, errno.ELOOP)
            raise
        self._at(path, follow).write_bytes(data)
        return data

    def read_at(self, path: str, offset: int, size: int) -> bytes:
        """As the source's; copies these bytes to where they stood, the rest is a hole."""
        try:
            data = self.source.read_at(path, offset, size)
        except Unreadable as error:
            self._failed(error, errno.EISDIR)
            raise
        here = self._at(path)
        here.touch()
        with here.open("r+b") as file:
            file.seek(offset)
            file.write(data)
        return data

    def listdir(self, path: str) -> list[str]:
        """As the source's; each name is there in the copy, as a link, a directory or an empty file."""
        try:
            names = self.source.listdir(path)
        except Unreadable as error:
            self._failed(error, errno.ENOTDIR)
            raise
        self._at(path).mkdir(exist_ok=True)
        for name in names:
            self._place(f"{path}/{name}", follow=False)
        return names

    def readlink(self, path: str) -> str:
        """As the source's; copies the link."""
        try:
            target = self.source.readlink(path)
        except Unreadable as error:
            self._failed(error, errno.EINVAL)
            raise
        self._place(path, follow=False)
        return target

    def exists(self, path: str) -> bool:
        """As the source's; what is there is there in the copy."""
        there = self.source.exists(path)
        if there:
            self._place(path)
        return there

    def stat(self, path: str, follow: bool = True) -> os.stat_result:
        """As the source's; a regular file's size is noted, since its bytes may never be read."""
        status = self.source.stat(path, follow)
        self._place(path, follow)
        if stat.S_ISREG(status.st_mode):
            self._fact("sizes", path, status.st_size)
        return status

    def realpath(self, path: str) -> str:
        """As the source's; what is there is there in the copy."""
        real = self.source.realpath(path)
        self._place(path)
        return real

    def boot_id(self) -> str:
        """As the source's."""
        return self._noted("bootId", self.source.boot_id())

    def uname(self) -> Uname:
        """As the source's."""
        name = self.source.uname()
        self.note({"fact": ["uname", asdict(name)]})
        return name

    def uptime(self) -> float:
        """As the source's."""
        seconds = self.source.uptime()
        if math.isfinite(seconds):  # a recorded host that does not say
            self.note({"fact": ["uptime", seconds]})
        return seconds

    def ethtool(self, interface: str) -> EthtoolInfo:
        """As the source's."""
        said = self.source.ethtool(interface)
        words = {"driver": said.driver, "firmware": said.firmware, "busInfo": said.bus_info, "permanentMac": said.permanent_mac}
        self._fact("ethtool", interface, {key: word for key, word in words.items() if word is not None})
        return said

    def cri_images(self, socket: str) -> tuple[CriImage, ...]:
        """As the source's; its failure is noted too."""
        try:
            images = self.source.cri_images(socket)
        except Unreadable as error:
            self.note({"fact": ["cri", {"error": error.errno}]})
            raise
        entries = [{key: value for key, value in asdict(image).items() if value is not None} for image in images]
        self.note({"fact": ["cri", entries]})
        return images

    def _noted(self, key: str, value: str) -> str:
        self.note({"fact": [key, value]})
        return value

    def _fact(self, table: str, key: str, value: object) -> None:
        self.note({"fact": [table, key, value]})

    def _failed(self, error: Unreadable, *by_kind: int) -> None:
        """Notes a failure that reading the copy would not give by itself. `by_kind`: it will, once the node is there."""
        if error.errno in by_kind:
            self._place(error.path, follow=False)
        elif error.errno not in (errno.ENOENT, errno.ENOTDIR) or self._listed(error.path):
            self._fact("errors", error.path, error.errno)

    def _listed(self, path: str) -> bool:
        try:
            return self.source.stat(path, follow=False) is not None
        except Unreadable:
            return False

    def _place(self, path: str, follow: bool = True) -> None:
        """The link, directory or (empty) file at `path`; nothing when it has gone meanwhile."""
        try:
            mode = self.source.stat(path, follow).st_mode
        except Unreadable:
            return
        here = self._at(path, follow)
        if stat.S_ISLNK(mode):
            _link(here, os.readlink(self.source.walk(path, follow_last=False)))
        elif stat.S_ISDIR(mode):
            here.mkdir(exist_ok=True)
            if not any(entry.is_file() for entry in here.iterdir()):
                self._place_one_file(path)
        elif not here.exists():
            here.touch()

    def _place_one_file(self, directory: str) -> None:
        try:
            for path in (f"{directory}/{name}" for name in self.source.listdir(directory)):
                if stat.S_ISREG(self.source.stat(path, follow=False).st_mode):
                    self._at(path, follow=False).touch()
                    return
        except Unreadable:  # it cannot be listed, or has gone meanwhile
            return

    def _at(self, path: str, follow: bool = True) -> Path:
        """Where `path` stands in the copy, with its parents and the links on its way made."""
        real = self.source.walk(path, follow, lambda here, target: _link(self._copy_of(here), target))
        here = self._copy_of(real)
        here.parent.mkdir(parents=True, exist_ok=True)
        return here

    def _copy_of(self, real: Path) -> Path:
        return self.out / real.relative_to(self.source.root)


def _link(here: Path, target: str) -> None:
    here.parent.mkdir(parents=True, exist_ok=True)
    if not here.is_symlink():
        here.symlink_to(target)


class RecordingNvml:
    """An NVML that answers as `source` does and notes each call before it is made and when it has returned."""

    def __init__(self, source: Nvml, note: Note) -> None:
        self._source = source
        self._note = note

    def open(self) -> None:
        """As the source's."""
        self._asked(["init"], self._source.open)

    def close(self) -> None:
        """As the source's."""
        self._source.close()

    def count(self) -> int:
        """As the source's."""
        return self._asked(["count"], self._source.count)  # type: ignore[return-value]

    def system(self, query: str) -> object:
        """As the source's."""
        return self._asked(["system", query], lambda: self._source.system(query))

    def device(self, index: int, query: str) -> object:
        """As the source's."""
        return self._asked(["device", index, query], lambda: self._source.device(index, query))

    def _asked(self, call: list[object], ask: Callable[[], object]) -> object:
        self._note({"nvml": call})
        try:
            answer = ask()
        except NvmlError as error:
            self._note({"nvml": call, "answer": {"error": error.code, "function": error.function}})
            raise
        self._note({"nvml": call, "answer": answer})
        return answer


def main() -> None:
    """Standard input: `{"out": DIR, "host": null, "nvmlLibrary": "", "options": {...}}`."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a driver's library prints must not stand between the lines
    os.umask(0o077)
    request = json.load(sys.stdin)
    source, nvml = open_doors(request["host"], request["nvmlLibrary"])
    record(source, nvml, Path(request["out"]), Options(**request["options"]), lambda line: _say(out, line))
    os._exit(0)  # as the worker: a driver's library may hang in its own exit handlers


def record(source: Host, nvml: Nvml, out: Path, options: Options, note: Note) -> None:
    """Collects all sections of `source`, and runs the tasks that only read, for what they read.

    A section that fails is noted, and what it read is kept.
    """
    host = Recorder(root=source.root, source=source, out=out, note=note)
    host.uname()
    host.uptime()
    try:
        host.boot_id()
    except Unreadable as error:
        note({"fact": ["errors", error.path, error.errno]})
    for name in COLLECTORS:
        failed = None
        try:
            collect(name, host, RecordingNvml(nvml, note), options=options)
        except FieldError as error:
            failed = str(error)
        note({"section": name, "failed": failed})
    for name in _TASKS:
        with contextlib.suppress(FieldError):  # what it read until then is kept; why it failed is in the section `gpus`
            run(name, Context(Files(host), RecordingNvml(nvml, note), options=options), {})
    _signs(source, host)


def _signs(source: Host, host: Recorder) -> None:
    """What conditions and pressure are read from, but for what is none of a bug report's: the boot loader's configuration, the
    kubelet's files, the names of all processes."""
    pressure.read(host, None)
    external.managers(host, "")
    reboot_packages(host)
    if (pid := fabric_manager(source)) is not None:
        with contextlib.suppress(Unreadable):
            host.read(f"/proc/{pid}/comm")


def _say(out: TextIO, line: dict[str, object]) -> None:
    out.write(json.dumps(line) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
