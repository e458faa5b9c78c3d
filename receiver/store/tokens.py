"""Rows of tokens: those of callers of the API, and those with which nodes join. Of a secret only its hash comes here.

Times are the fleet's (`bc_clock()`). What a joining node uses up of a token is written where it joins (receiver/apply/join.py).
"""

from collections.abc import Sequence
from datetime import timedelta

from bettercompute.contract.tokens import Token

from receiver.store.database import Connection
from receiver.store.words import jsonb

_ADD_API = """INSERT INTO api_tokens (id, tenant_id, hash, permissions, name, created_by, created_at, expires_at)
VALUES (%s, %s, %s, %s, %s, %s, bc_clock(), bc_clock() + %s)"""

_ADD_JOIN = """INSERT INTO join_tokens (id, tenant_id, hash, pool_id, kind, node_id, uses, created_by, created_at, expires_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, bc_clock(), bc_clock() + %s)"""

_REVOKE = "UPDATE {} SET revoked_at = bc_clock() WHERE id = %s AND revoked_at IS NULL"


def add_api(
    tx: Connection, token: Token, tenant_id: str, permissions: Sequence[str], name: str, by: str, life: timedelta
) -> None:
    """A token of a caller. `tenant_id`: "*" for all."""
    tx.execute(_ADD_API, [token.id, tenant_id, token.hash, jsonb(list(permissions)), name, by, life])


def add_join(
    tx: Connection,
    token: Token,
    tenant_id: str,
    *,
    pool_id: str | None,
    kind: str,
    node_id: str | None,
    uses: int,
    by: str,
    life: timedelta,
) -> None:
    """A token with which nodes join. `node_id`: the one that comes back with it, else it is for new ones."""
    tx.execute(_ADD_JOIN, [token.id, tenant_id, token.hash, pool_id, kind, node_id, uses, by, life])


def revoke_api(tx: Connection, token_id: str) -> None:
    """Ends a token at once; one that was revoked keeps when."""
    tx.execute(_REVOKE.format("api_tokens").encode(), [token_id])


def revoke_join(tx: Connection, token_id: str) -> None:
    """The same for one with which nodes join."""
    tx.execute(_REVOKE.format("join_tokens").encode(), [token_id])
