"""What is read of commands, repairs, acceptance and what a pool has stopped, as SQL, in the ways of queries.py.

Runs and commands come newest first: their ids sort by time, and the page behind a cursor is of those with a smaller id.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bettercompute.contract.ids import is_id
from sqlalchemy import Row, Select, Table, select, tuple_
from sqlalchemy.engine import Connection

from receiver.errors import Invalid, NotFound
from receiver.read.queries import visible
from receiver.read.tokens import Scope
from receiver.store.schema import commands
from receiver.store.schema_lifecycle import acceptance_attempts, pool_stops, remediation_runs, remediation_steps

OPEN = "open"  # a state of lists: has not ended
Page = tuple[Sequence[Row[Any]], str | None]


def run(db: Connection, scope: Scope, run_id: str) -> Row[Any]:
    """One repair. Raises NotFound."""
    return _one(db, scope, remediation_runs, run_id, "run")


def run_page(db: Connection, scope: Scope, wanted: Mapping[str, Any], cursor: str, limit: int) -> Page:
    """Repairs, newest first, and the cursor of the next page. `wanted`: columns and what they are to be, None: anything."""
    return _page(db, scope, remediation_runs, "run", "ended_at", wanted, cursor, limit)


def steps_of(db: Connection, scope: Scope, run_id: str) -> Sequence[Row[Any]]:
    """What became of a repair, oldest first."""
    query = visible(select(remediation_steps), remediation_steps, scope).where(remediation_steps.c.run_id == run_id)
    return db.execute(query.order_by(remediation_steps.c.seq)).all()


def command(db: Connection, scope: Scope, command_id: str) -> Row[Any]:
    """One command. Raises NotFound."""
    return _one(db, scope, commands, command_id, "command")


def command_page(db: Connection, scope: Scope, wanted: Mapping[str, Any], cursor: str, limit: int) -> Page:
    """Commands, newest first, as `run_page`."""
    return _page(db, scope, commands, "cmd", "finished_at", wanted, cursor, limit)


def results_of(db: Connection, scope: Scope, command_ids: Iterable[str]) -> dict[str, Any]:
    """What nodes answered to commands, by command id; those that are forgotten, or have no answer, are left out."""
    query = visible(select(commands.c.id, commands.c.result), commands, scope).where(commands.c.id.in_(list(command_ids)))
    return {row.id: row.result for row in db.execute(query) if row.result is not None}


def attempt(db: Connection, scope: Scope, node_id: str, number: int) -> Row[Any] | None:
    """An attempt of a node to be accepted; None: there is no such one."""
    query = visible(select(acceptance_attempts), acceptance_attempts, scope)
    return db.execute(query.where(acceptance_attempts.c.node_id == node_id, acceptance_attempts.c.attempt == number)).first()


def open_runs(db: Connection, scope: Scope, node_id: str) -> Sequence[Row[Any]]:
    """Repairs of a node that have not ended, oldest first."""
    query = visible(select(remediation_runs), remediation_runs, scope).where(
        remediation_runs.c.node_id == node_id, remediation_runs.c.ended_at.is_(None)
    )
    return db.execute(query.order_by(remediation_runs.c.id)).all()


def stops_of(db: Connection, scope: Scope, pool_ids: Iterable[str]) -> dict[str, list[Row[Any]]]:
    """What does not go on in pools now, by pool, in the order of its kinds."""
    query = visible(select(pool_stops), pool_stops, scope).where(
        pool_stops.c.pool_id.in_(list(pool_ids)), pool_stops.c.ended_at.is_(None)
    )
    found: dict[str, list[Row[Any]]] = {}
    for row in db.execute(query.order_by(pool_stops.c.kind)):
        found.setdefault(row.pool_id, []).append(row)
    return found


def _one(db: Connection, scope: Scope, table: Table, key: str, noun: str) -> Row[Any]:
    found = db.execute(visible(select(table), table, scope).where(table.c.id == key)).first()
    if found is None:
        raise NotFound(f"no {noun} {key}")
    return found


def _page(
    db: Connection, scope: Scope, table: Table, prefix: str, ended: str, wanted: Mapping[str, Any], cursor: str, limit: int
) -> Page:
    if cursor and not is_id(cursor, prefix):
        raise Invalid(f"cursor {cursor[:64]!r} is none of this method")
    query = visible(select(table), table, scope).limit(limit + 1)
    named = {name: value for name, value in wanted.items() if value is not None}
    if named.keys() == {"kind"}:  # said as a range, for the reason that queries.py gives of events
        place = tuple_(table.c.kind, table.c.id)
        query = query.where(place < tuple_(named["kind"], cursor or f"{prefix}_{'z' * 26}"), table.c.kind >= named["kind"])
        return _cut(db, query.order_by(table.c.kind.desc(), table.c.id.desc()), limit)
    query = query.order_by(table.c.id.desc())
    for name, value in named.items():
        if (name, value) == ("state", OPEN):
            query = query.where(table.c[ended].is_(None))
        else:
            query = query.where(table.c[name] == value)
    if cursor:
        query = query.where(table.c.id < cursor)
    return _cut(db, query, limit)


def _cut(db: Connection, query: Select[Any], limit: int) -> Page:
    rows = db.execute(query).all()
    return rows[:limit], rows[limit - 1].id if len(rows) > limit else None
