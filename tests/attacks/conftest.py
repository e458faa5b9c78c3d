"""The database of the receiver's tests."""

from tests.receiver.conftest import database, server

__all__ = ["database", "server"]
