"""Applying an inventory (SPEC A3, B2): check, load, plan, write, in the caller's transaction.

`apply_inventory` is all of it. Its parts are for those who measure or plan ahead: check what came (`check_bodies`), lock and
load (`store.inventory.load`), plan (`plan_loaded`), write (`store.inventory.write`).
"""

from collections.abc import Mapping

from google.protobuf.message import Message

from receiver import ids
from receiver.planning.diff import COMPARED
from receiver.planning.inventory import InventoryPlan, plan_inventory
from receiver.planning.offer import Refusal, check_bodies, check_offer
from receiver.store import inventory as store
from receiver.store.database import Connection
from receiver.values import InventoryOutcome, Offer


def wanted(tx: Connection, node_id: str, offer: Offer) -> list[str]:
    """The sections whose bytes must travel, sorted: those that this node's tenant has not sent before.

    None are wanted for an offer that will be refused as it is: a section over the limit is not fetched to be thrown away.
    """
    return [] if check_offer(offer) else store.wanted(tx, node_id, offer)


class Superseded(Exception):
    """Another session has the node by now: what this one still brings is older than what that one says."""


def apply_inventory(
    tx: Connection,
    node_id: str,
    offer: Offer,
    bodies: Mapping[str, bytes],
    epoch: int | None = None,
    mint: ids.Mint = ids.mint,
) -> InventoryOutcome:
    """Applies an offer with the bytes that came for it. Locks the node's row until the caller ends the transaction.

    `epoch`: of the session that the offer came by; Superseded is raised, and nothing applied, when it is not the node's.

    "refused": the offer or a section is not what it says, nothing is applied. "retry": bytes it needs are not here (never
    sent, or pruned since they were asked for): ask for `wanted` again. Raises LookupError for a node that does not exist.
    """
    checked = check_offer(offer) or check_bodies(offer, bodies)
    if isinstance(checked, Refusal):
        return InventoryOutcome("refused", offer.digest, section=checked.section, reason=checked.reason)
    loaded = store.load(tx, node_id, offer, bodies.keys())
    if epoch not in (None, loaded.epoch):
        raise Superseded(f"node {node_id} has session {loaded.epoch}, the offer came by {epoch}")
    lacking = sorted(loaded.unknown - bodies.keys())
    if lacking:
        return InventoryOutcome("retry", offer.digest, section=lacking[0], reason=f"no bytes of {', '.join(lacking)}")
    plan = plan_loaded(loaded, offer, checked, mint("inv"))
    if not store.write(tx, loaded, offer, bodies, plan, mint):
        return InventoryOutcome("retry", offer.digest, reason="sections that were known have been pruned")
    return InventoryOutcome(plan.status, offer.digest, plan.snapshot_id)


def plan_loaded(loaded: store.Loaded, offer: Offer, sent: Mapping[str, Message], snapshot_id: str) -> InventoryPlan:
    """The plan for a loaded node. `sent`: the decoded sections that came with the offer."""
    after = {**loaded.after, **{name: section for name, section in sent.items() if name in COMPARED}}
    return plan_inventory(loaded.current, offer, loaded.before, after, snapshot_id)
