"""Writing events: the outbox, in the transaction of what they tell. How to read it: schema.py."""

from collections.abc import Sequence

from receiver.ids import Mint
from receiver.store.database import Connection
from receiver.store.words import jsonb
from receiver.values import Event


def publish(tx: Connection, node_id: str, events: Sequence[Event], mint: Mint) -> None:
    """Appends events of a node, with the tenant and pool that it has now. A trigger wakes the readers at commit."""
    tx.cursor().executemany(
        """INSERT INTO events (id, tenant_id, pool_id, node_id, type, payload)
           SELECT %s, tenant_id, pool_id, id, %s, %s FROM nodes WHERE id = %s""",
        [(mint("evt"), one.type, jsonb(dict(one.payload)), node_id) for one in events],
    )
