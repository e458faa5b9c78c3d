"""What status reports say of a node, as stored."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from receiver.planning.inventory import Baseline, Current
from receiver.planning.missing import ClearMissing, SetMissing
from receiver.store import missing
from receiver.store.database import Connection
from receiver.store.words import jsonb, text
from receiver.values import KernelLog, Status

_LOAD = f"""
SELECT n.epoch, n.reported_digest, n.collected_at, n.kernel_log, n.abandoned_workers, n.applied_snapshot_id, {missing.COLUMN},
  (SELECT s.sections FROM inventory_snapshots s WHERE s.id = n.applied_snapshot_id),
  n.section_baselines
FROM nodes n WHERE n.id = %s
"""

_WRITE = f"""
WITH doc AS (SELECT %(doc)s::jsonb AS d), ok AS (SELECT),
{missing.ARMS}
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
    """The node's session epoch, its last report without conditions, and where its sections stand."""

    epoch: int
    status: Status
    current: Current


def load(tx: Connection, node_id: str) -> Stored:
    """Raises LookupError for a node that does not exist."""
    row = tx.execute(_LOAD, [node_id], prepare=True).fetchone()
    if row is None:
        raise LookupError(f"no node {node_id}")
    epoch, digest, collected, log, abandoned, applied_id, absent, applied, baselines = row
    current = Current(
        applied_id=applied_id,
        applied_sections=applied,
        baselines={name: Baseline(*one) for name, one in baselines.items()},
        missing=missing.as_rows(absent),
    )
    return Stored(epoch, Status(digest or "", collected, (), KernelLog(**log) if log else None, abandoned), current)


def write(tx: Connection, node_id: str, status: Status, steps: Sequence[SetMissing | ClearMissing]) -> None:
    """Writes the steps, and the node's columns where they differ, in one statement."""
    arguments = {
        "node": node_id,
        "doc": jsonb(missing.as_document(steps)),
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
