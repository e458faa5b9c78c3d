"""Status reports (SPEC A3, B3, B4): load, plan, write. One that changes nothing writes and locks nothing."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from receiver import ids
from receiver.planning import conditions, faults
from receiver.planning.inventory import last_good
from receiver.planning.missing import ClearMissing, SetMissing, plan_missing
from receiver.planning.node import conclude
from receiver.planning.view import Draft, Facts
from receiver.store import status as store
from receiver.store import view
from receiver.store.database import Connection
from receiver.store.statement import Statement
from receiver.values import STATUS_HANDLERS, Event, Status

Steps = list[SetMissing | ClearMissing]


def record_status(
    tx: Connection,
    node_id: str,
    epoch: int,
    status: Status,
    handlers: Collection[str] = STATUS_HANDLERS,
    mint: ids.Mint = ids.mint,
    tell: Callable[[Sequence[Event]], None] = lambda events: None,
    changed: bool = False,
) -> bool:
    """Records a report of the session with this epoch. False: another session has the node, nothing was recorded.

    Sections that the report says are missing are kept with their error and the last snapshot that has them; those that it
    does not name any more are there again. Conditions are what the report says; XIDs are counted and judged. `handlers`: those
    of STATUS_HANDLERS that are in force; `tell` is given the events that were written. `changed`: it is not what this session
    reported before, so there is something to write, hardly ever nothing: the node is locked at once, not looked at twice.
    Raises LookupError for a node that does not exist.
    """
    for locked in (True,) if changed else (False, True):
        stored = store.load(tx, node_id, locked)
        if stored.facts.epoch != epoch:
            return False
        steps = _missing(stored, status)
        before, draft = _planned(tx, stored, status, handlers, steps, locked)
        statement = Statement(node_id)
        store.write(statement, stored, status, steps)
        view.write(statement, before, draft, mint, reported=True)
        if statement.empty:
            return True
    statement.run(tx)
    tell(draft.events)
    return True


def touch(tx: Connection, sessions: Sequence[tuple[str, int]]) -> dict[str, int]:
    """One statement for all sessions that a receiver holds: (node id, epoch) in, node id to plan_rev out.

    A node that is not in the answer has another session by now, or its row is locked at the moment: ask again next time.
    """
    return store.touch(tx, sessions) if sessions else {}


def _missing(stored: store.Stored, status: Status) -> Steps:
    absent = {one.name: (one.error, "report") for one in status.missing}
    rows = stored.current.missing or {}
    return [*plan_missing(rows, absent, last_good(stored.current), frozenset(("report",)))]  # type: ignore[arg-type]


def _planned(
    tx: Connection, stored: store.Stored, status: Status, handlers: Collection[str], steps: Steps, locked: bool
) -> tuple[Draft, Draft]:
    """The node's rows as they are and as they are to be.

    What other nodes have of a GPU that an XID is the first to name is looked up, once it is certain that there is something to
    write; of the others it is loaded with the rows.
    """
    facts, before = _facts(stored, steps), stored.rows
    known = before.devices.keys() | {one.device_id for one in before.faults.values()}
    strangers = {one.device_id for one in status.faults if one.device_id} - known
    if locked and strangers and "xid" in handlers and not facts.advisory:
        facts = view.with_others(tx, facts, before, strangers, None)
    draft = before.copy()
    if "conditions" in handlers:
        conditions.report(facts, draft, status.conditions)
    if "xid" in handlers:
        faults.count(facts, draft, status.faults)
    if _confirms(facts, stored, status):
        draft.node = replace(draft.node, inventory_boot=facts.boot_id)
    conclude(facts, before, draft)
    return before, draft


def _facts(stored: store.Stored, steps: Steps) -> Facts:
    """With the sections that the node has as of this report."""
    absent = {one.row.name for one in steps if isinstance(one, SetMissing)}
    there = {one.name for one in steps if isinstance(one, ClearMissing)} & (stored.current.baselines or {}).keys()
    return replace(stored.facts, fresh=(stored.facts.fresh | there) - absent)


def _confirms(facts: Facts, stored: store.Stored, status: Status) -> bool:
    """Whether the report says that the applied inventory, with its GPUs, is what the node collected in this boot."""
    return not facts.advisory and status.digest == stored.current.applied_digest and "gpus" in facts.fresh
