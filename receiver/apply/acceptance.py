"""Acceptance (SPEC B7) where nobody writes: checks that ended elsewhere or are late, inventories that did not come.

The rules run behind every writer of a node (planning/acceptance.py). This is the singleton that has them run when it is time, or
when a command of an attempt has ended (channel `bc_acceptance`).
"""

from functools import partial

from receiver import ids
from receiver.apply.act import act
from receiver.apply.alone import alone
from receiver.planning.view import Draft, Facts
from receiver.singletons import Run
from receiver.store import attempts
from receiver.store.database import Connection

CHANNEL = "bc_acceptance"
EVERY = 5.0  # seconds
BATCH = 100  # nodes a transaction: their rows are locked until it ends


def sweep(run: Run) -> None:
    """Settles every node whose time has come, batch after batch in the order of their ids."""
    after = ""
    while found := run(partial(settle, after=after)):
        after = found[-1]


def settle(tx: Connection, after: str = "", limit: int | None = None, mint: ids.Mint = ids.mint) -> list[str]:
    """Settles the nodes behind `after` whose time has come, and answers which they are.

    A node that cannot be settled holds up no other: it is logged, and tried again with the next sweep.
    """
    found = attempts.due(tx, after, limit or BATCH)
    for node_id in found:
        act_on = partial(act, tx, node_id, _nothing, inventory_too=True, mint=mint)
        alone(tx, node_id, act_on, "a node's acceptance cannot be settled")
    return found


def _nothing(facts: Facts, draft: Draft) -> None:
    """The rules do it."""
