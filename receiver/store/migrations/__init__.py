"""Numbered migrations: versions/0001_<word>.py, each with the next number as its `revision`, run by database.migrate().

There is no way back: a receiver refuses a schema that is newer than its own, and a backup is the way to undo.
"""

from pathlib import Path

from alembic import op


def run_beside(migration: str) -> None:
    """Runs the .sql file beside a migration's own: on the driver's cursor, so many statements at once and no placeholders."""
    op.get_bind().connection.cursor().execute(Path(migration).with_suffix(".sql").read_text(encoding="utf-8"))
