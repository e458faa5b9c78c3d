"""The host as it is composed: files and links by path, and what a recorded host holds beside them."""

import hashlib
import json
import os
import posixpath
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link, target as it is written."""

    target: str


@dataclass
class Machine:
    """A host under composition. `name` seeds every invented identity; `files` is host path -> bytes or Link."""

    name: str
    files: dict[str, bytes | Link] = field(default_factory=dict)
    nvml: dict[str, Any] | None = None
    facts: dict[str, Any] | None = field(default_factory=dict)
    kmsg: str = ""
    seen: dict[str, int] = field(default_factory=dict)

    def put(self, path: str, value: str | bytes | int) -> None:
        """A file. Text and numbers end with a newline, as procfs and sysfs write them; bytes stay as they are."""
        if not isinstance(value, bytes):
            text = str(value)
            value = (text if text.endswith("\n") else text + "\n").encode()
        self.files[path] = value

    def put_all(self, folder: str, values: dict[str, str | bytes | int | None]) -> None:
        """Files of one folder; None is an absent one."""
        for name, value in values.items():
            if value is not None:
                self.put(f"{folder}/{name}", value)

    def link(self, path: str, target: str) -> None:
        """A link to a host path, written relative, as sysfs does."""
        self.files[path] = Link(posixpath.relpath(target, posixpath.dirname(path)))

    def digits(self, what: str, length: int) -> str:
        """An invented hexadecimal identity, the same each time: a digest of the host's name and `what`."""
        return hashlib.sha256(f"{self.name}/{what}".encode()).hexdigest()[:length]

    def decimal(self, what: str, length: int) -> str:
        """The same in decimal digits, the first of them not 0."""
        return str(10 ** (length - 1) + int(self.digits(what, 16), 16) % (9 * 10 ** (length - 1)))

    def uuid(self, what: str) -> str:
        """The same in the shape of a random UUID."""
        h = self.digits(what, 32)
        return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-a{h[17:20]}-{h[20:]}"

    def mac(self, prefix: str, what: str) -> str:
        """A MAC of the maker with that prefix (`b8:3f:d2`)."""
        h = self.digits(what, 6)
        return f"{prefix}:{h[:2]}:{h[2:4]}:{h[4:]}"

    def next(self, kind: str) -> int:
        """0, 1, 2, ... of a kind: minor numbers, interface indexes."""
        self.seen[kind] = self.seen.get(kind, -1) + 1
        return self.seen[kind]

    def rendered(self) -> dict[str, bytes | Link]:
        """Everything as files of the recorded host's directory."""
        out: dict[str, bytes | Link] = {f"root{path}": value for path, value in self.files.items()}
        if self.nvml is not None:
            out["nvml.json"] = _json(self.nvml)
        if self.facts is not None:
            out["host.json"] = _json({"format": 1, **self.facts})
        if self.kmsg:
            out["kmsg"] = self.kmsg.encode()
        return out

    def write(self, directory: Path) -> int:
        """Replaces the recorded host in `directory`, its golden kept. Gives the number of files."""
        for name in ("root", "nvml.json", "host.json", "kmsg"):
            path = directory / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        files = self.rendered()
        for name, value in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(value.target) if isinstance(value, Link) else path.write_bytes(value)
        return len(files)


def read(directory: Path) -> dict[str, bytes | Link]:
    """What lies in a recorded host's directory, in the form of `rendered`; the golden is left out."""
    out: dict[str, bytes | Link] = {}
    for folder, folders, names in os.walk(directory):
        for name in names + [n for n in folders if os.path.islink(os.path.join(folder, n))]:
            path = os.path.join(folder, name)
            key = os.path.relpath(path, directory)
            out[key] = Link(os.readlink(path)) if os.path.islink(path) else Path(path).read_bytes()
    out.pop("expected.json", None)
    return out


def ranges(numbers: list[int]) -> str:
    """The kernel's list form: [0, 1, 2, 8] is `0-2,8`."""
    parts: list[str] = []
    for number in sorted(numbers):
        if parts and int(parts[-1].rsplit("-")[-1]) == number - 1:
            parts[-1] = f"{parts[-1].split('-')[0]}-{number}"
        else:
            parts.append(str(number))
    return ",".join(parts)


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
