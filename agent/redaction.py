"""Takes what names a machine, a part or a network out of a recorded host, and leaves everything else as it is.

Each name gives way to one of the same length and shape wherever it stands (contents, file names, links' targets), so that
references still match and binary tables (SMBIOS, VPD pages) keep their form. Digits become digits, letters letters; zeros
stay, and in hexadecimal names the Fs and the vendor's part: what was a placeholder remains one. The key is drawn for each
recording, so that nothing can be looked up in another.

Names are: serial numbers, asset tags, UUIDs, MACs, GUIDs, WWNs; the host name, in the kernel log, where the kernel keeps it and
in names of volumes; IPv4 addresses in the kernel log; the values of kernel arguments that bcd does not show, which may be
secrets; mounts that no collector looks at.
"""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from agent import udev_db
from agent.collectors import ata, cmdline, smbios

# Hexadecimal names as they stand in text: pattern, how many characters at its end are the name (0: all, or its group), how many
# leading digits stay (the vendor's). Of a 20-byte InfiniBand address and of a GID the end is the port's GUID. `0x5...` and
# `0x6...` with 16 or 32 digits are WWNs in udev's spelling: a kernel pointer or a MIDR begins with another digit.
_HEX = (
    (re.compile(r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"), 0, 0),
    (re.compile(r"(?<![0-9a-f:])(?:[0-9a-f]{8}:){3}[0-9a-f]{8}(?![0-9a-f:])"), 0, 0),
    (re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}:){5}(?:(?:[0-9A-Fa-f]{2}:){14})?[0-9A-Fa-f]{2}(?![0-9A-Fa-f:])"), 23, 6),
    (re.compile(r"(?<![0-9a-f:])(?:(?:[0-9a-f]{4}:){4})?(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?![0-9a-f:])"), 19, 6),
    (re.compile(r"(?:naa\.|eui\.)([0-9A-Fa-f]{32}|[0-9A-Fa-f]{16})(?![0-9A-Za-z])"), 0, 7),
    (re.compile(r"\b0x([56](?:[0-9A-Fa-f]{31}|[0-9A-Fa-f]{15}))\b"), 0, 7),
    (re.compile(r"\benx([0-9a-f]{12})\b"), 0, 6),
)
_PUBLIC = {"8be4df6193ca11d2aa0d00e098032b8c", "c12a7328f81f11d2ba4b00a0c93ec93b"}  # EFI's own variables, an EFI partition
_IPV4 = re.compile(r"\b(?!0\.|127\.)\d{1,3}(?:\.\d{1,3}){3}\b")
_HARMLESS = ("BOOT_IMAGE", "console", "root")  # kernel arguments whose value tells nothing more once the names in it are gone
# Where the host's name stands, by itself or in the name of a volume group or an md array.
_NAMES_HOST = re.compile(
    r"/kmsg|/host\.json|/etc/hostname|/proc/cmdline|/proc/sys/kernel/hostname|/proc/\w+/mountinfo|/run/udev/data/.*|/sys/.*/dm/name"
)
_MOUNT = re.compile(r"\S+ \S+ \S+ \S+ (?:/ |.* - cgroup2? )")  # what a collector looks at; others name servers, people
_COMMAND_LINE = re.compile(r"(?im)((?:kernel )?command line: )(.*)$")

# What firmware writes where it has no serial. Repeated characters and ascending runs are found by rule.
_PLACEHOLDER = re.compile(
    r"(?i)default|to be filled|not (specified|available|applicable|present|set)|o\.?e\.?m|serial|unknown|invalid|asset|chassis|"
    r"base ?board|system|empty|none|n/?a$|null|no dimm"
)
_ASCENDING = "01234567890123456789"
_MIN_SERIAL = 5  # characters: a shorter text stands in too much that is no serial

# SMBIOS structure type -> offsets of the numbers of strings that are serials or asset tags (DMTF DSP0134, section 7).
_SMBIOS_NAMES = {1: (0x07,), 2: (0x07, 0x08), 3: (0x07, 0x08), 4: (0x20, 0x21), 17: (0x18, 0x19), 22: (0x07,), 39: (0x08, 0x09)}
_UDEV_NAMES = ("ID_SERIAL_SHORT", "ID_SCSI_SERIAL", "SCSI_IDENT_SERIAL")
_SERIAL_FILE = re.compile(r"/dmi/id/\w*(serial|asset_tag)$|/(serial|serial-number)$")


class Names:
    """The names found, each with what stands in its place."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._texts: dict[str, str] = {}
        self._digits: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._texts) + len(self._digits)

    def add_text(self, name: str) -> None:
        """A name that is replaced where it stands as a word of its own: a serial, an asset tag."""
        name = name.strip(" \t\r\n\0")
        if len(name) >= _MIN_SERIAL and not placeholder(name):
            self._texts[name] = self.shaped(name)

    def add_digits(self, name: str, kept: int) -> None:
        """A hexadecimal name in whatever grouping: it is replaced in every other, as bytes too. `kept` leading digits stay."""
        digits = re.sub(r"[^0-9a-f]", "", name.lower())
        if len(set(digits)) > 1 and digits not in _PUBLIC:
            self._digits.setdefault(digits, digits[:kept] + self.shaped(digits)[kept:])

    def shaped(self, name: str) -> str:
        """What replaces `name`: the same each time, of the same shape."""
        stream = hashlib.shake_256(self._key + name.encode(errors="surrogateescape")).digest(len(name))
        hexadecimal = re.fullmatch(r"[0-9a-f]{12,}", name) is not None
        return "".join(_other(char, byte, hexadecimal) for char, byte in zip(name, stream, strict=True))

    def replacer(self) -> Callable[[bytes], bytes]:
        """The function that replaces all names in bytes, longer ones first."""
        plain = {old: new for digits in self._digits for old, new in _spellings(digits, self._digits[digits])}
        words = {old: new for text in self._texts for old, new in _words(text, self._texts[text])}
        longest = sorted(plain, key=len, reverse=True)
        patterns = [(old, _word(old), words[old]) for old in sorted(words, key=len, reverse=True)]

        def replace(data: bytes) -> bytes:
            for old, pattern, new in patterns:
                if old in data:
                    data = pattern.sub(lambda _, new=new: new, data)  # type: ignore[misc]
            for old in longest:
                if old in data:
                    data = data.replace(old, plain[old])
            return data

        return replace


def placeholder(text: str) -> bool:
    """Whether a serial says nothing: one character repeated, an ascending run, or firmware's words for none.

    >>> [placeholder(t) for t in ("00000000", "0123456789", "Default string", "To Be Filled By O.E.M.", "S5GYNA0R700123")]
    [True, True, True, True, False]
    """
    bare = re.sub(r"[^0-9A-Za-z]", "", text)
    return len(set(bare)) <= 1 or bare in _ASCENDING or _PLACEHOLDER.search(text) is not None


def redact_directory(directory: Path, key: bytes | None = None) -> int:
    """Redacts a recorded host in place. Returns how many names it replaced. Raises OSError."""
    names = Names(key or secrets.token_bytes(16))
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and not path.is_symlink()]
    for path in files:
        _find(names, "/" + str(path.relative_to(directory)).removeprefix("root/"), path.read_bytes())
    by_id = directory / "root/dev/disk/by-id"
    for link in by_id.iterdir() if by_id.is_dir() else ():
        _find_digits(names, link.name)
        names.add_text(udev_db.by_id([link.name]).get("ID_SERIAL_SHORT", ""))
    hosts = _host_names(directory)
    replace = names.replacer()
    for path in files:
        data = path.read_bytes()
        new = _redacted("/" + str(path.relative_to(directory)).removeprefix("root/"), data, replace, names, hosts)
        if new != data:
            path.write_bytes(new)
    _rename(directory / "root", replace)
    return len(names) + len(hosts)


def _find(names: Names, path: str, data: bytes) -> None:
    """Adds the names that one file holds."""
    text = data.decode("latin-1")
    _find_digits(names, text)
    for found in _HEX[-1][0].finditer(path):  # an interface named by its MAC
        names.add_digits(found[1], 6)
    for serial in _serials(path, data, text):
        names.add_text(serial)
    if path == smbios.TABLE:
        for system in smbios.parse(data).of(smbios.SYSTEM):
            names.add_digits(smbios.uuid(system, (2, 6)) or "", 0)


def _find_digits(names: Names, text: str) -> None:
    for pattern, tail, kept in _HEX:
        for found in pattern.finditer(text):
            names.add_digits(found[found.lastindex or 0][-tail:], kept)


def _serials(path: str, data: bytes, text: str) -> Iterator[str]:
    if path == smbios.TABLE:
        for structure in smbios.parse(data).structures:
            yield from filter(None, (structure.string(offset) for offset in _SMBIOS_NAMES.get(structure.type, ())))
    elif path.endswith("/vpd_pg80"):
        yield ata.unit_serial(data) or ""
    elif path.endswith("/vpd_pg89"):
        yield ata.identify(data).serial
    elif path.startswith("/run/udev/data/"):
        properties = udev_db.parse(text)
        yield from (properties.get(name, "") for name in _UDEV_NAMES)
    elif path == "/nvml.json":
        yield from _answers(json.loads(text), "serial")
    elif _SERIAL_FILE.search(path):
        yield text


def _answers(value: object, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key and isinstance(inner, str):
                yield inner
            yield from _answers(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _answers(inner, key)


def _host_names(directory: Path) -> list[str]:
    """The host's name with and without its domain, the longer first."""
    said = [json.loads((directory / "host.json").read_bytes()).get("uname", {}).get("hostname", "")]
    for file in ("etc/hostname", "proc/sys/kernel/hostname"):
        path = directory / "root" / file
        said += [path.read_text(errors="replace").strip()] if path.is_file() and not path.is_symlink() else []
    names = {part for name in said for part in (name, name.split(".")[0])} - {"", "localhost", "(none)"}
    return sorted(names, key=len, reverse=True)


def _redacted(path: str, data: bytes, replace: Callable[[bytes], bytes], names: Names, hosts: list[str]) -> bytes:
    """One file's new content. IDENTIFY data has the two characters of each word exchanged: replaced in reading order."""
    if path.endswith("/vpd_pg89"):
        return _exchanged(replace(_exchanged(data)))
    data = replace(data)
    if not _NAMES_HOST.fullmatch(path):
        return data
    text = data.decode(errors="surrogateescape")
    if path == "/proc/cmdline":
        text = _command_line(names, text) + "\n"
    if path == "/kmsg":
        text = _COMMAND_LINE.sub(lambda found: found[1] + _command_line(names, found[2]), text)
        text = _IPV4.sub(lambda found: names.shaped(found[0]), text)
    if path.endswith("/mountinfo"):
        text = "".join(line for line in text.splitlines(keepends=True) if _MOUNT.match(line))
    for host in hosts:
        new = names.shaped(host)
        for dash in ("-", "--"):  # the device mapper doubles a dash that is part of a name: web-1's `web--1--vg-root`
            old = re.escape(host.replace("-", dash))
            text = re.sub(rf"(?<![0-9A-Za-z]){old}(?![0-9A-Za-z])", new.replace("-", dash), text)
    return text.encode(errors="surrogateescape")


def _command_line(names: Names, line: str) -> str:
    """A kernel command line whose values are those that a section may show; what is no argument is left out.

    A value that is not shown keeps its shape, in quotes when it has blanks.
    """
    words = []
    for name, value in cmdline.arguments(line):
        shown = cmdline.shown((name, value))
        if shown is not None:
            kept = value if value is None or name in _HARMLESS or shown[1] is not None else names.shaped(value)
            words.append(name if kept is None else f'{name}="{kept}"' if " " in kept else f"{name}={kept}")
    return " ".join(words)


def _rename(root: Path, replace: Callable[[bytes], bytes]) -> None:
    """Gives files and directories below `root` their new names and links their new targets, the deepest first."""
    for folder, directories, files in os.walk(root, topdown=False):
        for name in (*directories, *files):
            path = Path(folder, name)
            if path.is_symlink() and (target := os.fsdecode(replace(os.fsencode(os.readlink(path))))) != os.readlink(path):
                path.unlink()
                path.symlink_to(target)
            if (new := os.fsdecode(replace(os.fsencode(name)))) != name:
                path.rename(path.with_name(new))


def _other(char: str, byte: int, hexadecimal: bool) -> str:
    if char == "0" or (hexadecimal and char == "f"):
        return char
    if "1" <= char <= "9":
        return "123456789"[byte % 9]
    if "a" <= char <= "z":
        return "abcde"[byte % 5] if hexadecimal else chr(97 + byte % 26)
    return chr(65 + byte % 26) if "A" <= char <= "Z" else char


def _words(old: str, new: str) -> Iterator[tuple[bytes, bytes]]:
    """A serial as it is, and with the blanks that udev replaces."""
    yield old.encode("latin-1", "replace"), new.encode("latin-1", "replace")
    yield old.replace(" ", "_").encode("latin-1", "replace"), new.replace(" ", "_").encode("latin-1", "replace")


def _word(old: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"(?<![0-9A-Za-z])" + re.escape(old) + rb"(?![0-9A-Za-z])")


def _spellings(old: str, new: str) -> Iterator[tuple[bytes, bytes]]:
    """All the ways in which sysfs, udev, SMBIOS, NVML and the kernel log write one hexadecimal name."""
    for write in _WRITERS:
        yield write(old).encode(), write(new).encode()
        yield write(old).upper().encode(), write(new).upper().encode()
    yield bytes.fromhex(old), bytes.fromhex(new)
    yield _little_endian(bytes.fromhex(old)), _little_endian(bytes.fromhex(new))


def _groups(digits: str, separator: str, *sizes: int) -> str:
    """`digits` in groups: of the sizes given, the last one repeated."""
    parts, rest = [], digits
    for size in (*sizes, *[sizes[-1]] * len(digits)):
        if rest:
            parts.append(rest[:size])
            rest = rest[size:]
    return separator.join(parts)


_WRITERS: tuple[Callable[[str], str], ...] = (
    lambda digits: digits,
    lambda digits: _groups(digits, ":", 2),
    lambda digits: _groups(digits, "-", 2),
    lambda digits: _groups(digits, ":", 4),
    lambda digits: _groups(digits, ":", 8),
    lambda digits: _groups(digits, "-", 8, 4, 4, 4, 12),
)


def _little_endian(raw: bytes) -> bytes:
    """A UUID's bytes as SMBIOS stores them since 2.6."""
    return raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:] if len(raw) == 16 else raw


def _exchanged(data: bytes) -> bytes:
    return bytes(data[i ^ 1] if i ^ 1 < len(data) else data[i] for i in range(len(data)))
