"""What status reports say of a node, as stored: loaded in one statement, written in one."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from receiver.ids import Mint
from receiver.planning.condition_types import DAEMON_NODE_CONDITIONS
from receiver.planning.conditions import ConditionRow
from receiver.planning.conditions import Key as ConditionKey
from receiver.planning.faults import Counted
from receiver.planning.faults import Key as FaultKey
from receiver.planning.inventory import Baseline, Current, Publish
from receiver.store import conditions, missing
from receiver.store.database import Connection
from receiver.store.words import jsonb, text
from receiver.values import KernelLog, Status

_LOAD = f"""
SELECT n.epoch, n.reported_digest, n.collected_at, n.kernel_log, n.abandoned_workers, n.applied_snapshot_id, {missing.COLUMN},
  (SELECT s.sections FROM inventory_snapshots s WHERE s.id = n.applied_snapshot_id),
  n.section_baselines, n.trust = 'tenant-controlled' OR n.session_trust_epoch < n.trust_epoch,
  {conditions.COLUMNS}
FROM nodes n WHERE n.id = %(node)s
"""

_WRITE = f"""
WITH doc AS (SELECT %(doc)s::jsonb AS d), ok AS (SELECT),
{missing.ARMS},
{conditions.ARMS},
  published AS (
    INSERT INTO events (id, tenant_id, pool_id, node_id, type, payload)
    SELECT e.id, n.tenant_id, n.pool_id, n.id, e.type, e.payload
    FROM doc, nodes n, jsonb_to_recordset(d -> 'events') AS e(id text, type text, payload jsonb)
    WHERE n.id = %(node)s)
UPDATE nodes
SET reported_digest = %(digest)s, collected_at = %(collected)s, kernel_log = %(log)s, abandoned_workers = %(abandoned)s
WHERE id = %(node)s AND (reported_digest, collected_at, kernel_log, abandoned_workers)
  IS DISTINCT FROM (%(digest)s, %(collected)s, %(log)s::jsonb, %(abandoned)s)
"""

# Nodes whose rows are locked at the moment are left to the next round: one slow apply must not hold up all heartbeats.
_TOUCH = """
WITH seen AS (
  SELECT n.id FROM nodes n JOIN unnest(%s::text[], %s::bigint[]) AS s(id, epoch) ON s.id = n.id AND s.epoch = n.epoch
  ORDER BY n.id FOR NO KEY UPDATE OF n SKIP LOCKED)
UPDATE nodes n SET last_seen = now() FROM seen WHERE n.id = seen.id RETURNING n.id, n.plan_rev
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """The node's session epoch, its last report as a whole, and where its sections, conditions and faults stand.

    `advisory`: what it reports now is a tenant's word.
    """

    epoch: int
    status: Status
    current: Current
    advisory: bool
    conditions: Mapping[ConditionKey, ConditionRow]
    faults: Mapping[FaultKey, Counted]


def load(tx: Connection, node_id: str) -> Stored:
    """Raises LookupError for a node that does not exist."""
    row = tx.execute(_LOAD, {"node": node_id, "types": list(DAEMON_NODE_CONDITIONS)}, prepare=True).fetchone()
    if row is None:
        raise LookupError(f"no node {node_id}")
    epoch, digest, collected, log, abandoned, applied_id, absent, applied, baselines, advisory, raised, counted = row
    current = Current(
        applied_id=applied_id,
        applied_sections=applied,
        baselines={name: Baseline(*one) for name, one in baselines.items()},
        missing=missing.as_rows(absent),
    )
    status = Status(digest or "", collected, (), KernelLog(**log) if log else None, abandoned)
    return Stored(epoch, status, current, advisory, conditions.as_conditions(raised), conditions.as_faults(counted))


def write(tx: Connection, node_id: str, status: Status, steps: Sequence[object], mint: Mint) -> None:
    """Writes the steps, and the node's columns where they differ, in one statement."""
    told = [step.event for step in steps if isinstance(step, Publish)]
    events = [{"id": mint("evt"), "type": one.type, "payload": dict(one.payload)} for one in told]
    arguments = {
        "node": node_id,
        "doc": jsonb({**missing.as_document(steps), **conditions.as_document(steps), "events": events}),
        "digest": text(status.digest),
        "collected": status.collected_at,
        "log": jsonb(asdict(status.kernel_log)) if status.kernel_log else None,
        "abandoned": status.abandoned_workers,
    }
    tx.execute(_WRITE, arguments, prepare=True)


def touch(tx: Connection, sessions: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Sets `last_seen` of the nodes whose epoch is the given one; answers their plan_rev."""
    rows = tx.execute(_TOUCH, [[node for node, _ in sessions], [epoch for _, epoch in sessions]], prepare=True)
    return dict(rows.fetchall())
