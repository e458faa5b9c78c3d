"""What a pool comes to as a whole: its policy, and the numbers that its budget and breaker are judged by (planning/budget.py)."""

from receiver.planning.breaker import WINDOW
from receiver.planning.budget import Load
from receiver.planning.policy import Policy, parse
from receiver.store.database import Connection

# Nodes without a pool are counted together, by tenant: nothing pauses them.
_NO_POOL = 0x62635F71  # advisory lock

_LOCK = "SELECT policy FROM pools WHERE id = %(pool)s FOR NO KEY UPDATE"
_IN_POOL = {"node": "n.pool_id = %(pool)s", "disruption": "d.pool_id = %(pool)s"}
_IN_NONE = {
    "node": "n.pool_id IS NULL AND n.tenant_id = %(tenant)s",
    "disruption": "d.pool_id IS NULL AND EXISTS (SELECT FROM nodes o WHERE o.id = d.node_id AND o.tenant_id = %(tenant)s)",
}
_COUNT = """
SELECT i.nodes, (SELECT count(*) FROM disruptions d WHERE d.ended_at IS NULL AND {disruption}),
  (SELECT count(DISTINCT t.node_id) FROM unhealthy_turns t WHERE t.pool_id = %(pool)s AND t.at > greatest(
     bc_clock() - %(window)s, (SELECT max(s.ended_at) FROM pool_stops s
       WHERE s.pool_id = %(pool)s AND s.kind = 'remediation' AND s.confirmed_by IS NOT NULL))),
  i.unhealthy, {stop}'remediation'), {stop}'maintenance')
FROM (SELECT count(*) AS nodes, count(*) FILTER (WHERE n.unhealthy) AS unhealthy
      FROM nodes n WHERE n.status = 'adopted' AND {node}) AS i
"""
_STOP = "EXISTS (SELECT FROM pool_stops s WHERE s.pool_id = %(pool)s AND s.ended_at IS NULL AND s.kind = "


def lock(tx: Connection, tenant_id: str, pool_id: str | None) -> tuple[Policy, Load]:
    """A pool's policy and load. Until the transaction ends nobody else is told them so; for None those of the tenant's nodes
    without a pool. Raises LookupError for a pool that does not exist.

    What a person has let go on before is counted no more: the window begins there.
    """
    arguments = {"pool": pool_id, "tenant": tenant_id, "window": WINDOW}
    if pool_id is None:
        tx.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_NO_POOL, tenant_id])
        policy = Policy()
    elif (row := tx.execute(_LOCK, arguments).fetchone()) is not None:
        policy = parse(row[0])
    else:
        raise LookupError(f"no pool {pool_id}")
    counted = tx.execute(_COUNT.format(stop=_STOP, **(_IN_NONE if pool_id is None else _IN_POOL)).encode(), arguments).fetchone()
    assert counted is not None
    return policy, Load(*counted)
