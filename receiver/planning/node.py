"""What all writers of a node have in common: which rules run, and in which order (how they work: planning/view.py).

`INVENTORY` rules say what the node's sections make of it; they run when an inventory is applied and when a node is planned again.
`CONCLUDE` rules draw from all rows what is so for placement; they run behind every writer. While the node's word is a tenant's
(`facts.advisory`), neither runs (SPEC B2, Trust); what its conditions tell is told all the same.
"""

from collections.abc import Callable, Mapping

from bettercompute.contract import xids
from bettercompute.contract.gpu_models import in_force

from receiver.planning import (
    acceptance,
    atoms,
    breaker,
    devices,
    faults,
    findings,
    hardware,
    health,
    inventory_conditions,
    labels,
    modes,
    reasons,
    remediation,
)
from receiver.planning.view import Draft, Facts
from receiver.values import Json

Rule = Callable[[Facts, Draft], None]
Conclusion = Callable[[Facts, Draft, Draft], None]  # facts, the rows as stored, the draft

INVENTORY: tuple[Rule, ...] = (devices.plan, atoms.plan, inventory_conditions.plan, findings.plan, labels.plan, hardware.plan)
CONCLUDE: tuple[Conclusion, ...] = (
    atoms.settle,
    faults.judge,
    health.settle,
    acceptance.settle,
    breaker.settle,
    remediation.queue,
)


def tables() -> Mapping[str, int]:
    """The versions of the tables that plans are made by; a newer one plans all nodes again."""
    return {"models": in_force().version, "xids": xids.table().version}


def plan_key(facts: Facts, digest: str | None) -> Json:
    """What the rows of the inventory were planned from: while it is the same, they are not planned again (SPEC B2).

    (Devices and keys that other nodes let go are not in it: a node that waits for one is put in the queue.)
    """
    gpus = devices.gpus_section(facts)
    assigned = {gpu.uuid for gpu in gpus.gpus if gpu.assigned} & devices.reported(gpus) if gpus is not None else ()
    return {
        "digest": digest,
        **tables(),
        "pool": facts.pool and [facts.pool.id, facts.pool.revision],
        "assigned": sorted(assigned),
    }


def plan_sections(facts: Facts, draft: Draft) -> None:
    """What follows from the inventory."""
    for rule in INVENTORY:
        rule(facts, draft)


def conclude(facts: Facts, before: Draft, draft: Draft) -> None:
    """What follows from all rows together."""
    for rule in () if facts.advisory else CONCLUDE:
        rule(facts, before, draft)
    reasons.settle(facts, before, draft)
    modes.hush(facts, before, draft)
