"""What the API reads, as SQL: rows out, no messages. Every query of a tenant's rows goes through `visible`.

Pages: `limit` rows after a cursor; one row more is read to know whether there is a next page. Cursors are opaque to callers.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from bettercompute.contract.ids import is_id
from sqlalchemy import (
    Column,
    ColumnElement,
    Engine,
    Row,
    Select,
    Table,
    and_,
    create_engine,
    func,
    literal_column,
    select,
    text,
    tuple_,
    union_all,
)
from sqlalchemy.engine import Connection

from receiver.errors import Invalid, NotFound, OverLimit
from receiver.planning.selector import Selector
from receiver.read.selecting import selected
from receiver.read.tokens import Scope
from receiver.store.database import dial
from receiver.store.schema import (
    conditions,
    events,
    inventory_snapshots,
    node_labels,
    node_missing_sections,
    nodes,
    sections,
)
from receiver.values import ALL, PAGE_ROWS

ONLINE = timedelta(minutes=5)  # ten status intervals
_NUMBER = re.compile(r"[0-9]{1,18}")
# A transaction below this horizon has ended: nothing can appear behind a cursor that stays below it.
HORIZON: ColumnElement[int] = literal_column("pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
# A page is a few rows of big tables, found by values of which some are rare and some common. So each statement is planned for its
# own values, no table is read whole where an index leads, and nothing is compiled or shared out to processes. Looking up one
# label of each node of a fleet costs more than walking along the labels: the database's own weights, for a table that is found
# whole in memory, let it look up (1.3 s instead of 0.2 s for a selector of five that 100,000 nodes do not meet, measured).
_READER = "; ".join(
    f"SET {name} = {value}"
    for name, value in (
        ("plan_cache_mode", "force_custom_plan"),
        ("enable_seqscan", "off"),
        ("enable_hashjoin", "on"),
        ("enable_mergejoin", "on"),
        ("enable_memoize", "off"),
        ("random_page_cost", "8"),
        ("max_parallel_workers_per_gather", "0"),
    )
)


def open_engine(url: str, size: int) -> Engine:
    """Connections for reading: at most `size`. What one connection reads until it is closed is of one moment.

    `url` as libpq takes it.
    """
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: _reader(url),
        pool_size=size,
        max_overflow=0,
        pool_pre_ping=True,
        isolation_level="REPEATABLE READ",
        execution_options={"postgresql_readonly": True},
    )


def _reader(url: str) -> Any:
    connection = dial(url, name="receiver read")
    connection.execute(_READER)
    connection.commit()
    return connection


def visible(query: Select[Any], table: Table, scope: Scope) -> Select[Any]:
    """The rows of `table` that the caller may see: those that belonged to its tenant when they were written."""
    return query if scope.tenant == ALL else query.where(table.c.tenant_id == scope.tenant)


def page_size(limit: int, default: int) -> int:
    """Rows a page. Raises OverLimit, naming the limit."""
    if limit > PAGE_ROWS:
        raise OverLimit("rows an API page", f"limit is {limit}; a page has at most {PAGE_ROWS:,}")
    return limit or default


def number(cursor: str) -> int | None:
    """A cursor that is one number; None at the beginning. Raises Invalid."""
    if not cursor:
        return None
    if not _NUMBER.fullmatch(cursor):
        raise Invalid(f"cursor {cursor[:64]!r} is none of this method")
    return int(cursor)


# ---- nodes


def _nodes(scope: Scope) -> Select[Any]:
    """Nodes, and whether each is `online`: `connected` may be left over from a receiver that was killed, `last_seen` tells."""
    online = and_(nodes.c.connected, nodes.c.last_seen > func.bc_clock() - ONLINE).label("online")
    return visible(select(nodes, online), nodes, scope)


def node(db: Connection, scope: Scope, node_id: str) -> Row[Any]:
    """One node. Raises NotFound, also for a node of another tenant."""
    found = db.execute(_nodes(scope).where(nodes.c.id == node_id)).first()
    if found is None:
        raise NotFound(f"no node {node_id}")
    return found


def node_page(
    db: Connection,
    scope: Scope,
    pool_id: str | None,
    status: str | None,
    after: str,
    limit: int,
    condition: str | None = None,
    selector: Selector = (),
) -> tuple[Sequence[Row[Any]], str | None]:
    """Nodes in the order of their ids, and the cursor of the next page. Raises Invalid for another method's cursor.

    `status` None: any but tombstones. `condition`: a type of which at least one is true. `selector`: of their labels.
    """
    if after and not is_id(after, "node"):
        raise Invalid(f"cursor {after[:64]!r} is none of this method")
    query = _nodes(scope).where(nodes.c.id > after, *selected(selector, after)).order_by(nodes.c.id).limit(limit + 1)
    query = query.where(nodes.c.status != "deleted" if status is None else nodes.c.status == status)
    if pool_id is not None:
        query = query.where(nodes.c.pool_id == pool_id)
    if condition is not None:
        true = and_(conditions.c.node_id == nodes.c.id, conditions.c.type == condition, conditions.c.status == "true")
        query = query.where(select(conditions.c.type).where(true, conditions.c.node_id > after).exists())
    rows = db.execute(query).all()
    return rows[:limit], rows[limit - 1].id if len(rows) > limit else None


def of_nodes(db: Connection, scope: Scope, table: Table, node_ids: Iterable[str], *order: str) -> dict[str, list[Row[Any]]]:
    """The rows of nodes, by node, in `order`."""
    found: dict[str, list[Row[Any]]] = {}
    query = visible(select(table), table, scope).where(table.c.node_id.in_(list(node_ids)))
    for row in db.execute(query.order_by(*(table.c[name] for name in order))).all():
        found.setdefault(row.node_id, []).append(row)
    return found


def missing_of(db: Connection, scope: Scope, node_ids: Iterable[str]) -> dict[str, list[Row[Any]]]:
    """The sections that nodes could not report, by node."""
    return of_nodes(db, scope, node_missing_sections, node_ids, "name")


def conditions_of(db: Connection, scope: Scope, node_ids: Iterable[str]) -> dict[str, list[Row[Any]]]:
    """Conditions by node."""
    return of_nodes(db, scope, conditions, node_ids, "type", "device_id")


def labels_of(db: Connection, scope: Scope, node_ids: Iterable[str]) -> dict[str, list[Row[Any]]]:
    """Labels by node."""
    return of_nodes(db, scope, node_labels, node_ids, "key")


def section_of_snapshots(db: Connection, scope: Scope, snapshot_ids: Iterable[str], name: str) -> dict[str, bytes]:
    """The bytes of one section in each of these snapshots, by snapshot id."""
    query = (
        visible(select(inventory_snapshots.c.id, sections.c.body), inventory_snapshots, scope)
        .join(sections, sections.c.hash == _hash_of(name))
        .where(inventory_snapshots.c.id.in_(list(snapshot_ids)))
    )
    return {row.id: row.body for row in db.execute(query)}


# ---- inventory


def _hash_of(name: str) -> ColumnElement[Any]:
    """That of a section in a snapshot; null when it does not have it."""
    return func.section_hash(inventory_snapshots.c.sections, name)


def _snapshots(scope: Scope, node_id: str) -> Select[Any]:
    table = inventory_snapshots
    return visible(select(table), table, scope).where(table.c.node_id == node_id).order_by(table.c.seq.desc())


def snapshot(db: Connection, scope: Scope, node_id: str, snapshot_id: str | None) -> Row[Any]:
    """One snapshot of a node that is visible; the latest without an id. Raises NotFound."""
    query = _snapshots(scope, node_id).limit(1)
    if snapshot_id is not None:
        query = query.where(inventory_snapshots.c.id == snapshot_id)
    found = db.execute(query).first()
    if found is None:
        raise NotFound(
            f"node {node_id} has no inventory yet" if snapshot_id is None else f"node {node_id} has no snapshot {snapshot_id}"
        )
    return found


def snapshot_before(db: Connection, scope: Scope, node_id: str, seq: int, name: str | None = None) -> Row[Any] | None:
    """The newest snapshot before `seq`; with `name`, that has this section."""
    query = _snapshots(scope, node_id).where(inventory_snapshots.c.seq < seq).limit(1)
    if name is not None:
        query = query.where(_hash_of(name).is_not(None))
    return db.execute(query).first()


def snapshot_page(
    db: Connection, scope: Scope, node_id: str, before: int | None, limit: int
) -> tuple[Sequence[Row[Any]], Row[Any] | None]:
    """Snapshots, newest first, and the one that precedes the page's last (None: there is none)."""
    query = _snapshots(scope, node_id).limit(limit + 1)
    if before is not None:
        query = query.where(inventory_snapshots.c.seq < before)
    rows = db.execute(query).all()
    return rows[:limit], rows[limit] if len(rows) > limit else None


def bodies(db: Connection, *snapshots: Mapping[str, str]) -> list[dict[str, bytes]]:
    """Section name to bytes, for each mapping of section name to hash."""
    hashes = {value for one in snapshots for value in one.values()}
    query = select(sections.c.hash, sections.c.body).where(sections.c.hash.in_(sorted(hashes)))
    by_hash = {row.hash: row.body for row in db.execute(query)} if hashes else {}
    return [{name: by_hash[value] for name, value in one.items()} for one in snapshots]


# ---- events

Place = tuple[int, int]  # (transaction, number) of an event
LAST_NUMBER = 1 << 62


def place(cursor: str) -> Place:
    """A cursor of events; the beginning when it is empty. Raises Invalid."""
    xid, _, seq = (cursor or "0.0").partition(".")
    if not (_NUMBER.fullmatch(xid) and _NUMBER.fullmatch(seq)):
        raise Invalid(f"cursor {cursor[:64]!r} is none of this method")
    return int(xid), int(seq)


def event_page(
    db: Connection, scope: Scope, after: Place, limit: int, node_id: str | None = None, kind: str | None = None
) -> Sequence[Row[Any]]:
    """Events after a place, oldest first, in an order in which nothing appears behind a place that was read.

    `kind`: a type, or a family of them: "node.gpu.*".
    """
    if node_id is None and kind is not None and kind.endswith(".*"):
        return _merged(db, scope, after, limit, [one for one in event_types(db) if one.startswith(kind[:-1])])
    if node_id is None:
        query = _events(scope, after, limit) if kind is None else _events(scope, after, limit, events.c.type, kind)
        return db.execute(query).all()
    query = _events(scope, after, limit, events.c.node_id, node_id)
    if kind is not None:
        family = events.c.type.startswith(kind[:-1], autoescape=True)
        query = query.where(family if kind.endswith(".*") else events.c.type == kind)
    return db.execute(query).all()


def _events(scope: Scope, after: Place, limit: int, column: Column[Any] | None = None, value: str = "") -> Select[Any]:
    """Events after a place; with `column`: those that have `value` there.

    That is said as a range of (column, xid, seq), and not as an equality: only the index of the column gives that order. With an
    equality the database may walk the whole log instead, hoping that what it looks for is spread evenly over it.
    """
    order = (events.c.xid, events.c.seq)
    query = visible(select(events), events, scope).where(events.c.xid < HORIZON).limit(limit)
    if column is None:
        return query.where(tuple_(*order) > tuple_(*after)).order_by(*order)
    return query.where(tuple_(column, *order) > tuple_(value, *after), column <= value).order_by(column, *order)


def _merged(db: Connection, scope: Scope, after: Place, limit: int, kinds: Sequence[str]) -> Sequence[Row[Any]]:
    """The first events of these types together: each type is read along its index, however rare it is."""
    if not kinds:
        return []
    pages = (_events(scope, after, limit, events.c.type, kind).subquery() for kind in kinds)
    every = union_all(*(select(page) for page in pages)).subquery()
    return db.execute(select(every).order_by(every.c.xid, every.c.seq).limit(limit)).all()


_EVENT_TYPES = text("""
WITH RECURSIVE found(type) AS (
  (SELECT type FROM events ORDER BY type LIMIT 1)
  UNION ALL
  SELECT (SELECT e.type FROM events e WHERE e.type > found.type ORDER BY e.type LIMIT 1) FROM found WHERE found.type IS NOT NULL)
SELECT type FROM found WHERE type IS NOT NULL
""")


def event_types(db: Connection) -> Sequence[str]:
    """The types that there are events of, sorted: one step in the index each, not one an event."""
    return db.execute(_EVENT_TYPES).scalars().all()


def event_horizon(db: Connection) -> Place:
    """The place behind which everything is still to come."""
    return db.execute(select(HORIZON)).scalar_one() - 1, LAST_NUMBER
