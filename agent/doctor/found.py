"""What doctor looks at, all at once: the worker's sections and readings, the kernel log, the daemon, the receiver.

Every look has a limit, and none of them raises for what happens in the field: what cannot be seen is part of what is found.
"""

import asyncio
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import decode
from google.protobuf.message import Message

from agent import checks, diagnosis, doors, fault_store, identity, kernel_log, known_gpus, local, tls
from agent.conditions import external, module, reboot
from agent.conditions.facts import Fabric
from agent.conditions.facts import Facts as ConditionFacts
from agent.config import Config
from agent.errors import Unreadable, UserError
from agent.fault_store import Stored
from agent.faults import Ledger
from agent.host import Host
from agent.identity import Certificate, Identity
from agent.inventory import Store
from agent.kernel_log import Look
from agent.sections import Failed, Section

SECTIONS = ("system", "os", "disks", "nics", "gpus")
PATIENCE = 2.0  # seconds, for the daemon and for the receiver
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Place:
    """Where doctor looks. `data_dir` is None for a recorded host whose daemon's directory was not named.

    `ask_receiver`: of a recorded host's receiver something is known only when it was named. `wrong`: why the configuration could
    not be read; then `config` is what holds without it.
    """

    config: Config
    host_dir: Path | None = None
    data_dir: Path | None = None
    ask_receiver: bool = True
    source: str = ""  # the configuration file, empty: there is none
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class DataDir:
    """The daemon's directory: its mode, whether this user may look into it, and faults.json."""

    path: Path
    mode: int | None = None  # None: it is not there
    is_open: bool = False
    stored: Stored | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """This node's identity; `error`: why it cannot be read. `now` is this machine's clock, in Unix seconds."""

    identity: Identity | None = None
    error: str = ""
    now: float = 0.0

    @property
    def certificate(self) -> Certificate | None:
        """What the node has joined with."""
        return self.identity.joined if self.identity else None


@dataclass(frozen=True, slots=True)
class Reached:
    """Whether a receiver was reached: why not (empty: it was), and what to do. `tls`: its certificate and ours were looked at."""

    server: str
    cause: str = ""
    todo: str = ""
    tls: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """All that was found. `sections` and `failed` are by name, `daemon` is `bcd status --json`."""

    place: Place
    name: str = ""  # host name, release and machine, as uname tells them
    uptime: float = 0.0
    sections: Mapping[str, Message] = field(default_factory=dict)
    failed: Mapping[str, Failed] = field(default_factory=dict)
    facts: checks.Facts = field(default_factory=checks.Facts)
    data_dir: DataDir | None = None
    daemon: Mapping[str, Any] | None = None
    no_daemon: str = ""  # why it does not answer
    log: Look = field(default_factory=lambda: Look(None))
    conditions: ConditionFacts = field(default_factory=ConditionFacts)
    member: Member = field(default_factory=lambda: Member())
    receivers: tuple[Reached, ...] | None = None  # None: not asked

    @property
    def is_recorded(self) -> bool:
        """Whether this is a recorded host."""
        return self.place.host_dir is not None

    def section(self, kind: type[M]) -> M | None:
        """The section with this message, or None."""
        return next((section for section in self.sections.values() if isinstance(section, kind)), None)


async def look(place: Place) -> Found:
    """Looks. Raises UserError only for what `--host` names and is none."""
    doors.check(place.config, place.host_dir)
    host = doors.host(place.host_dir)
    boot_id = boot_id_of(host)
    directory = data_dir(place.data_dir, boot_id)
    known = remembered(directory)
    log_path = kernel_log.path_of(place.host_dir)
    member = _member(place, directory)
    asked, log, daemon, receivers = await asyncio.gather(
        doors.collector(place.config, place.host_dir).run([*SECTIONS, "readings"], known),
        kernel_log.look(log_path, stored(directory, boot_id), time.time() - host.uptime(), place.config.kmsg_trust_userspace),
        asyncio.to_thread(_daemon, place),
        _receivers(place, member),
    )
    log = _followed(log, daemon)
    sections = {n: decode(n, s.data) for n, s in asked.items() if n in SECTIONS and isinstance(s, Section)}
    failed = {n: f for n, f in asked.items() if isinstance(f, Failed)}
    uname = host.uname()
    return Found(
        place=place,
        name=f"{uname.hostname or 'a host without a name'}, {uname.sysname} {uname.release} {uname.machine}".strip(),
        uptime=host.uptime(),
        sections=sections,
        failed=failed,
        facts=diagnosis.facts(asked, log, known),
        data_dir=directory,
        daemon=daemon if isinstance(daemon, dict) else None,
        no_daemon=daemon if isinstance(daemon, str) else "",
        log=log,
        conditions=await asyncio.to_thread(_conditions, host, boot_id, place.config, sections, failed),
        member=member,
        receivers=receivers,
    )


def boot_id_of(host: Host) -> str:
    """This boot's; empty when it cannot be read."""
    try:
        return host.boot_id()
    except Unreadable:
        return ""


def data_dir(path: Path | None, boot_id: str) -> DataDir | None:
    """The daemon's directory as this user sees it; None when none is named."""
    if path is None:
        return None
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return DataDir(path)
    except OSError:
        return DataDir(path, mode=0)
    is_open = os.access(path, os.R_OK | os.X_OK)
    return DataDir(path, mode, is_open, fault_store.load(path, boot_id) if is_open else None)


def stored(directory: DataDir | None, boot_id: str) -> Stored:
    """The daemon's ledger of this boot, as far as it can be read."""
    return directory.stored if directory and directory.stored else Stored(Ledger(boot_id))


def remembered(directory: DataDir | None) -> tuple[pb.Gpu, ...]:
    """The GPUs that the daemon remembers."""
    if directory is None or not directory.is_open:
        return ()
    return known_gpus.gpus(Store(directory.path / "inventory").known_gpus())


def _daemon(place: Place) -> dict[str, Any] | str | None:
    """Its status, or why there is none; None where no daemon was named."""
    if place.data_dir is None:
        return None
    try:
        return local.call(place.config.socket_path, "status", PATIENCE)
    except UserError as error:
        return str(error).split("\n")[0]


def _followed(log: Look, daemon: object) -> Look:
    """What the daemon follows to its end need not be read here (a pipe cannot be; a user may lack the right)."""
    follows = isinstance(daemon, dict) and daemon.get("kernelLog", {}).get("available")
    return Look(log.ledger) if follows and log.ledger is not None else log


def _member(place: Place, directory: DataDir | None) -> Member:
    if directory is None or directory.mode is None or place.config.insecure:
        return Member()
    if not directory.is_open:
        return Member(error=f"{directory.path} may not be entered by this user")
    try:
        return Member(identity.read(directory.path), now=time.time())
    except UserError as error:
        return Member(error=str(error))


async def _receivers(place: Place, member: Member) -> tuple[Reached, ...] | None:
    """Every receiver that is named, else those that joining told; with the node's certificate where it has one."""
    if not place.ask_receiver:
        return None
    ours = member.certificate
    servers = place.config.servers or (tuple(ours.server.split(",")) if ours else ())
    return tuple(await asyncio.gather(*(_secure(server, ours) if ours else _plain(server) for server in servers)))


async def _secure(server: str, ours: Certificate) -> Reached:
    try:
        await asyncio.to_thread(tls.reach, server, ours.server_ca, PATIENCE, ours)
    except tls.NotReached as error:
        return Reached(server, error.cause, error.hint, tls=True)
    return Reached(server, tls=True)


async def _plain(server: str) -> Reached:
    """Whether something listens there."""
    try:
        async with asyncio.timeout(PATIENCE):
            if server.startswith("unix:"):
                _, writer = await asyncio.open_unix_connection(server.removeprefix("unix:"))
            else:
                name, _, port = server.rpartition(":")
                _, writer = await asyncio.open_connection(name.strip("[]"), int(port))
    except TimeoutError:
        return Reached(server, f"no answer within {PATIENCE:g} s", tls.ABSENT)
    except OSError as error:
        return Reached(server, os.strerror(error.errno) if error.errno and error.errno > 0 else str(error), tls.ABSENT)
    writer.close()
    return Reached(server)


def _conditions(
    host: Host, boot_id: str, config: Config, sections: Mapping[str, Message], failed: Mapping[str, Failed]
) -> ConditionFacts:
    """What the daemon judges its conditions by, without what must be asked of other programs."""
    gpus, system = sections.get("gpus"), sections.get("os")
    section = gpus if isinstance(gpus, pb.GpusSection) else None
    package = system.fabric_manager_version if isinstance(system, pb.OsSection) else ""
    return ConditionFacts(
        uptime=host.uptime(),
        gpus=section,
        failed=failed.get("gpus"),
        manager=Fabric().manager(host, boot_id, section, package or None),
        waiting=reboot.read(host, module.Module(), ()),
        managed_by=external.managers(host, config.host_managed_marker),
    )
