"""A witness in the database: triggers write down each change of what a simulation is about, in one order.

A change is witnessed while its writer holds its locks. So the witnessed changes of a node stand in the order in which they came
to be, whoever wrote them and whenever those transactions committed. So do the starts of repairs of a pool, which lock its row.
`effects` is what happened to the machines themselves: nobody but the simulated machines writes there.
"""

from collections.abc import Mapping

from receiver.store import database as db
from tests.simulation.log import Entry

# By table: the column that is the key of an entry, and those that are its value. A change of others is not witnessed.
WATCHED: Mapping[str, tuple[str, str]] = {
    "pools": ("id", "mode,policy"),
    "pool_stops": ("kind", "pool_id,detail,confirmed_by,ended_at"),
    "nodes": ("id", "status,trust,pool_id,draining,boot_id"),
    "device_health": ("device_id", "source,code,boot_id,closed_at,closed_reason"),
    "conditions": ("type", "device_id,status,reason"),
    "bookings": ("booking_id", "device_id,atom_id,ended_at"),
    "disruptions": ("id", "pool_id,kind,owner,ended_at"),
    "remediation_runs": ("id", "kind,pool_id,devices,causes,by,force,observed,state,escalated,reason,boot_id,command_id"),
    "remediation_steps": ("run_id", "state,reason"),
    "commands": ("id", "kind,idempotency_key,state,reason"),
    "acceptance_attempts": ("node_id", "attempt,state,reason"),
    "effects": ("command_id", "kind,boot_id"),
    "events": ("type", "pool_id,payload"),
}
_INSTALL = """
CREATE TABLE witness (
  seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tx bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
  at timestamptz NOT NULL DEFAULT bc_clock(), what text NOT NULL, node_id text, key text, value jsonb NOT NULL);
CREATE TABLE effects (node_id text, command_id text, kind text, boot_id text);
CREATE FUNCTION seen_of(one jsonb, columns text) RETURNS jsonb LANGUAGE sql IMMUTABLE AS
  'SELECT jsonb_object_agg(name, one -> name) FROM unnest(string_to_array(columns, '','')) AS name';
CREATE FUNCTION witnessed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  one jsonb := to_jsonb(NEW);
  is_now jsonb := seen_of(one, TG_ARGV[1]);
BEGIN
  IF TG_OP = 'UPDATE' AND is_now = seen_of(to_jsonb(OLD), TG_ARGV[1]) THEN
    RETURN NULL;
  END IF;
  INSERT INTO witness (what, node_id, key, value) VALUES (TG_TABLE_NAME,
    CASE TG_TABLE_NAME WHEN 'nodes' THEN one ->> 'id' ELSE one ->> 'node_id' END, one ->> TG_ARGV[0], is_now);
  RETURN NULL;
END $$;
"""
_TRIGGER = """CREATE TRIGGER witnessed AFTER INSERT OR UPDATE OF {columns} ON {table}
  FOR EACH ROW EXECUTE FUNCTION witnessed('{key}', '{names}')"""

_READ = """SELECT seq, tx, extract(epoch FROM at)::float8, what, coalesce(node_id, ''), coalesce(key, ''), value
  FROM witness ORDER BY seq"""


def install(connection: db.Connection) -> None:
    """From now on every change is witnessed."""
    connection.execute(_INSTALL)
    for table, (key, names) in WATCHED.items():
        columns = ", ".join(f'"{name}"' for name in names.split(","))
        connection.execute(_TRIGGER.format(table=table, key=key, names=names, columns=columns).encode())


def read(connection: db.Connection) -> list[Entry]:
    """All that was witnessed, in order. To be called when nobody writes: a transaction that is open is not in it."""
    return [Entry(*row) for row in connection.execute(_READ)]


def effect(connection: db.Connection, node_id: str, command_id: str, kind: str, boot_id: str) -> None:
    """A machine says that a command has its effect now."""
    connection.execute("INSERT INTO effects VALUES (%s, %s, %s, %s)", [node_id, command_id, kind, boot_id])
