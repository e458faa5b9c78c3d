"""What the receiver concludes from reports. The statements are in 0003_conclude.sql, beside this file."""

from receiver.store.migrations import run_beside

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Runs the statements."""
    run_beside(__file__)
