"""Each method's answer: a request and a connection in, the response message out (SPEC B9). What is read stands in queries.py."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from bettercompute.contract.sections import SECTIONS, decode
from bettercompute.control.v1 import events_pb2, inventory_pb2, nodes_pb2
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import Row
from sqlalchemy.engine import Connection

from receiver.errors import Invalid
from receiver.planning.diff import COMPARED, diff
from receiver.planning.inventory import changed_sections
from receiver.read import queries
from receiver.read.tokens import Scope
from receiver.values import NODE_STATUSES, Change, Json

HISTORY_PAGE = 50
PAGE = 100


def _stamp(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def _optional(request: Message, name: str) -> Any:
    return getattr(request, name) if request.HasField(name) else None


def _required(request: Message, name: str) -> str:
    """A key that must be there. Raises Invalid that names it as the command line does."""
    value: str = getattr(request, name)
    if not value:
        raise Invalid(f"{request.DESCRIPTOR.fields_by_name[name].json_name} is needed")
    return value


# ---- inventory


def inventory_get(db: Connection, scope: Scope, request: inventory_pb2.InventoryServiceGetRequest) -> Message:
    """One snapshot with its sections, and what the node could not report."""
    node = queries.node(db, scope, _required(request, "node_id"))
    snapshot = queries.snapshot(db, scope, node.id, _optional(request, "snapshot_id"))
    stored = queries.bodies(db, {name: value for name, value in snapshot.sections.items() if name in SECTIONS})
    return inventory_pb2.InventoryServiceGetResponse(
        snapshot_id=snapshot.id,
        applied_snapshot_id=node.applied_snapshot_id,
        advisory=snapshot.advisory,
        created_at=_stamp(snapshot.created_at),
        sections=inventory_pb2.Sections(**{name: decode(name, body) for name, body in stored.items()}),  # type: ignore[arg-type]
        missing=_missing_at(db, scope, node, snapshot),
    )


def _missing_at(db: Connection, scope: Scope, node: Row[Any], snapshot: Row[Any]) -> list[inventory_pb2.MissingSection]:
    """With the latest snapshot: what the node lacks now, and why. With an older one: what that one lacked."""
    if snapshot.id == queries.snapshot(db, scope, node.id, None).id:
        return _missing(queries.missing_of(db, scope, [node.id]).get(node.id, ()))
    rows = []
    for name in sorted(set(SECTIONS) - set(snapshot.sections)):
        last = queries.snapshot_before(db, scope, node.id, snapshot.seq, name)
        error = "not in this snapshot"
        rows.append(inventory_pb2.MissingSection(name=name, error=error, last_snapshot_id=last.id if last else None))
    return rows


def _missing(rows: Iterable[Row[Any]]) -> list[inventory_pb2.MissingSection]:
    return [inventory_pb2.MissingSection(name=row.name, error=row.error, last_snapshot_id=row.last_snapshot_id) for row in rows]


def inventory_history(db: Connection, scope: Scope, request: inventory_pb2.InventoryServiceHistoryRequest) -> Message:
    """Snapshots, newest first."""
    limit = queries.page_size(request.limit, HISTORY_PAGE)
    before = queries.number(request.cursor)
    node = queries.node(db, scope, _required(request, "node_id"))
    rows, preceding = queries.snapshot_page(db, scope, node.id, before, limit)
    if not rows and before is None:
        queries.snapshot(db, scope, node.id, None)  # raises NotFound: it has none
    older = [*rows[1:], preceding]
    return inventory_pb2.InventoryServiceHistoryResponse(
        snapshots=[_snapshot(row, previous) for row, previous in zip(rows, older, strict=False)],
        next_cursor=str(rows[-1].seq) if preceding is not None else None,
    )


def _snapshot(row: Row[Any], previous: Row[Any] | None) -> inventory_pb2.Snapshot:
    return inventory_pb2.Snapshot(
        id=row.id,
        digest=row.digest,
        advisory=row.advisory,
        created_at=_stamp(row.created_at),
        sections=row.sections,
        changed=changed_sections(row.sections, previous.sections if previous is not None else None),
    )


def inventory_diff(db: Connection, scope: Scope, request: inventory_pb2.InventoryServiceDiffRequest) -> Message:
    """What changed from one snapshot to another; by default to the latest, from the one before."""
    node = queries.node(db, scope, _required(request, "node_id"))
    to = queries.snapshot(db, scope, node.id, _optional(request, "to"))
    start = _optional(request, "from")
    if start is None:
        origin = queries.snapshot_before(db, scope, node.id, to.seq)
    else:
        origin = queries.snapshot(db, scope, node.id, start)
    changes: Sequence[Change] = ()
    if origin is not None:
        changes = diff(_compared(db, origin.sections), _compared(db, to.sections))
    response = inventory_pb2.InventoryServiceDiffResponse(to=to.id, changes=[_change(change) for change in changes])
    if origin is not None:
        setattr(response, "from", origin.id)
    return response


def _compared(db: Connection, hashes: Mapping[str, str]) -> dict[str, Message]:
    stored = queries.bodies(db, {name: value for name, value in hashes.items() if name in COMPARED})
    return {name: decode(name, body) for name, body in stored.items()}


def _change(change: Change) -> inventory_pb2.Change:
    return inventory_pb2.Change(
        type=change.type, device_id=change.device_id, before=_value(change.before), after=_value(change.after)
    )


def _value(json: Json) -> Value:
    return json_format.ParseDict(json, Value())


# ---- nodes


def nodes_list(db: Connection, scope: Scope, request: nodes_pb2.NodesServiceListRequest) -> Message:
    """Nodes in the order of their ids."""
    status = _optional(request, "status")
    if status is not None and status not in NODE_STATUSES:
        raise Invalid(f"status {status!r} is none of {', '.join(NODE_STATUSES)}")
    limit = queries.page_size(request.limit, PAGE)
    rows, following = queries.node_page(db, scope, _optional(request, "pool_id"), status, request.cursor, limit)
    return nodes_pb2.NodesServiceListResponse(nodes=_nodes(db, scope, rows), next_cursor=following)


def nodes_get(db: Connection, scope: Scope, request: nodes_pb2.NodesServiceGetRequest) -> Message:
    """One node."""
    return _nodes(db, scope, [queries.node(db, scope, _required(request, "node_id"))])[0]


def _nodes(db: Connection, scope: Scope, rows: Sequence[Row[Any]]) -> list[nodes_pb2.Node]:
    ids = [row.id for row in rows]
    missing, conditions, labels = (
        queries.missing_of(db, scope, ids),
        queries.conditions_of(db, scope, ids),
        queries.labels_of(db, scope, ids),
    )
    applied = [row.applied_snapshot_id for row in rows if row.applied_snapshot_id]
    hostnames = {key: _hostname(body) for key, body in queries.section_of_snapshots(db, scope, applied, "os").items()}
    return [
        nodes_pb2.Node(
            id=row.id,
            tenant_id=row.tenant_id,
            pool_id=row.pool_id,
            kind=row.kind,
            status=row.status,
            trust=row.trust,
            hostname=hostnames.get(row.applied_snapshot_id),
            connected=row.online,
            last_seen_at=_stamp(row.last_seen),
            collected_at=_stamp(row.collected_at),
            created_at=_stamp(row.created_at),
            daemon_version=row.daemon_version,
            protocol_version=row.protocol_version,
            boot_id=row.boot_id,
            epoch=row.epoch,
            applied_snapshot_id=row.applied_snapshot_id,
            applied_digest=row.applied_digest,
            missing=_missing(missing.get(row.id, ())),
            no_schedule_reasons=_reasons(row.no_schedule_reasons),
            labels={label.key: label.value for label in labels.get(row.id, ())},
            conditions=[_condition(one) for one in conditions.get(row.id, ())],
        )
        for row in rows
    ]


def _hostname(body: bytes) -> str | None:
    return getattr(decode("os", body), "hostname", None) or None


def _reasons(rows: Sequence[Mapping[str, str]]) -> list[nodes_pb2.NoScheduleReason]:
    pairs = sorted((row["owner"], row["type"]) for row in rows)
    return [nodes_pb2.NoScheduleReason(owner=owner, type=kind) for owner, kind in pairs]


def _condition(row: Row[Any]) -> nodes_pb2.NodeCondition:
    return nodes_pb2.NodeCondition(
        type=row.type,
        status=row.status,
        reason=row.reason or None,
        message=row.message or None,
        device_id=row.device_id or None,
        advisory=row.advisory,
        since=_stamp(row.since),
    )


# ---- events


def events_list(db: Connection, scope: Scope, request: events_pb2.EventsServiceListRequest) -> Message:
    """Events after a cursor, oldest first."""
    limit = queries.page_size(request.limit, PAGE)
    after = queries.place(request.cursor)
    if request.HasField("node_id"):
        queries.node(db, scope, request.node_id)  # raises NotFound
    rows = queries.event_page(db, scope, after, limit, _optional(request, "node_id"), _optional(request, "type"))
    last = cursor_of(rows[-1]) if rows else request.cursor
    return events_pb2.EventsServiceListResponse(events=[event(row) for row in rows], next_cursor=last)


def cursor_of(row: Row[Any]) -> str:
    """The cursor behind an event."""
    return f"{row.xid}.{row.seq}"


def event(row: Row[Any]) -> events_pb2.Event:
    """An event as a message."""
    message = events_pb2.Event(
        id=row.id,
        time=_stamp(row.time),
        tenant_id=row.tenant_id,
        pool_id=row.pool_id,
        node_id=row.node_id,
        type=row.type,
    )
    message.payload.update(row.payload)
    return message
