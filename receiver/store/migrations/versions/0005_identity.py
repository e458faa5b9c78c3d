"""Certificates of nodes, and tokens. The statements are in 0005_identity.sql, beside this file."""

from receiver.store.migrations import run_beside

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Runs the statements."""
    run_beside(__file__)
