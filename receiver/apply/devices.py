"""Whose a GPU is, when an operator says so (SPEC B2, "Ownership"): the node that owns its row cannot let go by itself."""

from receiver import ids
from receiver.apply.act import act
from receiver.errors import Invalid, NotFound, Refused
from receiver.planning import devices
from receiver.planning.view import Draft, Facts, History
from receiver.store.database import Connection

_LOCK = "SELECT id FROM nodes WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"
_OWNER = "SELECT node_id FROM devices WHERE id = %s"


def transfer_device(
    tx: Connection, device_id: str, to_node: str, by: str = "", reason: str = "", mint: ids.Mint = ids.mint
) -> str:
    """Gives a GPU to a node that reports it too, and answers whose it was. Its faults and history go with it.

    The node that had it is planned again: while it goes on reporting the GPU, it is the one with DuplicateIdentity. Raises
    NotFound for no device or node, Invalid for the node that has it already, Refused while a booking on it is live and when the
    other node could not keep it.
    """
    from_node = _owner(tx, device_id)
    if from_node == to_node:
        raise Invalid(f"device {device_id} is node {to_node}'s already")
    if tx.execute(_LOCK, [[from_node, to_node]]).rowcount < 2:  # both at once, in the order that all take
        raise NotFound(f"no node {to_node}")
    if _owner(tx, device_id) != from_node:
        raise Refused(f"device {device_id} has just changed hands: look again")
    told = {"from": from_node, "to": to_node, "by": by, "reason": reason}

    def let_go(facts: Facts, draft: Draft) -> None:
        held = [one.booking_id for one in facts.bookings if one.device_id == device_id]
        if held:
            raise Refused(f"device {device_id} is booked on node {from_node}: {', '.join(held[:3])}")
        draft.history.append(History(device_id, draft.devices[device_id].serial, "transferred", told))
        devices.release(draft, device_id, f"it is transferred to node {to_node}")

    act(tx, from_node, let_go, mint=mint)
    taken = act(tx, to_node, lambda facts, draft: _check(facts, draft, device_id), inventory_too=True, mint=mint)
    if device_id not in taken.devices:
        raise Refused(f"node {to_node} does not report device {device_id}: nothing is transferred")
    act(tx, from_node, lambda facts, draft: None, inventory_too=True, mint=mint)
    return from_node


def _owner(tx: Connection, device_id: str) -> str:
    row = tx.execute(_OWNER, [device_id]).fetchone()
    if row is None:
        raise NotFound(f"no device {device_id}")
    return str(row[0])


def _check(facts: Facts, draft: Draft, device_id: str) -> None:
    """What a node that takes a device must be."""
    if draft.node.trust != "platform":
        raise Refused(f"node {facts.node_id} is {draft.node.trust}: what it reports changes nothing, device {device_id} neither")
    if draft.node.status in devices.OUT:
        raise Refused(f"node {facts.node_id} is {draft.node.status}: it has no devices")
