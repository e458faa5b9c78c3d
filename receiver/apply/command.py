"""Commands to nodes (SPEC A7): a queue in Postgres, handed to whichever receiver holds the node's session.

A command is sent at least once: to every session of its node, until a result is stored. The node runs each id once. Channel
`bc_commands`, payload `<nodeId>`: something is due to it. Who misses that finds it with `outstanding`, asked every few seconds.
"""

from collections.abc import Sequence
from datetime import datetime

from receiver import ids
from receiver.apply.health import restart_counts
from receiver.store.database import Connection
from receiver.store.words import jsonb, text
from receiver.values import Command, CommandResult, Json, Payload

CHANNEL = "bc_commands"

_QUEUE = f"""
WITH queued AS (
    INSERT INTO commands (id, node_id, tenant_id, kind, payload, idempotency_key, created_by, not_after)
    SELECT %(id)s, n.id, n.tenant_id, %(kind)s, %(payload)s, %(key)s, %(by)s, %(not_after)s FROM nodes n WHERE n.id = %(node)s
    ON CONFLICT (node_id, idempotency_key) DO NOTHING
    RETURNING id)
SELECT id, pg_notify('{CHANNEL}', %(node)s) FROM queued
"""

_QUEUED = (
    "SELECT id, kind = %(kind)s AND payload = %(payload)s FROM commands WHERE (node_id, idempotency_key) = (%(node)s, %(key)s)"
)

# While a tenant has the machine, only its inventory may be asked for (SPEC B2, Trust).
_SENDABLE = """c.finished_at IS NULL AND (c.state = 'sent' OR c.not_after IS NULL OR c.not_after > now())
  AND (n.trust = 'platform' OR c.kind = 'inventory.refresh')"""

# What was sent to an earlier session is sent again, past its time too: the node knows whether it began.
_DUE = f"""
WITH due AS (
    SELECT c.id FROM commands c JOIN nodes n ON n.id = c.node_id
    WHERE n.id = %(node)s AND n.epoch = %(epoch)s AND {_SENDABLE} AND c.id <> ALL(%(sent)s)
    ORDER BY c.id FOR NO KEY UPDATE OF c),
  sent AS (
    UPDATE commands c SET state = 'sent', sent_at = coalesce(c.sent_at, now()) FROM due WHERE c.id = due.id
    RETURNING c.id, c.kind, c.payload, c.idempotency_key, c.not_after, c.created_at)
SELECT id, kind, payload, idempotency_key,
  CASE WHEN not_after IS NOT NULL THEN greatest(extract(epoch FROM not_after - clock_timestamp()), 0)::float8 END
FROM sent ORDER BY created_at, id
"""

_EXPIRE = """
UPDATE commands SET state = 'expired', reason = 'NotSent', finished_at = now()
WHERE finished_at IS NULL AND state = 'queued' AND not_after <= now()
"""

_OUTSTANDING = f"SELECT c.node_id, c.id FROM commands c JOIN nodes n ON n.id = c.node_id WHERE n.id = ANY(%s) AND {_SENDABLE}"

_RECORD = """
WITH known AS (SELECT id FROM commands WHERE id = %(id)s AND node_id = %(node)s),
  ended AS (
    UPDATE commands c SET state = %(status)s, reason = %(reason)s, result = %(result)s, finished_at = now(),
      inventory_rev = (SELECT n.inventory_rev FROM nodes n WHERE n.id = c.node_id)
    FROM known WHERE c.id = known.id AND c.finished_at IS NULL
    RETURNING c.kind)
SELECT ended.kind FROM known LEFT JOIN ended ON true
"""


class KeyInUse(Exception):
    """An idempotency key names another command of the node. `str()` says which."""


def queue(
    tx: Connection,
    node_id: str,
    kind: str,
    payload: Payload,
    key: str,
    not_after: datetime | None = None,
    by: str = "",
    mint: ids.Mint = ids.mint,
) -> str:
    """Queues a command and answers its id. One with this idempotency key is there already: nothing is queued, its id answered.

    `not_after`: the latest start; `by`: who wants it. Raises LookupError for a node that does not exist, KeyInUse when the key
    is that of a command with another kind or payload.
    """
    arguments = {
        "id": mint("cmd"),
        "node": node_id,
        "kind": kind,
        "payload": jsonb(dict(payload)),
        "key": key,
        "by": by,
        "not_after": not_after,
    }
    if (row := tx.execute(_QUEUE, arguments).fetchone()) is not None:
        return str(row[0])
    if (row := tx.execute(_QUEUED, arguments).fetchone()) is None:
        raise LookupError(f"no node {node_id}")
    if not row[1]:
        raise KeyInUse(f"{key!r} is the key of {row[0]}, which is another command")
    return str(row[0])


def due(tx: Connection, node_id: str, epoch: int, sent: Sequence[str]) -> list[Command]:
    """The commands to send to the session with this epoch now, oldest first; `sent`: those that it was sent before."""
    rows = tx.execute(_DUE, {"node": node_id, "epoch": epoch, "sent": list(sent)}, prepare=True)
    return [Command(*row) for row in rows.fetchall()]


def outstanding(tx: Connection, node_ids: Sequence[str]) -> list[tuple[str, str]]:
    """(node id, command id) of every command without a result that these nodes are to be sent.

    Commands of any node that were not sent in time expire.
    """
    tx.execute(_EXPIRE, prepare=True)
    return tx.execute(_OUTSTANDING, [list(node_ids)], prepare=True).fetchall() if node_ids else []


def record_result(tx: Connection, node_id: str, result: CommandResult) -> bool:
    """Stores how a command ended, once: a result that comes again changes nothing. False: the node has no such command.

    A node drops the faults of GPUs that it has reset and found in health (SPEC A4): it counts theirs from the start again.
    """
    arguments = {
        "id": text(result.id),
        "node": node_id,
        "status": result.status,
        "reason": text(result.reason),
        "result": None if result.payload is None else jsonb(result.payload),
    }
    row = tx.execute(_RECORD, arguments, prepare=True).fetchone()
    if row is not None and row[0] == "gpu.reset" and result.status == "succeeded":
        restart_counts(tx, node_id, _group(result.payload))
    return row is not None


def _group(payload: Json) -> list[str]:
    """The GPUs that a reset was of, as the node says."""
    found = payload.get("group") if isinstance(payload, dict) else None
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
