"""The big database of large.py as tests use it: made once, its statements caught and explained, its hostile variants."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import Engine, event
from sqlalchemy.engine import Connection

from receiver.client.methods import find, parse
from receiver.read import queries
from receiver.read.api import READS
from receiver.read.tokens import Scope
from receiver.store import database as db
from receiver.store.embedded import EmbeddedPostgres
from receiver.values import ALL
from tests.receiver.read import large
from tests.repetitions import times

NODES = times(large.FULL)
EVERYTHING = Scope(ALL, platform=True)


@dataclass(frozen=True)
class Fleet:
    """A filled database, and the engine that the API reads it with."""

    url: str
    engine: Engine

    def ask(self, name: str, scope: Scope = EVERYTHING, **keys: str) -> Any:
        """What a method answers, as a message."""
        with self.engine.connect() as connection:
            return _ask(connection, name, scope, keys)

    def seconds(self, name: str, **keys: str) -> float:
        """How long a method takes: the best of three, as a machine that does other things too has its pauses."""
        found = []
        for _ in range(3):
            start = time.perf_counter()
            self.ask(name, EVERYTHING, **keys)
            found.append(time.perf_counter() - start)
        return min(found)

    def explained(self, name: str, scope: Scope, keys: Mapping[str, str]) -> list[tuple[str, Mapping[str, Any]]]:
        """The statements that a method runs, each with what the database does for it."""
        caught: list[tuple[str, Any]] = []

        def catch(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
            caught.append((statement, parameters))

        with self.engine.connect() as connection:
            event.listen(connection, "before_cursor_execute", catch)
            _ask(connection, name, scope, keys)
            event.remove(connection, "before_cursor_execute", catch)
            return [(statement, _plan(connection, statement, parameters)) for statement, parameters in caught]


def _ask(connection: Connection, name: str, scope: Scope, keys: Mapping[str, str]) -> Any:
    request = parse(find(name), [f"{key}={value}" for key, value in keys.items()])
    return READS[name].answer(connection, scope, request)


def _plan(connection: Connection, statement: str, parameters: Any) -> Mapping[str, Any]:
    found = connection.exec_driver_sql("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) " + statement, parameters).scalar_one()
    plan: Mapping[str, Any] = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return plan


@dataclass(frozen=True)
class Scan:
    """How a plan reads one table: by which index (None: it reads it whole), and how many rows."""

    table: str
    index: str | None
    rows: int


def scans(plan: Mapping[str, Any]) -> Iterator[Scan]:
    """All of a plan's scans of tables."""
    yield from (scan for child in plan.get("Plans", ()) for scan in scans(child))
    if "Relation Name" in plan and plan["Node Type"] != "Bitmap Heap Scan":
        read = sum(plan.get(key, 0) for key in ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck"))
        yield Scan(plan["Relation Name"], plan.get("Index Name"), round(read * plan["Actual Loops"]))
    elif plan["Node Type"] == "Bitmap Index Scan":
        yield Scan("", plan["Index Name"], round(plan["Actual Rows"] * plan["Actual Loops"]))


@contextmanager
def made(
    server: EmbeddedPostgres, name: str, template: str = "template_bc", work: Sequence[str] = (), nodes: int = NODES
) -> Iterator[Fleet]:
    """A fleet in a database of its own: filled, or a copy of a filled one to which something was done."""
    db.create_database(server.url(), name, template=template)
    url = server.url(name)
    if template == "template_bc":
        large.fill(url, nodes)
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in work:
            connection.execute(statement.encode())
    engine = queries.open_engine(url, 2)
    try:
        yield Fleet(url, engine)
    finally:
        engine.dispose()
        with db.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
