"""The loops that keep a fleet in order. The statements are in 0004_lifecycle.sql, beside this file."""

from receiver.store.migrations import run_beside

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Runs the statements."""
    run_beside(__file__)
