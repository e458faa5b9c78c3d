"""`remediation.list`, `remediation.get`."""

from collections.abc import Sequence
from typing import Any

from bettercompute.control.v1 import remediation_pb2
from google.protobuf.message import Message
from sqlalchemy import Row
from sqlalchemy.engine import Connection

from receiver.read import queries, queries_lifecycle, queries_pools
from receiver.read.answers.common import PAGE, one_of, optional, required, stamp
from receiver.read.tokens import Scope
from receiver.values import RUN_STATES


def listed(db: Connection, scope: Scope, request: remediation_pb2.RemediationServiceListRequest) -> Message:
    """Repairs, newest first."""
    limit = queries.page_size(request.limit, PAGE)
    state = one_of(request, "state", (queries_lifecycle.OPEN, *RUN_STATES))
    wanted = {name: optional(request, name) for name in ("pool_id", "node_id", "escalated")}
    if wanted["pool_id"] is not None:
        queries_pools.pool(db, scope, wanted["pool_id"])  # raises NotFound
    if wanted["node_id"] is not None:
        queries.node(db, scope, wanted["node_id"])
    rows, following = queries_lifecycle.run_page(db, scope, {**wanted, "state": state}, request.cursor, limit)
    return remediation_pb2.RemediationServiceListResponse(runs=[run(row) for row in rows], next_cursor=following)


def get(db: Connection, scope: Scope, request: remediation_pb2.RemediationServiceGetRequest) -> Message:
    """One repair, step by step."""
    return message(db, scope, required(request, "run_id"))


def message(db: Connection, scope: Scope, run_id: str) -> remediation_pb2.Run:
    """A repair by its id, with its steps. Raises NotFound."""
    return run(queries_lifecycle.run(db, scope, run_id), queries_lifecycle.steps_of(db, scope, run_id))


def run(row: Row[Any], steps: Sequence[Row[Any]] = ()) -> remediation_pb2.Run:
    """A repair as a message."""
    return remediation_pb2.Run(
        id=row.id,
        node_id=row.node_id,
        tenant_id=row.tenant_id,
        pool_id=row.pool_id,
        kind=row.kind,
        state=row.state,
        reason=row.reason or None,
        escalated=row.escalated,
        observed=row.observed,
        devices=row.devices,
        causes=[_cause(one) for one in row.causes],
        by=row.by or None,
        force=row.force,
        command_id=row.command_id,
        boot_id=row.boot_id or None,
        steps=[remediation_pb2.RunStep(time=stamp(one.at), state=one.state, reason=one.reason or None) for one in steps],
        created_at=stamp(row.created_at),
        started_at=stamp(row.started_at),
        verifying_at=stamp(row.verifying_at),
        ended_at=stamp(row.ended_at),
    )


def _cause(stored: Any) -> remediation_pb2.RunCause:
    return remediation_pb2.RunCause(
        code=stored["code"],
        source=stored["source"],
        device_id=stored.get("deviceId") or None,
        boot_id=stored.get("bootId") or None,
    )
