"""Hardware events as collections: containers that come and go by the thousand start none."""

import asyncio
import contextlib
import ctypes
import errno
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import hotplug, triggers, udev
from agent.hotplug import Hotplug
from agent.recorded import open_host
from tests.agent.test_udev import FakeSocket
from tests.hosts_catalog import copy, slot_of

STORM_SECONDS = 60 if os.environ.get("BC_PROOF") else 6
PAIRS = 100  # a second


def message(subsystem: str, devpath: str, action: str = "add", **properties: str) -> tuple[bytes, int, int]:
    values = {"ACTION": action, "DEVPATH": devpath, "SUBSYSTEM": subsystem, **properties}
    return (f"{action}@{devpath}\0" + "".join(f"{key}={value}\0" for key, value in values.items())).encode(), 0, 0


class Part:
    """A Hotplug over a recorded host, whose time passes a hundred times as fast."""

    def __init__(self, host: Path) -> None:
        self.wanted: list[str] = []
        self.host = host
        self.udevd: list[bool] = []

    def run(
        self,
        connect: Callable[[bool], Any],
        seconds: float = 0.2,
        during: Callable[[Hotplug], None] | None = None,
        wanted: int = 0,
    ) -> None:
        """For some time, and until so many collections are wanted."""

        def connected(udevd: bool) -> Any:
            self.udevd.append(udevd)
            return connect(udevd)

        async def work() -> None:
            loop = asyncio.get_running_loop()
            part = Hotplug(lambda: open_host(self.host), self.wanted.append, connected, loop.time)
            task = asyncio.create_task(part.run())
            await asyncio.sleep(seconds / 2)
            if during:
                during(part)
            await asyncio.sleep(seconds / 2)
            async with asyncio.timeout(10):
                while len(self.wanted) < wanted:
                    await asyncio.sleep(0.01)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        asyncio.run(work())


@pytest.fixture
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Part:
    monkeypatch.setattr(triggers, "QUIET", 0.02)
    monkeypatch.setattr(triggers, "PATIENCE", 0.1)
    return Part(copy("h100-sxm-8", tmp_path))


def devpath(host: Path, slot: str) -> str:
    root = host / "root"
    return "/" + str((root / f"sys/bus/pci/devices/{slot}").resolve().relative_to(root / "sys"))


def test_a_gpu_that_is_bound_collects_gpus_and_os(part: Part) -> None:
    path = devpath(part.host, slot_of(part.host, 2))
    part.run(lambda _: FakeSocket(message("pci", path, "bind"), message("pci", path, "bind")), wanted=2)
    assert part.wanted == ["event-gpus", "event-os"]


def test_a_gpu_whose_function_is_gone_is_still_known_as_nvidias(part: Part) -> None:
    """sysfs cannot be asked about what was removed."""
    path = devpath(part.host, slot_of(part.host, 2))

    link = part.host / f"root/sys/bus/pci/devices/{slot_of(part.host, 2)}"

    class Late(FakeSocket):
        def recvmsg(self, size: int, ancillary: int) -> Any:
            link.unlink(missing_ok=True)  # before its event is read
            return super().recvmsg(size, ancillary)

    part.run(lambda _: Late(message("pci", path, "remove")), wanted=2)
    assert part.wanted == ["event-gpus", "event-os"]


def test_virtual_functions_are_no_events_even_when_they_go(part: Part) -> None:
    root = part.host / "root/sys/bus/pci/devices"
    vf = next(path.name for path in sorted(root.iterdir()) if (path / "physfn").exists())
    path = f"{devpath(part.host, vf)}/net/ens5f0v0"

    class Late(FakeSocket):
        def recvmsg(self, size: int, ancillary: int) -> Any:
            (root / vf).unlink(missing_ok=True)
            return super().recvmsg(size, ancillary)

    part.run(lambda _: Late(message("net", path, "remove"), message("net", path, "remove")))
    assert part.wanted == []


def test_lost_events_collect_everything_once_each_time(part: Part) -> None:
    part.run(lambda _: FakeSocket(errno.ENOBUFS), wanted=1)
    assert part.wanted == ["overrun"]


def test_a_socket_that_broke_is_had_again_and_all_is_collected(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has heard what happened in between."""
    monkeypatch.setattr(hotplug, "_AGAIN", 0.01)
    sockets = iter([FakeSocket(errno.EIO)])
    part.run(lambda _: next(sockets, None) or FakeSocket(), wanted=1)
    assert part.wanted == ["overrun"]
    assert len(part.udevd) == 2


def test_hears_udevd_where_it_runs(part: Part) -> None:
    part.run(lambda _: FakeSocket(), seconds=0.02)
    control = part.host / "root/run/udev/control"
    control.parent.mkdir(parents=True, exist_ok=True)
    control.touch()
    part.run(lambda _: FakeSocket(), seconds=0.02)
    assert part.udevd == [False, True]


def test_a_sandbox_without_netlink_is_said_once_and_tried_again(
    part: Part, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hotplug, "_AGAIN", 0.01)

    def refuse(_: bool) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    part.run(refuse, seconds=0.1)
    assert len(part.udevd) > 2
    said = [record.message for record in caplog.records]
    assert len(said) == 1
    assert said[0].startswith("hardware events cannot be heard: [Errno 97]")


def test_a_recorded_host_has_no_events(tmp_path: Path) -> None:
    asyncio.run(Hotplug(lambda: open_host(tmp_path), lambda _: None, None, lambda: 0.0).run())


def test_only_collections_of_events_move_the_spacing(part: Part) -> None:
    def judge(running: Hotplug) -> None:
        for reason in ("rescan", "event-disks", "xid+event-gpus"):
            running.collected(reason, changed=False)
        assert running._spacing.futile == 2
        running.collected("event-disks+event-nics", changed=True)
        assert running._spacing.futile == 0

    part.run(lambda _: FakeSocket(), during=judge)


# ---------------------------------------------------------------- containers that come and go


def in_namespace(name: str, make: Callable[[], socket.socket]) -> socket.socket:
    """A socket of the network namespace `name` (ip-netns(8)): it stays there whoever reads it."""
    made: list[socket.socket] = []

    def work() -> None:
        fd = os.open(f"/run/netns/{name}", os.O_RDONLY)
        try:
            if ctypes.CDLL(None).setns(fd, 0x40000000) == 0:
                made.append(make())
        finally:
            os.close(fd)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return made[0]


@contextlib.contextmanager
def storm(seconds: int) -> "Iterator[tuple[Callable[[bool], socket.socket], subprocess.Popen[str]]]":
    """veth pairs are made and removed in a network namespace; gives a `connect` that hears its events, and the process."""
    name = f"bcd-storm-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True)
    if made.returncode:
        pytest.skip(f"no network namespaces here: {made.stderr.decode().strip()}")
    script = (
        f"for second in $(seq {seconds}); do\n"
        f'  for n in $(seq {PAIRS}); do echo "link add va$n type veth peer name vb$n"; echo "link del va$n"; done'
        f" | ip -n {name} -batch - || exit 1\n  sleep 0.5\ndone\n"
    )
    try:
        with subprocess.Popen(["sh", "-c", script], stderr=subprocess.PIPE, text=True) as process:
            yield lambda udevd: in_namespace(name, lambda: udev.connect(udevd)), process
            process.kill()
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


@pytest.mark.skipif(shutil.which("ip") is None, reason="no ip(8) here: test_a_storm_of_messages does without")
@pytest.mark.parametrize("filtered", [True, False], ids=["filtered", "unfiltered"])
def test_veth_pairs_start_no_collection(part: Part, monkeypatch: pytest.MonkeyPatch, filtered: bool) -> None:
    """Real events of a real kernel; once with the socket's filter, once as where it cannot be had."""
    heard: list[bytes] = []
    trusted = udev._trusted

    def counted(data: bytes, *rest: Any) -> bool:
        heard.append(data)
        return trusted(data, *rest)

    monkeypatch.setattr(udev, "_trusted", counted)
    before = seqnum()
    if not filtered:
        monkeypatch.setattr(udev, "_attach", lambda *_: None)
    seconds = STORM_SECONDS if filtered else 2
    with storm(seconds) as (connect, process):
        part.run(connect, seconds=seconds)
        assert process.poll() in (None, 0), process.stderr
    assert part.wanted == []
    assert seqnum() - before > seconds * PAIRS, "the storm was one"
    assert len(heard) == 0 if filtered else len(heard) > 2 * PAIRS


def seqnum() -> int:
    return int(Path("/sys/kernel/uevent_seqnum").read_text())


def test_a_storm_of_messages_starts_no_collection(part: Part) -> None:
    one = [message("net", f"/devices/virtual/net/va{n}", action) for n in range(PAIRS) for action in ("add", "remove")]
    part.run(lambda _: FakeSocket(*one * STORM_SECONDS))
    assert part.wanted == []


def test_a_storm_of_real_ports_is_one_collection_a_minute(part: Part) -> None:
    slot = next(path.name for path in sorted((part.host / "root/sys/bus/pci/devices").iterdir()) if (path / "net").exists())
    path = f"{devpath(part.host, slot)}/net/ens5f0np0"
    one = [message("net", path, action) for _ in range(PAIRS) for action in ("remove", "add")]
    part.run(lambda _: FakeSocket(*one * STORM_SECONDS), seconds=0.6)
    assert part.wanted == ["event-nics"]
