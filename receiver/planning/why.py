"""Why a node or one of its GPUs is not bookable: by what, by whom, since when, and what would end it (`nodes.why`, SPEC B9).

Pure. What SPEC B0 asks of an atom is asked here once more, one obstacle an answer: of the node (rules NODE), of each of its GPUs
(rules DEVICE) and their atoms. One more obstacle costs a rule; what ends each stands in why_ends.py.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from receiver.planning import why_ends as ends
from receiver.planning.atoms import MISMATCH
from receiver.planning.condition_types import condition_type
from receiver.planning.findings import in_words
from receiver.planning.policy import Policy
from receiver.planning.verdicts import verdict
from receiver.planning.view import Atom, AtomKey, Booking, ConditionRow, Device, Health, Node, Pool, Run
from receiver.values import Json

HEALTH = "health"  # the owner of the receiver's own reasons
RESET = "gpu.reset"
NAMED = 6  # things that the sentence names


@dataclass(frozen=True, slots=True)
class Known:
    """A node's rows as they are read. `health`: what is open. `bookings`: live ones; the id of another tenant's is empty.

    `others`: reasons of other owners than `health`, as (owner, type). `runs`: repairs that have not ended. `missing`: sections
    that it could not report, with errors. `since`: by table and key of a row: ("conditions", row.key), ("health", row.key),
    ("runs", id), ("bookings", (atom, generation)), ("devices", id) for since when it is missing; ("node", "status") and
    ("node", "maintenance").
    """

    node_id: str
    node: Node
    kind: str = "host"
    online: bool = True
    boot_id: str = ""
    pool: Pool | None = None
    others: tuple[tuple[str, str], ...] = ()
    conditions: tuple[ConditionRow, ...] = ()
    devices: tuple[Device, ...] = ()
    atoms: tuple[Atom, ...] = ()
    health: tuple[Health, ...] = ()
    bookings: tuple[Booking, ...] = ()
    runs: tuple[Run, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    since: Mapping[tuple[str, Hashable], datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One thing that keeps atoms from being booked. `scope`: `node`, `device` or `atom`; `device_id`: whose it is.

    `enforced` False: it would, were the pool's mode `enforce`. `since` None: nobody has kept it. `ends`: what would end it.
    """

    scope: str
    what: str
    by: str
    ends: str
    since: datetime | None = None
    message: str | None = None
    device_id: str | None = None
    atom_id: str | None = None
    enforced: bool = True


@dataclass(frozen=True, slots=True)
class DeviceAnswer:
    """A GPU, and how many of its atoms can be booked now. `against`: its own obstacles, sorted."""

    device: Device
    atoms: int
    bookable: int
    booked: int
    against: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """`sentence`: all of it in one. Obstacles are the node's first, then by device."""

    sentence: str
    bookable: bool
    obstacles: tuple[Obstacle, ...]
    devices: tuple[DeviceAnswer, ...]


def why(known: Known, device_id: str | None = None) -> Answer:
    """The answer for a node, or with `device_id` for one of its GPUs, atom by atom: then with what the node has against all."""
    of_node = tuple(_of_node(known))
    chosen = sorted((one for one in known.devices if device_id in (None, one.id)), key=_by_index)
    told = [(one, tuple(_of_device(known, one, device_id is not None))) for one in chosen]
    stands = any(one.enforced for one in of_node) or not _placeable(known)
    devices = tuple(_device(known, device, own, stands) for device, own in told)
    again = {(one.what, one.device_id) for one in of_node if one.enforced}
    obstacles = (*of_node, *(one for _, own in told for one in own if (one.what, one.device_id) not in again))
    return Answer(_sentence(known, obstacles, devices, stands), any(one.bookable for one in devices), obstacles, devices)


# ---- the node


def _of_node(known: Known) -> Iterator[Obstacle]:
    for rule in NODE:
        yield from rule(known)


def _status(known: Known) -> Iterator[Obstacle]:
    node, since = known.node, known.since.get(("node", "status"))
    if node.status == "adopting":
        failed = any(row.type == "AcceptanceFailed" and row.status == "true" for row in known.conditions)
        end = ends.adopt(known.node_id) if failed else _waits_for(known)
        yield Obstacle("node", "adopting", "acceptance", end, since, "it is not in service before it has passed its acceptance")
    elif node.status == "maintenance":
        until = f", until {node.maintenance_until}" if node.maintenance_until else ""
        message = f"{node.maintenance_reason or 'no reason given'}{until}"
        since = known.since.get(("node", "maintenance"), since)
        yield Obstacle("node", "maintenance", node.maintenance_by or "operator", ends.adopt(known.node_id), since, message)
    elif node.status != "adopted":
        yield Obstacle("node", node.status, "operator", ends.OUT[node.status], since, "it is out of service")


def _waits_for(known: Known) -> str:
    """What an adopting node needs next (planning/acceptance.py)."""
    checks = [str(one["kind"]) for one in known.pool.policy.acceptance] if known.pool and known.kind != "site-agent" else []
    duplicate = any(row.type == "DuplicateIdentity" and row.status == "true" for row in known.conditions)
    steps = (
        (known.node.trust != "platform", "its trust is `platform` again"),
        (not known.online, "its bcd connects"),
        (duplicate, "its DuplicateIdentity ends"),
        ("gpus" in known.missing, f"its gpus section comes ({known.missing.get('gpus')})"),
        (known.node.inventory_boot is None, "its first inventory is applied"),
        (known.node.inventory_boot != known.boot_id, "an inventory of its present boot is applied"),
        (bool(checks), f"its checks pass: {', '.join(checks)}"),
    )
    return next((f"when {text}" for holds, text in steps if holds), "at its next report: nothing is left to prove")


def _trust(known: Known) -> Iterator[Obstacle]:
    if known.node.trust != "platform":
        lease = f"lease {known.node.lease_id}: " if known.node.lease_id else ""
        end = ends.command("nodes.setTrust", nodeId=known.node_id, trust="platform", reason="...")
        yield Obstacle(
            "node", known.node.trust, "operator", end, None, f"{lease}a tenant has root on it, its word counts for nothing"
        )


def _reasons(known: Known) -> Iterator[Obstacle]:
    """The receiver's own reasons, a row of a condition each; a reason that has no row any more by its name alone."""
    enforced, would = set(known.node.no_schedule_reasons), set(known.node.would_no_schedule)
    rows = [row for row in known.conditions if row.type in enforced | would and row.status == "true" and not row.advisory]
    for row in sorted(rows, key=lambda row: row.key):
        if row.no_schedule:
            yield Obstacle(
                "node",
                row.type,
                condition_type(row.type).writer,
                _repair(known, row.type, row.device_id) or ends.of_condition(known.node_id, row),
                known.since.get(("conditions", row.key)),
                _said(row),
                row.device_id or None,
                enforced=row.type in enforced,
            )
    for kind in sorted((enforced | would) - {row.type for row in rows if row.no_schedule}):
        yield Obstacle("node", kind, HEALTH, ends.FROZEN, enforced=kind in enforced)


def _said(row: ConditionRow) -> str:
    """Of an XID the table's words, and the driver's where the reader may see them: they name a tenant's processes."""
    if condition_type(row.type).writer != "xid":
        return row.message or condition_type(row.type).meaning
    words = _fault(row.type, row.message, row.count)
    return f"{words}; the driver: {row.message}" if row.message.strip(" ,.0123456789") else words


def _fault(code: str, message: str, count: int) -> str:
    name = verdict(code, message, Policy()).name or "in no table"
    return f"{name}; seen {count} times" if count > 1 else name


def _draining(known: Known) -> Iterator[Obstacle]:
    if known.node.draining:
        yield from _repairs(known, "node", [one for one in known.runs if one.kind != RESET])


def _repairs(known: Known, scope: str, runs: Sequence[Run], device_id: str | None = None) -> Iterator[Obstacle]:
    """The repair that it drains for, or that it drains."""
    by, message, end = ends.OF_DEVICE["draining"]
    run = next((one for one in runs if not one.observed), None)
    if run is not None:
        message, end = f"{run.kind} {run.id} {run.state}: {run.reason or message}", ends.of_run(run.id)
    since = known.since.get(("runs", run.id)) if run is not None else None
    yield Obstacle(scope, "draining", by, end, since, message, device_id)


def _repair(known: Known, code: str, device_id: str) -> str | None:
    """What ends a fault that a repair is for."""
    for run in known.runs:
        if not run.observed and any((one.get("code"), one.get("deviceId")) == (code, device_id) for one in run.causes):
            return ends.of_repair(run)
    return None


def _others(known: Known) -> Iterator[Obstacle]:
    for owner, kind in sorted(known.others):
        yield Obstacle("node", kind, owner, f"{owner} takes its reason back")


# ---- a device


def _of_device(known: Known, device: Device, each_atom: bool) -> Iterator[Obstacle]:
    for rule in DEVICE:
        yield from rule(known, device)
    live = {(one.atom_id, one.atom_generation): one for one in known.bookings if one.device_id == device.id}
    atoms = sorted((atom for atom in known.atoms if atom.device_id == device.id), key=lambda atom: atom.key)
    for atom in atoms:
        if atom.reason is not None and atom.reason in ends.OF_ATOM:
            message = ends.OF_ATOM[atom.reason]
            yield Obstacle("atom", atom.reason, "inventory", ends.BOOKING, None, message, device.id, atom.id)
    yield from (_booked_each if each_atom else _booked)(known, device, atoms, live)


def _state(known: Known, device: Device) -> Iterator[Obstacle]:
    states = {
        "missing": not device.present,
        "lost": device.lost and not any(row.code == "GpuLost" and row.device_id == device.id for row in known.health),
        "assigned": device.assigned,
        "partitionPending": device.partition_pending,
    }
    for what in (name for name, holds in states.items() if holds):
        by, message, end = ends.OF_DEVICE[what]
        since = known.since.get(("devices", device.id)) if what == "missing" else None
        yield Obstacle("device", what, by, end, since, message, device.id)
    if device.draining and not known.node.draining:
        yield from _repairs(known, "device", [one for one in known.runs if device.id in one.devices], device.id)


def _open(known: Known, device: Device) -> Iterator[Obstacle]:
    rows = [row for row in known.health if row.device_id == device.id and row.open]
    for row in sorted(rows, key=lambda row: row.key):
        since, end = known.since.get(("health", row.key)), _repair(known, row.code, device.id) or ends.of_health(row)
        yield Obstacle("device", row.code, row.source, end, since, _words(row), device.id)


def _words(row: Health) -> str:
    """Without the driver's text, which names a tenant's processes."""
    if row.source == "inventory":
        return in_words(row)
    return _fault(row.code, str(row.detail.get("message", "")), row.count)


def _layout(known: Known, device: Device) -> Iterator[Obstacle]:
    for row in known.conditions:
        if row.key == (MISMATCH, device.id) and row.status == "true":
            since = known.since.get(("conditions", row.key))
            yield Obstacle("device", MISMATCH, "inventory", ends.of_condition(known.node_id, row), since, row.message, device.id)


def _booked(known: Known, device: Device, atoms: Sequence[Atom], live: Mapping[AtomKey, Booking]) -> Iterator[Obstacle]:
    """In one line for all atoms of the device, so that a whole node stays on one screen."""
    if live:
        times = [known.since[key] for one in live if (key := ("bookings", one)) in known.since]
        message = f"{len(live)} of {len(atoms)} atoms" if len(atoms) > 1 else _named(next(iter(live.values())))
        end = ends.BOOKING if len(live) == 1 else ends.BOOKINGS
        yield Obstacle("device", "booked", "placement", end, min(times, default=None), message, device.id)


def _booked_each(known: Known, device: Device, atoms: Sequence[Atom], live: Mapping[AtomKey, Booking]) -> Iterator[Obstacle]:
    for key, one in sorted(live.items()):
        since = known.since.get(("bookings", key))
        yield Obstacle("atom", "booked", "placement", ends.BOOKING, since, _named(one), device.id, one.atom_id)


def _named(booking: Booking) -> str:
    return f"booking {booking.booking_id}" if booking.booking_id else "a booking of another tenant"


NODE = (_status, _trust, _draining, _reasons, _others)
DEVICE = (_state, _open, _layout)


# ---- the answer


def _placeable(known: Known) -> bool:
    node = known.node
    stands = node.draining or node.no_schedule_reasons or known.others
    return node.status == "adopted" and node.trust == "platform" and not stands


def _device(known: Known, device: Device, own: Iterable[Obstacle], stands: bool) -> DeviceAnswer:
    booked = {(one.atom_id, one.atom_generation) for one in known.bookings if one.device_id == device.id}
    atoms = [atom for atom in known.atoms if atom.device_id == device.id]
    free = 0 if stands else sum(atom.bookable and atom.key not in booked for atom in atoms)
    return DeviceAnswer(device, len(atoms), free, len(booked), tuple(sorted({one.what for one in own})))


def _by_index(device: Device) -> tuple[int, str]:
    index: Json = device.attributes.get("index")
    return (index if isinstance(index, int) else 1 << 32, device.id)


def _sentence(known: Known, obstacles: Sequence[Obstacle], devices: Sequence[DeviceAnswer], stands: bool) -> str:
    total, free = sum(one.atoms for one in devices), sum(one.bookable for one in devices)
    only = [one for one in obstacles if not one.enforced]
    observed = f" The pool only observes: else {_listed(only)} would keep it out." if only else ""
    if stands:
        against = [one for one in obstacles if one.scope == "node" and one.enforced]
        return f"Nothing can be booked: {_listed(against)}.{observed}"
    against = [one for one in obstacles if one.scope != "node"]
    if not total:
        return f"There is nothing to book: {_listed(against) or _empty(known, devices)}.{observed}"
    head = f"{free} of {total} atoms can be booked"
    if free == total or total == 1:
        head = f"{f'All {total} atoms' if total > 1 else 'Its one atom'} {'can' if free else 'cannot'} be booked"
    return head + (f": {_listed(against)}" if against else "") + f".{observed}"


def _empty(known: Known, devices: Sequence[DeviceAnswer]) -> str:
    if known.kind == "site-agent":
        return "a site agent has no GPUs"
    if known.devices or devices:
        return "its GPUs have no atoms"
    if "gpus" in known.missing:
        return f"its gpus section did not come ({known.missing['gpus']})"
    return "its inventory shows no GPU" if known.node.inventory_boot else "no inventory of it has been applied"


def _listed(obstacles: Iterable[Obstacle]) -> str:
    """What stands against it, each word once with how many devices it is of."""
    found: dict[str, set[str]] = {}
    for one in obstacles:
        found.setdefault(one.what, set()).update([one.device_id] if one.device_id else [])
    words = [
        f"{what} on {len(of)} GPUs" if len(of) > 1 else f"{what} on {next(iter(of))}" if of else what
        for what, of in found.items()
    ]
    return ", ".join(words[:NAMED]) + (f" and {len(words) - NAMED} more" if len(words) > NAMED else "")
