"""Making, changing and deleting pools (SPEC B0). A change has the pool's nodes planned again.

Values are checked where they come in (receiver/operate/pools.py).
"""

from collections.abc import Mapping

from psycopg import sql

from receiver import ids
from receiver.apply import replan
from receiver.errors import NotFound, Refused
from receiver.planning.policy import parse
from receiver.store.database import Connection
from receiver.store.words import jsonb
from receiver.values import Json, Payload

COLUMNS = ("name", "kind", "gpu_model", "sharing", "mode")


def create(tx: Connection, tenant_id: str, settings: Mapping[str, str | None], policy: Payload, mint: ids.Mint = ids.mint) -> str:
    """A new pool with these of COLUMNS (`name` at least); its id. Raises Refused when the tenant has one of that name."""
    values: dict[str, object] = {"id": mint("pool"), "tenant_id": tenant_id, **settings, "policy": jsonb(policy)}
    statement = sql.SQL("INSERT INTO pools ({}) VALUES ({}) ON CONFLICT (tenant_id, name) DO NOTHING RETURNING id").format(
        sql.SQL(", ").join(map(sql.Identifier, values)), sql.SQL(", ").join(map(sql.Placeholder, values))
    )
    row = tx.execute(statement, values).fetchone()
    if row is None:
        raise Refused(f"tenant {tenant_id} has a pool named {settings['name']!r} already")
    return str(row[0])


def change(tx: Connection, pool_id: str, settings: Mapping[str, str | None], policy: Payload) -> bool:
    """Sets these of COLUMNS, and these keys of the policy (a None removes its key). False: nothing is other than it was.

    Raises NotFound, PolicyError, and Refused when the tenant has another pool of the new name.
    """
    listed = sql.SQL(", ").join(map(sql.Identifier, ("tenant_id", "policy", *COLUMNS)))
    row = tx.execute(sql.SQL("SELECT {} FROM pools WHERE id = %s FOR UPDATE").format(listed), [pool_id]).fetchone()
    if row is None:
        raise NotFound(f"no pool {pool_id}")
    tenant_id, stored, *old = row
    before = dict(zip(COLUMNS, old, strict=True))
    merged = merge(stored, policy)
    parse(merged)
    differing = {name: value for name, value in settings.items() if value != before[name]}
    if not differing and merged == stored:
        return False
    if "name" in differing:
        _refuse_taken(tx, tenant_id, str(differing["name"]))
    values: dict[str, object] = {**differing, "policy": jsonb(merged)}
    assigned = sql.SQL(", ").join(sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in values)
    statement = sql.SQL("UPDATE pools SET {}, revision = revision + 1 WHERE id = %(id)s").format(assigned)
    tx.execute(statement, {**values, "id": pool_id})
    replan.queue_pool(tx, pool_id, f"pool {pool_id} was changed")
    return True


def merge(stored: Mapping[str, Json], change: Mapping[str, Json]) -> dict[str, Json]:
    """A policy with some of its keys replaced; None removes one.

    >>> merge({"links": "node", "expect": {"gpuCount": 8}}, {"links": None, "xid": {}})
    {'expect': {'gpuCount': 8}, 'xid': {}}
    """
    return {name: value for name, value in {**stored, **change}.items() if value is not None}


def delete(tx: Connection, pool_id: str) -> None:
    """Deletes a pool. Raises NotFound, and Refused while a node is in it."""
    if tx.execute("SELECT FROM pools WHERE id = %s FOR UPDATE", [pool_id]).fetchone() is None:
        raise NotFound(f"no pool {pool_id}")
    nodes = [str(row[0]) for row in tx.execute("SELECT id FROM nodes WHERE pool_id = %s ORDER BY id LIMIT 3", [pool_id])]
    if nodes:
        raise Refused(f"pool {pool_id} has nodes: move them out first, or delete retired ones: {', '.join(nodes)}")
    tx.execute("UPDATE disruptions SET pool_id = NULL WHERE pool_id = %s", [pool_id])
    tx.execute("DELETE FROM pools WHERE id = %s", [pool_id])


def _refuse_taken(tx: Connection, tenant_id: str, name: str) -> None:
    if tx.execute("SELECT FROM pools WHERE tenant_id = %s AND name = %s", [tenant_id, name]).fetchone() is not None:
        raise Refused(f"tenant {tenant_id} has a pool named {name!r} already")
