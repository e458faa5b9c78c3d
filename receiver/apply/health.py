"""Device health from outside an inventory (SPEC B4): an XID that is recorded, and faults that an operator closes."""

from collections.abc import Sequence
from dataclasses import dataclass

from receiver import ids
from receiver.apply.act import act
from receiver.errors import Invalid, NotFound
from receiver.planning import faults, health
from receiver.planning.health import Cleared
from receiver.planning.view import Draft, Facts
from receiver.store import view
from receiver.store.database import Connection
from receiver.values import Fault

_BY_DEVICE = """
SELECT node_id FROM devices WHERE id = %(device)s
UNION ALL (SELECT node_id FROM device_health WHERE device_id = %(device)s AND closed_at IS NULL ORDER BY since DESC LIMIT 1)
LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class ClearOutcome:
    """`closed`: codes that were open and are not, sorted; `stands`: findings that stay open; `healthy`: nothing is open."""

    device_id: str
    node_id: str
    closed: tuple[str, ...]
    stands: tuple[str, ...]
    healthy: bool


def record_xid(tx: Connection, node_id: str, fault: Fault, mint: ids.Mint = ids.mint) -> None:
    """An XID or SXid that the node's present boot has seen so often by now. (Status reports do the same for all of theirs.)

    Raises LookupError for a node that does not exist.
    """

    def amend(facts: Facts, draft: Draft) -> None:
        if fault.device_id and fault.device_id not in draft.devices:
            facts = view.with_others(tx, facts, draft, [fault.device_id], None)
        faults.count(facts, draft, [fault])

    act(tx, node_id, amend, mint=mint)


def clear_device_health(
    tx: Connection,
    device_id: str,
    reason: str | None = None,
    force: bool = False,
    *,
    code: str | None = None,
    node_id: str | None = None,
    by: str = "",
    mint: ids.Mint = ids.mint,
) -> ClearOutcome:
    """Closes a device's faults (planning/health.py, `clear`), all or that of one code. A switch's bus id needs its node's id.

    Raises NotFound for a device that is not known, or not on that node; Refused that names the finding; Invalid without a node.
    """
    node = node_of(tx, device_id, node_id)
    words = f"cleared{f' by {by}' if by else ''}{f': {reason}' if reason else ''}"
    outcome: list[Cleared] = []

    def amend(facts: Facts, draft: Draft) -> None:
        if not _known(draft, device_id):
            raise NotFound(f"no device {device_id} on node {node}")
        outcome.append(health.clear(facts, draft, device_id, words, force, code))

    draft = act(tx, node, amend, mint=mint)
    (cleared,) = outcome
    return ClearOutcome(device_id, node, cleared.closed, cleared.stands, _healthy(draft, device_id))


def node_of(tx: Connection, device_id: str, node_id: str | None = None) -> str:
    """The node that has a device, or last reported its faults. Raises NotFound; Invalid for a bus id without its node's id."""
    if ":" in device_id:
        if node_id is None:
            raise Invalid(f"nodeId is needed with deviceId {device_id!r}: a bus id is known on its node only")
        return node_id
    row = tx.execute(_BY_DEVICE, {"device": device_id}).fetchone()
    if row is None or node_id not in (None, row[0]):
        raise NotFound(f"no device {device_id}" + (f" on node {node_id}" if node_id else ""))
    return str(row[0])


def restart_counts(tx: Connection, node_id: str, device_ids: Sequence[str], mint: ids.Mint = ids.mint) -> None:
    """The node has dropped its faults of these GPUs (a verified reset): what it reports of them next begins at one again."""
    act(tx, node_id, lambda facts, draft: faults.restart(draft, device_ids), mint=mint)


def _known(draft: Draft, device_id: str) -> bool:
    named = {row.device_id for rows in (draft.health, draft.faults, draft.conditions) for row in rows.values()}
    return device_id in draft.devices or device_id in named


def _healthy(draft: Draft, device_id: str) -> bool:
    if device_id in draft.devices:
        return draft.devices[device_id].healthy
    is_open = any(row.device_id == device_id and row.open for row in draft.health.values())
    return not is_open and not any(row.device_id == device_id and row.status == "true" for row in draft.conditions.values())
