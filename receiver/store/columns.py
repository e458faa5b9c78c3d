"""The kinds of columns that the tables in schema.py are made of, and how their constraints are named."""

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Connection, DateTime, ForeignKey, MetaData, Text, event
from sqlalchemy import text as sql_text
from sqlalchemy.dialects.postgresql import JSONB

from receiver import values

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

# The fleet's clock (0004_lifecycle.sql), which defaults of columns call.
_CLOCK = "CREATE FUNCTION bc_clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT now()'"


@event.listens_for(metadata, "before_create")
def _create_clock(_: MetaData, connection: Connection, **_options: object) -> None:
    connection.exec_driver_sql(_CLOCK)


def words(column: str, allowed: tuple[str, ...]) -> CheckConstraint:
    """Only these words in a column."""
    listed = ", ".join(f"'{word}'" for word in allowed)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def text(name: str, default: str | None = None, nullable: bool = False) -> Column[str]:
    """Text; must be given unless it has a default or may be null."""
    return Column(name, Text, nullable=nullable, server_default=None if default is None else sql_text(f"'{default}'"))


def json(name: str, default: str | None = None) -> Column[values.Json]:
    """JSON; may be null unless it has a default."""
    return Column(
        name, JSONB, nullable=default is None, server_default=None if default is None else sql_text(f"'{default}'::jsonb")
    )


def time(name: str, now: bool = False) -> Column[values.Json]:
    """A time; `now`: never null, the transaction's by default."""
    return Column(name, DateTime(timezone=True), nullable=not now, server_default=sql_text("now()") if now else None)


def moment(name: str) -> Column[values.Json]:
    """A time of the fleet's clock, never null; by default the transaction's."""
    return Column(name, DateTime(timezone=True), nullable=False, server_default=sql_text("bc_clock()"))


def number(name: str, default: int | None = None) -> Column[int]:
    """A 64-bit number; may be null unless it has a default."""
    return Column(
        name, BigInteger, nullable=default is None, server_default=None if default is None else sql_text(f"'{default}'::bigint")
    )


def flag(name: str, default: bool = False) -> Column[bool]:
    """A boolean, never null."""
    return Column(name, Boolean, nullable=False, server_default=sql_text("true" if default else "false"))


def node(primary: bool = False, nullable: bool = False) -> Column[str]:
    """`node_id`: the node that a row is of."""
    return Column("node_id", Text, ForeignKey("nodes.id"), primary_key=primary, nullable=nullable)


def key(name: str) -> Column[str]:
    """Text of the primary key."""
    return Column(name, Text, primary_key=True)
