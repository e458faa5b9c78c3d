"""Planning nodes again from what was applied last (SPEC B2, "Applying"): `drain` plans those that stand in `replan`.

In it are nodes whose pool was edited (`queue_pool`), that were planned with older tables (`queue_outdated`), that reported what
another node has let go (store/view.py), and on which a booking ended of what was only kept for it (a trigger on `bookings`).
`queue_missed` finds what these cannot see.
"""

from collections.abc import Iterable
from datetime import datetime

from receiver import ids
from receiver.apply.act import act
from receiver.apply.alone import alone
from receiver.planning.atoms import GONE
from receiver.planning.node import tables
from receiver.planning.view import Draft, Facts
from receiver.store.database import Connection
from receiver.store.words import jsonb

BATCH = 100  # nodes a transaction: their rows are locked until it ends
AGAIN = 60  # seconds until a node that could not be planned is tried again
_ALONE = 0x62635F72  # advisory lock, held by the transaction that drains

_QUEUE = """
INSERT INTO replan (node_id, reason, queued_at) SELECT n.id, %(reason)s, clock_timestamp() FROM nodes n WHERE {} ORDER BY n.id
ON CONFLICT (node_id) DO UPDATE SET reason = excluded.reason, queued_at = excluded.queued_at
"""
_QUEUE_NODES = _QUEUE.format("n.id = ANY(%(nodes)s)")
_QUEUE_POOL = _QUEUE.format("n.pool_id = %(pool)s")
# (A tenant's node is not planned until the lease ends: it is found then.)
_WAITING = "n.trust = 'platform' AND NOT EXISTS (SELECT FROM replan r WHERE r.node_id = n.id)"
# Planned with an older version of a table. (While receivers of two versions run, only the newer ones say so.)
_QUEUE_OUTDATED = _QUEUE.format(
    f"""n.plan_key IS NOT NULL AND {_WAITING}
    AND EXISTS (SELECT FROM jsonb_each_text(%(tables)s) AS t(name, version)
                WHERE coalesce((n.plan_key ->> t.name)::numeric, 0) < t.version::numeric)"""
)
# What a trigger or a plan cannot see, because the other transaction had not ended then: a booking that ended while a plan kept
# something for it; a device or key that was let go while a plan found that another node has it.
_QUEUE_MISSED = _QUEUE.format(
    f"""{_WAITING} AND n.id IN (
      SELECT a.node_id FROM atoms a WHERE (a.retiring OR a.reason = '{GONE}') AND NOT EXISTS (
        SELECT FROM bookings b WHERE b.atom_id = a.id AND b.atom_generation = a.generation AND b.ended_at IS NULL)
      UNION SELECT d.node_id FROM devices d WHERE NOT d.present AND NOT EXISTS (
        SELECT FROM bookings b WHERE b.device_id = d.id AND b.ended_at IS NULL)
      UNION SELECT c.node_id FROM conditions c WHERE c.type = 'DuplicateIdentity' AND c.status = 'true' AND (
        c.reason = 'DeviceOwned' AND NOT EXISTS (
          SELECT FROM devices d WHERE d.id = c.device_id AND d.node_id = c.evidence ->> 'otherNode')
        OR c.reason = 'HardwareKey' AND NOT EXISTS (
          SELECT FROM hardware_keys h JOIN hardware_keys o ON o.key = h.key
          WHERE h.node_id = c.node_id AND h.replaced_at IS NULL AND o.node_id = c.evidence ->> 'otherNode'
            AND o.trusted AND o.replaced_at IS NULL)))"""
)
# Broken, with a repair that was only observed, where it is not any more: the receivers were on a dry run.
_QUEUE_OBSERVED = _QUEUE.format(
    f"""n.unhealthy AND n.status = 'adopted' AND {_WAITING} AND coalesce(current_setting('bc.dry_run', true), '') <> 'on'
    AND NOT EXISTS (SELECT FROM pools p WHERE p.id = n.pool_id AND p.mode = 'observe')
    AND (SELECT r.observed FROM remediation_runs r WHERE r.node_id = n.id ORDER BY r.id DESC LIMIT 1)"""
)

_NEXT = "SELECT node_id, queued_at FROM replan WHERE queued_at <= clock_timestamp() ORDER BY queued_at, node_id LIMIT %s"
_LOCK = "SELECT id FROM nodes WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"
_DONE = """DELETE FROM replan r USING unnest(%s::text[], %s::timestamptz[]) AS p(node_id, queued_at)
WHERE (r.node_id, r.queued_at) = (p.node_id, p.queued_at)"""
_LATER = "UPDATE replan SET queued_at = clock_timestamp() + make_interval(secs => %s) WHERE node_id = ANY(%s)"


def queue(tx: Connection, node_ids: Iterable[str], reason: str) -> int:
    """Has these nodes planned again, soon. Answers how many there are."""
    return tx.execute(_QUEUE_NODES, {"nodes": list(node_ids), "reason": reason}).rowcount


def queue_pool(tx: Connection, pool_id: str, reason: str) -> int:
    """Has the nodes of a pool planned again: to be called by whoever edits it, in the same transaction."""
    return tx.execute(_QUEUE_POOL, {"pool": pool_id, "reason": reason}).rowcount


def queue_outdated(tx: Connection) -> int:
    """Has the nodes planned again that were planned with an older table of GPU models or of XIDs than this receiver's."""
    return tx.execute(_QUEUE_OUTDATED, {"tables": jsonb(dict(tables())), "reason": "a table was upgraded"}).rowcount


def queue_missed(tx: Connection) -> int:
    """Has the nodes planned again that keep something for a booking that has ended, or wait for what was let go."""
    return tx.execute(_QUEUE_MISSED, {"reason": "a booking ended, or another node let go"}).rowcount


def queue_observed(tx: Connection) -> int:
    """Has the broken nodes planned again that are to be repaired from now on, where that was only observed before."""
    return tx.execute(_QUEUE_OBSERVED, {"reason": "repairs are not only observed any more"}).rowcount


def drain(tx: Connection, batch: int | None = None, mint: ids.Mint = ids.mint) -> int:
    """Plans the nodes again that were queued first, and answers how many; 0 also while another receiver is at it.

    A node that cannot be planned holds up no other: it is logged, and tried again later.
    """
    if not _alone(tx):
        return 0
    queued: dict[str, datetime] = dict(tx.execute(_NEXT, [batch or BATCH]).fetchall())
    if not queued:
        return 0
    tx.execute(_LOCK, [list(queued)])  # all, in their order, before anything is written
    failed = [node_id for node_id in sorted(queued) if not _plan(tx, node_id, mint)]
    if failed:
        tx.execute(_LATER, [AGAIN, failed])
    done = [node_id for node_id in queued if node_id not in failed]
    tx.execute(_DONE, [done, [queued[node_id] for node_id in done]])
    return len(queued)


def _alone(tx: Connection) -> bool:
    row = tx.execute("SELECT pg_try_advisory_xact_lock(%s)", [_ALONE]).fetchone()
    return row is not None and bool(row[0])


def _plan(tx: Connection, node_id: str, mint: ids.Mint) -> bool:
    return alone(tx, node_id, lambda: act(tx, node_id, _nothing, inventory_too=True, mint=mint), "a node cannot be planned again")


def _nothing(facts: Facts, draft: Draft) -> None:
    """What is planned again is amended by nothing but the rules."""
