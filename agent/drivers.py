"""Drivers that this node advertises in Hello (SPEC A7): what may be run on it, by bcd's knowledge or by another component's word.

Another component says so with a file in `/etc/bcd/drivers.d/` or `data_dir/drivers.d/`:

    id = "firecracker"
    version = "1.7.0"
    kinds = ["sandbox"]
"""

import asyncio
import logging
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent.collectors import Files
from agent.collectors.packages import DPKG_STATUS, dpkg_versions
from agent.errors import FieldError
from agent.host import Host
from agent.session.messages import Driver

CHECK = 60.0  # seconds between two looks
MAX_DRIVERS, MAX_KINDS = 64, 32  # B11
_DIRECTORY = "/etc/bcd/drivers.d"
_MAX_FILE = 64 << 10
_KVM = "/dev/kvm"
_LIBVIRT = ("/run/libvirt/libvirt-sock", "/run/libvirt/virtqemud-sock", "/var/run/libvirt/libvirt-sock")
_CLOUD_HYPERVISOR = ("/usr/bin/cloud-hypervisor", "/usr/local/bin/cloud-hypervisor")
_log = logging.getLogger("bcd.drivers")


class BadDriver(FieldError):
    """A file that describes no driver; says what is wrong with it."""


class Drivers:
    """The drivers of a host, looked for once a minute; what is wrong with a file is logged once. `current`: what was found."""

    def __init__(self, data_dir: Path, host: Callable[[], Host]) -> None:
        self._own = Host(data_dir)
        self._host = host
        self._told: set[str] = set()
        self._packages: tuple[object, dict[str, str]] = (None, {})
        self.current = self.advertised(host())

    async def run(self, changed: Callable[[], None]) -> None:
        """Until it is cancelled; tells when other drivers are there."""
        while True:
            await asyncio.sleep(CHECK)
            try:
                found = self.advertised(self._host())
            except FieldError as error:  # a recorded host that is no longer one
                _log.warning("drivers cannot be looked for: %s", error)
                continue
            if found != self.current:
                self.current = found
                changed()

    def advertised(self, host: Host) -> tuple[Driver, ...]:
        """Sorted by id, at most 64. Of two with one id the later counts: bcd's own, /etc, data_dir."""
        found = {driver.id: driver for driver in self._built_in(host)}
        for where, directory in ((host, _DIRECTORY), (self._own, "/drivers.d")):
            found |= {driver.id: driver for driver in self._described(where, directory)}
        return tuple(found[name] for name in sorted(found)[:MAX_DRIVERS])

    def _built_in(self, host: Host) -> Iterator[Driver]:
        if not host.exists(_KVM):
            return
        if any(host.exists(path) for path in _LIBVIRT):
            yield Driver("libvirt-kvm", self._version(host, "libvirt-daemon"), ("vm",))
        if any(host.exists(path) for path in _CLOUD_HYPERVISOR):
            yield Driver("cloud-hypervisor", self._version(host, "cloud-hypervisor"), ("vm",))

    def _version(self, host: Host, package: str) -> str:
        """The installed package's version; empty when dpkg does not know it. The database is read when it has changed only."""
        files = Files(host)
        found = files.stat(DPKG_STATUS)
        stamp = (found.st_ino, found.st_size, found.st_mtime_ns) if found else None
        if stamp != self._packages[0]:
            prefixes = ("libvirt-daemon", "cloud-hypervisor")
            self._packages = (stamp, dpkg_versions(files.bytes(DPKG_STATUS) or b"", prefixes))
        return self._packages[1].get(package, "")

    def _described(self, where: Host, directory: str) -> Iterator[Driver]:
        files = Files(where)
        for name in (name for name in files.names(directory) if name.endswith(".toml") and not name.startswith(".")):
            path = f"{directory}/{name}"
            try:
                yield parse((files.bytes(path, _MAX_FILE, follow=False) or b"").decode())
            except (BadDriver, UnicodeDecodeError) as error:
                if path not in self._told:
                    self._told.add(path)
                    _log.warning("%s describes no driver and is not advertised: %s", path, error)


def parse(text: str) -> Driver:
    """A file's text as a driver. Raises BadDriver. `version` may be absent; keys not known here are a newer component's."""
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadDriver(f"not TOML: {error}") from error
    kinds = value.get("kinds", [])
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind for kind in kinds) or len(kinds) > MAX_KINDS:
        raise BadDriver(f"kinds is {kinds!r}; expected a list of at most {MAX_KINDS} texts")
    return Driver(_text(value, "id"), _text(value, "version", ""), tuple(sorted(set(kinds))))


def _text(value: dict[str, Any], key: str, default: str | None = None) -> str:
    found = value.get(key, default)
    if not isinstance(found, str) or (not found and default is None):
        raise BadDriver(f"{key} is {found!r}; expected a text")
    return found
