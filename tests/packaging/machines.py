"""Machines to install on: a fresh Debian root each (debootstrap), booted with systemd-nspawn, on a network of their own that
has nothing but its loopback. Needs root, debootstrap, systemd-nspawn and Debian's archive (for the base root, once)."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.end_to_end.processes import wait_for
from tests.scripts import ROOT

SUITE = "bookworm"
TOOLS = ("debootstrap", "systemd-nspawn", "ip", "nsenter", "dpkg-deb")
INCLUDE = "systemd,systemd-sysv,python3.11,init-system-helpers,dbus,procps"
CAPABILITIES = "--capability=CAP_SYSLOG"  # nspawn keeps it from its machines otherwise; a real machine has it
REBOOT = 133  # exit code of nspawn
NETWORK = "bc-proof-install"
_SHOWN = os.open(os.environ.get("BC_FIGURES", "/dev/null"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)  # for figures


def missing() -> str:
    """Why machines cannot be had here; empty: they can."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"not installed: {', '.join(absent)}" if absent else "" if os.geteuid() == 0 else "not root"


def base() -> Path:
    """A fresh Debian root, made once below build/ and never changed."""
    root = ROOT / "build/install" / SUITE
    if not (root / "made").exists():
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={INCLUDE}", SUITE, str(root)],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=900,
        )
        (root / "made").touch()
    return root


@contextlib.contextmanager
def network() -> Iterator[str]:
    """A network namespace with nothing but its loopback: no registry, no other machine."""
    subprocess.run(["ip", "netns", "delete", NETWORK], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["ip", "netns", "add", NETWORK], check=True)
    try:
        subprocess.run(["ip", "-n", NETWORK, "link", "set", "lo", "up"], check=True)
        yield NETWORK
    finally:
        subprocess.run(["ip", "netns", "delete", NETWORK], check=False)


@dataclass
class Machine:
    """One machine. `run` runs a program in it, booted or not, without a network beyond its own."""

    name: str
    root: Path
    network: str
    popen: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def boot(self) -> None:
        """Boots it; until systemd has started everything."""
        argv = ["systemd-nspawn", "-q", "-D", str(self.root), "-b", "-M", self.name, "--register=no", "--keep-unit"]
        argv += [f"--network-namespace-path=/run/netns/{self.network}", "--bind=/dev/kmsg", CAPABILITIES, "--console=pipe"]
        with (self.root.parent / f"{self.name}.log").open("ab") as log:
            self.popen = subprocess.Popen([*argv, "systemd.firstboot=off"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.wait_booted()

    def wait_booted(self) -> None:
        """Until systemd has started everything that it starts at boot."""
        wait_for(f"{self.name} to boot", lambda: self.try_("systemctl", "is-system-running").stdout.strip() in _BOOTED, 60, 0.2)

    @property
    def init(self) -> int | None:
        """Process id, out here, of the machine's init; None while it is down."""
        if self.popen is None or self.popen.poll() is not None:
            return None
        children = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def _argv(self, argv: tuple[str, ...]) -> list[str]:
        clean = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"]
        if init := self.init:
            return ["nsenter", "-t", str(init), "-m", "-u", "-i", "-n", "-p", "--", *clean, *argv]
        if self.popen is not None:
            return ["false"]  # it goes down, or comes up
        inside = 'mount -t proc proc /proc && exec "$@"'
        alone = ["ip", "netns", "exec", self.network, "unshare", "-m", "-p", "-f", "chroot", str(self.root)]
        return [*alone, *clean, "sh", "-c", inside, "sh", *argv]

    def try_(self, *argv: str, data: str = "") -> "subprocess.CompletedProcess[str]":
        """How a program in the machine ended."""
        return subprocess.run(self._argv(argv), input=data, capture_output=True, text=True, check=False, timeout=120)

    def run(self, *argv: str, data: str = "", codes: tuple[int, ...] = (0,)) -> str:
        """The output of a program in the machine. Raises AssertionError with all it said when it ends otherwise."""
        done = self.try_(*argv, data=data)
        assert done.returncode in codes, f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def show(self, unit: str, name: str) -> str:
        """One property of a unit."""
        return self.run("systemctl", "show", "-p", name, "--value", unit).strip()

    def journal(self, unit: str, *more: str) -> str:
        """What stands in the journal of a unit."""
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit, *more, codes=(0, 1))

    def python(self, code: str, user: str, group: str) -> str:
        """The output of a program for bcd's private Python, run as a user."""
        return self.run("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "/opt/bcd/bin/python3", "-c", code)

    def boots_again(self) -> None:
        """After something asked for a reboot: nspawn ends with 133 when its machine is down and wants to come up again."""
        assert self.popen is not None
        assert self.popen.wait(60) == REBOOT
        self.boot()

    def off(self) -> None:
        """Powers it off; kills what does not go."""
        if self.popen is None:
            return
        if self.popen.poll() is None:
            self.try_("systemctl", "poweroff")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(30)
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGKILL)
            self.popen.wait(10)
        self.popen = None


_BOOTED = ("running", "degraded")


@contextlib.contextmanager
def machine(name: str, where: Path, network: str) -> Iterator[Machine]:
    """A new machine, not booted yet; off and gone after the block."""
    root = where / name
    subprocess.run(["cp", "-a", "--reflink=auto", str(base()), str(root)], check=True, timeout=300)
    made = Machine(f"{name}{os.getpid()}", root, network)
    (root / "etc/machine-id").unlink(missing_ok=True)
    (root / "etc/hostname").write_text(f"{name}\n")
    try:
        yield made
    finally:
        made.off()
        shutil.rmtree(root, ignore_errors=True)


def say(what: str, figure: object) -> None:
    """A figure, into the file that BC_FIGURES names: pytest captures what is printed."""
    os.write(_SHOWN, f"  {what:<52} {figure}\n".encode())


def seconds(since: float) -> str:
    """Time since a moment of time.monotonic()."""
    return f"{time.monotonic() - since:.1f} s"
