"""`pools.get`, `pools.list`."""

from collections.abc import Iterable, Sequence
from typing import Any

from bettercompute.control.v1 import pools_pb2
from google.protobuf.message import Message
from sqlalchemy import Row
from sqlalchemy.engine import Connection

from receiver.read import queries, queries_lifecycle, queries_pools
from receiver.read.answers.common import PAGE, required, stamp, struct
from receiver.read.tokens import Scope


def listed(db: Connection, scope: Scope, request: pools_pb2.PoolsServiceListRequest) -> Message:
    """Pools in the order of their ids."""
    limit = queries.page_size(request.limit, PAGE)
    rows, following = queries_pools.pool_page(db, scope, request.cursor, limit)
    return pools_pb2.PoolsServiceListResponse(pools=_messages(db, scope, rows), next_cursor=following)


def get(db: Connection, scope: Scope, request: pools_pb2.PoolsServiceGetRequest) -> Message:
    """One pool."""
    return message(db, scope, required(request, "pool_id"))


def message(db: Connection, scope: Scope, pool_id: str) -> pools_pb2.Pool:
    """A pool by its id. Raises NotFound."""
    return _messages(db, scope, [queries_pools.pool(db, scope, pool_id)])[0]


def _messages(db: Connection, scope: Scope, rows: Sequence[Row[Any]]) -> list[pools_pb2.Pool]:
    stops = queries_lifecycle.stops_of(db, scope, [row.id for row in rows])
    return [_pool(row, stops.get(row.id, ())) for row in rows]


def _pool(row: Row[Any], stops: Iterable[Row[Any]]) -> pools_pb2.Pool:
    return pools_pb2.Pool(
        id=row.id,
        name=row.name,
        kind=row.kind,
        gpu_model=row.gpu_model,
        sharing=row.sharing,
        mode=row.mode,
        policy=struct(row.policy),
        nodes=row.nodes,
        revision=row.revision,
        created_at=stamp(row.created_at),
        tenant_id=row.tenant_id,
        stops=[
            pools_pb2.PoolStop(
                kind=one.kind, since=stamp(one.since), detail=struct(one.detail), confirmed_by=one.confirmed_by or None
            )
            for one in stops
        ],
    )
