"""`nodes.why`: the rows that receiver/planning/why.py judges, read with their times, and its answer as a message."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, TypeVar

from bettercompute.contract.sections import decode
from bettercompute.control.v1 import nodes_pb2
from sqlalchemy import Row, select
from sqlalchemy.engine import Connection

from receiver.errors import Invalid, NotFound
from receiver.planning import view
from receiver.planning.condition_types import XID_TYPE
from receiver.planning.policy import parse
from receiver.planning.why import HEALTH, Answer, DeviceAnswer, Known, Obstacle, why
from receiver.read import queries, queries_devices, queries_lifecycle
from receiver.read.answers.common import optional, stamp, xid_message
from receiver.read.tokens import Scope
from receiver.store.schema import atoms, pools
from receiver.values import ALL, rfc3339

T = TypeVar("T")
Since = dict[tuple[str, Hashable], datetime]


def answer(db: Connection, scope: Scope, request: nodes_pb2.NodesServiceWhyRequest) -> nodes_pb2.NodesServiceWhyResponse:
    """Why a node, or one of its GPUs, is not bookable. Without a node's id: of the GPU's node."""
    node_id, device_id = request.node_id, optional(request, "device_id") or None
    if not node_id and device_id is None:
        raise Invalid("nodeId or deviceId is needed")
    row = queries.node(db, scope, node_id or queries_devices.device(db, scope, device_id or "").node_id)
    known = _known(db, scope, row)
    if device_id is not None and all(device.id != device_id for device in known.devices):
        raise NotFound(f"node {row.id} has no device {device_id}")
    return _message(db, scope, row, known, why(known, device_id))


def _known(db: Connection, scope: Scope, row: Row[Any]) -> Known:
    since: Since = {("node", "status"): row.status_since, ("node", "maintenance"): row.maintenance_since}
    conditions = [_condition(scope, one, since) for one in queries.conditions_of(db, scope, [row.id]).get(row.id, ())]
    devices = queries_devices.devices_of(db, scope, [row.id]).get(row.id, [])
    since |= {("devices", one.id): one.missing_since for one in devices}
    faults = queries_devices.open_health(db, scope, [one.id for one in devices])
    held = queries_devices.atoms_of(db, scope, atoms.c.node_id, [row.id])
    since |= {("bookings", (one.id, one.generation)): one.booked_at for one in held if one.booking_id is not None}
    missing = queries.missing_of(db, scope, [row.id]).get(row.id, ())
    return Known(
        node_id=row.id,
        node=_node(row),
        kind=row.kind,
        online=row.online,
        boot_id=row.boot_id or "",
        pool=_pool(db, scope, row.pool_id),
        runs=tuple(_run(one, since) for one in queries_lifecycle.open_runs(db, scope, row.id)),
        others=tuple((one["owner"], one["type"]) for one in row.no_schedule_reasons if one["owner"] != HEALTH),
        conditions=tuple(conditions),
        devices=tuple(_of(view.Device, one) for one in devices),
        atoms=tuple(_of(view.Atom, one) for one in held),
        health=tuple(_timed("health", _of(view.Health, one), one.since, since) for rows in faults.values() for one in rows),
        bookings=tuple(_booking(scope, one) for one in held if one.booking_id is not None),
        missing={one.name: one.error for one in missing},
        since={key: moment for key, moment in since.items() if moment is not None},
    )


def _of(kind: type[T], row: Row[Any], **more: object) -> T:
    """A row as the value that plans have it as: a field of that is a column of its name, or one of `more`."""
    return kind(**{one.name: row._mapping[one.name] for one in fields(kind) if one.name not in more}, **more)  # type: ignore[arg-type]


def _timed(table: str, row: Any, moment: datetime, since: Since) -> Any:
    since[table, row.key] = moment
    return row


def _condition(scope: Scope, row: Row[Any], since: Since) -> view.ConditionRow:
    made: view.ConditionRow = _timed("conditions", _of(view.ConditionRow, row), row.since, since)
    return replace(made, message=xid_message(scope, made.message)) if XID_TYPE.fullmatch(made.type) else made


def _booking(scope: Scope, row: Row[Any]) -> view.Booking:
    ours = scope.tenant in (ALL, row.booking_tenant)
    return view.Booking(row.booking_id if ours else "", row.device_id, row.id, row.generation)


def _node(row: Row[Any]) -> view.Node:
    until = row.maintenance_until
    return replace(
        _of(view.Node, row),
        no_schedule_reasons=_mine(row.no_schedule_reasons),
        would_no_schedule=_mine(row.would_no_schedule),
        maintenance_until=rfc3339(until) if until is not None else None,
    )


def _mine(reasons: Iterable[Mapping[str, str]]) -> tuple[str, ...]:
    return tuple(sorted(one["type"] for one in reasons if one["owner"] == HEALTH))


def _run(row: Row[Any], since: Since) -> view.Run:
    made: view.Run = _timed("runs", _of(view.Run, row), row.started_at or row.created_at, since)
    return made


def _pool(db: Connection, scope: Scope, pool_id: str | None) -> view.Pool | None:
    """Whoever may see a node may see what follows from its pool."""
    row = db.execute(select(pools).where(pools.c.id == pool_id)).first() if pool_id is not None else None
    if row is None:
        return None
    stops = {one.kind for one in queries_lifecycle.stops_of(db, scope, [row.id]).get(row.id, ())}
    stopped = {"paused": "remediation" in stops, "maintenance": "maintenance" in stops}
    return _of(view.Pool, row, policy=parse(row.policy), **stopped)


# ---- the message


def _message(db: Connection, scope: Scope, row: Row[Any], known: Known, told: Answer) -> nodes_pb2.NodesServiceWhyResponse:
    return nodes_pb2.NodesServiceWhyResponse(
        node_id=row.id,
        hostname=_hostname(db, scope, row.applied_snapshot_id),
        status=row.status,
        trust=row.trust,
        connected=row.online,
        last_seen_at=stamp(row.last_seen),
        pool_id=row.pool_id,
        pool=known.pool.name if known.pool else None,
        mode=known.pool.mode if known.pool else None,
        answer=told.sentence,
        bookable=told.bookable,
        obstacles=[_obstacle(one) for one in told.obstacles],
        devices=[_device(one) for one in told.devices],
    )


def _hostname(db: Connection, scope: Scope, snapshot_id: str | None) -> str | None:
    found = queries.section_of_snapshots(db, scope, [snapshot_id], "os") if snapshot_id is not None else {}
    return next((getattr(decode("os", body), "hostname", None) or None for body in found.values()), None)


def _obstacle(one: Obstacle) -> nodes_pb2.Obstacle:
    return nodes_pb2.Obstacle(
        scope=one.scope,
        device_id=one.device_id,
        atom_id=one.atom_id,
        what=one.what,
        by=one.by,
        since=stamp(one.since),
        enforced=one.enforced,
        message=one.message,
        ends=one.ends,
    )


def _device(one: DeviceAnswer) -> nodes_pb2.WhyDevice:
    return nodes_pb2.WhyDevice(
        device_id=one.device.id,
        index=one.device.attributes.get("index"),
        gpu_product=one.device.attributes.get("gpuProduct"),
        serial=one.device.serial,
        atoms=one.atoms,
        bookable=one.bookable,
        booked=one.booked,
        against=one.against,
    )
