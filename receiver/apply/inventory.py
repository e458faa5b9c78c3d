"""Applying an inventory (SPEC A3, B2): check, load, plan, write, in the caller's transaction.

`apply_inventory` is all of it. Its parts are for those who measure or plan ahead: check what came (`check_bodies`), lock and
load (`store.inventory.load`), plan (`plan_loaded`, `plan_rows`), `write`.
"""

from collections.abc import Mapping
from dataclasses import replace

from google.protobuf.message import Message

from receiver import ids
from receiver.apply.act import plan_inventory_rows
from receiver.planning.diff import COMPARED, failed
from receiver.planning.inventory import InventoryPlan, Publish, plan_inventory
from receiver.planning.node import conclude, plan_key
from receiver.planning.offer import Refusal, check_bodies, check_offer
from receiver.planning.view import Draft
from receiver.store import inventory as store
from receiver.store import view
from receiver.store.database import Connection
from receiver.store.statement import Statement
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
    if epoch not in (None, loaded.facts.epoch):
        raise Superseded(f"node {node_id} has session {loaded.facts.epoch}, the offer came by {epoch}")
    lacking = sorted(loaded.unknown - bodies.keys())
    if lacking:
        return InventoryOutcome("retry", offer.digest, section=lacking[0], reason=f"no bytes of {', '.join(lacking)}")
    plan = plan_loaded(loaded, offer, checked, mint("inv"))
    draft = plan_rows(tx, loaded, offer, checked, plan)
    if not write(tx, loaded, offer, bodies, plan, draft, mint):
        return InventoryOutcome("retry", offer.digest, reason="sections that were known have been pruned")
    return InventoryOutcome(plan.status, offer.digest, plan.snapshot_id)


def write(
    tx: Connection,
    loaded: store.Loaded,
    offer: Offer,
    bodies: Mapping[str, bytes],
    plan: InventoryPlan,
    draft: Draft,
    mint: ids.Mint = ids.mint,
) -> bool:
    """Writes a plan, the bytes that came and the rows that differ, in one statement.

    False: bytes that the plan relies on are gone, and nothing was written.
    """
    statement = Statement(loaded.node_id)
    store.write(statement, loaded, offer, bodies, plan)
    view.write(statement, loaded.rows, draft, mint, reported=True)
    return statement.run(tx)


def plan_loaded(loaded: store.Loaded, offer: Offer, sent: Mapping[str, Message], snapshot_id: str) -> InventoryPlan:
    """The plan for a loaded node. `sent`: the decoded sections that came with the offer."""
    hashes, offered = {name: one.hash for name, one in (loaded.current.baselines or {}).items()}, offer.hashes
    before = {name: one for name, one in loaded.before.items() if name in COMPARED and hashes[name] != offered.get(name)}
    after = {name: one for name, one in {**loaded.after, **sent}.items() if name in COMPARED}
    return plan_inventory(loaded.current, offer, before, after, snapshot_id)


def plan_rows(tx: Connection, loaded: store.Loaded, offer: Offer, sent: Mapping[str, Message], plan: InventoryPlan) -> Draft:
    """The node's rows after this offer, with what the plan tells."""
    draft = loaded.rows.copy()
    draft.events += [step.event for step in plan.steps if isinstance(step, Publish)]
    if loaded.facts.advisory:
        return draft
    good = {name: one for name, one in {**loaded.after, **sent}.items() if not failed(one)}
    fresh = frozenset(good.keys() & offer.hashes.keys())
    facts = replace(loaded.facts, sections={**loaded.before, **good}, fresh=fresh)
    if "gpus" in fresh and offer.boot_id:  # without them it shows nothing of this boot's MIG instances
        draft.node = replace(draft.node, inventory_boot=offer.boot_id)
    if plan.status == "applied" or draft.node.plan_key != plan_key(facts, offer.digest):
        plan_inventory_rows(tx, facts, draft, offer.digest)
    conclude(facts, loaded.rows, draft)
    return draft
