"""The rows of nodes' certificates (SPEC B1): which were issued, and which of them a session may begin with.

Whoever calls any of these holds the node's lock (receiver/store/nodes.py): so a session does not begin with a certificate that
is being revoked, and a join that revokes all others misses none that is being issued.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from receiver.store.database import Connection

RENEWED = "renew"  # `issued_by` of a certificate that another one of the same node asked for; else it is the join token's id


class Issued(Protocol):
    """What is kept of a certificate: lower-case hexadecimal SHA-256 of its DER, and its life."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def not_before(self) -> datetime: ...
    @property
    def not_after(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate as it is stored."""

    fingerprint: str
    node_id: str
    tenant_id: str
    not_before: datetime
    not_after: datetime


def add(tx: Connection, node_id: str, tenant_id: str, issued: Issued, issued_by: str) -> None:
    """A certificate was issued to a node; `issued_by`: RENEWED, or the id of the join token. Those of the node that have long
    expired are forgotten; one that was revoked stays, as what a node was told."""
    tx.execute(_FORGET, [node_id])
    tx.execute(_ADD, [issued.fingerprint, node_id, tenant_id, issued_by, issued.not_before, issued.not_after])


def good(tx: Connection, node_id: str, fingerprint: str) -> Certificate | None:
    """The certificate, if it was issued to this node, is not revoked, and lives by the fleet's clock."""
    row = tx.execute(_GOOD, [fingerprint, node_id], prepare=True).fetchone()
    return Certificate(*row) if row is not None else None


def revoke_all(tx: Connection, node_id: str, reason: str, but: str | None = None) -> int:
    """Revokes a node's certificates, and answers how many; `but`: not the one with this fingerprint.

    One that is revoked already keeps its time and its reason. Running streams are the caller's: session.disbelieve ends them.
    """
    return tx.execute(_REVOKE, [reason, node_id, but]).rowcount


_FORGET = """
DELETE FROM certificates WHERE node_id = %s AND revoked_at IS NULL AND not_after < bc_clock() - interval '90 days'
"""

# What makes a certificate's row good, beside that it is of the node.
IS_GOOD = "revoked_at IS NULL AND bc_clock() >= not_before AND bc_clock() < not_after"

_ADD = """
INSERT INTO certificates (fingerprint, node_id, tenant_id, issued_by, not_before, not_after) VALUES (%s, %s, %s, %s, %s, %s)
"""

_GOOD = f"""
SELECT fingerprint, node_id, tenant_id, not_before, not_after FROM certificates
WHERE fingerprint = %s AND node_id = %s AND {IS_GOOD}
"""

_REVOKE = """
UPDATE certificates SET revoked_at = bc_clock(), revoked_reason = %s
WHERE node_id = %s AND revoked_at IS NULL AND fingerprint IS DISTINCT FROM %s
"""
