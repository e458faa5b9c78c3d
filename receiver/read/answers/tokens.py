"""`tokens.list`, `joinTokens.list`: who was let in, never with what."""

from typing import Any

from bettercompute.control.v1 import join_tokens_pb2, tokens_pb2
from google.protobuf.message import Message
from sqlalchemy import Row
from sqlalchemy.engine import Connection

from receiver.read import queries
from receiver.read.answers.common import PAGE, stamp
from receiver.read.queries_tokens import token, token_page
from receiver.read.tokens import Scope
from receiver.store.schema_identity import api_tokens, join_tokens


def listed(db: Connection, scope: Scope, request: tokens_pb2.TokensServiceListRequest) -> Message:
    """Tokens of callers, newest first."""
    rows, following = token_page(db, scope, api_tokens, request.cursor, queries.page_size(request.limit, PAGE))
    return tokens_pb2.TokensServiceListResponse(tokens=[_token(row) for row in rows], next_cursor=following)


def joins_listed(db: Connection, scope: Scope, request: join_tokens_pb2.JoinTokensServiceListRequest) -> Message:
    """Tokens of nodes, newest first."""
    rows, following = token_page(db, scope, join_tokens, request.cursor, queries.page_size(request.limit, PAGE))
    return join_tokens_pb2.JoinTokensServiceListResponse(tokens=[_join_token(row) for row in rows], next_cursor=following)


def message(db: Connection, scope: Scope, token_id: str) -> tokens_pb2.Token:
    """A caller's token by its id. Raises NotFound."""
    return _token(token(db, scope, api_tokens, token_id))


def join_message(db: Connection, scope: Scope, token_id: str) -> join_tokens_pb2.JoinToken:
    """A node's token by its id. Raises NotFound."""
    return _join_token(token(db, scope, join_tokens, token_id))


def _token(row: Row[Any]) -> tokens_pb2.Token:
    return tokens_pb2.Token(
        id=row.id,
        tenant_id=row.tenant_id,
        permissions=row.permissions,
        name=row.name,
        created_by=row.created_by,
        created_at=stamp(row.created_at),
        expires_at=stamp(row.expires_at),
        revoked_at=stamp(row.revoked_at),
    )


def _join_token(row: Row[Any]) -> join_tokens_pb2.JoinToken:
    return join_tokens_pb2.JoinToken(
        id=row.id,
        tenant_id=row.tenant_id,
        pool_id=row.pool_id,
        kind=row.kind,
        node_id=row.node_id,
        uses=row.uses,
        used=row.used,
        created_by=row.created_by,
        created_at=stamp(row.created_at),
        expires_at=stamp(row.expires_at),
        revoked_at=stamp(row.revoked_at),
    )
