"""The tables of the spine. The statements are in 0001_spine.sql, beside this file."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Runs the file on the driver's own cursor: many statements at once, and no placeholders in them."""
    op.get_bind().connection.cursor().execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))
