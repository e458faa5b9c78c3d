"""Hashes of sections in 32 bytes. The statements are in 0008_packed.sql, beside this file."""

from alembic import op

from receiver.store import images
from receiver.store.migrations import run_beside

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Runs the statements; and lists the images of sections that are older than the list, which 0003 left out for a while."""
    run_beside(__file__)
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    images.fill(connection)
