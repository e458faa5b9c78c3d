"""The database of the receiver's tests, and one arena for the attacks of a file."""

from collections.abc import Iterator

import pytest

from receiver.store.database import create_database
from receiver.store.embedded import EmbeddedPostgres
from tests.attacks.arena import Theatre
from tests.receiver.conftest import database, server

__all__ = ["database", "server", "theatre"]


@pytest.fixture(scope="module")
def theatre(server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[Theatre]:
    name = request.module.__name__.rpartition(".")[2]
    create_database(server.url(), name, template="template_bc")
    opened = Theatre(server.url(name))
    yield opened
    opened.close()
