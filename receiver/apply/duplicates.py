"""A node's identity that is used twice (SPEC B1, "Alternation"): what becomes of it, and how that ends."""

from collections.abc import Callable
from dataclasses import replace

from receiver import ids
from receiver.apply.act import act
from receiver.events import event
from receiver.planning import hardware
from receiver.planning.view import ConditionRow, Draft, Facts
from receiver.store import certificates
from receiver.store.database import Connection

SESSION = "DuplicateSession"
QUARANTINE = "duplicate-identity"  # why a certificate is revoked, and what `security.node.quarantined` tells
MESSAGE = "two daemons use this node's identity: its certificate is revoked until a join with a token bound to it"


def quarantine(tx: Connection, node_id: str, mint: ids.Mint) -> None:
    """Nobody uses the node's certificates any more, nothing is placed on it, and it is told. (Streams are the caller's.)"""
    certificates.revoke_all(tx, node_id, QUARANTINE)
    act(tx, node_id, _quarantined, mint=mint)


def _quarantined(facts: Facts, draft: Draft) -> None:
    draft.put("conditions", ConditionRow(hardware.TYPE, reason=SESSION, message=MESSAGE))
    draft.events.append(event("security.node.quarantined", {"reason": QUARANTINE}))


def end(*reasons: str) -> Callable[[Facts, Draft], None]:
    """The rule that ends the node's DuplicateIdentity where it has one of these reasons."""

    def rule(facts: Facts, draft: Draft) -> None:
        for row in of(draft):
            if row.reason in reasons:
                ended = replace(row, status="false", reason="", message="", no_schedule=False, evidence={})
                draft.put("conditions", ended)

    return rule


def of(draft: Draft) -> list[ConditionRow]:
    """Each DuplicateIdentity that is true."""
    return [row for row in draft.conditions.values() if row.type == hardware.TYPE and row.status == "true"]
