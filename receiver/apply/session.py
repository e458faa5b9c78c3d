"""Sessions (SPEC B1): a Hello takes the node's next epoch; the older stream, wherever it is, learns it by NOTIFY.

Channel `bc_sessions`, payload `<nodeId> <epoch>`: every stream of that node with a lower epoch is superseded. Channel
`bc_disbelieved`, payload `<nodeId> <epoch> <reason>`: what streams up to this epoch say is not believed any more, and they are
to end. DRAINING: the node may begin another at once (SPEC B2, Trust); REVOKED: its certificate is good no more.
A node that is retired or deleted has no session (SPEC B0), nor has one whose certificate is revoked, expired or not known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bettercompute.contract.sections import ADVISORY

from receiver import ids
from receiver.apply.duplicates import quarantine
from receiver.errors import Refused
from receiver.events import event
from receiver.planning.devices import OUT
from receiver.planning.labels import driver_labels
from receiver.store import certificates
from receiver.store.database import Connection
from receiver.store.events import publish
from receiver.store.labels import set_system_labels
from receiver.store.nodes import lock_node
from receiver.store.words import jsonb, listed, text
from receiver.values import HelloFacts, SessionStart

CHANNEL = "bc_sessions"
DISBELIEVED = "bc_disbelieved"
DRAINING, REVOKED, EXPIRED, SUPERSEDED = "draining", "revoked", "expired", "superseded"  # why a stream is over
ALTERNATIONS = 3  # of one identity that may be chance
WINDOW = timedelta(minutes=10)
KEPT = 200  # sessions of a node; older ones are forgotten with the next one that begins, once they are a day old
BACK = "it comes back by a join with a token bound to it (joinTokens.create nodeId=...)"

_CREATE = "INSERT INTO nodes (id, tenant_id) VALUES (%s, %s) ON CONFLICT (id) DO NOTHING"
_FACTS = (
    """daemon_version = %(daemon)s, protocol_version = %(protocol)s, drivers = %(drivers)s, capabilities = %(capabilities)s"""
)

# A session of the platform's begins with no digest where the last one is a tenant's word: what it offers is to be applied.
# An alternation: neither the epoch is the current session's nor the machine. Of the same machine is, too, a bcd that was killed
# before it could keep the epoch; and a session whose certificate is revoked is no rival of who has joined again.
_BEGIN = f"""
WITH good AS (
    SELECT not_before, not_after FROM certificates
    WHERE fingerprint = %(certificate)s AND node_id = %(node)s AND {certificates.IS_GOOD}),
  found AS (
    SELECT n.id, n.epoch,
      n.epoch > 0 AND %(previous)s::bigint IS DISTINCT FROM n.epoch
        AND (n.boot_id, n.instance_id) IS DISTINCT FROM (%(boot)s, %(instance)s)
        AND (n.boot_id, n.instance_id) IS DISTINCT FROM (%(boot)s, %(before)s)
        AND NOT EXISTS (SELECT FROM sessions s JOIN certificates c ON c.fingerprint = s.certificate
                        WHERE (s.node_id, s.epoch) = (n.id, n.epoch) AND c.revoked_at IS NOT NULL) AS alternation
    FROM nodes n WHERE n.id = %(node)s AND n.status <> ALL(%(out)s)
      AND (%(certificate)s::text IS NULL OR EXISTS (SELECT FROM good))),
  old AS (
    SELECT *, alternation AND (
      SELECT count(*) >= {ALTERNATIONS} FROM sessions s LEFT JOIN certificates c ON c.fingerprint = s.certificate
      WHERE s.node_id = found.id AND s.alternation AND s.started_at > bc_clock() - %(window)s AND c.revoked_at IS NULL
      ) AS too_many
    FROM found),
  node AS (
    UPDATE nodes n SET epoch = n.epoch + 1, session_trust_epoch = n.trust_epoch, connected = true, receiver_id = %(receiver)s,
      boot_id = %(boot)s, instance_id = %(instance)s, last_seen = bc_clock(),
      applied_digest = CASE WHEN n.trust <> 'platform' OR n.applied_digest NOT LIKE '{ADVISORY}%%' THEN n.applied_digest END,
      certificate_from = coalesce((SELECT not_before FROM good), n.certificate_from),
      certificate_until = coalesce((SELECT not_after FROM good), n.certificate_until),
      {_FACTS}
    FROM old WHERE n.id = old.id
    RETURNING n.*, old.alternation, old.too_many),
  ended AS (
    UPDATE sessions s SET ended_at = now(), end_reason = 'superseded'
    FROM old WHERE s.node_id = old.id AND s.epoch = old.epoch AND s.ended_at IS NULL),
  forgotten AS (
    DELETE FROM sessions s USING old
    WHERE s.node_id = old.id AND s.epoch <= old.epoch - {KEPT} AND s.started_at < bc_clock() - interval '1 day'),
  begun AS (
    INSERT INTO sessions (node_id, epoch, tenant_id, previous_epoch, boot_id, instance_id, receiver_id, trust_epoch, alternation,
      certificate)
    SELECT id, epoch, tenant_id, %(previous)s, %(boot)s, %(instance)s, %(receiver)s, session_trust_epoch, alternation,
      %(certificate)s FROM node)
SELECT tenant_id, epoch, applied_digest, plan_rev, alternation, too_many,
  CASE WHEN NOT too_many THEN pg_notify('{CHANNEL}', id || ' ' || epoch) END FROM node
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
    """The node may have no session with what it came with: until a join, if anything, gives it another certificate."""


def hello(tx: Connection, node_id: str, facts: HelloFacts, mint: ids.Mint = ids.mint) -> SessionStart:
    """Begins a session. On an insecure receiver, a node that is not known is created in `facts.tenant_id`, and `node.joined`
    tells of it.

    One alternation too many is committed too: nobody may use the node's certificates any more then, and the session is over.
    Raises Revoked for a node that is retired or deleted and for a certificate that is not good, and changes nothing then; and
    psycopg.DataError for a previous epoch that no bigint holds, which was never one of ours.
    """
    created = facts.certificate is None and tx.execute(_CREATE, [node_id, facts.tenant_id]).rowcount == 1
    lock_node(tx, node_id)
    row = tx.execute(_BEGIN, _session(node_id, facts)).fetchone()
    if row is None:
        raise Revoked(_refusal(tx, node_id, facts.certificate))
    tenant, epoch, digest, plan_rev, alternation, too_many, _ = row
    told = [event("node.joined", {"by": "hello"})] if created else []
    if alternation:
        told.append(event("security.node.duplicate-session", {"epoch": epoch, "previousEpoch": facts.previous_epoch}))
    if told:
        publish(tx, node_id, told, mint)
    if too_many:
        quarantine(tx, node_id, mint)
        _notify(tx, node_id, REVOKED)
        end_sessions(tx, [(node_id, epoch, REVOKED)])
    else:
        set_system_labels(tx, node_id, epoch, driver_labels(facts.drivers))
    return SessionStart(node_id, tenant, epoch, digest, plan_rev, created, too_many)


def _refusal(tx: Connection, node_id: str, certificate: str | None) -> str:
    """Why a Hello began nothing, for a person."""
    row = tx.execute(_WHY, {"node": node_id, "certificate": certificate}).fetchone()
    status, revoked, expired = row or (None, None, None)
    if status == "deleted":
        return f"node {node_id} is out for good: it is deleted, and the machine may join as another one"
    if status == "retired":
        return f"node {node_id} is out for good: if it is only retired, a join with a token bound to it brings it back"
    if revoked is not None:
        return f"the certificate of node {node_id} is revoked ({revoked}): {BACK}"
    if expired:
        return f"the certificate of node {node_id} has expired: {BACK}"
    return f"this is no certificate of node {node_id} that this fleet has issued: the machine has to join"


_WHY = """
SELECT n.status, c.revoked_reason, c.not_after <= bc_clock() FROM nodes n
LEFT JOIN certificates c ON c.fingerprint = %(certificate)s AND c.node_id = n.id WHERE n.id = %(node)s
"""


def hello_again(tx: Connection, node_id: str, epoch: int, facts: HelloFacts) -> bool:
    """A Hello on the open stream: drivers or capabilities changed. Writes only what differs; answers whether it did."""
    amended = tx.execute(_AMEND, {"epoch": epoch, **_arguments(node_id, facts)}).rowcount == 1
    if amended:
        set_system_labels(tx, node_id, epoch, driver_labels(facts.drivers))
    return amended


def disbelieve(tx: Connection, node_id: str, revoke: str | None = None) -> None:
    """Ends the node's session: whoever has raised its `trust_epoch` believes nothing of it any more. What the next session offers
    is applied, also when it is what was applied last.

    `revoke`: why the node's certificates are revoked first, all of them. With none to revoke it may come back as it is.
    """
    revoked = revoke is not None and certificates.revoke_all(tx, node_id, revoke)
    tx.execute("UPDATE nodes SET applied_digest = NULL WHERE id = %s", [node_id])
    _notify(tx, node_id, REVOKED if revoked else DRAINING)


def _notify(tx: Connection, node_id: str, reason: str) -> None:
    tx.execute(_NOTIFY, [reason, node_id])


_NOTIFY = f"SELECT pg_notify('{DISBELIEVED}', id || ' ' || epoch || ' ' || %s) FROM nodes WHERE id = %s"


@dataclass(frozen=True, slots=True)
class Over:
    """A session that is over, and why; with SUPERSEDED `epoch` is that of the newer one."""

    node_id: str
    epoch: int
    reason: str


def over(tx: Connection, known: Mapping[str, int]) -> list[Over]:
    """Which of these sessions (the epoch by node) are over: for whoever may have missed a notification."""
    rows = tx.execute(_OVER, [listed(known), listed(known.values())]).fetchall()
    return [Over(*row) for row in rows]


_OVER = f"""
SELECT n.id, CASE WHEN w.reason = '{SUPERSEDED}' THEN n.epoch ELSE k.epoch END, w.reason
FROM unnest(string_to_array(%s, ' '), string_to_array(%s, ' ')::bigint[]) AS k(id, epoch) JOIN nodes n ON n.id = k.id
LEFT JOIN sessions s ON (s.node_id, s.epoch) = (k.id, k.epoch) LEFT JOIN certificates c ON c.fingerprint = s.certificate
CROSS JOIN LATERAL (SELECT CASE
  WHEN c.revoked_at IS NOT NULL THEN '{REVOKED}' WHEN c.not_after <= bc_clock() THEN '{EXPIRED}'
  WHEN n.epoch > k.epoch THEN '{SUPERSEDED}' WHEN n.session_trust_epoch < n.trust_epoch THEN '{DRAINING}' END) AS w(reason)
WHERE w.reason IS NOT NULL
"""


def end_sessions(tx: Connection, gone: Sequence[tuple[str, int, str]]) -> None:
    """The streams of these (node id, epoch) are closed, for a reason. One that was superseded has its end already."""
    if gone:
        tx.execute(_END, [list(column) for column in zip(*gone, strict=True)])


def _session(node_id: str, facts: HelloFacts) -> dict[str, Any]:
    """What a Hello begins a session with."""
    return {
        "previous": facts.previous_epoch,
        "before": text(facts.previous_instance_id) or None,
        "certificate": facts.certificate,
        "out": list(OUT),
        "window": WINDOW,
        **_arguments(node_id, facts),
    }


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
