"""What is read of pools, as SQL, in the ways of queries.py."""

from collections.abc import Sequence
from typing import Any

from bettercompute.contract.ids import is_id
from sqlalchemy import Row, Select, func, select
from sqlalchemy.engine import Connection

from receiver.errors import Invalid, NotFound
from receiver.read.queries import visible
from receiver.read.tokens import Scope
from receiver.store.schema import nodes, pools


def _pools(scope: Scope) -> Select[Any]:
    """Pools, each with the number of its nodes."""
    counted = select(func.count()).where(nodes.c.pool_id == pools.c.id).scalar_subquery()
    return visible(select(pools, counted.label("nodes")), pools, scope)


def pool(db: Connection, scope: Scope, pool_id: str) -> Row[Any]:
    """One pool. Raises NotFound, also for a pool of another tenant."""
    found = db.execute(_pools(scope).where(pools.c.id == pool_id)).first()
    if found is None:
        raise NotFound(f"no pool {pool_id}")
    return found


def pool_page(db: Connection, scope: Scope, after: str, limit: int) -> tuple[Sequence[Row[Any]], str | None]:
    """Pools in the order of their ids, and the cursor of the next page. Raises Invalid for another method's cursor."""
    if after and not is_id(after, "pool"):
        raise Invalid(f"cursor {after[:64]!r} is none of this method")
    rows = db.execute(_pools(scope).where(pools.c.id > after).order_by(pools.c.id).limit(limit + 1)).all()
    return rows[:limit], rows[limit - 1].id if len(rows) > limit else None
