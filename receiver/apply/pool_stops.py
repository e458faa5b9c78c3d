"""What does not go on in a pool, and what ends that: repairs, by the breaker (SPEC B8), or everything, by a person's maintenance.

Each is an open row of `pool_stops`, in the words of schema_lifecycle.py. Where a stop ends, the pool's unhealthy nodes are
planned again: what would have been queued meanwhile is queued then.
"""

from datetime import datetime

from receiver import ids
from receiver.apply import command, replan
from receiver.errors import Invalid, Refused
from receiver.events import event
from receiver.planning import breaker, budget
from receiver.planning.budget import Load
from receiver.planning.policy import Policy
from receiver.store import pool_load
from receiver.store.database import Connection
from receiver.store.words import jsonb
from receiver.values import Event, Payload

REPAIRS, MAINTENANCE = "remediation", "maintenance"
ITSELF = "receiver"  # who lets a calm pool go on
KEPT = "30 days"  # turns, for people who look what happened
_PRUNED = 1000  # rows a round

_OPEN = """INSERT INTO pool_stops (pool_id, tenant_id, kind, detail) SELECT id, tenant_id, %(kind)s, %(detail)s FROM pools
WHERE id = %(pool)s ON CONFLICT (pool_id, tenant_id, kind) WHERE ended_at IS NULL DO NOTHING"""
_END = """UPDATE pool_stops SET ended_at = bc_clock(), confirmed_by = %(by)s
WHERE pool_id = %(pool)s AND kind = %(kind)s AND ended_at IS NULL"""
_PUBLISH = (
    """INSERT INTO events (id, tenant_id, pool_id, type, payload) SELECT %s, tenant_id, id, %s, %s FROM pools WHERE id = %s"""
)
# Pools that may have to be paused, and those that may go on.
_WATCHED = """
SELECT p.id, p.tenant_id FROM pools p WHERE p.id IN (
  SELECT t.pool_id FROM unhealthy_turns t WHERE t.at > bc_clock() - %(window)s
  UNION SELECT s.pool_id FROM pool_stops s WHERE s.kind = 'remediation' AND s.ended_at IS NULL)
ORDER BY p.id
"""
_OVER = """UPDATE pool_stops SET ended_at = bc_clock()
WHERE kind = 'maintenance' AND ended_at IS NULL AND (detail ->> 'until')::timestamptz <= bc_clock() RETURNING pool_id"""
_UNHEALTHY = "SELECT id FROM nodes WHERE pool_id = %s AND unhealthy AND status IN ('adopting', 'adopted')"
_FORGET = f"""DELETE FROM unhealthy_turns WHERE at < bc_clock() - interval '{KEPT}'
AND seq IN (SELECT seq FROM unhealthy_turns ORDER BY seq LIMIT {_PRUNED})"""


def gate(tx: Connection, tenant_id: str, pool_id: str | None, mint: ids.Mint = ids.mint) -> str | None:
    """Why no repair of a pool's node may begin now, in words; None: one may, and it has to write its disruption at once.

    Until the transaction ends, nobody else passes this gate. It is to be called before the node is locked. `pool_id` None: for a
    node of the tenant without a pool, which a budget holds, too. Raises LookupError for a pool that does not exist.
    """
    policy, load = _judged(tx, tenant_id, pool_id, mint)
    if load.maintenance:
        return "the pool is in maintenance"
    if load.paused:
        return "repairs of the pool are paused: too many of its nodes turned unhealthy"
    return budget.full(policy.disruption_budget, load)


def watch(tx: Connection, mint: ids.Mint = ids.mint) -> None:
    """Pauses the pools in which too many nodes turned unhealthy, has those go on that are calm, and ends what is over.

    To be called every few seconds, by one receiver at a time.
    """
    for pool_id, tenant_id in tx.execute(_WATCHED, {"window": breaker.WINDOW}).fetchall():
        _judged(tx, tenant_id, pool_id, mint)
    for (pool_id,) in tx.execute(_OVER).fetchall():
        _plan_again(tx, pool_id, "the pool's maintenance is over")
    tx.execute(_FORGET)


def _judged(tx: Connection, tenant_id: str, pool_id: str | None, mint: ids.Mint) -> tuple[Policy, Load]:
    """The pool's policy and load, once its breaker has been judged by them."""
    policy, load = pool_load.lock(tx, tenant_id, pool_id)
    most = policy.breaker_min_nodes
    if pool_id is None or load.maintenance:  # a pool in maintenance is a person's, and no alert is raised
        return policy, load
    if not load.paused and breaker.trips(most, load):
        told: Payload = {"nodes": load.turned, "limit": breaker.limit(most, load.in_service)}
        tx.execute(_OPEN, {"pool": pool_id, "kind": REPAIRS, "detail": jsonb(dict(told))})
        _publish(tx, pool_id, event("pool.remediation.paused", told), mint)
    elif load.paused and breaker.calm(most, load):
        _resume(tx, pool_id, None, mint)
    else:
        return policy, load
    return pool_load.lock(tx, tenant_id, pool_id)


def resume(tx: Connection, pool_id: str, by: str, mint: ids.Mint = ids.mint) -> None:
    """A person lets the repairs of a pool go on. Raises Refused for one that is not paused, LookupError for none."""
    _, load = pool_load.lock(tx, "", pool_id)
    if not load.paused:
        raise Refused(f"repairs of pool {pool_id} are not paused")
    _resume(tx, pool_id, by, mint)


def _resume(tx: Connection, pool_id: str, by: str | None, mint: ids.Mint) -> None:
    tx.execute(_END, {"pool": pool_id, "kind": REPAIRS, "by": by})
    _publish(tx, pool_id, event("pool.remediation.resumed", {"by": by or ITSELF}), mint)
    _plan_again(tx, pool_id, "repairs of the pool go on")


def begin_maintenance(tx: Connection, pool_id: str, by: str, reason: str, until: datetime | None = None) -> None:
    """A person has the whole pool, until a time or until they say so; who had it before has it no more. Repairs that no node has
    been told of are over.

    Raises Invalid for a time that is past or has no zone, LookupError for no pool.
    """
    pool_load.lock(tx, "", pool_id)
    if until is not None and until.tzinfo is None:
        raise Invalid(f"until {until.isoformat()} has no time zone")
    row = tx.execute("SELECT %s::timestamptz <= bc_clock()", [until]).fetchone()
    if row is not None and row[0]:
        raise Invalid(f"until {until.isoformat() if until else ''} is past")
    tx.execute(_END, {"pool": pool_id, "kind": MAINTENANCE, "by": by})
    detail = {"by": by, "reason": reason, **({"until": until.isoformat()} if until is not None else {})}
    tx.execute(_OPEN, {"pool": pool_id, "kind": MAINTENANCE, "detail": jsonb(detail)})
    command.hold_back(tx, "the pool is in maintenance", pool_id=pool_id)


def end_maintenance(tx: Connection, pool_id: str, by: str) -> None:
    """It is over. Raises Refused for a pool that is not in maintenance, LookupError for none."""
    _, load = pool_load.lock(tx, "", pool_id)
    if not load.maintenance:
        raise Refused(f"pool {pool_id} is not in maintenance")
    tx.execute(_END, {"pool": pool_id, "kind": MAINTENANCE, "by": by})
    _plan_again(tx, pool_id, "the pool's maintenance is over")


def _plan_again(tx: Connection, pool_id: str, reason: str) -> None:
    replan.queue(tx, [row[0] for row in tx.execute(_UNHEALTHY, [pool_id]).fetchall()], reason)


def _publish(tx: Connection, pool_id: str, told: Event, mint: ids.Mint) -> None:
    tx.execute(_PUBLISH, [mint("evt"), told.type, jsonb(dict(told.payload)), pool_id])
