"""What operators order of a node (SPEC B0, B9): its status, its pool, its labels. The rules: receiver/planning/lifecycle.py.

Each raises LookupError for a node that does not exist, Refused where the node's state does not allow it, and answers the node's
rows as they are then. `by`: who orders it; `reason`: why.
"""

from collections.abc import Collection, Mapping
from datetime import datetime

from receiver import ids
from receiver.apply.act import act
from receiver.apply.command import cancel_all, hold_back
from receiver.apply.repairs import settle
from receiver.apply.session import disbelieve
from receiver.errors import Invalid, NotFound
from receiver.planning import labels as inventory_labels
from receiver.planning import lifecycle, operator_labels
from receiver.planning.view import Draft
from receiver.store.database import Connection


def adopt(tx: Connection, node_id: str, by: str = "", reason: str = "", mint: ids.Mint = ids.mint) -> Draft:
    """Has the node prove itself again; one that has nothing to prove is in service at once."""
    return act(tx, node_id, lifecycle.adopt(reason), inventory_too=True, mint=mint)


def maintenance(
    tx: Connection, node_id: str, until: datetime | None = None, by: str = "", reason: str = "", mint: ids.Mint = ids.mint
) -> Draft:
    """A person has the node: what waits to repair it is over. `until`: when they mean to be done. Raises Invalid for a time that
    is past, or has no zone."""
    if until is not None:
        _check_future(tx, until)
    draft = act(tx, node_id, lifecycle.maintenance(by, until.isoformat() if until else None, reason), mint=mint)
    if not draft.runs:
        return draft
    hold_back(tx, "the node is in maintenance", node_id=node_id)
    return settle(tx, node_id, mint)


def retire(tx: Connection, node_id: str, by: str = "", reason: str = "", mint: ids.Mint = ids.mint) -> Draft:
    """Takes the node out for good, unless a booking on it is live; its certificate is revoked, its session ends."""
    draft = act(tx, node_id, lifecycle.retire(reason), inventory_too=True, mint=mint)
    disbelieve(tx, node_id, revoke="retired")
    cancel_all(tx, node_id, "NodeRetired")
    return settle(tx, node_id, mint) if draft.runs else draft


def delete(tx: Connection, node_id: str, by: str = "", reason: str = "", mint: ids.Mint = ids.mint) -> Draft:
    """Leaves a tombstone of a retired node; no certificate of it is good."""
    draft = act(tx, node_id, lifecycle.delete(reason), mint=mint)
    disbelieve(tx, node_id, revoke="deleted")
    return draft


def move(tx: Connection, node_id: str, pool_id: str | None, by: str = "", reason: str = "", mint: ids.Mint = ids.mint) -> Draft:
    """Into another pool, or out of any; the node is planned by what it is in then. Raises NotFound for no pool."""
    tenant = None
    if pool_id is not None:
        row = tx.execute("SELECT tenant_id FROM pools WHERE id = %s", [pool_id]).fetchone()
        if row is None:
            raise NotFound(f"no pool {pool_id}")
        tenant = row[0]
    return act(tx, node_id, lifecycle.move(pool_id, tenant), inventory_too=True, mint=mint)


def label(
    tx: Connection,
    node_id: str,
    labels: Mapping[str, str],
    remove: Collection[str] = (),
    by: str = "",
    reason: str = "",
    mint: ids.Mint = ids.mint,
) -> Draft:
    """Writes and removes labels of source `operator`. Raises Invalid for what is none, Refused for a key that is another's."""
    reserved = [key for rows in inventory_labels.LABELS.values() for key in rows]
    return act(tx, node_id, operator_labels.write(labels, remove, reserved), mint=mint)


def _check_future(tx: Connection, until: datetime) -> None:
    if until.tzinfo is None:
        raise Invalid(f"until {until.isoformat()} has no time zone")
    row = tx.execute("SELECT %s > bc_clock()", [until]).fetchone()
    if row is None or not row[0]:
        raise Invalid(f"until {until.isoformat()} is past")
