"""The tables of the spine. The statements are in 0001_spine.sql, beside this file."""

from receiver.store.migrations import run_beside

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Runs the statements."""
    run_beside(__file__)
