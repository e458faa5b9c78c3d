"""Whether an attack wrote something: every row of every table, before and after."""

import asyncio
from collections.abc import Mapping

import psycopg
from psycopg import sql

# What moves without anybody's word: who holds which loop, when a node was last seen, that its stream is over, a loop's own notes.
MOVES: Mapping[str, tuple[str, ...]] = {
    "leases": ("*",),
    "serving": ("*",),
    "nodes": ("last_seen", "connected"),
    "sessions": ("ended_at", "end_reason"),
}
Rows = Mapping[str, frozenset[str]]  # by table, as JSON


def rows(database: str) -> Rows:
    """All rows of all tables, without what moves by itself."""
    with psycopg.connect(database, autocommit=True) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1").fetchall()
        return {name: _of(connection, name) for (name,) in tables if MOVES.get(name) != ("*",)}


async def settled(database: str, wait: float = 1.0) -> Rows:
    """The rows once nothing has changed for so many seconds: what was ordered is done."""
    found = rows(database)
    while True:
        await asyncio.sleep(wait)
        if (now := rows(database)) == found:
            return found
        found = now


def _of(connection: psycopg.Connection[tuple[str]], table: str) -> frozenset[str]:
    query = sql.SQL("SELECT (to_jsonb(t) - {}::text[])::text FROM {} t").format(list(MOVES.get(table, ())), sql.Identifier(table))
    return frozenset(row[0] for row in connection.execute(query))


def written(before: Rows, after: Rows) -> dict[str, list[str]]:
    """What differs, by table: rows that are new (+) and rows that are gone (-); for a person, and to be compared with {}."""
    found = {table: _between(before.get(table, frozenset()), after.get(table, frozenset())) for table in {*before, *after}}
    return {table: rows for table, rows in sorted(found.items()) if rows}


def _between(before: frozenset[str], after: frozenset[str]) -> list[str]:
    return [*(f"+ {row[:400]}" for row in sorted(after - before)), *(f"- {row[:400]}" for row in sorted(before - after))]
