"""The database as a whole: reaching it, its schema's number, migrating it, and the pool of connections.

A URL is what libpq takes (`postgresql://user@host/name`, `postgresql:///name?host=/socket/dir`, or `host=... dbname=...`).
Every way in which a database cannot be used is a DatabaseError that says what to do.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import _queries, errors, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from receiver.errors import DatabaseError

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]
Pool = ConnectionPool[Connection]
LOG = logging.getLogger("receiver.store")

# Of a statement whose text psycopg keeps as read, in characters: those that load and write a node are longer than its own 4,096.
# (There is no public way to say so; a test holds that it has its effect, and pyproject.toml lets no untried version in.)
_queries.MAX_CACHED_STATEMENT_LENGTH = 1 << 16
OLDEST_SERVER = 150000  # as libpq numbers them: 15.0
_MIGRATIONS = Path(__file__).parent / "migrations"
_MIGRATION_LOCK = 0x62635F6D  # advisory: two receivers that migrate at once take turns
# Another transaction was first: a row is there meanwhile, or Postgres ended one of two that waited for each other.
LOST_RACE = (errors.UniqueViolation, errors.SerializationFailure, errors.DeadlockDetected)
# It is away, or cannot do it now: restarted, full, read-only (an InternalError), a lock that does not come, or one race after the
# other was lost.
NO_ANSWER = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, *LOST_RACE)
AGAIN = 3  # times that a transaction which lost a race is run again
_CONNECT_SECONDS = 10
_RECONNECT_SECONDS = 5.0
# What a connection is opened with where the URL does not say otherwise: a server that is gone without a word is noticed.
_ALIVE = {
    "connect_timeout": _CONNECT_SECONDS,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
# What is written is found by keys: each statement is planned once a connection, for no values in particular. Such a plan stays
# while its tables grow, until they are analyzed again; made while a new fleet's were small, it would read them whole. So it may
# but look up row by row, in an index; and what cannot help reading a whole table is not compiled for its seeming cost.
KEYED = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin")
# A statement that waits for ever would hold one of few threads for ever. Times are read as UTC: a year 9999 fits no other zone.
_SESSION = (
    "SET timezone = 'UTC'; SET statement_timeout = '30s'; SET idle_in_transaction_session_timeout = '60s'; "
    "SET plan_cache_mode = force_generic_plan; SET jit = off; "
) + "; ".join(f"SET {name} = off" for name in KEYED)


def head() -> int:
    """The number of the newest migration that this receiver has: the schema that it works with."""
    return max(int(path.name[:4]) for path in (_MIGRATIONS / "versions").glob("[0-9][0-9][0-9][0-9]_*.py"))


def shown(url: str) -> str:
    """The URL as it may be logged: without its password."""
    return re.sub(r"(://[^:/@]*):[^@/]*@|(password\s*=\s*)('[^']*'|[^\s&]+)", lambda m: f"{m[1]}@" if m[1] else f"{m[2]}***", url)


def _alive(url: str) -> dict[str, Any]:
    said = conninfo_to_dict(url)
    return {key: value for key, value in _ALIVE.items() if key not in said}


def dial(url: str, autocommit: bool = False, name: str = "receiver") -> Connection:
    """One connection of a receiver at work, which never waits without end. Raises psycopg.Error."""
    connection = psycopg.connect(url, autocommit=autocommit, **{"application_name": name, **_alive(url)})
    _set_up(connection)
    return connection


def _set_up(connection: Connection, dry_run: bool = False) -> None:
    connection.execute(_SESSION + ("; SET bc.dry_run = 'on'" if dry_run else ""))
    if not connection.autocommit:
        connection.commit()


@contextmanager
def connect(url: str, autocommit: bool = False) -> Iterator[Connection]:
    """One connection, closed at the end. Raises DatabaseError when the server cannot be reached or is older than 15."""
    attempted = f"connect to the database {shown(url)}"
    try:
        connection = psycopg.connect(url, autocommit=autocommit, **_alive(url))
    except psycopg.Error as error:
        raise DatabaseError(
            attempted, " ".join(str(error).split()), "is the server up, and is the database URL right?"
        ) from error
    with connection:
        if connection.info.server_version < OLDEST_SERVER:
            found = connection.info.parameter_status("server_version")
            raise DatabaseError(attempted, f"the server is PostgreSQL {found}", "PostgreSQL 15 or newer is needed")
        yield connection


def schema_version(connection: Connection) -> int | None:
    """The number of the last migration that was run, or None where none was."""
    there = connection.execute("SELECT to_regclass('alembic_version')").fetchone()
    if there is None or there[0] is None:
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return int(row[0]) if row else None


def check_schema(url: str) -> None:
    """Raises DatabaseError unless the database can be reached and has exactly this receiver's schema."""
    with connect(url, autocommit=True) as connection:
        version = schema_version(connection)
    _refuse_newer(url, version)
    if version != head():
        found = "has no schema yet" if version is None else f"has schema {version:04d}, this receiver needs {head():04d}"
        raise DatabaseError(f"use the database {shown(url)}", f"it {found}", "run: bc-receiver migrate")


def migrate(url: str) -> int | None:
    """Brings the schema to head() and answers the number it had before (None: it was empty).

    Raises DatabaseError when the server cannot be reached, is too old, or its schema is newer than this receiver's.
    """
    with connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", [_MIGRATION_LOCK])
        before = schema_version(connection)
        _refuse_newer(url, before)
        if before != head():
            upgrade(url)
        return before


def _refuse_newer(url: str, version: int | None) -> None:
    if version is not None and version > head():
        happened = f"its schema is {version:04d}, newer than this receiver's {head():04d}"
        raise DatabaseError(
            f"use the database {shown(url)}", happened, "use the newer receiver that migrated it, or another database"
        )


def upgrade(url: str, to: str = "head") -> None:
    """Runs the migrations up to this one."""
    from alembic import command  # a tenth of a second to import, and hardly ever needed
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with engine(url).begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, to)


def engine(url: str) -> Engine:
    """A SQLAlchemy engine over the same libpq URL, without a pool of its own: for migrations, reflection and tools."""
    return create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)


def create_database(url: str, name: str, template: str = "template0") -> None:
    """Creates database `name` on the server of `url` unless it is there. `template`: the database to copy."""
    with connect(url, autocommit=True) as connection:
        if connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
            statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))


def open_pool(url: str, size: int = 8, name: str = "receiver", dry_run: bool = False) -> Pool:
    """An open pool of at most `size` connections whose first one works; the caller closes it. Raises DatabaseError.

    `dry_run`: what is loaded over it says so (view.Facts), and rules only record what would be done to nodes.

    While the server is away, somebody who asks starts the next attempt: one that waits ever longer between attempts of its
    own would notice late that the server is back.
    """
    check_schema(url)
    return ConnectionPool(
        url,
        kwargs=_alive(url),
        configure=partial(_set_up, dry_run=dry_run),
        min_size=1,
        max_size=size,
        name=name,
        open=True,
        connection_class=Connection,
        timeout=_CONNECT_SECONDS,
        reconnect_timeout=_RECONNECT_SECONDS,
    )


def transact(pool: Pool, work: Callable[[Connection], T], timeout: float = _CONNECT_SECONDS) -> T:
    """Runs `work` in a transaction and commits it; one that loses a race is run again, on what the winner left.

    `work` may run several times, so it changes nothing but the database. `timeout`: seconds to wait for a connection.
    Raises what `work` and the database raise; of LOST_RACE after AGAIN times more.
    """

    def once() -> T:
        with pool.connection(timeout=timeout) as connection:
            return work(connection)

    return again(once)


def again(once: Callable[[], T]) -> T:
    """Makes a transaction, and makes it again when it has lost a race: AGAIN times more, then LOST_RACE is raised."""
    for left in range(AGAIN, -1, -1):
        try:
            return once()
        except LOST_RACE as error:
            if not left:
                raise
            LOG.info("a transaction lost a race", extra={"reason": " ".join(str(error).split()), "left": left})
    raise AssertionError("the last one returns or raises")
