"""The node's row as the lock that orders everything that is done to a node."""

from collections.abc import Mapping, Sequence
from typing import Any

from receiver.store.database import Connection

_LOCK = "SELECT FROM nodes WHERE id = %s FOR NO KEY UPDATE"


def lock_node(tx: Connection, node_id: str) -> bool:
    """Holds the node's row until the transaction ends; False when there is no such node.

    A statement of its own, before the one that loads: after waiting for a lock, a statement still sees the other tables as
    they were when it began, which is before whoever held the lock has committed.
    """
    return tx.execute(_LOCK, [node_id], prepare=True).rowcount == 1


def load(
    tx: Connection,
    node_id: str,
    sql: str,
    arguments: Sequence[Any] | Mapping[str, Any],
    locked: bool = True,
    binary: bool = False,
) -> tuple[Any, ...]:
    """The row of a statement about a node, which is locked first. One round trip, also with what begins the transaction.

    Raises LookupError for a node that does not exist.
    """
    with tx.pipeline():
        if locked:
            lock_node(tx, node_id)
        found = tx.execute(sql, arguments, prepare=True, binary=binary)
    row = found.fetchone()
    if row is None:
        raise LookupError(f"no node {node_id}")
    return row
