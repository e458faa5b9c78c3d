"""A real Postgres for the simulation, as the receiver's tests have it."""

from tests.receiver.conftest import database, server

__all__ = ["database", "server"]
