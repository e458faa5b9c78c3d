"""Sessions (SPEC B1): a Hello takes the node's next epoch; the older stream, wherever it is, learns it by NOTIFY.

Channel `bc_sessions`, payload `<nodeId> <epoch>`: every stream of that node with a lower epoch is superseded. Channel
`bc_disbelieved`, the same payload: what streams up to this epoch say is not believed any more (SPEC B2, Trust), they are to end.
A node that is retired or deleted has no session (SPEC B0): its Hello is refused.
"""

from collections.abc import Sequence
from typing import Any

from bettercompute.contract.sections import ADVISORY

from receiver import ids
from receiver.errors import Refused
from receiver.events import event
from receiver.planning.devices import OUT
from receiver.planning.labels import driver_labels
from receiver.store.database import Connection
from receiver.store.events import publish
from receiver.store.labels import set_system_labels
from receiver.store.nodes import lock_node
from receiver.store.words import jsonb, text
from receiver.values import HelloFacts, SessionStart

CHANNEL = "bc_sessions"
DISBELIEVED = "bc_disbelieved"

_CREATE = "INSERT INTO nodes (id, tenant_id) VALUES (%s, %s) ON CONFLICT (id) DO NOTHING"
_FACTS = (
    """daemon_version = %(daemon)s, protocol_version = %(protocol)s, drivers = %(drivers)s, capabilities = %(capabilities)s"""
)

# A session of the platform's begins with no digest where the last one is a tenant's word: what it offers is to be applied.
_BEGIN = f"""
WITH old AS (
    SELECT id, epoch, boot_id, instance_id,
      epoch > 0 AND %(previous)s::bigint IS DISTINCT FROM epoch
        AND (boot_id, instance_id) IS DISTINCT FROM (%(boot)s, %(instance)s) AS alternation
    FROM nodes WHERE id = %(node)s AND status <> ALL(%(out)s)),
  node AS (
    UPDATE nodes n SET epoch = n.epoch + 1, session_trust_epoch = n.trust_epoch, connected = true, receiver_id = %(receiver)s,
      boot_id = %(boot)s, instance_id = %(instance)s, last_seen = bc_clock(),
      applied_digest = CASE WHEN n.trust <> 'platform' OR n.applied_digest NOT LIKE '{ADVISORY}%%' THEN n.applied_digest END,
      {_FACTS}
    FROM old WHERE n.id = old.id
    RETURNING n.*, old.alternation),
  ended AS (
    UPDATE sessions s SET ended_at = now(), end_reason = 'superseded'
    FROM old WHERE s.node_id = old.id AND s.epoch = old.epoch AND s.ended_at IS NULL),
  begun AS (
    INSERT INTO sessions (node_id, epoch, tenant_id, previous_epoch, boot_id, instance_id, receiver_id, trust_epoch, alternation)
    SELECT id, epoch, tenant_id, %(previous)s, %(boot)s, %(instance)s, %(receiver)s, session_trust_epoch, alternation FROM node)
SELECT tenant_id, epoch, applied_digest, plan_rev, alternation, pg_notify('{CHANNEL}', id || ' ' || epoch) FROM node
"""

_AMEND = f"""
UPDATE nodes SET {_FACTS}
WHERE id = %(node)s AND epoch = %(epoch)s
  AND (daemon_version, protocol_version, drivers, capabilities)
    IS DISTINCT FROM (%(daemon)s, %(protocol)s, %(drivers)s::jsonb, %(capabilities)s::jsonb)
"""

_END = """
WITH gone AS MATERIALIZED (SELECT * FROM unnest(%s::text[], %s::bigint[], %s::text[]) AS g(node_id, epoch, reason)),
  held AS MATERIALIZED (
    SELECT n.id FROM nodes n JOIN gone g ON (n.id, n.epoch) = (g.node_id, g.epoch) ORDER BY n.id FOR NO KEY UPDATE OF n),
  left_alone AS (UPDATE nodes SET connected = false FROM held WHERE nodes.id = held.id)
UPDATE sessions s SET ended_at = now(), end_reason = g.reason
FROM gone g WHERE (s.node_id, s.epoch) = (g.node_id, g.epoch) AND s.ended_at IS NULL
"""


class Revoked(Refused):
    """The node may have no session: it is out for good, until a join with a token bound to it."""


def hello(tx: Connection, node_id: str, facts: HelloFacts, mint: ids.Mint = ids.mint) -> SessionStart:
    """Begins a session. A node that is not known is created in `facts.tenant_id`, and `node.joined` tells of it.

    Raises Revoked for a node that is retired or deleted, of which nothing is changed then, and psycopg.DataError for a previous
    epoch that no bigint holds, which was never one of ours.
    """
    created = tx.execute(_CREATE, [node_id, facts.tenant_id]).rowcount == 1
    lock_node(tx, node_id)
    row = tx.execute(_BEGIN, {"previous": facts.previous_epoch, "out": list(OUT), **_arguments(node_id, facts)}).fetchone()
    if row is None:
        raise Revoked(f"node {node_id} is out for good: if it is only retired, a join with a token bound to it brings it back")
    tenant, epoch, digest, plan_rev, alternation, _ = row
    told = [event("node.joined", {"by": "hello"})] if created else []
    if alternation:
        told.append(event("security.node.duplicate-session", {"epoch": epoch, "previousEpoch": facts.previous_epoch}))
    if told:
        publish(tx, node_id, told, mint)
    set_system_labels(tx, node_id, epoch, driver_labels(facts.drivers))
    return SessionStart(node_id, tenant, epoch, digest, plan_rev, created)


def hello_again(tx: Connection, node_id: str, epoch: int, facts: HelloFacts) -> bool:
    """A Hello on the open stream: drivers or capabilities changed. Writes only what differs; answers whether it did."""
    amended = tx.execute(_AMEND, {"epoch": epoch, **_arguments(node_id, facts)}).rowcount == 1
    if amended:
        set_system_labels(tx, node_id, epoch, driver_labels(facts.drivers))
    return amended


def disbelieve(tx: Connection, node_id: str) -> None:
    """Ends the node's session: whoever has raised its `trust_epoch` believes nothing of it any more. What the next session offers
    is applied, also when it is what was applied last.

    This is where revocation joins: once nodes have certificates (SPEC B1), those of this node are revoked here, in the same
    transaction, before its stream hears of it. Until then the node may come back as it is.
    """
    tx.execute(_DISBELIEVE, [node_id])


_DISBELIEVE = f"""
WITH node AS (UPDATE nodes SET applied_digest = NULL WHERE id = %s RETURNING id, epoch)
SELECT pg_notify('{DISBELIEVED}', id || ' ' || epoch) FROM node
"""


def disbelieved(tx: Connection, node_ids: Sequence[str]) -> list[tuple[str, int]]:
    """Which of these nodes have a session that is not believed, and its epoch: for whoever may have missed a notification."""
    return tx.execute(_DISBELIEVED, [list(node_ids)]).fetchall()


_DISBELIEVED = "SELECT id, epoch FROM nodes WHERE id = ANY(%s) AND session_trust_epoch < trust_epoch"


def end_sessions(tx: Connection, gone: Sequence[tuple[str, int, str]]) -> None:
    """The streams of these (node id, epoch) are closed, for a reason. One that was superseded has its end already."""
    if gone:
        tx.execute(_END, [list(column) for column in zip(*gone, strict=True)])


def epochs(tx: Connection, node_ids: Sequence[str]) -> dict[str, int]:
    """The present epoch of each of these nodes: for whoever may have missed a notification."""
    return dict(tx.execute("SELECT id, epoch FROM nodes WHERE id = ANY(%s)", [list(node_ids)]).fetchall())


def _arguments(node_id: str, facts: HelloFacts) -> dict[str, Any]:
    drivers = [{"id": one.id, "version": one.version, "kinds": list(one.kinds)} for one in facts.drivers]
    return {
        "node": node_id,
        "boot": text(facts.boot_id),
        "instance": text(facts.instance_id),
        "receiver": facts.receiver_id,
        "daemon": text(facts.daemon_version),
        "protocol": text(facts.protocol_version),
        "drivers": jsonb(drivers),
        "capabilities": jsonb(sorted(facts.capabilities)),
    }
