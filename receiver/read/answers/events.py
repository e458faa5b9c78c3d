"""`events.list`, and the event that `events.watch` sends."""

from typing import Any

from bettercompute.control.v1 import events_pb2
from google.protobuf.message import Message
from sqlalchemy import Row
from sqlalchemy.engine import Connection

from receiver.read import queries
from receiver.read.answers.common import PAGE, optional, stamp, struct, without_names
from receiver.read.tokens import Scope


def listed(db: Connection, scope: Scope, request: events_pb2.EventsServiceListRequest) -> Message:
    """Events after a cursor, oldest first."""
    limit = queries.page_size(request.limit, PAGE)
    after = queries.place(request.cursor)
    if request.HasField("node_id"):
        queries.node(db, scope, request.node_id)  # raises NotFound
    rows = queries.event_page(db, scope, after, limit, optional(request, "node_id"), optional(request, "type"))
    last = cursor_of(rows[-1]) if rows else request.cursor
    return events_pb2.EventsServiceListResponse(events=[event(scope, row) for row in rows], next_cursor=last)


def cursor_of(row: Row[Any]) -> str:
    """The cursor behind an event."""
    return f"{row.xid}.{row.seq}"


def event(scope: Scope, row: Row[Any]) -> events_pb2.Event:
    """An event as a message."""
    return events_pb2.Event(
        id=row.id,
        time=stamp(row.time),
        tenant_id=row.tenant_id,
        pool_id=row.pool_id,
        node_id=row.node_id,
        type=row.type,
        payload=struct(without_names(scope, row.payload)),
    )
