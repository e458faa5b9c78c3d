"""`inventory.get`, `inventory.history`, `inventory.diff`."""

from collections.abc import Iterable, Mapping
from typing import Any

from bettercompute.contract.sections import SECTIONS, decode
from bettercompute.control.v1 import inventory_pb2
from google.protobuf.message import Message
from sqlalchemy import Row
from sqlalchemy.engine import Connection

from receiver.planning.diff import COMPARED, diff
from receiver.planning.inventory import changed_sections
from receiver.read import queries
from receiver.read.answers.common import optional, required, stamp, value
from receiver.read.tokens import Scope
from receiver.values import Change

HISTORY_PAGE = 50


def get(db: Connection, scope: Scope, request: inventory_pb2.InventoryServiceGetRequest) -> Message:
    """One snapshot with its sections. `missing`: what the node lacks now, and why; of an older snapshot, what that one lacked."""
    node = queries.node(db, scope, required(request, "node_id"))
    asked = optional(request, "snapshot_id")
    snapshot = queries.snapshot(db, scope, node.id, asked)
    if asked is None or snapshot.id == queries.snapshot(db, scope, node.id, None).id:
        missing = missing_sections(queries.missing_of(db, scope, [node.id]).get(node.id, ()))
    else:
        missing = _lacked(db, scope, node.id, snapshot)
    (stored,) = queries.bodies(db, {name: value for name, value in snapshot.sections.items() if name in SECTIONS})
    return inventory_pb2.InventoryServiceGetResponse(
        snapshot_id=snapshot.id,
        applied_snapshot_id=node.applied_snapshot_id,
        advisory=snapshot.advisory,
        created_at=stamp(snapshot.created_at),
        sections=inventory_pb2.Sections(**{name: decode(name, body) for name, body in stored.items()}),  # type: ignore[arg-type]
        missing=missing,
    )


def _lacked(db: Connection, scope: Scope, node_id: str, snapshot: Row[Any]) -> list[inventory_pb2.MissingSection]:
    rows = []
    for name in sorted(set(SECTIONS) - set(snapshot.sections)):
        last = queries.snapshot_before(db, scope, node_id, snapshot.seq, name)
        error = "not in this snapshot"
        rows.append(inventory_pb2.MissingSection(name=name, error=error, last_snapshot_id=last.id if last else None))
    return rows


def missing_sections(rows: Iterable[Row[Any]]) -> list[inventory_pb2.MissingSection]:
    """What nodes could not report, as messages."""
    return [inventory_pb2.MissingSection(name=row.name, error=row.error, last_snapshot_id=row.last_snapshot_id) for row in rows]


def history(db: Connection, scope: Scope, request: inventory_pb2.InventoryServiceHistoryRequest) -> Message:
    """Snapshots, newest first."""
    limit = queries.page_size(request.limit, HISTORY_PAGE)
    before = queries.number(request.cursor)
    node = queries.node(db, scope, required(request, "node_id"))
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
        created_at=stamp(row.created_at),
        sections=row.sections,
        changed=changed_sections(row.sections, previous.sections if previous is not None else None),
    )


def difference(db: Connection, scope: Scope, request: inventory_pb2.InventoryServiceDiffRequest) -> Message:
    """What changed from one snapshot to another; by default to the latest, from the one before."""
    node = queries.node(db, scope, required(request, "node_id"))
    to = queries.snapshot(db, scope, node.id, optional(request, "to"))
    start = optional(request, "from")
    if start is None:
        origin = queries.snapshot_before(db, scope, node.id, to.seq)
    else:
        origin = queries.snapshot(db, scope, node.id, start)
    changes = () if origin is None else _changes(db, origin.sections, to.sections)
    response = inventory_pb2.InventoryServiceDiffResponse(to=to.id, changes=[_change(change) for change in changes])
    if origin is not None:
        setattr(response, "from", origin.id)
    return response


def _changes(db: Connection, before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    """Between two snapshots. Bytes that both have say nothing."""
    names = [name for name in COMPARED & before.keys() & after.keys() if before[name] != after[name]]
    stored = queries.bodies(db, *({name: one[name] for name in names} for one in (before, after)))
    old, new = ({name: decode(name, body) for name, body in one.items()} for one in stored)
    return diff(old, new)


def _change(change: Change) -> inventory_pb2.Change:
    return inventory_pb2.Change(
        type=change.type, device_id=change.device_id, before=value(change.before), after=value(change.after)
    )
