"""One node of many: our bug with it must not hold up the others."""

import logging
from collections.abc import Callable

import psycopg
from psycopg.errors import DeadlockDetected, SerializationFailure

from receiver.store.database import Connection

LOG = logging.getLogger("receiver.apply")
# The transaction as a whole has lost a race. (A row that is there meanwhile is one node's: of many, it comes again.)
LOST = (DeadlockDetected, SerializationFailure)


def alone(
    tx: Connection, node_id: str, work: Callable[[], object], failed: str, lost: tuple[type[psycopg.Error], ...] = LOST
) -> bool:
    """Does a node's work, which is undone where it fails and logged as `failed`. Answers whether it was done.

    Raises what concerns the transaction, which is to be run again: `lost`, and whatever ends its connection.
    """
    try:
        with tx.transaction():
            work()
    except lost:
        raise
    except Exception:
        if tx.closed:
            raise
        LOG.exception(failed, extra={"node": node_id})
        return False
    return True
