"""The node's row as the lock that orders everything that is done to a node."""

from receiver.store.database import Connection

_LOCK = "SELECT FROM nodes WHERE id = %s FOR NO KEY UPDATE"


def lock_node(tx: Connection, node_id: str) -> bool:
    """Holds the node's row until the transaction ends; False when there is no such node.

    A statement of its own, before the one that loads: after waiting for a lock, a statement still sees the other tables as
    they were when it began, which is before whoever held the lock has committed.
    """
    return tx.execute(_LOCK, [node_id], prepare=True).rowcount == 1
