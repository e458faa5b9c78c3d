"""Commands to nodes (SPEC A7): a queue in Postgres, handed to whichever receiver holds the node's session.

A command is sent at least once: to every session of its node, until a result is stored. The node runs each id once. Channel
`bc_commands`, payload `<nodeId>`: something is due to it. Who misses that finds it with `outstanding`, asked every few seconds.

Who waits for how a command ends is woken on the channel of its key (WAITING), with the node's id.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from receiver import ids
from receiver.apply.health import restart_counts
from receiver.errors import NotFound, Refused
from receiver.planning.devices import OUT
from receiver.store.database import Connection
from receiver.store.nodes import lock_node
from receiver.store.words import jsonb, text
from receiver.values import Command, CommandResult, Json, Payload

CHANNEL = "bc_commands"
WAITING = {"acceptance:": "bc_acceptance", "remediation:": "bc_remediation"}  # by how a key begins
REFRESH, REFRESH_WITHIN = "inventory.refresh", timedelta(minutes=10)
KEPT = timedelta(days=30)  # after its end: longer than any node keeps its record, and any attempt or repair lasts
_PRUNED = 1000  # rows a round
FORGET_EVERY = 3600.0  # seconds

_QUEUE = f"""
WITH queued AS (
    INSERT INTO commands (id, node_id, tenant_id, kind, payload, idempotency_key, created_by, not_after, inventory_rev)
    SELECT %(id)s, n.id, n.tenant_id, %(kind)s, %(payload)s, %(key)s, %(by)s, %(not_after)s, n.inventory_rev
    FROM nodes n WHERE n.id = %(node)s
    ON CONFLICT (node_id, idempotency_key) DO NOTHING
    RETURNING id)
SELECT id, pg_notify('{CHANNEL}', %(node)s) FROM queued
"""

_QUEUED = (
    "SELECT id, kind = %(kind)s AND payload = %(payload)s FROM commands WHERE (node_id, idempotency_key) = (%(node)s, %(key)s)"
)

_REFRESHING = """
SELECT id FROM commands WHERE node_id = %s AND finished_at IS NULL AND kind = 'inventory.refresh' AND state = 'queued'
  AND not_after > bc_clock() ORDER BY id LIMIT 1
"""

# While a tenant has the machine, only its inventory may be asked for (SPEC B2, Trust).
_SENDABLE = """c.finished_at IS NULL AND (c.state = 'sent' OR c.not_after IS NULL OR c.not_after > bc_clock())
  AND (n.trust = 'platform' OR c.kind = 'inventory.refresh')"""

# What was sent to an earlier session is sent again, past its time too: the node knows whether it began.
_DUE = f"""
WITH due AS (
    SELECT c.id FROM commands c JOIN nodes n ON n.id = c.node_id
    WHERE n.id = %(node)s AND n.epoch = %(epoch)s AND {_SENDABLE} AND c.id <> ALL(%(sent)s)
    ORDER BY c.id FOR NO KEY UPDATE OF c),
  sent AS (
    UPDATE commands c SET state = 'sent', sent_at = coalesce(c.sent_at, bc_clock()) FROM due WHERE c.id = due.id
    RETURNING c.id, c.kind, c.payload, c.idempotency_key, c.not_after, c.created_at)
SELECT id, kind, payload, idempotency_key,
  CASE WHEN not_after IS NOT NULL THEN greatest(extract(epoch FROM not_after - bc_clock() - (clock_timestamp() - now())), 0)
    ::float8 END
FROM sent ORDER BY created_at, id
"""

# (What is locked is being sent or ended just now, or another receiver has it expire.)
_EXPIRE = """
WITH late AS (
  SELECT id FROM commands WHERE finished_at IS NULL AND state = 'queued' AND not_after <= bc_clock()
  FOR NO KEY UPDATE SKIP LOCKED)
UPDATE commands c SET state = 'expired', reason = 'NotSent', finished_at = bc_clock() FROM late WHERE c.id = late.id
RETURNING c.node_id, c.idempotency_key
"""

# What was sent may have begun on the node: only its answer ends it.
_CANCEL = """
UPDATE commands SET state = 'cancelled', reason = %(reason)s, finished_at = bc_clock()
WHERE id = %(id)s AND finished_at IS NULL AND state = 'queued'
RETURNING node_id, idempotency_key
"""

_CANCEL_ALL = """
UPDATE commands SET state = 'cancelled', reason = %(reason)s, finished_at = bc_clock()
WHERE node_id = %(node)s AND finished_at IS NULL
RETURNING node_id, idempotency_key
"""

# (Of repairs that nobody forces.)
_HOLD_BACK = """
UPDATE commands c SET state = 'cancelled', reason = %(reason)s, finished_at = bc_clock()
FROM remediation_runs r JOIN nodes n ON n.id = r.node_id
WHERE r.command_id = c.id AND r.ended_at IS NULL AND r.kind IN ('node.reboot', 'gpu.reset') AND NOT r.force
  AND c.finished_at IS NULL AND c.state = 'queued' AND (n.id = %(node)s OR n.pool_id = %(pool)s)
RETURNING c.node_id, c.idempotency_key
"""

_FORGET = f"""
DELETE FROM commands WHERE id IN (
  SELECT id FROM commands WHERE finished_at < bc_clock() - %(kept)s ORDER BY finished_at LIMIT {_PRUNED})
"""

_OUTSTANDING = f"SELECT c.node_id, c.id FROM commands c JOIN nodes n ON n.id = c.node_id WHERE n.receiver_id = %s AND {_SENDABLE}"

_RECORD = """
WITH known AS (SELECT id FROM commands WHERE id = %(id)s AND node_id = %(node)s),
  ended AS (
    UPDATE commands c SET state = %(status)s, reason = %(reason)s, result = %(result)s, finished_at = bc_clock()
    FROM known WHERE c.id = known.id AND c.finished_at IS NULL
    RETURNING c.kind, c.idempotency_key, c.payload)
SELECT ended.kind, ended.idempotency_key, ended.payload FROM known LEFT JOIN ended ON true
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


def refresh(tx: Connection, node_id: str, by: str = "", mint: ids.Mint = ids.mint) -> str:
    """Has a node collect its inventory and offer it; the command's id. One that waits to be sent is enough for all who ask.

    Raises LookupError for a node that does not exist, Refused for one that is out for good.
    """
    row = tx.execute("SELECT status FROM nodes WHERE id = %s FOR NO KEY UPDATE", [node_id]).fetchone()
    if row is not None and row[0] in OUT:
        raise Refused(f"a node that is {row[0]} reports no inventory")
    waiting = tx.execute(_REFRESHING, [node_id]).fetchone()
    if waiting is not None:
        return str(waiting[0])
    late = tx.execute("SELECT bc_clock() + %s", [REFRESH_WITHIN]).fetchone()
    assert late is not None
    return queue(tx, node_id, REFRESH, {}, f"{REFRESH}:{mint('cmd')}", late[0], by, mint)


def due(tx: Connection, node_id: str, epoch: int, sent: Sequence[str]) -> list[Command]:
    """The commands to send to the session with this epoch now, oldest first; `sent`: those that it was sent before."""
    rows = tx.execute(_DUE, {"node": node_id, "epoch": epoch, "sent": list(sent)}, prepare=True)
    return [Command(*row) for row in rows.fetchall()]


def outstanding(tx: Connection, receiver_id: str) -> list[tuple[str, str]]:
    """(node id, command id) of every command without a result that the nodes of this receiver are to be sent.

    Commands of any node that were not sent in time expire.
    """
    _wake(tx, tx.execute(_EXPIRE, prepare=True).fetchall())
    return tx.execute(_OUTSTANDING, [receiver_id], prepare=True).fetchall()


def record_result(tx: Connection, node_id: str, result: CommandResult) -> bool:
    """Stores how a command ended, once: a result that comes again changes nothing. False: the node has no such command.

    A node drops the faults of GPUs that it has reset and found in health (SPEC A4): it counts theirs from the start again.
    """
    if not lock_node(tx, node_id):  # first, as everywhere
        return False
    arguments = {
        "id": text(result.id),
        "node": node_id,
        "status": result.status,
        "reason": text(result.reason),
        "result": None if result.payload is None else jsonb(result.payload),
    }
    row = tx.execute(_RECORD, arguments, prepare=True).fetchone()
    if row is not None and row[1] is not None:
        _wake(tx, [(node_id, row[1])])
    if row is not None and row[0] == "gpu.reset" and result.status == "succeeded":
        restart_counts(tx, node_id, _group(result.payload) or [str(row[2].get("deviceId"))])
    return row is not None


def cancel(tx: Connection, command_id: str, reason: str) -> None:
    """Ends a command that has not been sent. Raises NotFound, and Refused for one that the node may have begun, or that ended."""
    ended = tx.execute(_CANCEL, {"id": command_id, "reason": text(reason)}).fetchall()
    _wake(tx, ended)
    if ended:
        return
    row = tx.execute("SELECT state, reason FROM commands WHERE id = %s", [command_id]).fetchone()
    if row is None:
        raise NotFound(f"no command {command_id}")
    if row[0] == "sent":
        raise Refused(f"command {command_id} was sent, the node may have begun it: only its answer ends it")
    raise Refused(f"command {command_id} has ended: {row[0]}{f' ({row[1]})' if row[1] else ''}")


def cancel_all(tx: Connection, node_id: str, reason: str) -> None:
    """Ends all commands of a node whose answers nobody waits for any more."""
    _wake(tx, tx.execute(_CANCEL_ALL, {"node": node_id, "reason": text(reason)}).fetchall())


def hold_back(tx: Connection, reason: str, node_id: str | None = None, pool_id: str | None = None) -> None:
    """Ends the commands of a node's, or a pool's, repairs that were not sent: a person has it from now on."""
    _wake(tx, tx.execute(_HOLD_BACK, {"reason": reason, "node": node_id, "pool": pool_id}).fetchall())


def forget(tx: Connection) -> bool:
    """Deletes commands that ended KEPT ago or before, some a call. Answers whether there may be more."""
    return tx.execute(_FORGET, {"kept": KEPT}).rowcount == _PRUNED


def _wake(tx: Connection, ended: Iterable[tuple[str, str]]) -> None:
    """Tells who waits for these: (node id, idempotency key) of each."""
    woken = {(channel, node_id) for node_id, key in ended for start, channel in WAITING.items() if key.startswith(start)}
    for channel, node_id in sorted(woken):
        tx.execute("SELECT pg_notify(%s, %s)", [channel, node_id])


def _group(payload: Json) -> list[str]:
    """The GPUs that a reset was of, as the node says."""
    found = payload.get("group") if isinstance(payload, dict) else None
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
