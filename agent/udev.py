"""DOOR. The kernel's hardware events: a netlink socket (NETLINK_KOBJECT_UEVENT) and both forms of its messages.

Where udevd runs (/run/udev/control), its group is heard: it speaks when the device's files are complete and its database written.
Else the kernel's own. Anybody may send to such a socket: only messages of uid 0 count, in the kernel's group only the kernel's.

What comes in masses and is of no interest (each container makes a dozen) is dropped by a socket filter before it wakes us.
"""

import asyncio
import contextlib
import errno
import socket
import struct
from array import array
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

_NETLINK_KOBJECT_UEVENT = 15
_KERNEL_GROUP, _UDEV_GROUP = 1, 2
_SO_RCVBUFFORCE, _SO_ATTACH_FILTER = 33, 26
_BUFFER = 4 << 20  # bytes that may wait; used only when they do
_LONGEST = 64 << 10  # of a message; the kernel's are at most 2 KiB of properties, udevd's somewhat more
_BATCH = 64  # messages read at once before others of the event loop have their turn
_ACTIONS = frozenset({"add", "remove", "change", "move", "online", "offline", "bind", "unbind"})
_VIRTUAL = b"/devices/virtual/"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `devpath` is below /sys: `/devices/pci0000:15/0000:16:00.0/net/eth0`; properties as the kernel names them."""

    action: str
    devpath: str
    properties: Mapping[str, str]

    @property
    def subsystem(self) -> str:
        """`pci`, `block`, `net`, ...; empty when it is not said."""
        return self.properties.get("SUBSYSTEM", "")


@dataclass(frozen=True, slots=True)
class Overrun:
    """Events were lost (ENOBUFS)."""


def parse(data: bytes) -> Event | None:
    """A message of either form; None for one that is neither, or lacks its action or path."""
    return parse_udev(data) if data.startswith(b"libudev\0") else parse_kernel(data)


def parse_kernel(data: bytes) -> Event | None:
    r"""The kernel's form (lib/kobject_uevent.c): a header `ACTION@DEVPATH`, then `KEY=value`, each ended by a NUL.

    >>> parse_kernel(b"add@/devices/virtual/net/veth1\0ACTION=add\0DEVPATH=/devices/virtual/net/veth1\0SUBSYSTEM=net\0").subsystem
    'net'
    """
    header, separator, rest = data.partition(b"\0")
    if not separator or b"@" not in header:
        return None
    return _event(rest)


def parse_udev(data: bytes) -> Event | None:
    r"""udevd's form (systemd, device-monitor.c): `libudev\0`, the magic number 0xfeedcafe (big-endian), then in the host's order
    the sizes of the header and the offset and length of the properties, which are `KEY=value`, each ended by a NUL.

    >>> head = b"libudev\0" + bytes.fromhex("feedcafe") + struct.pack("=IIIIIII", 40, 40, 41, 0, 0, 0, 0)
    >>> parse_udev(head + b"ACTION=add\0DEVPATH=/devices/x\0SUBSYSTEM=pci\0").devpath
    '/devices/x'
    """
    if len(data) < 24 or data[8:12] != b"\xfe\xed\xca\xfe":
        return None
    _, offset, length = struct.unpack_from("=III", data, 12)
    if offset > len(data) or offset + length > len(data):
        return None
    return _event(data[offset : offset + length])


def _event(properties: bytes) -> Event | None:
    pairs = (part.partition("=") for part in properties.decode(errors="replace").split("\0"))
    found = {key: value for key, separator, value in pairs if separator}
    action, devpath = found.get("ACTION", ""), found.get("DEVPATH", "")
    return Event(action, devpath, found) if action in _ACTIONS and devpath.startswith("/") else None


def connect(udevd: bool) -> socket.socket:
    """A socket that hears udevd's events, or the kernel's. Raises OSError (a sandbox without AF_NETLINK)."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, _NETLINK_KOBJECT_UEVENT)
    try:
        with contextlib.suppress(OSError):  # an old kernel, or one without: then we are woken more often
            _attach(sock, _dropping_virtual())
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        except OSError:  # without CAP_NET_ADMIN: as much as the host allows
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.bind((0, _UDEV_GROUP if udevd else _KERNEL_GROUP))
    except OSError:
        sock.close()
        raise
    return sock


async def events(sock: socket.socket) -> AsyncIterator[Event | Overrun]:
    """What the socket hears, for ever. Raises OSError when it is of no more use."""
    while True:
        if (heard := _receive(sock)) is None:
            await _readable(sock)
            continue
        for item in heard:
            yield item
        await asyncio.sleep(0)


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)


def _receive(sock: socket.socket) -> list[Event | Overrun] | None:
    """What waits, at most a batch; None when nothing does. Raises OSError."""
    heard: list[Event | Overrun] = []
    for number in range(_BATCH):
        try:
            data, ancillary, _, sender = sock.recvmsg(_LONGEST, socket.CMSG_SPACE(12))
        except BlockingIOError:
            return heard if number else None
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            heard.append(Overrun())
            continue
        if _trusted(data, ancillary, sender) and b"DEVPATH=" + _VIRTUAL not in data and (event := parse(data)):
            heard.append(event)
    return heard


def _trusted(data: bytes, ancillary: list[tuple[int, int, bytes]], sender: object) -> bool:
    """Of uid 0; a message in the kernel's form also of the kernel, whose netlink port is 0."""
    uids = [
        struct.unpack("=iII", content[:12])[1]
        for level, kind, content in ancillary
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(content) >= 12
    ]
    port = sender[0] if isinstance(sender, tuple) and sender else None
    return uids == [0] and (port == 0) != data.startswith(b"libudev\0")


# ---------------------------------------------------------------- the filter in the kernel

_LOAD_WORD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K


def _dropping_virtual() -> bytes:
    """A classic BPF program that drops the kernel's `ACTION@/devices/virtual/...` and lets everything else through.

    The path begins behind the action and its `@`. A load beyond the message's end drops it: such a short one names no device.
    """
    words = [_VIRTUAL[start : start + 4] for start in range(0, 16, 4)]
    program: list[bytes] = []
    for offset in sorted({len(action) + 1 for action in _ACTIONS}):
        for number, word in enumerate(words):
            program.append(struct.pack("=HBBI", _LOAD_WORD, 0, 0, offset + 4 * number))
            past = 2 * (3 - number) + 1  # instructions to skip when it differs: up to the next offset's first load
            program.append(struct.pack("=HBBI", _EQUAL, 0, past, int.from_bytes(word, "big")))
        program.append(struct.pack("=HBBI", _RETURN, 0, 0, 0))
    program.append(struct.pack("=HBBI", _RETURN, 0, 0, 0xFFFFFFFF))
    return b"".join(program)


def _attach(sock: socket.socket, program: bytes) -> None:
    kept = array("B", program)  # must live until the call has returned
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program) // 8, kept.buffer_info()[0]))
