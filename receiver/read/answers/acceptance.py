"""`acceptance.get`: how far a node has proven itself."""

from collections.abc import Mapping
from typing import Any

from bettercompute.control.v1 import acceptance_pb2
from sqlalchemy.engine import Connection

from receiver.errors import NotFound
from receiver.read import queries, queries_lifecycle
from receiver.read.answers.common import optional, required, stamp, struct, without_names
from receiver.read.tokens import Scope


def get(db: Connection, scope: Scope, request: acceptance_pb2.AcceptanceServiceGetRequest) -> acceptance_pb2.Attempt:
    """An attempt of a node: the last one unless named. The one that is to come, and has not begun, is `waiting`."""
    node = queries.node(db, scope, required(request, "node_id"))
    number = optional(request, "attempt") or node.attempt
    row = queries_lifecycle.attempt(db, scope, node.id, number)
    of_node = {"node_id": node.id, "status": node.status, "attempt": number}
    if row is None:
        if number != node.attempt:
            raise NotFound(f"node {node.id} has no attempt {number}; its last is {node.attempt}")
        return acceptance_pb2.Attempt(**of_node, state="waiting", tenant_id=node.tenant_id)
    ids = [one["commandId"] for one in row.checks if one.get("commandId")]
    found = queries_lifecycle.results_of(db, scope, ids)
    results = {key: without_names(scope, one) for key, one in found.items()}
    return acceptance_pb2.Attempt(
        **of_node,
        state=row.state,
        reason=row.reason or None,
        checks=[_check(one, results) for one in row.checks],
        started_at=stamp(row.started_at),
        ended_at=stamp(row.ended_at),
        tenant_id=row.tenant_id,
    )


def _check(stored: Mapping[str, Any], results: Mapping[str, Any]) -> acceptance_pb2.AcceptanceCheck:
    command_id = stored.get("commandId") or None
    result = results.get(command_id or "")
    return acceptance_pb2.AcceptanceCheck(
        kind=stored["kind"],
        status=stored.get("status") or "running",
        reason=stored.get("reason") or None,
        command_id=command_id,
        result=None if result is None else struct(result),
    )
