"""The doors of a host over a directory that holds a recorded one (SPEC A8): its files below `root/`, and what is no file in
`host.json` and `nvml.json`. Whatever the directory does not hold, the host did not have.

host.json, every key optional (`bcd capture` writes it, agent/recorder.py):

    {"format": 1, "bootId": "f3b6...", "uptime": 86400.0,
     "uname": {"sysname": "Linux", "hostname": "n1", "release": "6.8.0-45-generic", "version": "#45 SMP", "machine": "x86_64"},
     "ethtool": {"eth0": {"driver": "mlx5_core", "firmware": "28.39", "busInfo": "0000:3b:00.0", "permanentMac": "b8:..."}},
     "errors": {"/sys/class/dmi/id/product_serial": 13},     errno of what was there and could not be read
     "sizes": {"/var/lib/bcd/images/jammy.raw": 2361393152}, size of a file whose bytes were not recorded
     "cri": [{"digest": "sha256:...", "name": "registry/app:1", "bytes": 1234}]}   or {"error": 2}, an errno
"""

import errno
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar, cast

from agent.errors import Unreadable, UserError
from agent.host import MAX_FILE, CriImage, EthtoolInfo, Host, Uname
from agent.nvml import COUNT, HANDLE, INIT, Nvml, NvmlError, function_of

T = TypeVar("T")

FORMAT = 1
_TOO_MUCH = 1 << 63
NO_BOOT_ID = "unknown"
_NO_NAME = Uname("Linux", "", "", "", "")
_MACHINES = ("x86_64", "aarch64", "ppc64le", "s390x", "riscv64")


@dataclass(frozen=True)
class RecordedHost(Host):
    """A recorded host. The fields are host.json's; where it did not say, `open_host` has found them in the files."""

    name: Uname = _NO_NAME
    boot: str = NO_BOOT_ID
    seconds: float = 0.0
    interfaces: Mapping[str, EthtoolInfo] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    cri: tuple[CriImage, ...] = ()
    cri_error: int = errno.ENOENT

    def stat(self, path: str, follow: bool = True) -> os.stat_result:
        """As Host.stat; the size is the recorded one where the bytes were not recorded."""
        found = super().stat(path, follow)
        if path not in self.sizes:
            return found
        return os.stat_result((*found[:6], self.sizes[path], *found[7:10]))

    def boot_id(self) -> str:
        """The recorded boot's identity."""
        return self.boot

    def uname(self) -> Uname:
        """The recorded uname(2)."""
        return self.name

    def ethtool(self, interface: str) -> EthtoolInfo:
        """The recorded answers; of an interface that was not asked, none."""
        return self.interfaces.get(interface, EthtoolInfo())

    def uptime(self) -> float:
        """Seconds since boot at the time of the recording."""
        return self.seconds

    def cri_images(self, socket: str) -> tuple[CriImage, ...]:
        """The recorded images of the container runtime. Raises Unreadable when it did not answer, or was not there."""
        if self.cri_error:
            raise Unreadable(socket, self.cri_error)
        return self.cri


class RecordedNvml:
    """NVML that answers what nvml.json says (its form: agent/nvml.py), hangs included. `{}` is a host without the library."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        self._answers = answers
        self._system = cast(Mapping[str, object], answers.get("system", {}))
        self._devices = cast(Sequence[Mapping[str, object]], answers.get("devices", ()))

    def open(self) -> None:
        """Raises what `init` says; LIBRARY_NOT_FOUND when there is no recording."""
        if not self._answers:
            raise NvmlError(INIT, "LIBRARY_NOT_FOUND")
        _answer(self._answers.get("init"), INIT)

    def close(self) -> None:
        """Nothing is held."""

    def count(self) -> int:
        """How many devices were recorded, or what `count` says."""
        answer = _answer(self._answers.get("count"), COUNT)
        return answer if isinstance(answer, int) else len(self._devices)

    def system(self, query: str) -> object:
        """A recorded answer; a query without one is NOT_SUPPORTED."""
        return _answer(self._system.get(query, {"error": "NOT_SUPPORTED"}), function_of(query))

    def device(self, index: int, query: str) -> object:
        """A recorded answer of one device; a query without one is NOT_SUPPORTED, an index without one INVALID_ARGUMENT."""
        if not 0 <= index < len(self._devices):
            raise NvmlError(HANDLE, "INVALID_ARGUMENT")
        device = self._devices[index]
        _answer(device.get("handle"), HANDLE)
        return _answer(device.get(query, {"error": "NOT_SUPPORTED"}), function_of(query))


def _answer(answer: object, function: str) -> object:
    if isinstance(answer, dict) and "error" in answer:
        raise NvmlError(str(answer.get("function", function)), str(answer["error"]))
    if isinstance(answer, dict) and answer.get("hang"):
        while True:  # as a driver call that never returns: only the end of the process ends it
            time.sleep(3600)
    return answer


def open_host(directory: Path) -> RecordedHost:
    """The host that was recorded in `directory`. Raises UserError when it holds none, or a host.json that is not one."""
    root = Path(os.path.abspath(directory)) / "root"
    if not (root / "proc").is_dir() and not (root / "sys").is_dir():
        raise UserError(f"{directory} is no recorded host: it has neither root/proc nor root/sys", "`bcd capture DIR` makes one")
    facts = _Json(directory / "host.json")
    if (version := facts.get("format", int, FORMAT)) != FORMAT:
        facts.refuse(
            f"format {version} is unknown", f"this bcd reads format {FORMAT}: use the bcd that recorded it, or a newer one"
        )
    bare = Host(root)
    cri, cri_error = _cri(facts)
    return RecordedHost(
        root=root,
        errors=facts.mapping("errors", int),
        name=_uname(facts, bare),
        boot=facts.get("bootId", str, "") or _text(bare, "/proc/sys/kernel/random/boot_id") or NO_BOOT_ID,
        seconds=facts.get("uptime", float, _uptime(bare)),
        interfaces={name: _ethtool(facts, name, entry) for name, entry in facts.mapping("ethtool", dict).items()},
        sizes=facts.mapping("sizes", int),
        cri=cri,
        cri_error=cri_error,
    )


def open_nvml(directory: Path) -> Nvml:
    """NVML as recorded in `directory`. Raises UserError for an nvml.json that is not one."""
    facts = _Json(directory / "nvml.json")
    facts.get("system", dict, {})
    for index, device in enumerate(facts.get("devices", list, [])):
        facts.check(f"devices: {index}", device, dict)
    return RecordedNvml(facts.value)


class _Json:
    """One JSON object of a recording; `{}` when the file is absent. Everything wrong with it is a UserError that names it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.value: Mapping[str, object] = {}
        try:
            data = path.read_bytes() if path.exists() else b"{}"
            if len(data) > MAX_FILE:
                self.refuse(f"is larger than {MAX_FILE} bytes")
            value = json.loads(data.decode())
            json.dumps(value, ensure_ascii=False).encode()
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        except UnicodeError as error:
            raise UserError(f"{path} is not UTF-8 throughout: {error}") from error
        except RecursionError as error:
            raise UserError(f"{path} is nested too deeply") from error
        except json.JSONDecodeError as error:
            raise UserError(
                f"{path}:{error.lineno}: not JSON: {error.msg}", "record the host again, or repair this line"
            ) from error
        if not isinstance(value, dict):
            self.refuse("is not a JSON object")
        self.value = value

    def refuse(self, what: str, hint: str = "") -> NoReturn:
        raise UserError(f"{self.path}: {what}", hint)

    def get(self, key: str, kind: type[T], default: T) -> T:
        """The value of `key`, of type `kind`; `default` when the key is absent."""
        return self.check(key, self.value.get(key, default), kind)

    def mapping(self, key: str, kind: type[T]) -> dict[str, T]:
        """An object whose values are all of type `kind`; `{}` when the key is absent."""
        entries = self.get(key, dict, {})
        return {name: self.check(f"{key}: {name}", value, kind) for name, value in entries.items()}

    def check(self, key: str, value: object, kind: type[T]) -> T:
        """`value`, when it is of type `kind` (an integer is a float too, a boolean is no number); counts from 0."""
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or isinstance(value, bool):
            self.refuse(f"{key}: {value!r} is not of type {kind.__name__}")
        if isinstance(value, int) and not 0 <= value < _TOO_MUCH:
            self.refuse(f"{key}: {value!r} is out of range")
        return value

    def words(self, key: str, entry: dict[str, object], names: Sequence[str]) -> list[str | None]:
        """The texts of `entry`'s keys `names`; None for an absent or empty one."""
        return [self.check(f"{key}: {name}", entry.get(name) or "", str) or None for name in names]


def _uname(facts: _Json, bare: Host) -> Uname:
    """uname(2) from host.json; what it does not say from /proc/sys/kernel, then from `Linux version RELEASE (...) #VERSION`."""
    entry = facts.get("uname", dict, {})
    banner = _text(bare, "/proc/version")
    words = banner.split()
    release = _text(bare, "/proc/sys/kernel/osrelease") or (words[2] if len(words) > 2 else "")
    found = {
        "sysname": _text(bare, "/proc/sys/kernel/ostype") or "Linux",
        "hostname": _text(bare, "/proc/sys/kernel/hostname"),
        "release": release,
        "version": _text(bare, "/proc/sys/kernel/version") or banner[banner.find("#") :] * ("#" in banner),
        "machine": _text(bare, "/proc/sys/kernel/arch") or next((m for m in _MACHINES if release.endswith(m)), ""),
    }
    said = facts.words("uname", entry, tuple(found))
    return Uname(*(text or default for text, default in zip(said, found.values(), strict=True)))


def _uptime(host: Host) -> float:
    """Of /proc/uptime, `182044.50 9120331.12`; where it was not recorded, long ago: nothing of that boot is settling any more."""
    try:
        return float(_text(host, "/proc/uptime").split()[0])
    except (ValueError, IndexError):
        return math.inf


def _ethtool(facts: _Json, interface: str, entry: dict[str, object]) -> EthtoolInfo:
    return EthtoolInfo(*facts.words(f"ethtool: {interface}", entry, ("driver", "firmware", "busInfo", "permanentMac")))


def _cri(facts: _Json) -> tuple[tuple[CriImage, ...], int]:
    said = facts.value.get("cri")
    if said is None:
        return (), errno.ENOENT
    if isinstance(said, dict):
        return (), facts.check("cri: error", said.get("error", 0), int)
    return tuple(_image(facts, facts.check("cri", entry, dict)) for entry in facts.get("cri", list, [])), 0


def _image(facts: _Json, entry: dict[str, object]) -> CriImage:
    digest, name = facts.words("cri", entry, ("digest", "name"))
    size = entry.get("bytes")
    return CriImage(digest, name, None if size is None else facts.check("cri: bytes", size, int))


def _text(host: Host, path: str) -> str:
    try:
        return host.read(path).decode(errors="replace").strip()
    except Unreadable:
        return ""
