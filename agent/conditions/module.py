"""The NVIDIA kernel module that lies on disk: its version, from the few bytes of the ELF file that say it, as modinfo(8) does."""

import re
import struct
from collections.abc import Callable

from agent.errors import Unreadable
from agent.host import Host

ReadAt = Callable[[int, int], bytes]  # offset and size to bytes
_MOST = 1 << 20  # bytes of a section header table or of .modinfo
_DEP_LINE = re.compile(r"^(\S*/nvidia\.ko(?:\.(?:xz|zst|gz))?):", re.MULTILINE)


def modinfo_version(read: ReadAt) -> str | None:
    """The `version=` of an ELF64 object's .modinfo; None for another file (a compressed module, too)."""
    head = read(0, 64)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
        return None
    (table,) = struct.unpack_from("<Q", head, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", head, 0x3A)
    if size < 64 or names_at >= count:
        return None
    headers = read(table, min(size * count, _MOST))
    sections = [struct.unpack_from("<IIQQQQ", headers, at) for at in range(0, len(headers) - 63, size)]
    if names_at >= len(sections):
        return None
    names = read(sections[names_at][4], min(sections[names_at][5], _MOST))
    for name, _, _, _, offset, length in sections:
        if names[name : name + 9] == b".modinfo\0":
            found = re.search(rb"(?:^|\0)version=([^\0]+)", read(offset, min(length, _MOST)))
            return found[1].decode(errors="replace") if found else None
    return None


class Module:
    """Looks again only when the file or the index of modules is another."""

    def __init__(self) -> None:
        self._index: tuple[object, str | None] = (None, None)
        self._file: tuple[object, str | None] = (None, None)

    def version(self, host: Host) -> str | None:
        """The version on disk for the running kernel; None when there is none that can be read."""
        folder = f"/lib/modules/{host.uname().release}"
        try:
            path = self._path(host, folder)
            if path is None:
                return None
            now = _stamp(host, path)
            if self._file[0] != now:
                self._file = (now, modinfo_version(lambda offset, size: host.read_at(path, offset, size)))
            return self._file[1]
        except Unreadable:
            return None

    def _path(self, host: Host, folder: str) -> str | None:
        """From modules.dep: `updates/dkms/nvidia.ko.zst: kernel/drivers/char/ipmi/ipmi_msghandler.ko.zst`."""
        index = f"{folder}/modules.dep"
        now = _stamp(host, index)
        if self._index[0] != now:
            found = _DEP_LINE.search(host.read(index).decode(errors="replace"))
            path = None if found is None else found[1] if found[1].startswith("/") else f"{folder}/{found[1]}"
            self._index = (now, path)
        return self._index[1]


def _stamp(host: Host, path: str) -> tuple[str, int, int, int]:
    found = host.stat(path)
    return path, found.st_ino, found.st_size, found.st_mtime_ns
