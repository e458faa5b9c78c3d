"""`nodes.list`, `nodes.get`: what a node is, of what it is made, and what stands against it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bettercompute.contract.sections import decode
from bettercompute.control.v1 import nodes_pb2
from google.protobuf.message import Message
from sqlalchemy import Row
from sqlalchemy.engine import Connection

from receiver.planning.condition_types import XID_TYPE
from receiver.planning.policy import Policy, parse
from receiver.planning.verdicts import verdict
from receiver.read import queries, queries_devices
from receiver.read.answers import devices
from receiver.read.answers.common import PAGE, one_of, optional, required, selector, small, stamp, struct, xid_message
from receiver.read.answers.inventory import missing_sections
from receiver.read.tokens import Scope
from receiver.store.schema import atoms
from receiver.values import NODE_STATUSES


def listed(db: Connection, scope: Scope, request: nodes_pb2.NodesServiceListRequest) -> Message:
    """Nodes in the order of their ids."""
    status = one_of(request, "status", NODE_STATUSES)
    limit = queries.page_size(request.limit, PAGE)
    pool_id, condition = optional(request, "pool_id"), optional(request, "condition")
    chosen = selector(request.selector)
    rows, following = queries.node_page(db, scope, pool_id, status, request.cursor, limit, condition, chosen)
    return nodes_pb2.NodesServiceListResponse(nodes=messages(db, scope, rows), next_cursor=following)


def get(db: Connection, scope: Scope, request: nodes_pb2.NodesServiceGetRequest) -> nodes_pb2.Node:
    """One node."""
    return messages(db, scope, [queries.node(db, scope, required(request, "node_id"))])[0]


class _Parts:
    """What is read of the nodes of a page beside their rows: a query a kind, however many nodes."""

    def __init__(self, db: Connection, scope: Scope, rows: Sequence[Row[Any]]) -> None:
        ids = [row.id for row in rows]
        self.scope = scope
        self.missing = queries.missing_of(db, scope, ids)
        self.conditions = queries.conditions_of(db, scope, ids)
        self.labels = queries.labels_of(db, scope, ids)
        self.faults = queries_devices.faults_of(db, scope, ids)
        self.hardware = queries_devices.hardware_of(db, scope, ids)
        applied = [row.applied_snapshot_id for row in rows if row.applied_snapshot_id]
        named = queries.section_of_snapshots(db, scope, applied, "os")
        self.hostnames = {key: _hostname(body) for key, body in named.items()}
        stored = queries_devices.policies_of(db, {row.pool_id for row in rows if row.pool_id})
        self.policies = {pool_id: parse(policy) for pool_id, policy in stored.items()}
        all_devices = [row for of_node in queries_devices.devices_of(db, scope, ids).values() for row in of_node]
        self.devices = _by_node(devices.messages(db, scope, all_devices), lambda one: one.node_id)
        self.atoms = _by_node(queries_devices.atoms_of(db, scope, atoms.c.node_id, ids), lambda row: row.node_id)


def _by_node(rows: Iterable[Any], node_of: Any) -> Mapping[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(node_of(row), []).append(row)
    return found


def messages(db: Connection, scope: Scope, rows: Sequence[Row[Any]]) -> list[nodes_pb2.Node]:
    """Nodes as messages."""
    parts = _Parts(db, scope, rows)
    return [_node(row, parts) for row in rows]


def _node(row: Row[Any], parts: _Parts) -> nodes_pb2.Node:
    key = parts.hardware.get(row.id)
    return nodes_pb2.Node(
        id=row.id,
        tenant_id=row.tenant_id,
        pool_id=row.pool_id,
        kind=row.kind,
        status=row.status,
        status_since=stamp(row.status_since),
        trust=row.trust,
        lease_id=row.lease_id,
        maintenance=_maintenance(row),
        hostname=parts.hostnames.get(row.applied_snapshot_id),
        connected=row.online,
        last_seen_at=stamp(row.last_seen),
        collected_at=stamp(row.collected_at),
        created_at=stamp(row.created_at),
        daemon_version=row.daemon_version,
        protocol_version=row.protocol_version,
        boot_id=row.boot_id,
        epoch=row.epoch,
        applied_snapshot_id=row.applied_snapshot_id,
        applied_digest=row.applied_digest,
        missing=missing_sections(parts.missing.get(row.id, ())),
        no_schedule_reasons=_reasons(row.no_schedule_reasons),
        would_no_schedule=_reasons(row.would_no_schedule),
        labels={label.key: label.value for label in parts.labels.get(row.id, ())},
        conditions=[_condition(parts.scope, one) for one in parts.conditions.get(row.id, ())],
        verdicts=_verdicts(parts.faults.get(row.id, ()), parts.policies.get(row.pool_id, Policy())),
        devices=parts.devices.get(row.id, ()),
        atoms=[devices.atom(parts.scope, one) for one in parts.atoms.get(row.id, ())],
        hardware_key=key.key if key is not None else None,
        hardware_key_trusted=key is not None and key.trusted,
        draining=row.draining,
    )


def _hostname(body: bytes) -> str | None:
    return getattr(decode("os", body), "hostname", None) or None


def _maintenance(row: Row[Any]) -> nodes_pb2.Maintenance | None:
    if row.status != "maintenance":
        return None
    return nodes_pb2.Maintenance(
        by=row.maintenance_by or "",
        reason=row.maintenance_reason or "",
        since=stamp(row.maintenance_since),
        until=stamp(row.maintenance_until),
    )


def _reasons(rows: Sequence[Mapping[str, str]]) -> list[nodes_pb2.NoScheduleReason]:
    pairs = sorted((row["owner"], row["type"]) for row in rows)
    return [nodes_pb2.NoScheduleReason(owner=owner, type=kind) for owner, kind in pairs]


def _condition(scope: Scope, row: Row[Any]) -> nodes_pb2.NodeCondition:
    is_xid = XID_TYPE.fullmatch(row.type)
    message = xid_message(scope, row.message) if is_xid else row.message
    return nodes_pb2.NodeCondition(
        type=row.type,
        status=row.status,
        reason=row.reason or None,
        message=message or None,
        device_id=row.device_id or None,
        bus_id=row.bus_id or None,
        no_schedule=row.no_schedule,
        evidence=struct(row.evidence) if row.evidence and scope.platform else None,
        advisory=row.advisory,
        since=stamp(row.since),
    )


def _verdicts(rows: Iterable[Row[Any]], policy: Policy) -> Iterable[nodes_pb2.XidVerdict]:
    for row in (row for row in rows if not row.foreign):
        says = verdict(row.code, row.message, policy)
        yield nodes_pb2.XidVerdict(
            code=row.code,
            device_id=row.device_id,
            count=small(row._mapping["count"]),  # (row.count is the method of tuples)
            policy=says.policy,
            source=says.source,
            action=says.action,
            name=says.name,
            since=stamp(row.since),
        )
