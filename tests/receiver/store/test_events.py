"""The outbox: readers follow it by cursor and miss nothing, whatever the order of commits; NOTIFY wakes them."""

from typing import Any

import psycopg

from receiver.events import EVENTS, event
from receiver.ids import mint
from receiver.store.database import Connection
from receiver.store.events import publish
from receiver.store.nodes import lock_node
from tests.receiver.builders import NODE, OTHER, join

READ = """SELECT xid, seq, payload ->> 'by' FROM events
          WHERE xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint AND (xid, seq) > (%s, %s) ORDER BY xid, seq"""


def read(reader: Connection, cursor: tuple[int, int]) -> tuple[list[str], tuple[int, int]]:
    rows: list[Any] = reader.execute(READ, cursor).fetchall()
    return [row[2] for row in rows], (rows[-1][0], rows[-1][1]) if rows else cursor


def test_reader_misses_nothing_when_transactions_commit_out_of_order(database: str) -> None:
    with (
        psycopg.connect(database) as one,
        psycopg.connect(database) as other,
        psycopg.connect(database, autocommit=True) as reader,
    ):
        join(one)
        one.commit()
        seen, cursor = read(reader, (0, 0))
        assert seen == ["hello"]
        publish(one, NODE, [event("node.joined", {"by": "first begun"})], mint)
        publish(other, NODE, [event("node.joined", {"by": "first committed"})], mint)
        other.commit()
        assert read(reader, cursor)[0] == [], "behind the horizon: an older transaction may still write"
        publish(one, NODE, [event("node.joined", {"by": "later"})], mint)
        one.commit()
        seen, cursor = read(reader, cursor)
        assert sorted(seen) == ["first begun", "first committed", "later"]
        assert read(reader, cursor)[0] == []


def test_events_of_a_node_are_read_in_the_order_in_which_it_changed(database: str) -> None:
    """Also where one transaction has several nodes: it has its number long before the lock of the last one."""
    with (
        psycopg.connect(database) as several,
        psycopg.connect(database) as one,
        psycopg.connect(database, autocommit=True) as reader,
    ):
        for node in (NODE, OTHER):
            join(one, node)
        one.commit()
        _, cursor = read(reader, (0, 0))
        lock_node(several, NODE)
        lock_node(one, OTHER)
        publish(one, OTHER, [event("node.joined", {"by": "the first to have its lock"})], mint)
        one.commit()
        lock_node(several, OTHER)
        publish(several, OTHER, [event("node.joined", {"by": "the second"})], mint)
        assert read(reader, cursor)[0] == [], "behind the horizon"
        several.commit()
        seen, cursor = read(reader, cursor)
        assert seen == ["the first to have its lock", "the second"], "and at once, without waiting for another transaction"
        times = reader.execute("SELECT time FROM events WHERE node_id = %s ORDER BY xid, seq", [OTHER]).fetchall()
        assert times == sorted(times)


def test_commit_wakes_readers_and_rollback_does_not(database: str) -> None:
    with psycopg.connect(database) as tx, psycopg.connect(database, autocommit=True) as listener:
        listener.execute("LISTEN bc_events")
        join(tx)
        tx.rollback()
        assert list(listener.notifies(timeout=0.1)) == []
        join(tx)
        tx.commit()
        assert [one.channel for one in listener.notifies(timeout=5, stop_after=1)] == ["bc_events"]


def test_event_carries_tenant_pool_node_time_and_schema_version(tx: Connection) -> None:
    join(tx, tenant="acme")
    tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES ('pool_1', 'acme', 'h100')")
    tx.execute("UPDATE nodes SET pool_id = 'pool_1'")
    publish(tx, NODE, [event("node.adopted", {"attempt": 1, "specGeneration": 1})], mint)
    row = tx.execute(
        "SELECT tenant_id, pool_id, node_id, time >= now(), payload FROM events WHERE type = 'node.adopted'"
    ).fetchone()
    assert row == ("acme", "pool_1", NODE, True, {"attempt": 1, "specGeneration": 1, "schemaVersion": 1})


def test_every_listed_type_has_words_and_distinct_fields() -> None:
    for name, listed in EVENTS.items():
        assert name == listed.name
        assert listed.tells
        assert listed.todo
        assert len(set(listed.fields)) == len(listed.fields)
