"""Hardware events: both message forms, whom to believe, what is lost. Real sockets where this machine lets us."""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import udev
from agent.udev import Event, Overrun

KERNEL = (
    b"add@/devices/pci0000:00/0000:00:1d.0/0000:3d:00.0/nvme/nvme4/nvme4n1\0ACTION=add\0"
    b"DEVPATH=/devices/pci0000:00/0000:00:1d.0/0000:3d:00.0/nvme/nvme4/nvme4n1\0SUBSYSTEM=block\0MAJOR=259\0MINOR=9\0"
    b"DEVNAME=nvme4n1\0DEVTYPE=disk\0DISKSEQ=31\0SEQNUM=4712\0"
)
PROPERTIES = (
    b"ACTION=bind\0DEVPATH=/devices/pci0000:15/0000:15:01.0/0000:18:00.0\0SUBSYSTEM=pci\0DRIVER=nvidia\0PCI_CLASS=30200\0"
    b"PCI_ID=10DE:2330\0PCI_SLOT_NAME=0000:18:00.0\0SEQNUM=4713\0USEC_INITIALIZED=19374233\0"
)


def udevd(properties: bytes = PROPERTIES, magic: int = 0xFEEDCAFE, offset: int = 40, length: int | None = None) -> bytes:
    """As systemd 255 sends it."""
    length = len(properties) if length is None else length
    sizes = struct.pack("=III", 40, offset, length)
    return b"libudev\0" + struct.pack(">I", magic) + sizes + struct.pack(">IIII", 0xC370B302, 0, 0x10, 0x40) + properties


def test_reads_the_kernels_form() -> None:
    event = udev.parse(KERNEL)
    assert event is not None
    assert (event.action, event.subsystem, event.properties["DEVTYPE"]) == ("add", "block", "disk")
    assert event.devpath.endswith("/nvme4n1")


def test_reads_udevds_form() -> None:
    event = udev.parse(udevd())
    assert event is not None
    assert (event.action, event.subsystem, event.properties["DRIVER"]) == ("bind", "pci", "nvidia")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"add@/devices/x",
        b"no header\0ACTION=add\0DEVPATH=/devices/x\0",
        b"add@/devices/x\0ACTION=add\0",
        b"add@/devices/x\0ACTION=dance\0DEVPATH=/devices/x\0",
        b"add@/devices/x\0ACTION=add\0DEVPATH=../../etc\0",
        b"libudev\0",
        udevd(magic=0xFEEDBEEF),
        udevd(offset=4000),
        udevd(length=4000),
        udevd()[:30],
    ],
)
def test_what_is_no_event_is_none(data: bytes) -> None:
    assert udev.parse(data) is None


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=200).map(lambda b: udevd(b)), st.binary().map(lambda b: KERNEL + b)))
def test_any_bytes_are_an_event_or_none(data: bytes) -> None:
    assert udev.parse(data) is None or isinstance(udev.parse(data), Event)


class FakeSocket:
    """Gives messages, then would block for ever. A number is an errno."""

    def __init__(self, *messages: "tuple[bytes, int, int] | int") -> None:
        self.messages = list(messages)
        self.quiet, self.end = os.pipe()

    def fileno(self) -> int:
        return self.quiet

    def recvmsg(self, size: int, ancillary: int) -> Any:
        if not self.messages:
            raise BlockingIOError
        message = self.messages.pop(0)
        if isinstance(message, int):
            raise OSError(message, os.strerror(message))
        data, uid, port = message
        return data, [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("=iII", 0, uid, 0))], 0, (port, 1)

    def close(self) -> None:
        os.close(self.quiet)
        os.close(self.end)


def heard(*messages: "tuple[bytes, int, int] | int", seconds: float = 0.05) -> list[Event | Overrun]:
    items: list[Event | Overrun] = []

    async def work() -> None:
        sock: Any = FakeSocket(*messages)
        try:
            async with asyncio.timeout(seconds):
                async for item in udev.events(sock):
                    items.append(item)
        except TimeoutError:
            pass
        finally:
            sock.close()

    asyncio.run(work())
    return items


@pytest.mark.parametrize(
    ("data", "uid", "port", "believed"),
    [
        (KERNEL, 0, 0, True),
        (KERNEL, 0, 4711, False),  # root's process that speaks the kernel's form
        (KERNEL, 1000, 0, False),
        (udevd(), 0, 4711, True),
        (udevd(), 1000, 4711, False),
        (udevd(), 0, 0, False),  # the kernel does not speak udevd's
    ],
)
def test_believes_only_the_kernel_and_roots_udevd(data: bytes, uid: int, port: int, believed: bool) -> None:
    assert bool(heard((data, uid, port))) is believed


def test_a_message_without_credentials_is_not_believed() -> None:
    assert not udev._trusted(KERNEL, [], (0, 1))


def test_virtual_devices_are_dropped_before_they_are_parsed() -> None:
    veth = b"add@/devices/virtual/net/veth1\0ACTION=add\0DEVPATH=/devices/virtual/net/veth1\0SUBSYSTEM=net\0"
    assert heard((veth, 0, 0), (udevd(veth.partition(b"\0")[2]), 0, 9)) == []


def test_lost_events_are_told_between_the_others() -> None:
    items = heard((KERNEL, 0, 0), errno.ENOBUFS, (KERNEL, 0, 0))
    assert [type(item) for item in items] == [Event, Overrun, Event]


def test_a_socket_that_is_of_no_use_ends_it() -> None:
    with pytest.raises(OSError, match="Bad file"):
        heard(errno.EBADF)


# ---------------------------------------------------------------- the real thing


def _runs(filtered: bytes, data: bytes) -> int:
    """The program's verdict on a message, as the kernel would run it."""
    program = [struct.unpack_from("=HBBI", filtered, at) for at in range(0, len(filtered), 8)]
    at = word = 0
    while True:
        code, true, false, k = (int(part) for part in program[at])
        at += 1
        if code == 0x20:
            if k + 4 > len(data):
                return 0
            word = int.from_bytes(data[k : k + 4], "big")
        elif code == 0x15:
            at += true if word == k else false
        else:
            return k


@pytest.mark.parametrize("action", sorted(udev._ACTIONS))
def test_the_filter_drops_virtual_devices_and_nothing_else(action: str) -> None:
    program = udev._dropping_virtual()
    tail = b"\0ACTION=x\0SUBSYSTEM=net\0SEQNUM=1\0"
    assert _runs(program, action.encode() + b"@/devices/virtual/net/veth1" + tail) == 0
    assert _runs(program, action.encode() + b"@/devices/pci0000:00/0000:00:03.0" + tail) > 0
    assert _runs(program, action.encode() + b"@/devices/virtio/net/eth0/virtual" + tail) > 0
    assert _runs(program, udevd()) > 0
    assert len(program) % 8 == 0


@pytest.fixture
def kernel_socket() -> Iterator[socket.socket]:
    try:
        sock = udev.connect(udevd=False)
    except OSError as error:  # a sandbox without AF_NETLINK: then bcd says so and lives on the rescan
        pytest.skip(f"no netlink here: {error}")
    with sock:
        yield sock


def test_hears_this_kernel(kernel_socket: socket.socket) -> None:
    """A write to `uevent` makes the kernel tell of the device again."""
    found = [path for path in _physical() if os.access(path, os.W_OK)]
    if not found:
        pytest.skip("no device here whose event may be asked for")

    async def work() -> Event | Overrun:
        async with asyncio.timeout(5):
            with open(found[0], "w") as file:
                file.write("change")
            async for item in udev.events(kernel_socket):
                return item
        raise AssertionError

    event = asyncio.run(work())
    assert isinstance(event, Event)
    assert f"/sys{event.devpath}/uevent" == os.path.realpath(found[0])


def _physical() -> Iterator[str]:
    for name in sorted(os.listdir("/sys/class/net")):
        path = f"/sys/class/net/{name}"
        if "/virtual/" not in os.path.realpath(path):
            yield f"{path}/uevent"


def test_does_not_believe_a_process_that_sends_to_the_group(kernel_socket: socket.socket) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15) as forger:
        try:
            forger.sendto(KERNEL, (0, 1))
        except OSError as error:
            pytest.skip(f"may not send: {error}")
    assert udev._receive(kernel_socket) in (None, [])
