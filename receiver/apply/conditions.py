"""Conditions of many nodes at once: for a writer whose conditions no other rule reads (SPEC B6).

What follows from such a condition is the node's reasons and the event that tells of it (planning/reasons.py); everything else of
a node is neither loaded nor written. A node at a time, as `act` does it, a sweep over a fleet would take many times longer.
"""

from collections.abc import Callable, Mapping, Sequence

from receiver import ids
from receiver.planning import reasons
from receiver.planning.node import Rule
from receiver.planning.view import Draft
from receiver.store import conditions as store
from receiver.store.database import Connection


def settle_all(
    tx: Connection, node_ids: Sequence[str], rules: Callable[[], Mapping[str, Rule]], mint: ids.Mint = ids.mint
) -> dict[str, Draft]:
    """Locks the nodes, lets their rules change their conditions, and writes what differs; each node's `plan_rev` is raised then.

    `rules` is called once the nodes are locked: what is to be done to which. Answers the rows of the nodes that were written.
    """
    store.lock(tx, node_ids)
    amends, changed = rules(), dict[str, tuple[Draft, Draft]]()
    for facts, before in store.load(tx, amends.keys()):
        draft = before.copy()
        amends[facts.node_id](facts, draft)
        reasons.settle(facts, before, draft)
        if (draft.conditions, draft.node) != (before.conditions, before.node):
            changed[facts.node_id] = before, draft
    store.write(tx, changed, mint)
    return {node_id: draft for node_id, (_, draft) in changed.items()}
