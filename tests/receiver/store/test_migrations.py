"""The migrations make the declared tables: both are built, both are reflected, and compared whole."""

import itertools
import re
from typing import Any

from sqlalchemy import Engine, inspect

from receiver.store import database as db
from receiver.store.embedded import EmbeddedPostgres
from receiver.store.schema import metadata

_names = itertools.count()


def reflected(engine: Engine) -> dict[str, dict[str, Any]]:
    """Each table's columns, constraints and indexes, by name, as the server describes them."""
    seen = inspect(engine)
    with engine.connect() as connection:
        checks = connection.exec_driver_sql(
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid <> 0"
        ).fetchall()
        indexes = connection.exec_driver_sql(
            "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
        ).fetchall()
    return {
        table: {
            "columns": {
                column["name"]: (str(column["type"]), column["nullable"], column["default"], str(column.get("identity")))
                for column in seen.get_columns(table)
            },
            "order": [column["name"] for column in seen.get_columns(table)],
            "constraints": {name: text for owner, name, text in checks if owner == table},
            "indexes": {name: text for owner, name, text in indexes if owner == table},
        }
        for table in seen.get_table_names()
        if table != "alembic_version"
    }


def test_migrations_make_the_declared_tables(server: EmbeddedPostgres, database: str) -> None:
    name = f"declared_{next(_names)}"
    db.create_database(server.url(), name)
    declared_engine, migrated_engine = db.engine(server.url(name)), db.engine(database)
    metadata.create_all(declared_engine)
    declared, migrated = reflected(declared_engine), reflected(migrated_engine)
    assert migrated.keys() == declared.keys() == metadata.tables.keys()
    for table in declared:
        assert migrated[table] == declared[table], table


def test_every_constraint_and_index_has_a_name_of_ours(database: str) -> None:
    for table, facts in reflected(db.engine(database)).items():
        for name in [*facts["constraints"], *facts["indexes"]]:
            assert re.match(rf"(pk|fk|ck|uq|ix)_{table}|.*_not_null$", name), name


def test_migrating_again_changes_nothing(database: str) -> None:
    before = reflected(db.engine(database))
    assert db.migrate(database) == db.head()
    assert reflected(db.engine(database)) == before
    db.check_schema(database)


def test_migrations_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in sorted((db._MIGRATIONS / "versions").glob("[0-9]*.py"))]
    assert numbers == list(range(1, db.head() + 1))
