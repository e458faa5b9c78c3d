"""`commands.list`, `commands.get`."""

from typing import Any

from bettercompute.control.v1 import commands_pb2
from google.protobuf.message import Message
from sqlalchemy import Row
from sqlalchemy.engine import Connection

from receiver.read import queries, queries_lifecycle
from receiver.read.answers.common import PAGE, one_of, optional, required, stamp, struct, without_names
from receiver.read.tokens import Scope
from receiver.values import COMMAND_STATES


def listed(db: Connection, scope: Scope, request: commands_pb2.CommandsServiceListRequest) -> Message:
    """Commands, newest first."""
    limit = queries.page_size(request.limit, PAGE)
    state = one_of(request, "state", (queries_lifecycle.OPEN, *COMMAND_STATES))
    wanted = {"node_id": optional(request, "node_id"), "kind": optional(request, "kind"), "state": state}
    if wanted["node_id"] is not None:
        queries.node(db, scope, wanted["node_id"])  # raises NotFound
    rows, following = queries_lifecycle.command_page(db, scope, wanted, request.cursor, limit)
    return commands_pb2.CommandsServiceListResponse(commands=[_command(scope, row) for row in rows], next_cursor=following)


def get(db: Connection, scope: Scope, request: commands_pb2.CommandsServiceGetRequest) -> Message:
    """One command."""
    return message(db, scope, required(request, "command_id"))


def message(db: Connection, scope: Scope, command_id: str) -> commands_pb2.Command:
    """A command by its id. Raises NotFound."""
    return _command(scope, queries_lifecycle.command(db, scope, command_id))


def _command(scope: Scope, row: Row[Any]) -> commands_pb2.Command:
    return commands_pb2.Command(
        id=row.id,
        node_id=row.node_id,
        tenant_id=row.tenant_id,
        kind=row.kind,
        state=row.state,
        reason=row.reason or None,
        payload=struct(row.payload),
        result=None if row.result is None else struct(without_names(scope, row.result)),
        by=row.created_by or None,
        idempotency_key=row.idempotency_key,
        not_after=stamp(row.not_after),
        created_at=stamp(row.created_at),
        sent_at=stamp(row.sent_at),
        finished_at=stamp(row.finished_at),
    )
