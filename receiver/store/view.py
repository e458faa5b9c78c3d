"""A node's rows as planning sees them (planning/view.py): loaded in one expression, written where they differ in one statement.

TABLES has a row a table of the draft: how its rows are loaded, keyed and written. A field of a row is a column of that name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from receiver.ids import Mint
from receiver.planning import view
from receiver.planning.policy import parse
from receiver.planning.remediation import place
from receiver.planning.view import Booking, Draft, Facts, HardwareKey, Node, Pool
from receiver.store import attempts, nodes
from receiver.store.database import Connection
from receiver.store.statement import Statement
from receiver.store.table import Table
from receiver.store.words import differ
from receiver.values import RUN_ENDED, Payload

RESERVATIONS = "bc_reservations"
REMEDIATION = "bc_remediation"  # a run of this node is queued, or may go on
HEALTH = "health"  # the owner of the receiver's own noScheduleReasons


_ENDED = ", ".join(f"'{state}'" for state in RUN_ENDED)

TABLES = (
    Table(
        "conditions",
        "conditions",
        view.ConditionRow,
        ("type", "device_id"),
        changed={"since": "CASE WHEN t.status = r.status THEN t.since ELSE bc_clock() END"},
    ),
    Table(
        "devices",
        "devices",
        view.Device,
        ("id",),
        changed={"missing_since": "CASE WHEN r.present THEN NULL ELSE coalesce(t.missing_since, bc_clock()) END"},
    ),
    Table("atoms", "atoms", view.Atom, ("id", "generation")),
    Table("generations", "mig_generations", view.Generation, ("atom_id",), follows=True),
    Table(
        "health",
        "device_health",
        view.Health,
        ("device_id", "source", "code", "boot_id"),
        changed={
            "closed_at": "CASE WHEN r.closed_reason IS NULL THEN NULL ELSE coalesce(t.closed_at, bc_clock()) END",
            "since": "CASE WHEN t.closed_at IS NULL OR r.closed_reason IS NOT NULL THEN coalesce(t.since, bc_clock()) "
            "ELSE bc_clock() END",
        },
        follows=True,
    ),
    Table("faults", "node_faults", view.Counted, ("code", "device_id", "boot_id"), "t.node_id = n.id AND t.boot_id = n.boot_id"),
    Table("labels", "node_labels", view.Label, ("key",)),
    Table(
        "runs",
        "remediation_runs",
        view.Run,
        ("id",),
        "t.node_id = n.id AND t.ended_at IS NULL",
        changed={
            "started_at": "CASE WHEN r.state IN ('running', 'verifying') THEN coalesce(t.started_at, bc_clock()) "
            "ELSE t.started_at END",
            "verifying_at": "CASE WHEN r.state = 'verifying' THEN coalesce(t.verifying_at, bc_clock()) ELSE t.verifying_at END",
            "ended_at": f"CASE WHEN r.state IN ({_ENDED}) THEN bc_clock() END",
        },
    ),
    Table(
        "attempts",
        "acceptance_attempts",
        view.Attempt,
        ("attempt",),
        "t.node_id = n.id AND (t.attempt = n.attempt OR t.state = 'running')",
        changed={"ended_at": "CASE WHEN r.state <> 'running' THEN coalesce(t.ended_at, bc_clock()) END"},
    ),
)

BY_NAME = {one.name: one for one in TABLES}

# Expressions over the node `n`: its own columns that plans change, and its pool.
NODE = ", ".join(f"'{one.name}', n.{one.name}" for one in fields(Node))
POOL = """(SELECT jsonb_build_array(p.id, p.name, p.kind, p.gpu_model, p.sharing, p.mode, p.policy, p.revision,
     EXISTS (SELECT FROM pool_stops s WHERE s.pool_id = p.id AND s.kind = 'remediation' AND s.ended_at IS NULL),
     EXISTS (SELECT FROM pool_stops s WHERE s.pool_id = p.id AND s.kind = 'maintenance' AND s.ended_at IS NULL))
   FROM pools p WHERE p.id = n.pool_id)"""
_BOOKINGS = """(SELECT jsonb_agg(jsonb_build_array(b.booking_id, b.device_id, b.atom_id, b.atom_generation))
   FROM bookings b WHERE b.node_id = n.id AND b.ended_at IS NULL)"""
# Of GPUs whose XIDs are counted: one may be another node's by now.
_OWNERS = """(SELECT jsonb_object_agg(d.id, d.node_id) FROM node_faults f JOIN devices d ON d.id = f.device_id
   WHERE f.node_id = n.id AND f.boot_id = n.boot_id AND d.node_id <> n.id)"""
# What is open, and had a run since it opened that ended by itself, or was left to a person.
_TRIED = """(SELECT jsonb_agg(DISTINCT
     jsonb_build_array(c ->> 'deviceId', c ->> 'source', c ->> 'code', c ->> 'bootId', r.observed))
   FROM (SELECT h.device_id, h.code, h.since FROM device_health h WHERE h.node_id = n.id AND h.closed_at IS NULL
         UNION ALL SELECT k.device_id, k.type, k.since FROM conditions k
         WHERE k.node_id = n.id AND k.status = 'true' AND starts_with(k.type, 'SXid')) AS f
   JOIN remediation_runs r ON r.node_id = n.id AND r.created_at >= f.since AND r.ended_at IS NOT NULL
     AND (r.state <> 'cancelled' OR r.escalated OR r.observed)
   JOIN jsonb_array_elements(r.causes) AS c ON (c ->> 'deviceId', c ->> 'code') = (f.device_id, f.code))"""
_HARDWARE = ", ".join(f'h."{one.name}"' for one in fields(HardwareKey))

# The expression that a load selects of the node `n`.
COLUMN = f"""jsonb_build_object(
  'id', n.id, 'tenant', n.tenant_id, 'kind', n.kind, 'boot', n.boot_id, 'epoch', n.epoch,
  'online', n.connected AND n.session_trust_epoch >= n.trust_epoch,
  'fresh', ARRAY(SELECT jsonb_object_keys(n.section_baselines)
                 EXCEPT SELECT m.name FROM node_missing_sections m WHERE m.node_id = n.id),
  'advisory', n.trust = 'tenant-controlled' OR n.session_trust_epoch < n.trust_epoch,
  'pool', {POOL}, 'bookings', {_BOOKINGS}, 'owners', {_OWNERS}, 'tried', {_TRIED},
  'commands', {attempts.COMMANDS}, 'waited', {attempts.WAITED},
  'disrupted', EXISTS (SELECT FROM disruptions x WHERE x.node_id = n.id AND x.ended_at IS NULL),
  'dryRun', coalesce(current_setting('bc.dry_run', true) = 'on', false), 'node', jsonb_build_object({NODE}),
  'hardware', (SELECT jsonb_build_array({_HARDWARE}) FROM hardware_keys h WHERE h.node_id = n.id AND h.replaced_at IS NULL),
  {", ".join(f"'{one.name}', {one.select()}" for one in TABLES)})"""

_LOAD = f"SELECT {COLUMN} FROM nodes n WHERE n.id = %s"

# What other nodes have of what this one reports: owners, faults and MIG generations of these devices, holders of this key.
_FOLLOWING = tuple(one for one in TABLES if one.follows)
_OTHERS = f"""
SELECT (SELECT jsonb_object_agg(o.id, o.node_id) FROM (
    SELECT d.id, d.node_id FROM devices d WHERE d.id = ANY(%(devices)s)
    UNION SELECT a.* FROM unnest(%(atoms)s::text[]) AS i(id),
      LATERAL (SELECT a.id, a.node_id FROM atoms a WHERE a.id = i.id OFFSET 0) AS a) AS o WHERE o.node_id <> n.id),
  (SELECT jsonb_agg(h.node_id ORDER BY h.node_id) FROM hardware_keys h
   WHERE h.key = %(key)s AND h.trusted AND h.replaced_at IS NULL AND h.node_id <> n.id),
  {", ".join(one.select_where("t.device_id = ANY(%(devices)s) AND t.node_id <> n.id") for one in _FOLLOWING)}
FROM nodes n WHERE n.id = %(node)s
"""


def load(tx: Connection, node_id: str) -> tuple[Facts, Draft]:
    """A node and its rows, as they are. Raises LookupError for a node that does not exist."""
    return as_view(*nodes.load(tx, node_id, _LOAD, [node_id], locked=False))


def lock(tx: Connection, node_id: str) -> tuple[Facts, Draft]:
    """The same, locked until the transaction ends."""
    return as_view(*nodes.load(tx, node_id, _LOAD, [node_id]))


def as_view(found: Mapping[str, Any]) -> tuple[Facts, Draft]:
    """What COLUMN selected."""
    facts = Facts(
        node_id=found["id"],
        tenant_id=found["tenant"],
        kind=found["kind"],
        boot_id=found["boot"] or "",
        epoch=found["epoch"],
        online=found["online"],
        advisory=found["advisory"],
        fresh=frozenset(found["fresh"]),
        pool=as_pool(found["pool"]),
        bookings=tuple(Booking(*one) for one in found["bookings"] or ()),
        owners=found["owners"] or {},
        tried=frozenset(
            ((device, source, code, boot), observed) for device, source, code, boot, observed in found["tried"] or ()
        ),
        disrupted=found["disrupted"],
        dry_run=found["dryRun"],
        commands=attempts.as_commands(found["commands"]),
        waited=found["waited"],
    )
    draft = Draft(node=as_node(found["node"]), hardware=_as_hardware(found["hardware"]))
    for table in TABLES:
        setattr(draft, table.name, table.rows(found[table.name]))
    return facts, draft


def load_pool(tx: Connection, pool_id: str | None) -> Pool | None:
    """A pool as plans see it; None for none. Raises LookupError for one that does not exist."""
    if pool_id is None:
        return None
    row = tx.execute(f"SELECT {POOL} FROM (SELECT %s::text AS pool_id) n", [pool_id]).fetchone()
    if row is None or row[0] is None:
        raise LookupError(f"no pool {pool_id}")
    return as_pool(row[0])


def as_pool(column: Sequence[Any] | None) -> Pool | None:
    """A pool's columns in the order of Pool's fields."""
    if column is None:
        return None
    key, name, kind, model, sharing, mode, policy, revision, paused, maintenance = column
    return Pool(key, name, kind, model, sharing, mode, parse(policy), revision, paused, maintenance)


def with_others(
    tx: Connection, facts: Facts, draft: Draft, devices: Iterable[str], key: str | None, atoms: Iterable[str] = ()
) -> Facts:
    """What other nodes have of these devices, of atoms by these ids, and of this hardware key.

    Faults and MIG generations of devices that no other node owns any more come into the draft.
    """
    arguments = {"node": facts.node_id, "devices": sorted(set(devices)), "key": key, "atoms": sorted(set(atoms))}
    row = tx.execute(_OTHERS, arguments, prepare=True).fetchone()
    assert row is not None
    owners, holders, *rows = row
    owned = owners or {}
    for table, column in zip(_FOLLOWING, rows, strict=True):
        found = {key: one for key, one in table.rows(column).items() if one.device_id not in owned}
        setattr(draft, table.name, {**found, **getattr(draft, table.name)})
    return replace(facts, owners={**facts.owners, **owned}, same_key=tuple(holders or ()))


def write(statement: Statement, before: Draft, after: Draft, mint: Mint, reported: bool = False) -> None:
    """Adds to a statement what differs between two drafts, and what the second one tells. Its orders become runs.

    `reported`: the node itself has told something new, which a repair may wait for.
    """
    place(after, mint)
    attempts.write(statement, after, mint)
    for table in TABLES:
        table.write(statement, getattr(before, table.name), getattr(after, table.name))
    _write_node(statement, before.node, after.node)
    if after.hardware != before.hardware and differ(_hardware_json(after.hardware), _hardware_json(before.hardware)):
        _write_hardware(statement, after.hardware)
    publish(statement, after, mint)
    if after.history:
        listed = [{name: getattr(one, name) for name in ("device_id", "serial", "event", "detail")} for one in after.history]
        statement.add("history", _INSERT_HISTORY, listed)
    faulty = {row.device_id for row in after.health.values()} & (after.devices.keys() - before.devices.keys())
    if after.released or after.key_released or faulty:
        told = {"devices": sorted(after.released), "key": after.key_released, "faulty": sorted(faulty)}
        statement.add("replan", _INSERT_REPLAN, told)
    if after.plan_again:
        statement.add("again", _INSERT_AGAIN)
    if after.steps:
        listed = [{name: getattr(one, name) for name in ("run_id", "state", "reason")} for one in after.steps]
        statement.add("steps", _INSERT_STEPS, listed)
    if after.turns:
        turns = [{"pool_id": after.node.pool_id, "reason": reason} for reason in after.turns]
        statement.add("turns", _INSERT_TURNS, turns)
    if after.faults != before.faults:
        statement.add("faults_forgotten", _FORGET_FAULTS)
    statement.notices += notices(statement.node_id, after, reported)


def publish(statement: Statement, draft: Draft, mint: Mint) -> None:
    """Adds the draft's events to a statement, with the pool that the node has from now on."""
    if draft.events:
        listed = [{"id": mint("evt"), "type": one.type, "payload": dict(one.payload)} for one in draft.events]
        statement.add("events", _INSERT_EVENTS, {"pool": draft.node.pool_id, "rows": listed})


def notices(node_id: str, draft: Draft, reported: bool = False) -> list[Payload]:
    """What the commit notifies of, as channel and payload: the draft's notices; who repairs, when something came of this node's
    faults; the node's session, which looks for its commands."""
    woken = {
        REMEDIATION: draft.orders or draft.turns or (draft.runs and (reported or draft.events)),
        attempts.CHANNEL: draft.commands,
    }
    told = [{"reason": one.reason, "deviceId": one.device_id, "nodeId": node_id} for one in draft.notices]
    return [
        *({"channel": channel, "payload": node_id} for channel, so in woken.items() if so),
        *({"channel": RESERVATIONS, "payload": one} for one in told),
    ]


_INSERT_EVENTS = """INSERT INTO events (id, tenant_id, pool_id, node_id, type, payload)
  SELECT e.id, doc.tenant_id, d -> 'events' ->> 'pool', %(node)s, e.type, e.payload
  FROM doc, jsonb_to_recordset(d -> 'events' -> 'rows') AS e(id text, type text, payload jsonb)"""
_INSERT_HISTORY = """INSERT INTO device_history (node_id, tenant_id, device_id, serial, event, detail)
  SELECT %(node)s, doc.tenant_id, r.device_id, r.serial, r.event, r.detail
  FROM doc, jsonb_populate_recordset(NULL::device_history, d -> 'history') AS r"""
_INSERT_STEPS = """INSERT INTO remediation_steps (run_id, node_id, tenant_id, state, reason)
  SELECT r.run_id, %(node)s, doc.tenant_id, r.state, r.reason
  FROM doc, ROWS FROM (jsonb_to_recordset(d -> 'steps') AS (run_id text, state text, reason text))
    WITH ORDINALITY AS r(run_id, state, reason, number) ORDER BY r.number"""
_INSERT_TURNS = """INSERT INTO unhealthy_turns (pool_id, node_id, reason) SELECT r.pool_id, %(node)s, r.reason
  FROM doc, jsonb_to_recordset(d -> 'turns') AS r(pool_id text, reason text)"""
# Nodes that wait for what is let go, and those that have conditions of a faulty GPU which another node has from now on.
_INSERT_REPLAN = """INSERT INTO replan (node_id, reason, queued_at)
  SELECT o.node_id, 'moved by node ' || %(node)s, clock_timestamp() FROM (
    SELECT c.node_id FROM doc, conditions c WHERE c.type = 'DuplicateIdentity' AND c.status = 'true' AND c.node_id <> %(node)s
      AND (d -> 'replan' -> 'devices' ? c.device_id
        OR (d -> 'replan' -> 'key')::boolean AND c.evidence ->> 'otherNode' = %(node)s)
    UNION SELECT h.node_id FROM device_health h WHERE h.node_id <> %(node)s
      AND h.device_id IN (SELECT jsonb_array_elements_text(d -> 'replan' -> 'faulty') FROM doc)) AS o
  ORDER BY o.node_id
  ON CONFLICT (node_id) DO UPDATE SET reason = excluded.reason, queued_at = excluded.queued_at"""
_INSERT_AGAIN = """INSERT INTO replan (node_id, reason, queued_at) VALUES (%(node)s, 'its baseline', clock_timestamp())
  ON CONFLICT (node_id) DO UPDATE SET reason = excluded.reason, queued_at = excluded.queued_at"""
_FORGET_FAULTS = """DELETE FROM node_faults f USING nodes n
  WHERE n.id = %(node)s AND f.node_id = n.id AND f.boot_id <> n.boot_id"""

# Columns of the node that are more than the value: what others have written stays, and times are the database's.
_REASONS = f"""(SELECT coalesce(jsonb_agg(e ORDER BY e ->> 'owner', e ->> 'type'), '[]') FROM (
  SELECT e FROM jsonb_array_elements(nodes.{{column}}) AS e WHERE e ->> 'owner' <> '{HEALTH}'
  UNION ALL SELECT e FROM jsonb_array_elements(a.{{column}}) AS e) AS mine)"""
EXPRESSIONS = {name: _REASONS.format(column=name) for name in ("no_schedule_reasons", "would_no_schedule")}


def _write_node(statement: Statement, before: Node, after: Node) -> None:
    for name in (one.name for one in fields(Node)):
        value = getattr(after, name)
        if not differ(value, getattr(before, name)):
            continue
        if name in EXPRESSIONS:
            value = [{"owner": HEALTH, "type": kind} for kind in value]
        statement.set(name, value, EXPRESSIONS.get(name, ""))
        if name in ("status", "attempt"):  # another attempt waits anew
            statement.set("status_since", expression="bc_clock()")
        if name == "status" and value == "maintenance":
            statement.set("maintenance_since", expression="bc_clock()")


def _hardware_json(key: HardwareKey | None) -> dict[str, Any]:
    return {"key": ""} if key is None else {one.name: getattr(key, one.name) for one in fields(HardwareKey)}


def _write_hardware(statement: Statement, key: HardwareKey | None) -> None:
    value = _hardware_json(key)
    statement.add(
        "hardware_replaced",
        "UPDATE hardware_keys SET replaced_at = now() FROM doc WHERE node_id = %(node)s AND replaced_at IS NULL "
        "AND key <> d -> 'hardware_replaced' ->> 'key'",
        {"key": value["key"]},
    )
    if key is not None:
        listed = ", ".join(f'"{name}"' for name in value)
        statement.add(
            "hardware",
            f"""INSERT INTO hardware_keys AS old (node_id, tenant_id, {listed})
              SELECT %(node)s, doc.tenant_id, {", ".join(f'r."{name}"' for name in value)}
              FROM doc, jsonb_populate_record(NULL::hardware_keys, d -> 'hardware') AS r
              ON CONFLICT (node_id, key) DO UPDATE SET replaced_at = NULL,
                {", ".join(f'"{name}" = excluded."{name}"' for name in value if name != "key")}""",
            value,
        )


def as_node(found: Mapping[str, Any]) -> Node:
    """What NODE selected."""
    mine = {
        name: tuple(sorted(one["type"] for one in found[name] if one["owner"] == HEALTH))
        for name in ("no_schedule_reasons", "would_no_schedule")
    }
    return Node(**{**found, **mine})


def _as_hardware(column: Sequence[Any] | None) -> HardwareKey | None:
    if column is None:
        return None
    key, trusted, provisional, identifiers, distinct = column
    return HardwareKey(key, trusted, provisional, identifiers, tuple(distinct))
