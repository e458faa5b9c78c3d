"""The cursor of the webhook. The statements are in 0006_webhooks.sql, beside this file."""

from receiver.store.migrations import run_beside

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Runs the statements."""
    run_beside(__file__)
