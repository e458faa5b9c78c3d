"""A sweep over a fleet in which one node in a hundred changed: what it writes, and its time beside one look at all nodes.

`make proof-lifecycle` has 100,000 nodes of eight GPUs, `make test` a tenth.
"""

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psycopg
import pytest

from receiver.apply import hygiene
from receiver.apply.hygiene import sweep
from receiver.planning.hygiene import Options
from receiver.store import database as db
from receiver.store.embedded import EmbeddedPostgres
from tests.receiver.read import large
from tests.repetitions import times, within

T = TypeVar("T")
NODES = times(large.FULL)
OPTIONS = Options()
ALL = f"SELECT n.id, n.tenant_id, n.pool_id, n.status, n.trust, {hygiene._SEEN} FROM nodes n"
# One node in a hundred of those that are looked over, spread over all pools.
SOME = """UPDATE nodes SET last_seen = {} WHERE id IN (SELECT id FROM (
  SELECT id, row_number() OVER (PARTITION BY pool_id ORDER BY md5(id)) AS number FROM nodes
  WHERE status NOT IN ('retired', 'deleted') AND trust = 'platform') AS n WHERE number % 100 = 1)"""


@pytest.fixture
def url(server: EmbeddedPostgres) -> Iterator[str]:
    db.create_database(server.url(), "hygiene_at_scale", template="template_bc")
    url = server.url("hygiene_at_scale")
    large.fill(url, NODES, only=("pools", "nodes", "devices", "conditions"))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "UPDATE nodes SET daemon_version = '0.1.' || length(id) % 3, protocol_version = '0.3', collected_at = now(), "
            "certificate_from = now(), certificate_until = now() + interval '30 days', last_seen = now() + interval '1 hour'"
        )
        # The fleet's other conditions are not all as rules would have them, and would be put right beside.
        connection.execute("UPDATE conditions SET status = 'false', no_schedule = false WHERE type <> 'Xid79'")
    yield url
    with db.connect(server.url(), autocommit=True) as connection:
        connection.execute("DROP DATABASE hygiene_at_scale WITH (FORCE)")


def changed(tx: db.Connection) -> dict[str, int]:
    """Rows that this connection has inserted, updated or deleted in its transaction."""
    return dict(tx.execute("SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_xact_user_tables").fetchall())


def timed(work: Callable[[], T]) -> tuple[float, T]:
    gc.collect()
    start = time.perf_counter()
    answer = work()
    return time.perf_counter() - start, answer


@pytest.fixture
def tx(url: str) -> Iterator[db.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def receiver(url: str) -> Iterator[db.Connection]:
    with db.dial(url) as connection:
        yield connection


def test_one_node_in_a_hundred_is_written_in_three_looks_at_all(receiver: db.Connection, tx: db.Connection) -> None:
    looks, sweeps = [], []
    assert sweep(lambda work: transacted(receiver, work), OPTIONS).nodes == 0
    for last_seen, turned in (("now() - interval '1 hour'", "raised"), ("now() + interval '1 hour'", "cleared")) * 3:
        count = tx.execute(SOME.format(last_seen).encode()).rowcount
        assert 0.0098 * NODES * 0.9 < count < 0.0103 * NODES
        tx.execute("VACUUM ANALYZE nodes, conditions, events")
        looks.append(timed(lambda: tx.execute(ALL.encode()).fetchall())[0])
        rows: dict[str, int] = {}
        seconds, swept = timed(lambda: sweep(lambda work: transacted(receiver, work, rows), OPTIONS))  # noqa: B023 - called at once
        sweeps.append(seconds)
        assert (swept.nodes, dict(getattr(swept, turned)), swept.suspended) == (count, {"NotReporting": count}, frozenset())
        assert rows == {"nodes": count, "conditions": count, "events": count}
    assert min(sweeps) <= within(3 * min(looks)), f"of {NODES} nodes {count} changed: {sweeps} s, a look at all: {looks} s"


def transacted(tx: db.Connection, work: Callable[[db.Connection], Any], rows: dict[str, int] | None = None) -> Any:
    """Runs a transaction of a sweep, and adds what it changed to `rows`."""
    with tx.transaction():
        before = changed(tx)
        answer = work(tx)
        for table, count in changed(tx).items():
            if rows is not None and count != before.get(table, 0):
                rows[table] = rows.get(table, 0) + count - before.get(table, 0)
    return answer
