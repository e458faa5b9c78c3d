"""How a node gets its certificate (SPEC B1): Join, with a token, and Renew, with the certificate that it has.

Which key is certified is the caller's matter, as is the signing: what is decided here is whose certificate it is. Nothing of the
token is written but that it was used, and nothing at all when a join is refused.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from bettercompute.contract.hardware_key import Identifiers
from bettercompute.contract.tokens import Token

from receiver import ids
from receiver.apply import duplicates
from receiver.apply.act import act
from receiver.apply.session import disbelieve
from receiver.errors import Refused
from receiver.events import event
from receiver.planning import hardware, lifecycle
from receiver.planning.devices import OUT
from receiver.planning.view import Draft, Facts
from receiver.store import certificates, view
from receiver.store.certificates import RENEWED, Issued
from receiver.store.database import Connection
from receiver.store.nodes import lock_node
from receiver.store.words import text

I = TypeVar("I", bound=Issued)  # noqa: E741
Sign = Callable[[str, datetime], I]  # a certificate for this node, at this time
REJOINED = "rejoined"  # why the certificates were revoked that a node had before it joined again


class NotAdmitted(Exception):
    """Who asks has nothing that admits it. `str()` says what to do, and helps nobody who only guesses."""


class TooOften(Exception):
    """A node renews more often than it may."""


@dataclass(frozen=True, slots=True)
class Joined(Generic[I]):
    """A node that joined, with its certificate. `created`: it is a new one."""

    node_id: str
    certificate: I
    created: bool


@dataclass(frozen=True, slots=True)
class _Row:
    """A join token as it is stored; the three last are what its life has come to by now."""

    id: str
    tenant_id: str
    hash: str
    pool_id: str | None
    kind: str
    node_id: str | None
    now: datetime
    revoked: bool
    expired: bool
    used_up: bool


_TOKEN = """
SELECT id, tenant_id, hash, pool_id, kind, node_id, bc_clock(), revoked_at IS NOT NULL, bc_clock() >= expires_at, used >= uses
FROM join_tokens WHERE id = %s FOR UPDATE
"""
_CREATE = "INSERT INTO nodes (id, tenant_id, pool_id, kind, daemon_version) VALUES (%s, %s, %s, %s, %s)"
# (A pool that is being deleted is waited for.)
_POOL = "SELECT FROM pools WHERE id = %s AND tenant_id = %s FOR KEY SHARE"
# Of those that a join, or the end of a lease, has revoked nobody is left who could ask too often.
_RENEWED = f"""
SELECT status, bc_clock(), (
  SELECT count(*) FROM certificates c WHERE c.node_id = n.id AND c.revoked_at IS NULL AND c.issued_by = '{RENEWED}'
    AND c.issued_at > now() - interval '1 hour')
FROM nodes n WHERE id = %s
"""


def join(
    tx: Connection, token: Token, claimed: Identifiers, sign: Sign[I], daemon_version: str = "", mint: ids.Mint = ids.mint
) -> Joined[I]:
    """Uses a token: a new node, whatever is claimed, or the one that the token is bound to, whose other certificates end.

    What is claimed makes a provisional hardware key, no more. Raises NotAdmitted for a token that admits nobody, Refused for a
    pool that is gone, or a node that does not come back.
    """
    row = _admitted(tx, token)
    tx.execute("UPDATE join_tokens SET used = used + 1 WHERE id = %s", [row.id])
    node_id = row.node_id or _create(tx, row, daemon_version, mint)
    if row.node_id is not None:
        _come_back(tx, row.node_id, row, mint)
    act(tx, node_id, _claim(tx, row.id, claimed), mint=mint)
    issued = sign(node_id, row.now)
    certificates.add(tx, node_id, row.tenant_id, issued, row.id)
    return Joined(node_id, issued, row.node_id is None)


def renew(tx: Connection, node_id: str, fingerprint: str, sign: Sign[I], most: int) -> I:
    """A further certificate for a node that comes with a good one, which stays good until it expires. `most` an hour.

    Raises NotAdmitted for a certificate that is not good any more, or a node that is out for good, and TooOften.
    """
    known = certificates.good(tx, node_id, fingerprint) if lock_node(tx, node_id) else None
    row = tx.execute(_RENEWED, [node_id]).fetchone()
    if known is None or row is None or row[0] in OUT:
        raise NotAdmitted(
            f"this certificate of node {node_id} is revoked, expired, or not known here: "
            "join again with a token bound to the node (joinTokens.create nodeId=...)"
        )
    if row[2] >= most:
        raise TooOften
    issued = sign(node_id, row[1])
    certificates.add(tx, node_id, known.tenant_id, issued, RENEWED)
    return issued


def _admitted(tx: Connection, token: Token) -> _Row:
    """The token's row, locked until the transaction ends, so that no use is counted twice."""
    found = tx.execute(_TOKEN, [token.id]).fetchone()
    row = _Row(*found) if found is not None else None
    if not hmac.compare_digest(row.hash if row else "", token.hash) or row is None:
        raise NotAdmitted("there is no such join token: was all of it copied, and is it this receiver's?")
    ended = {"revoked": row.revoked, "expired": row.expired, "used up": row.used_up}
    if why := next((word for word, so in ended.items() if so), None):
        raise NotAdmitted(f"join token {row.id} is {why}: another one is made with joinTokens.create")
    return row


def _create(tx: Connection, row: _Row, daemon_version: str, mint: ids.Mint) -> str:
    if row.pool_id is not None and tx.execute(_POOL, [row.pool_id, row.tenant_id]).rowcount != 1:
        raise Refused(f"pool {row.pool_id}, for which join token {row.id} is, does not exist any more")
    node_id = mint("node")
    tx.execute(_CREATE, [node_id, row.tenant_id, row.pool_id, row.kind, text(daemon_version) or None])
    return node_id


def _come_back(tx: Connection, node_id: str, row: _Row, mint: ids.Mint) -> None:
    def rule(facts: Facts, draft: Draft) -> None:
        if facts.tenant_id != row.tenant_id:
            raise Refused(f"node {node_id} is not of the tenant of join token {row.id}")
        lifecycle.rejoin(row.id)(facts, draft)
        duplicates.end(duplicates.SESSION)(facts, draft)

    act(tx, node_id, rule, mint=mint)
    disbelieve(tx, node_id, revoke=REJOINED)


def _claim(tx: Connection, token_id: str, claimed: Identifiers) -> Callable[[Facts, Draft], None]:
    """A tenant that has root claims nothing: its word changes nothing (SPEC B2, Trust)."""

    def rule(facts: Facts, draft: Draft) -> None:
        draft.events.append(event("node.joined", {"by": token_id}))
        key = hardware.claimed_key(claimed, draft.hardware)
        if draft.node.trust == "platform":
            hardware.claim(view.with_others(tx, facts, draft, (), key.key if key else None), draft, claimed)

    return rule
