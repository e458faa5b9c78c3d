"""Status reports (SPEC A3, B3): load, plan, write. One that changes nothing writes and locks nothing."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from receiver import ids
from receiver.planning.conditions import plan_conditions
from receiver.planning.faults import plan_faults
from receiver.planning.inventory import last_good
from receiver.planning.missing import plan_missing
from receiver.store import status as store
from receiver.store.database import Connection
from receiver.store.nodes import lock_node
from receiver.values import STATUS_HANDLERS, Status


def record_status(
    tx: Connection,
    node_id: str,
    epoch: int,
    status: Status,
    handlers: Collection[str] = STATUS_HANDLERS,
    mint: ids.Mint = ids.mint,
) -> bool:
    """Records a report of the session with this epoch. False: another session has the node, nothing was recorded.

    Sections that the report says are missing are kept with their error and the last snapshot that has them; those that it
    does not name any more are there again. Conditions are what the report says; faults are counted (SPEC B3, B4). `handlers`:
    those of STATUS_HANDLERS that are in force. Raises LookupError for a node that does not exist.
    """
    stored = store.load(tx, node_id)
    if stored.epoch == epoch and (_steps(stored, status, handlers) or _differs(stored, status)):
        lock_node(tx, node_id)
        stored = store.load(tx, node_id)
        if stored.epoch == epoch:
            store.write(tx, node_id, status, _steps(stored, status, handlers), mint)
    return stored.epoch == epoch


def touch(tx: Connection, sessions: Sequence[tuple[str, int]]) -> dict[str, int]:
    """One statement for all sessions that a receiver holds: (node id, epoch) in, node id to plan_rev out.

    A node that is not in the answer has another session by now, or its row is locked at the moment: ask again next time.
    """
    return store.touch(tx, sessions) if sessions else {}


def _steps(stored: store.Stored, status: Status, handlers: Collection[str]) -> list[object]:
    absent = {one.name: (one.error, "report") for one in status.missing}
    rows = stored.current.missing or {}
    steps: list[object] = [*plan_missing(rows, absent, last_good(stored.current), frozenset(("report",)))]  # type: ignore[arg-type]
    if "conditions" in handlers:
        steps += plan_conditions(stored.conditions, status.conditions, stored.advisory)
    if "xid" in handlers and not stored.advisory:  # a tenant's XIDs are nothing (SPEC B2, Trust)
        steps += plan_faults(stored.faults, status.faults)
    return steps


def _differs(stored: store.Stored, status: Status) -> bool:
    return replace(status, missing=(), conditions=(), faults=()) != stored.status
