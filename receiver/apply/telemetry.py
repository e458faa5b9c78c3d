"""What a gateway has concluded of a session's telemetry (SPEC B5, and ClockSkew of B3), written when it changes."""

from collections.abc import Iterable

from receiver import ids
from receiver.planning import clock, pressure, telemetry
from receiver.planning.node import conclude
from receiver.planning.telemetry import Conclusion, Standing
from receiver.store import view
from receiver.store.database import Connection
from receiver.store.statement import Statement

TYPES = (*(one.type for one in pressure.MEASURES), clock.TYPE)

_STANDING = """
SELECT type, status, coalesce(evidence ->> 'bootId', '') FROM conditions
WHERE node_id = %s AND type = ANY(%s) AND device_id = '' AND status <> 'false'
"""


def standing(tx: Connection, node_id: str) -> dict[str, Standing]:
    """The conditions of telemetry that are true or unknown, by type: what a session begins with."""
    rows = tx.execute(_STANDING, [node_id, list(TYPES)], prepare=True)
    return {kind: Standing(status, boot_id) for kind, status, boot_id in rows}


def record_host_pressure(
    tx: Connection, node_id: str, concluded: Iterable[Conclusion], epoch: int | None = None, mint: ids.Mint = ids.mint
) -> bool:
    """Sets conditions as a session's samples (planning/pressure.py) and clock (planning/clock.py) have them.

    On a tenant's machine nothing is set. False: another session than that of `epoch` has the node, nothing was written.
    Raises LookupError for a node that does not exist.
    """
    facts, before = view.lock(tx, node_id)
    if epoch is not None and facts.epoch != epoch:
        return False
    draft = before.copy()
    telemetry.settle(facts, draft, concluded)
    conclude(facts, before, draft)
    statement = Statement(node_id)
    view.write(statement, before, draft, mint)
    statement.run(tx)
    return True
