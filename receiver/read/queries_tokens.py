"""What is read of tokens, as SQL, in the ways of queries.py. Their hashes are not."""

from collections.abc import Sequence
from typing import Any

from bettercompute.contract.ids import is_id
from sqlalchemy import Row, Select, Table, select
from sqlalchemy.engine import Connection

from receiver.errors import Invalid, NotFound
from receiver.read.queries import visible
from receiver.read.tokens import Scope


def _tokens(table: Table, scope: Scope) -> Select[Any]:
    return visible(select(*(column for column in table.c if column.name != "hash")), table, scope)


def token(db: Connection, scope: Scope, table: Table, token_id: str) -> Row[Any]:
    """One token of either table. Raises NotFound, also for one of another tenant."""
    found = db.execute(_tokens(table, scope).where(table.c.id == token_id)).first()
    if found is None:
        raise NotFound(f"no token {token_id}")
    return found


def token_page(db: Connection, scope: Scope, table: Table, before: str, limit: int) -> tuple[Sequence[Row[Any]], str | None]:
    """Tokens, newest first, and the cursor of the next page. Raises Invalid for another method's cursor."""
    if before and not is_id(before, "tok"):
        raise Invalid(f"cursor {before[:64]!r} is none of this method")
    query = _tokens(table, scope).order_by(table.c.id.desc()).limit(limit + 1)
    rows = db.execute(query.where(table.c.id < before) if before else query).all()
    return rows[:limit], rows[limit - 1].id if len(rows) > limit else None
