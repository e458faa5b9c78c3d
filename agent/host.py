"""DOOR. The host as files under a root, plus the few facts that are no file. Nothing else in bcd opens a host file.

`Host()` is this machine; `agent.recorded.open_host(DIR)` gives one over a recorded host, `agent.recorded.Recorder` one that
copies what is read. All paths are absolute paths *on the host*; links are followed below the root and never out of it.
"""

import contextlib
import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.errors import Unreadable

MAX_FILE = 16 << 20  # bytes: no file that a collector reads is near this; a larger one is EFBIG, not memory eaten
_MAX_LINKS = 40

# Firmware's files are root's alone. The service manager reads them for a bcd that is not root and hands them over under these
# names (LoadCredential in packaging/systemd/bcd.service; systemd.exec(5), "Credentials").
_HANDED_OVER = {
    f"/sys/class/dmi/id/{name}": name for name in ("product_serial", "product_uuid", "board_serial", "chassis_serial")
} | {"/sys/firmware/dmi/tables/DMI": "dmi_table", "/sys/firmware/dmi/tables/smbios_entry_point": "dmi_entry_point"}

_SIOCETHTOOL = 0x8946
_ETHTOOL_GDRVINFO = 0x00000003
_ETHTOOL_GPERMADDR = 0x00000020


@dataclass(frozen=True, slots=True)
class Uname:
    """uname(2): `release` is the kernel's, `machine` the architecture (`x86_64`, `aarch64`)."""

    sysname: str
    hostname: str
    release: str
    version: str
    machine: str


@dataclass(frozen=True, slots=True)
class EthtoolInfo:
    """ETHTOOL_GDRVINFO and ETHTOOL_GPERMADDR of one interface. Absent: the driver did not say, or said an empty text.

    `permanent_mac` is lower-case with colons, of whatever length the link layer has (6 bytes, InfiniBand 20).
    """

    driver: str | None = None
    firmware: str | None = None
    bus_info: str | None = None
    permanent_mac: str | None = None


@dataclass(frozen=True, slots=True)
class CriImage:
    """One image of a container runtime: repository digest `sha256:...`, first tag, size on disk. Absent: not said."""

    digest: str | None = None
    name: str | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Host:
    """A host below `root`. Subclasses answer the facts that are no file from a recording.

    `errors` maps host paths to an errno that reading them must give (recorded hosts: a missing permission stays one).
    """

    root: Path = Path("/")
    errors: Mapping[str, int] = field(default_factory=dict)
    # Below another root: each directory on the way of a path, and where it links to. Looked up once per Host, since a recorded
    # host's directories do not move while it is read; the last component of a path is always looked at anew.
    _directories: dict[str, str | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    # -- files

    def read(self, path: str, limit: int = MAX_FILE, follow: bool = True) -> bytes:
        """The file's bytes, at most `limit`. Raises Unreadable; EFBIG when it is larger, ELOOP for a link not to be followed."""
        if path in self.errors:
            raise Unreadable(path, self.errors[path])
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
            fd = os.open(self.resolve(path) if follow else self._parent(path), flags)
            try:
                return _read_all(fd, path, limit)
            finally:
                os.close(fd)
        except OSError as error:
            handed_over = self._handed_over(path) if error.errno == errno.EACCES else None
            if handed_over is None:
                raise Unreadable(path, error.errno or errno.EIO) from error
            return handed_over

    def _handed_over(self, path: str) -> bytes | None:
        """The file as the service manager read it, when it handed it over."""
        directory = os.environ.get("CREDENTIALS_DIRECTORY")
        if self.root != Path("/") or path not in _HANDED_OVER or not directory:
            return None
        try:
            return Path(directory, _HANDED_OVER[path]).read_bytes()
        except OSError:
            return None

    def read_at(self, path: str, offset: int, size: int) -> bytes:
        """At most `size` bytes of a regular file from `offset` on: of large ones that are not read whole. Raises Unreadable."""
        if path in self.errors:
            raise Unreadable(path, self.errors[path])
        try:
            fd = os.open(self.resolve(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                return os.pread(fd, size, offset) if offset < 1 << 62 else b""
            finally:
                os.close(fd)
        except OSError as error:
            raise Unreadable(path, error.errno or errno.EIO) from error

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted. Raises Unreadable."""
        if path in self.errors:
            raise Unreadable(path, self.errors[path])
        try:
            return sorted(os.listdir(self.resolve(path)))
        except OSError as error:
            raise Unreadable(path, error.errno or errno.EIO) from error

    def readlink(self, path: str) -> str:
        """The link's target as it is written. Raises Unreadable (EINVAL: not a link)."""
        if path in self.errors:
            raise Unreadable(path, self.errors[path])
        try:
            return os.readlink(self._parent(path))
        except OSError as error:
            raise Unreadable(path, error.errno or errno.EIO) from error

    def exists(self, path: str) -> bool:
        """Whether the path is there, links followed. Never raises: what cannot be looked at is not there."""
        try:
            return os.path.exists(self.resolve(path))
        except OSError:
            return False

    def stat(self, path: str, follow: bool = True) -> os.stat_result:
        """stat(2) of the path, or lstat(2) when a link in its last place is not to be followed. Raises Unreadable."""
        try:
            return os.stat(self.resolve(path)) if follow else os.lstat(self._parent(path))
        except OSError as error:
            raise Unreadable(path, error.errno or errno.EIO) from error

    def realpath(self, path: str) -> str:
        """The host path without links: `/sys/class/net/eth0` as `/sys/devices/pci.../net/eth0`. Raises Unreadable."""
        try:
            if self.root == Path("/"):
                return os.path.realpath(path, strict=True)
            resolved = self.resolve(path)
            os.lstat(resolved)
        except OSError as error:
            raise Unreadable(path, error.errno or errno.EIO) from error
        return "/" + str(resolved.relative_to(self.root))

    # -- facts that are no file

    def boot_id(self) -> str:
        """The boot's identity, /proc/sys/kernel/random/boot_id; time of boot is not one (NTP moves it)."""
        return self.read("/proc/sys/kernel/random/boot_id").decode().strip()

    def uname(self) -> Uname:
        """uname(2)."""
        name = os.uname()
        return Uname(name.sysname, name.nodename, name.release, name.version, name.machine)

    def ethtool(self, interface: str) -> EthtoolInfo:
        """What the driver of a network interface says of itself. Reads only; never raises: a refusal is absent."""
        return _ethtool(interface)

    def cri_images(self, socket: str) -> tuple[CriImage, ...]:
        """The images of the container runtime that listens on `socket` (CRI v1 ImageService). Raises Unreadable."""
        from agent.cri.client import list_images  # gRPC costs 20 MB: only where a socket is configured

        return list_images(socket)

    def uptime(self) -> float:
        """Seconds since boot, suspend included (CLOCK_BOOTTIME)."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    # -- paths

    def resolve(self, path: str) -> Path:
        """Where a host path is on this machine. Below another root, links (absolute ones too) stay below it."""
        if self.root == Path("/"):
            return Path(path)
        return self.walk(path)

    def _parent(self, path: str) -> Path:
        if self.root == Path("/"):
            return Path(path)
        return self.walk(path, follow_last=False)

    def walk(self, path: str, follow_last: bool = True, seen: Callable[[Path, str], None] | None = None) -> Path:
        """Where a host path is when every link on its way is followed below the root; `seen` is told each link and target."""
        # Strings, not Paths: a collection of a recorded host takes this some thousand times.
        root = str(self.root).rstrip("/")
        todo = [p for p in reversed(path.split("/")) if p not in ("", ".")]
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                del done[-1:]
                continue
            done.append(part)
            here = "/".join((root, *done))
            target = self._directory_link(here) if todo else _link_target(here) if follow_last else None
            if target is not None:
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                if seen is not None:
                    seen(Path(here), target)
                done = [] if target.startswith("/") else done[:-1]
                todo.extend(p for p in reversed(target.split("/")) if p not in ("", "."))
        return Path("/".join((root, *done)) or "/")

    def _directory_link(self, path: str) -> str | None:
        try:
            return self._directories[path]
        except KeyError:
            return self._directories.setdefault(path, _link_target(path))


def _link_target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:  # no link, or nothing there: what is done with the path next will say so
        return None


def write_atomic(path: Path, data: bytes, mode: int = 0o600, owner: tuple[int, int] | None = None) -> None:
    """Replaces `path` by `data` in one step, on disk before it returns; `owner`: user and group, where they are not ours.

    Raises OSError; the old file then stands.
    """
    import tempfile  # 3 ms of import that the collecting child, which writes nothing, need not pay

    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), mode)
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(name, path)
    except BaseException:  # re-raised: only the half-written file goes
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read_all(fd: int, path: str, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(fd, min(1 << 16, limit + 1 - size)):
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise Unreadable(path, errno.EFBIG)
    return b"".join(chunks)


def _ethtool(interface: str) -> EthtoolInfo:
    import ctypes
    import socket

    def call(buffer: "ctypes.Array[ctypes.c_char]", sock: socket.socket) -> bytes | None:
        request = struct.pack("16sP16x", interface.encode()[:15], ctypes.addressof(buffer))
        try:
            fcntl.ioctl(sock.fileno(), _SIOCETHTOOL, request)
        except OSError:
            return None
        return buffer.raw

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        info = call(ctypes.create_string_buffer(struct.pack("I", _ETHTOOL_GDRVINFO), 196), sock)
        address = call(ctypes.create_string_buffer(struct.pack("II", _ETHTOOL_GPERMADDR, 32), 40), sock)

    def text(start: int) -> str | None:
        return info[start : start + 32].split(b"\0")[0].decode(errors="replace").strip() or None if info else None

    mac = None
    if address is not None:
        length = min(struct.unpack_from("I", address, 4)[0], 32)
        raw = address[8 : 8 + length]
        mac = raw.hex(":") if any(raw) else None
    return EthtoolInfo(driver=text(4), firmware=text(68), bus_info=text(100), permanent_mac=mac)
