"""`devices.get`, `devices.history`, and the GPUs and atoms of nodes."""

from collections.abc import Iterable, Sequence
from typing import Any

from bettercompute.control.v1 import devices_pb2
from google.protobuf.message import Message
from sqlalchemy import Row
from sqlalchemy.engine import Connection

from receiver.errors import Invalid
from receiver.read import queries, queries_devices
from receiver.read.answers.common import PAGE, optional, required, small, stamp, struct, xid_detail
from receiver.read.tokens import Scope
from receiver.store.schema import atoms
from receiver.values import ALL

# Why an atom whose device is in order is not bookable: the first that holds. What is against the device: atoms.reason.
_OF_NODE = (
    ("TenantControlled", lambda row: row.trust != "platform"),
    ("NotAdopted", lambda row: row.status != "adopted"),
    ("Draining", lambda row: row.node_draining),
    ("NoSchedule", lambda row: not row.placeable),
    ("Booked", lambda row: row.booking_id is not None),
)


def get(db: Connection, scope: Scope, request: devices_pb2.DevicesServiceGetRequest) -> devices_pb2.Device:
    """One GPU, with its faults and atoms."""
    return message(db, scope, required(request, "device_id"))


def message(db: Connection, scope: Scope, device_id: str) -> devices_pb2.Device:
    """A GPU by its id. Raises NotFound."""
    row = queries_devices.device(db, scope, device_id)
    device = messages(db, scope, [row])[0]
    device.atoms.extend(atom(scope, one) for one in queries_devices.atoms_of(db, scope, atoms.c.device_id, [row.id]))
    return device


def messages(db: Connection, scope: Scope, rows: Sequence[Row[Any]]) -> list[devices_pb2.Device]:
    """GPUs as messages, without their atoms, in the order of their indices."""
    faults = queries_devices.open_health(db, scope, [row.id for row in rows])
    return [_device(row, [_fault(scope, one) for one in faults.get(row.id, ())]) for row in sorted(rows, key=_place)]


def _place(row: Row[Any]) -> tuple[bool, int, str]:
    index = row.attributes.get("index")
    return (True, 0, row.id) if index is None else (False, index, row.id)


def _device(row: Row[Any], faults: Iterable[devices_pb2.DeviceFault]) -> devices_pb2.Device:
    return devices_pb2.Device(
        id=row.id,
        node_id=row.node_id,
        tenant_id=row.tenant_id,
        serial=row.serial,
        healthy=row.healthy,
        present=row.present,
        lost=row.lost,
        assigned=row.assigned,
        partition_pending=row.partition_pending,
        draining=row.draining,
        faults=faults,
        attributes=struct(row.attributes),
        missing_since=stamp(row.missing_since),
        created_at=stamp(row.created_at),
    )


def _fault(scope: Scope, row: Row[Any]) -> devices_pb2.DeviceFault:
    return devices_pb2.DeviceFault(
        code=row.code,
        source=row.source,
        since=stamp(row.since),
        count=small(row._mapping["count"]),  # (row.count is the method of tuples)
        boot_id=row.boot_id or None,
        detail=struct(xid_detail(scope, row.detail) if row.source == "xid" else row.detail),
    )


def atom(scope: Scope, row: Row[Any]) -> devices_pb2.Atom:
    """An atom of queries_devices.atoms_of as a message: bookable as SPEC B0 has it, node and bookings considered."""
    ours = scope.tenant in (ALL, row.booking_tenant)
    against = None if not row.bookable else next((word for word, holds in _OF_NODE if holds(row)), None)
    return devices_pb2.Atom(
        id=row.id,
        generation=row.generation,
        device_id=row.device_id,
        bookable=row.bookable and against is None,
        reason=against if row.bookable else row.reason,
        booking_id=row.booking_id if ours else None,
        profile=row.profile,
        healthy=row.healthy,
        retiring=row.retiring,
    )


def history(db: Connection, scope: Scope, request: devices_pb2.DevicesServiceHistoryRequest) -> Message:
    """One GPU's life, newest first."""
    wanted = {name: text for name in ("device_id", "serial") if (text := optional(request, name))}
    if not wanted:
        raise Invalid("deviceId or serial is needed")
    limit = queries.page_size(request.limit, PAGE)
    rows, following = queries_devices.history(db, scope, wanted, queries.number(request.cursor), limit)
    if not rows and not request.cursor and "device_id" in wanted:
        queries_devices.device(db, scope, wanted["device_id"])  # raises NotFound: nobody knows it
    return devices_pb2.DevicesServiceHistoryResponse(
        history=[_line(scope, row) for row in rows], next_cursor=None if following is None else str(following)
    )


def _line(scope: Scope, row: Row[Any]) -> devices_pb2.DeviceEvent:
    return devices_pb2.DeviceEvent(
        time=stamp(row.at),
        event=row.event,
        node_id=row.node_id,
        device_id=row.device_id,
        serial=row.serial,
        detail=struct(xid_detail(scope, row.detail)),
        tenant_id=row.tenant_id,
    )
