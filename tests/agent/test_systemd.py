"""sd_notify: the service manager hears of us, our children never can."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.systemd import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(5)
        yield sock


def test_tells_ready_alive_and_stopping(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.ready()
    notifier.alive()
    notifier.stopping()
    assert [manager.recv(64) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]


def test_a_manager_that_reads_nothing_holds_nobody_up(manager: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    for _ in range(int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()) + 2):
        notifier.alive()
    assert "cannot tell the service manager WATCHDOG=1: timed out" in caplog.text


def test_an_abstract_socket_is_one_too() -> None:
    name = f"bcd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name)
        sock.settimeout(5)
        Notifier({"NOTIFY_SOCKET": "@" + name}).ready()
        assert sock.recv(64) == b"READY=1"


def test_takes_the_variables_out_of_the_environment() -> None:
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    assert Notifier(environ).watchdog == 15.0
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize(
    "environ", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}]
)
def test_no_watchdog_is_fed_unless_it_is_ours(environ: dict[str, str]) -> None:
    assert Notifier(environ).watchdog is None


def test_a_manager_that_is_gone_or_absent_does_not_stop_us(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier({}).ready()
    assert caplog.text == ""
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
    assert "READY=1" in caplog.text
