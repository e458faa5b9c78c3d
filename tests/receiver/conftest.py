"""A real Postgres for the tests: one embedded server per test process, a fresh migrated database per test."""

import itertools
import os
from collections.abc import Iterator

import psycopg
import pytest

from receiver.store import database as db
from receiver.store.embedded import EmbeddedPostgres, start

_FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
}
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """An embedded server with a migrated database named `template_bc`."""
    binaries = os.environ.get("BC_TEST_POSTGRES", "")  # a directory with another version's programs
    with start(tmp_path_factory.mktemp("postgres"), binaries, _FAST) as running:
        db.create_database(running.url(), "template_bc")
        db.migrate(running.url("template_bc"))
        yield running


@pytest.fixture
def database(server: EmbeddedPostgres) -> Iterator[str]:
    """The URL of a fresh, migrated database."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    db.create_database(server.url(), name, template="template_bc")
    yield server.url(name)
    with db.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def tx(database: str) -> Iterator[db.Connection]:
    """A connection to the fresh database, in a transaction that is committed where the test says so."""
    with psycopg.connect(database) as connection:
        yield connection
