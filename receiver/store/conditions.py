"""Conditions and reasons of many nodes: loaded in one statement, written in four. (All of a node's rows: view.py.)"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from receiver.ids import Mint
from receiver.planning.view import ConditionRow, Draft, Facts, Node
from receiver.store import view
from receiver.store.database import KEYED, Connection
from receiver.store.statement import NOTICES, NOTIFY
from receiver.store.words import jsonb

_REASONS = ("no_schedule_reasons", "would_no_schedule")
_COLUMNS = tuple(one.name for one in fields(ConditionRow))

_LOCK = "SELECT FROM nodes WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"
# Whether GpuMissing is a reason may depend on the node's devices (policy.onGpuMissing); nothing else of reasons does.
_MISSING = "EXISTS (SELECT FROM conditions g WHERE g.node_id = n.id AND g.type = 'GpuMissing' AND g.status = 'true')"
_LOAD = f"""SELECT n.id, n.tenant_id, n.kind, {view.POOL}, jsonb_build_object({view.NODE}),
  {view.BY_NAME["conditions"].select()}, CASE WHEN {_MISSING} THEN {view.BY_NAME["devices"].select()} END
FROM nodes n WHERE n.id = ANY(%s) ORDER BY n.id"""
_WRITE_CONDITIONS = f"""
INSERT INTO conditions AS t (node_id, tenant_id, {", ".join(_COLUMNS)}, since)
SELECT n.id, n.tenant_id, {", ".join(f"r.{name}" for name in _COLUMNS)}, bc_clock()
FROM jsonb_populate_recordset(NULL::conditions, %s) AS r JOIN nodes n ON n.id = r.node_id ORDER BY n.id, r.type, r.device_id
ON CONFLICT (node_id, type, device_id) DO UPDATE SET
  {", ".join(f"{name} = excluded.{name}" for name in ("tenant_id", *_COLUMNS))},
  since = CASE WHEN t.status = excluded.status THEN t.since ELSE excluded.since END
"""
_WRITE_NODES = f"""
UPDATE nodes SET plan_rev = nodes.plan_rev + 1, {", ".join(f"{name} = {view.EXPRESSIONS[name]}" for name in _REASONS)}
FROM jsonb_populate_recordset(NULL::nodes, %s) AS a WHERE nodes.id = a.id
"""
_WRITE_EVENTS = """
INSERT INTO events (id, tenant_id, pool_id, node_id, type, payload)
SELECT e.id, n.tenant_id, n.pool_id, n.id, e.type, e.payload
FROM ROWS FROM (jsonb_to_recordset(%s) AS (id text, node text, type text, payload jsonb))
  WITH ORDINALITY AS e(id, node, type, payload, number) JOIN nodes n ON n.id = e.node ORDER BY e.number
"""

_NOTIFY = f"SELECT {NOTIFY} FROM (SELECT jsonb_build_object('{NOTICES}', %s::jsonb) AS d) AS doc"


def plainly(tx: Connection) -> None:
    """Statements over many nodes may read tables whole in this transaction, as no other statement that writes may."""
    tx.execute("; ".join(f"SET LOCAL {name} = on" for name in KEYED))


def lock(tx: Connection, node_ids: Collection[str]) -> None:
    """Holds the nodes' rows until the transaction ends. They are locked in the order of their ids, as everybody does."""
    plainly(tx)
    tx.execute(_LOCK, [list(node_ids)])


def load(tx: Connection, node_ids: Iterable[str]) -> list[tuple[Facts, Draft]]:
    """What planning/reasons.py needs of the nodes, in the order of their ids: the node, its pool, conditions and devices."""
    return [_as_view(*row) for row in tx.execute(_LOAD, [list(node_ids)])]


def _as_view(
    node_id: str, tenant_id: str, kind: str, pool: Sequence[Any] | None, node: Mapping[str, Any], conditions: Any, devices: Any
) -> tuple[Facts, Draft]:
    draft = Draft(
        node=view.as_node(node),
        conditions=view.BY_NAME["conditions"].rows(conditions),
        devices=view.BY_NAME["devices"].rows(devices),
    )
    return Facts(node_id, tenant_id, kind, advisory=draft.node.trust == "tenant-controlled", pool=view.as_pool(pool)), draft


def write(tx: Connection, changed: Mapping[str, tuple[Draft, Draft]], mint: Mint) -> None:
    """Writes the conditions and reasons of these nodes that differ between two drafts, and what the second ones tell."""
    conditions = [
        {"node_id": node_id, **asdict(row)}
        for node_id, (before, after) in changed.items()
        for key, row in after.conditions.items()
        if row != before.conditions.get(key)
    ]
    nodes = [{"id": node_id, **_reasons(after.node)} for node_id, (_, after) in changed.items()]
    events = [
        {"id": mint("evt"), "node": node_id, "type": one.type, "payload": dict(one.payload)}
        for node_id, (_, after) in changed.items()
        for one in after.events
    ]
    notices = [one for node_id, (_, after) in changed.items() for one in view.notices(node_id, after)]
    written = ((_WRITE_CONDITIONS, conditions), (_WRITE_NODES, nodes), (_WRITE_EVENTS, events), (_NOTIFY, notices))
    for sql, rows in written:
        if rows:
            tx.execute(sql, [jsonb(rows)])


def _reasons(node: Node) -> dict[str, list[dict[str, str]]]:
    return {name: [{"owner": view.HEALTH, "type": kind} for kind in getattr(node, name)] for name in _REASONS}
