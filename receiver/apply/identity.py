"""Who is who (SPEC B1, "DuplicateIdentity"): what an operator decides of a node that another one seems to be.

Evidence that goes by itself ends the condition without anybody: whoever lets a device or a key go queues the nodes that wait for
it (receiver/store/view.py).
"""

from collections.abc import Callable, Mapping

from receiver import ids
from receiver.apply import duplicates, nodes
from receiver.apply.act import act
from receiver.apply.duplicates import SESSION
from receiver.errors import Invalid, Refused
from receiver.planning import hardware
from receiver.planning.devices import OUT
from receiver.planning.view import ConditionRow, Draft, Facts
from receiver.store import view
from receiver.store.database import Connection
from receiver.values import Json

_LOCK = "SELECT FROM nodes WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"

Rows = list[ConditionRow]


def resolve_identity(
    tx: Connection, node_id: str, action: str, by: str = "", reason: str = "", mint: ids.Mint = ids.mint
) -> Draft:
    """Ends a DuplicateIdentity of `node_id` by one of ACTIONS. Answers the node's rows as they are then.

    Raises LookupError for a node that does not exist, Invalid for another action, Refused where it cannot be resolved so: no
    DuplicateIdentity, a live booking on the node that is to be retired, no shared hardware key to tell apart.
    """
    if action not in ACTIONS:
        raise Invalid(f"action {action!r} is not one of {', '.join(ACTIONS)}")
    others = _others(duplicates.of(view.load(tx, node_id)[1]))
    tx.execute(_LOCK, [sorted({node_id, *others})])
    rows = duplicates.of(view.load(tx, node_id)[1])
    if not rows:
        raise Refused(f"node {node_id} has no DuplicateIdentity to resolve")
    if not _others(rows) <= others:
        raise Refused(f"node {node_id} has become another one's duplicate in this moment: look again")
    return ACTIONS[action](tx, node_id, rows, by, reason, mint)


def _others(rows: Rows) -> set[str]:
    """The nodes that the evidence names."""
    named: set[Json] = {row.evidence.get("otherNode") for row in rows}
    return {str(one) for one in named if one}


def _keep(tx: Connection, node_id: str, rows: Rows, by: str, reason: str, mint: ids.Mint) -> Draft:
    """This is the machine: the others are retired, and it gets what they let go."""
    for other in sorted(_others(rows)):
        if view.load(tx, other)[1].node.status not in OUT:
            nodes.retire(tx, other, by=by, reason=reason, mint=mint)
    return act(tx, node_id, duplicates.end(SESSION), inventory_too=True, mint=mint)


def _reject(tx: Connection, node_id: str, rows: Rows, by: str, reason: str, mint: ids.Mint) -> Draft:
    """This one is retired, and disputes nothing any more."""
    nodes.retire(tx, node_id, by=by, reason=reason, mint=mint)
    return act(tx, node_id, duplicates.end(SESSION), mint=mint)


def _distinct(tx: Connection, node_id: str, rows: Rows, by: str, reason: str, mint: ids.Mint) -> Draft:
    """Two machines whose firmware lies: both keys stay untrusted, the pair is remembered."""
    pairs = _others([row for row in rows if row.reason == hardware.REASON])
    if not pairs:
        told = ", ".join(sorted(f"{row.reason} {row.device_id}".strip() for row in rows))
        raise Refused(f"only machines with one hardware key can be told apart; node {node_id} has {told}: keep or reject it")
    for other in sorted(pairs):
        act(tx, other, _apart(node_id), mint=mint)
        act(tx, node_id, _apart(other), mint=mint)
    return act(tx, node_id, duplicates.end(), inventory_too=True, mint=mint)


def _apart(other: str) -> Callable[[Facts, Draft], None]:
    return lambda facts, draft: hardware.tell_apart(draft, other)


Action = Callable[[Connection, str, Rows, str, str, ids.Mint], Draft]
ACTIONS: Mapping[str, Action] = {"keep": _keep, "reject": _reject, "distinct": _distinct}
