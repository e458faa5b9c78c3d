"""Acceptance (SPEC B7) where nobody writes: checks that ended elsewhere or are late, inventories that did not come.

The rules run behind every writer of a node (planning/acceptance.py). This is the singleton that has them run when it is time, or
when a command of an attempt has ended (channel `bc_acceptance`).
"""

import logging
from collections.abc import Callable
from typing import Protocol

from psycopg.errors import DeadlockDetected

from receiver import ids
from receiver.apply.act import act
from receiver.planning.view import Draft, Facts
from receiver.store import attempts
from receiver.store.database import Connection

CHANNEL = "bc_acceptance"
EVERY = 5.0  # seconds
BATCH = 100  # nodes a transaction: their rows are locked until it ends

LOG = logging.getLogger("receiver.acceptance")


class Run(Protocol):
    """Runs a function in a transaction of its own, and answers what it does."""

    def __call__(self, work: Callable[[Connection], list[str]]) -> list[str]:
        """Runs it."""


def sweep(run: Run) -> None:
    """Settles every node whose time has come, batch after batch in the order of their ids."""
    after = ""
    while found := run(lambda tx, after=after: settle(tx, after)):  # type: ignore[misc]
        after = found[-1]


def settle(tx: Connection, after: str = "", limit: int = BATCH, mint: ids.Mint = ids.mint) -> list[str]:
    """Settles the nodes behind `after` whose time has come, and answers which they are.

    A node that cannot be settled holds up no other: it is logged, and tried again with the next sweep.
    """
    found = attempts.due(tx, after, limit)
    for node_id in found:
        _settle(tx, node_id, mint)
    return found


def _settle(tx: Connection, node_id: str, mint: ids.Mint) -> None:
    try:
        with tx.transaction():
            act(tx, node_id, _nothing, inventory_too=True, mint=mint)
    except DeadlockDetected:  # the whole transaction is run again
        raise
    except Exception:
        if tx.closed:
            raise
        LOG.exception("a node's acceptance cannot be settled", extra={"node": node_id})


def _nothing(facts: Facts, draft: Draft) -> None:
    """The rules do it."""
