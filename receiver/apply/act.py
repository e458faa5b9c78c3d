"""The one way in which anything but a node's own report changes a node: lock, load, amend, conclude, write.

An operator's call, a clear, a move, a change of trust, a re-plan are each a rule given to `act`.
"""

from dataclasses import replace

from receiver import ids
from receiver.planning.devices import OUT, gpus_section, mig_instances, reported
from receiver.planning.hardware import key_of
from receiver.planning.node import Rule, conclude, plan_key, plan_sections
from receiver.planning.view import Draft, Facts
from receiver.store import inventory, view
from receiver.store.database import Connection
from receiver.store.statement import Statement


def act(tx: Connection, node_id: str, amend: Rule, inventory_too: bool = False, mint: ids.Mint = ids.mint) -> Draft:
    """Locks the node, lets `amend` change its rows, concludes and writes what differs. Answers the rows as they are now.

    `inventory_too`: the rules of the inventory run too, over the sections as they were applied. They and the conclusions see the
    pool and trust that `amend` gave the node. The node's `plan_rev` is raised when anything is written: its next report is judged
    anew. Raises LookupError for a node (or its new pool) that does not exist, and whatever `amend` raises.
    """
    digest: str | None = None
    if inventory_too:
        facts, before, digest = inventory.load_applied(tx, node_id)
    else:
        facts, before = view.lock(tx, node_id)
    draft = before.copy()
    amend(facts, draft)
    facts = _amended(tx, facts, before, draft)
    if facts.sections is not None and not facts.advisory:
        plan_inventory_rows(tx, facts, draft, digest)
    conclude(facts, before, draft)
    statement = Statement(node_id)
    view.write(statement, before, draft, mint)
    if not statement.empty:
        statement.set("plan_rev", expression="nodes.plan_rev + 1")
    statement.run(tx)
    return draft


def _amended(tx: Connection, facts: Facts, before: Draft, draft: Draft) -> Facts:
    """The facts for a plan that no report makes: a tenant's word is none of it once the lease has ended."""
    pool = facts.pool if draft.node.pool_id == before.node.pool_id else view.load_pool(tx, draft.node.pool_id)
    return replace(facts, pool=pool, advisory=draft.node.trust == "tenant-controlled")


def plan_inventory_rows(tx: Connection, facts: Facts, draft: Draft, digest: str | None) -> None:
    """Runs the rules of the inventory on a draft, with what other nodes have of the devices and the key that it names."""
    section = gpus_section(facts) if draft.node.status not in OUT else None
    strangers = reported(section) - draft.devices.keys()
    instances = mig_instances(section) - draft.generations.keys()
    key = key_of(facts.sections or {}, facts.fresh, draft.hardware)
    held = draft.hardware is not None and draft.hardware.trusted and draft.hardware.key == key
    if strangers or instances or (key is not None and not held):
        facts = view.with_others(tx, facts, draft, strangers, None if held else key, instances)
    plan_sections(facts, draft)
    draft.node = replace(draft.node, plan_key=plan_key(facts, digest))
