"""A database that cannot be used says so clearly, and what to do."""

import threading
from datetime import UTC, datetime

import psycopg
import pytest

from receiver.errors import DatabaseError
from receiver.store import database as db
from receiver.store.embedded import EmbeddedPostgres


def test_unreachable_server_is_a_clear_error() -> None:
    with pytest.raises(DatabaseError) as caught:
        db.check_schema("postgresql://bc:secret@127.0.0.1:1/bc")
    assert "postgresql://bc@127.0.0.1:1/bc" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "refused" in caught.value.happened
    assert caught.value.hint


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@h/n", "postgresql://u@h/n"),
        ("postgresql://u@h/n", "postgresql://u@h/n"),
        ("host=h password=geheim dbname=n", "host=h password=*** dbname=n"),
        ("host=h password='ge heim' dbname=n", "host=h password=*** dbname=n"),
        ("postgresql://h/n?password=x&user=u", "postgresql://h/n?password=***&user=u"),
    ],
)
def test_shown_url_has_no_password(url: str, shown: str) -> None:
    assert db.shown(url) == shown


def test_malformed_url_is_a_clear_error() -> None:
    with pytest.raises(DatabaseError, match="connect to the database"):
        db.check_schema("not a url")


def test_empty_database_asks_for_migrate(server: EmbeddedPostgres) -> None:
    db.create_database(server.url(), "empty_one")
    with pytest.raises(DatabaseError, match="no schema yet") as caught:
        db.open_pool(server.url("empty_one"))
    assert caught.value.hint == "run: bc-receiver migrate"


@pytest.mark.parametrize("use", [db.check_schema, db.migrate, db.open_pool])
def test_newer_schema_is_refused(database: str, use: object) -> None:
    with psycopg.connect(database) as tx:
        tx.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DatabaseError, match="its schema is 9999, newer than this receiver's") as caught:
        use(database)  # type: ignore[operator]
    assert caught.value.hint


def test_older_schema_asks_for_migrate(database: str) -> None:
    with psycopg.connect(database) as tx:
        tx.execute("UPDATE alembic_version SET version_num = '0000'")
    with pytest.raises(DatabaseError, match="has schema 0000, this receiver needs"):
        db.check_schema(database)


def test_server_older_than_15_is_refused(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "OLDEST_SERVER", 990000)
    with pytest.raises(DatabaseError, match="the server is PostgreSQL 1") as caught:
        db.check_schema(database)
    assert caught.value.hint == "PostgreSQL 15 or newer is needed"


def test_two_migrations_at_once_take_turns(server: EmbeddedPostgres) -> None:
    db.create_database(server.url(), "raced")
    before: list[int | None] = []
    threads = [threading.Thread(target=lambda: before.append(db.migrate(server.url("raced")))) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(before, key=str) == [db.head(), db.head(), None]


def test_pool_gives_connections_of_the_database(database: str) -> None:
    with db.open_pool(database, size=2) as pool, pool.connection() as tx:
        assert db.schema_version(tx) == db.head()


def test_connections_of_a_receiver_read_times_as_utc_and_never_wait_without_end(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {admin.info.dbname} SET timezone = 'Pacific/Kiritimati'")
    asked = "SELECT current_setting('timezone'), current_setting('statement_timeout'), timestamptz '9999-12-31 23:59:59+00'"
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    with db.open_pool(database, size=1) as pool, pool.connection() as tx:
        assert tx.execute(asked).fetchone() == ("UTC", "30s", last)
    with db.dial(database) as connection:
        assert connection.execute(asked).fetchone() == ("UTC", "30s", last)


def test_a_silent_server_is_noticed_unless_the_url_says_otherwise() -> None:
    assert db._alive("postgresql://h/n")["keepalives_idle"] == 10
    assert "keepalives_idle" not in db._alive("postgresql://h/n?keepalives_idle=60")
    assert "connect_timeout" not in db._alive("host=h connect_timeout=1")


LOSSES = [psycopg.errors.UniqueViolation, psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_transaction_that_loses_a_race_is_run_again_on_what_the_winner_left(database: str, loss: type[psycopg.Error]) -> None:
    tries = []
    insert = "INSERT INTO nodes (id, tenant_id) VALUES (%s, 'default')"

    def work(tx: db.Connection) -> list[str]:
        tries.append(tx)
        there = [str(row[0]) for row in tx.execute("SELECT id FROM nodes")]
        tx.execute(insert, [f"node_{len(tries)}"])
        if len(tries) == 1:
            with psycopg.connect(database) as winner:
                winner.execute(insert, ["node_winner"])
            raise loss("somebody else was first")
        return there

    with db.open_pool(database, size=1) as pool:
        assert db.transact(pool, work) == ["node_winner"], "nothing of the first try is left"
        assert len(tries) == 2
        with pool.connection() as tx:
            assert tx.execute("SELECT count(*) FROM nodes").fetchone() == (2,)


def test_a_race_is_lost_for_good_after_three_more_tries(database: str) -> None:
    tries = []

    def work(tx: db.Connection) -> None:
        tries.append(tx)
        raise psycopg.errors.SerializationFailure("again")

    with db.open_pool(database, size=1) as pool, pytest.raises(psycopg.errors.SerializationFailure):
        db.transact(pool, work)
    assert len(tries) == 1 + 3


def test_what_is_no_lost_race_is_not_run_again(database: str) -> None:
    tries = []

    def work(tx: db.Connection) -> None:
        tries.append(tx)
        raise LookupError("no node")

    with db.open_pool(database, size=1) as pool, pytest.raises(LookupError):
        db.transact(pool, work)
    assert len(tries) == 1


def test_two_transactions_that_wait_for_each_other_both_end_well(database: str) -> None:
    with psycopg.connect(database) as tx:
        tx.execute("INSERT INTO nodes (id, tenant_id) VALUES ('node_a', 'default'), ('node_b', 'default')")
    both = threading.Barrier(2)
    tries: list[str] = []

    def change(pool: db.Pool, first: str, second: str) -> None:
        def work(tx: db.Connection) -> None:
            tries.append(first)
            tx.execute("UPDATE nodes SET plan_rev = plan_rev + 1 WHERE id = %s", [first])
            if len(tries) <= 2:
                both.wait(10)
            tx.execute("UPDATE nodes SET plan_rev = plan_rev + 1 WHERE id = %s", [second])

        db.transact(pool, work)

    with db.open_pool(database, size=2) as pool:
        threads = [threading.Thread(target=change, args=(pool, *order)) for order in (("node_a", "node_b"), ("node_b", "node_a"))]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        with pool.connection() as tx:
            assert tx.execute("SELECT id, plan_rev FROM nodes ORDER BY id").fetchall() == [("node_a", 2), ("node_b", 2)]
    assert len(tries) >= 3  # on a busy machine one may lose more than once
