"""History that is pruned. The statements are in 0007_history.sql, beside this file."""

from receiver.store.migrations import run_beside

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Runs the statements."""
    run_beside(__file__)
