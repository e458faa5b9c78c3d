"""What status reports say of a node, as stored: loaded in one statement, written in one."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC

from receiver.planning.inventory import Baseline, Current
from receiver.planning.view import Draft, Facts
from receiver.store import missing, nodes, view
from receiver.store.database import Connection
from receiver.store.hashes import unpack
from receiver.store.statement import Statement
from receiver.values import KernelLog, Status

_LOAD = f"""
SELECT n.reported_digest, n.collected_at, n.kernel_log, n.abandoned_workers,
  n.applied_digest, n.applied_snapshot_id, {missing.COLUMN},
  (SELECT s.sections FROM inventory_snapshots s WHERE s.id = n.applied_snapshot_id),
  n.section_baselines, {view.COLUMN}
FROM nodes n WHERE n.id = %s
"""

# Nodes whose rows are locked at the moment are left to the next round: one slow apply must not hold up all heartbeats.
_TOUCH = """
WITH seen AS (
  SELECT n.id FROM nodes n JOIN unnest(%s::text[], %s::bigint[]) AS s(id, epoch) ON s.id = n.id AND s.epoch = n.epoch
  ORDER BY n.id FOR NO KEY UPDATE OF n SKIP LOCKED)
UPDATE nodes n SET last_seen = bc_clock() FROM seen WHERE n.id = seen.id RETURNING n.id, n.plan_rev
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """The node's last report as a whole, where its sections stand, and its rows."""

    status: Status
    current: Current
    facts: Facts
    rows: Draft


def load(tx: Connection, node_id: str, locked: bool = False) -> Stored:
    """`locked`: the node's row is locked first, until the transaction ends. Raises LookupError for a node that does not exist."""
    row = nodes.load(tx, node_id, _LOAD, [node_id], locked)
    digest, collected, log, abandoned, applied_digest, applied_id, absent, applied, baselines, found = row
    facts, rows = view.as_view(found)
    current = Current(
        advisory=facts.advisory,
        applied_digest=applied_digest,
        applied_id=applied_id,
        applied_sections=None if applied is None else unpack(applied),
        baselines={name: Baseline(*one) for name, one in baselines.items()},
        missing=missing.as_rows(absent),
    )
    return Stored(Status(digest or "", collected, (), KernelLog(**log) if log else None, abandoned), current, facts, rows)


def write(statement: Statement, stored: Stored, status: Status, steps: Sequence[object]) -> None:
    """Adds what the report says of the node as a whole to a statement, where it differs, and the steps of missing sections."""
    before = _columns(stored.status)
    for column, value in _columns(status).items():
        if value != before[column]:
            statement.set(column, value)
    if status.collected_at not in (None, stored.status.collected_at) and status.digest == stored.current.applied_digest:
        statement.set("inventory_rev", expression="nodes.inventory_rev + 1")
    missing.write(statement, steps)


def touch(tx: Connection, sessions: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Sets `last_seen` of the nodes whose epoch is the given one; answers their plan_rev."""
    rows = tx.execute(_TOUCH, [[node for node, _ in sessions], [epoch for _, epoch in sessions]], prepare=True)
    return dict(rows.fetchall())


def _columns(status: Status) -> dict[str, object]:
    return {
        "reported_digest": status.digest or None,
        "collected_at": status.collected_at.astimezone(UTC).isoformat() if status.collected_at else None,
        "kernel_log": asdict(status.kernel_log) if status.kernel_log else None,
        "abandoned_workers": status.abandoned_workers,
    }
