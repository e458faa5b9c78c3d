"""Acceptance in Postgres (SPEC B7): what a node's attempt waits for, the commands that it begins with, and those it gives up."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from receiver.ids import Mint
from receiver.planning.acceptance import PATIENCE, place
from receiver.planning.checks import CHECKS
from receiver.planning.view import CommandState, Draft
from receiver.store.database import Connection
from receiver.store.statement import Statement
from receiver.store.words import jsonb

CHANNEL = "bc_commands"  # of receiver/apply/command.py

# Expressions over the node `n`: the commands of its running attempt by id, and Facts.waited.
COMMANDS = """(SELECT jsonb_object_agg(c.id,
     jsonb_build_array(c.state, c.reason, c.result, coalesce(extract(epoch FROM bc_clock() - c.not_after), 0)))
   FROM acceptance_attempts a, jsonb_array_elements(a.checks) AS k JOIN commands c ON c.id = k ->> 'commandId'
   WHERE a.node_id = n.id AND a.state = 'running')"""
WAITED = """CASE WHEN n.status = 'adopting' AND n.connected THEN extract(epoch FROM bc_clock() - greatest(n.status_since,
     (SELECT s.started_at FROM sessions s WHERE s.node_id = n.id AND s.epoch = n.epoch),
     (SELECT max(k.since) FROM conditions k WHERE k.node_id = n.id AND k.type = 'DuplicateIdentity'))) END"""

_INSERT = """INSERT INTO commands (id, node_id, tenant_id, kind, payload, idempotency_key, created_by, not_after)
  SELECT r.id, %(node)s, doc.tenant_id, r.kind, r.payload, r.key, r.by, bc_clock() + make_interval(secs => r.start_within)
  FROM doc, jsonb_to_recordset(d -> 'commands')
    AS r(id text, kind text, payload jsonb, key text, by text, start_within float8)"""
_END = """UPDATE commands c SET state = r.state, reason = r.reason, finished_at = bc_clock()
  FROM doc, jsonb_to_recordset(d -> 'ends') AS r(id text, state text, reason text)
  WHERE c.id = r.id AND c.node_id = %(node)s AND c.finished_at IS NULL"""

# Attempts of which every check has ended, or is late; and nodes whose inventory has been waited for long enough.
_DUE = f"""
SELECT a.node_id FROM acceptance_attempts a WHERE a.state = 'running' AND a.node_id > %(after)s AND NOT EXISTS (
  SELECT FROM jsonb_array_elements(a.checks) AS k JOIN commands c ON c.id = k ->> 'commandId'
  WHERE c.finished_at IS NULL
    AND c.not_after + make_interval(secs => CASE WHEN c.state = 'sent' THEN (%(limits)s::jsonb ->> c.kind)::float8 ELSE 0 END)
      > bc_clock())
UNION SELECT n.id FROM nodes n WHERE n.status = 'adopting' AND n.connected AND n.trust = 'platform' AND n.id > %(after)s
  AND n.session_trust_epoch >= n.trust_epoch AND {WAITED} >= %(patience)s AND NOT EXISTS (
    SELECT FROM conditions f
    WHERE f.node_id = n.id AND f.status <> 'false' AND f.type IN ('AcceptanceFailed', 'DuplicateIdentity'))
ORDER BY 1 LIMIT %(limit)s
"""


def as_commands(column: Mapping[str, Sequence[Any]] | None) -> dict[str, CommandState]:
    """What COMMANDS selected."""
    return {key: CommandState(*values) for key, values in (column or {}).items()}


def write(statement: Statement, draft: Draft, mint: Mint) -> None:
    """Adds the draft's commands, which get their ids, and the ends of commands to a statement. To be called before its rows and
    events are added."""
    place(draft, mint)
    if draft.commands:
        statement.add("commands", _INSERT, [asdict(one) for one in draft.commands])
    if draft.ends:
        statement.add("ends", _END, [asdict(one) for one in draft.ends])


def due(tx: Connection, after: str, limit: int) -> list[str]:
    """The nodes, behind `after` in the order of their ids, whose acceptance time alone brings further."""
    limits = jsonb({kind: check.limit for kind, check in CHECKS.items()})
    rows = tx.execute(_DUE, {"after": after, "limits": limits, "patience": PATIENCE, "limit": limit})
    return [row[0] for row in rows.fetchall()]
