"""The cursor of the webhook. The statements are in 0006_webhooks.sql, beside this file."""

from pathlib import Path

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Runs the file on the driver's own cursor: many statements at once, and no placeholders in them."""
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    connection.execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))
