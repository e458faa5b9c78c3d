"""Where no repair is queued or begun, whatever is broken (SPEC B8): a tenant's machine, maintenance, a paused pool. Pure."""

from dataclasses import replace

from receiver.planning.devices import OUT
from receiver.planning.view import Draft, Facts


def in_maintenance(facts: Facts, draft: Draft) -> bool:
    """Whether a person has the node, or its whole pool: no breaker count, no repair, no alert."""
    return draft.node.status == "maintenance" or (facts.pool is not None and facts.pool.maintenance)


def hush(facts: Facts, before: Draft, draft: Draft) -> None:
    """Marks what is told while maintenance lasts (`maintenance: true`): it is kept as ever, and nobody is to be called for it."""
    if in_maintenance(facts, before) and in_maintenance(facts, draft):
        draft.events = [replace(one, payload={**one.payload, "maintenance": True}) for one in draft.events]


def not_ours(facts: Facts, draft: Draft) -> str | None:
    """Why nobody here may do anything to the node, in words; None: somebody may."""
    if draft.node.status in OUT:
        return f"the node is {draft.node.status}"
    return "the node is tenant-controlled" if facts.advisory or draft.node.trust != "platform" else None


def barred(facts: Facts, draft: Draft) -> str | None:
    """Why no repair of this node is queued or begun now, in words; None: it may be.

    (In a pool that only observes it is recorded, see `observing`.)
    """
    if (why := not_ours(facts, draft)) is not None:
        return why
    if draft.node.status == "maintenance":
        return "the node is in maintenance"
    if facts.pool is not None and facts.pool.maintenance:
        return "the pool is in maintenance"
    if facts.pool is not None and facts.pool.paused:
        return "repairs of the pool are paused: too many of its nodes turned unhealthy"
    return None


def observing(facts: Facts) -> bool:
    """Whether what would be done is only recorded: the node's pool observes, or this receiver is on a dry run."""
    return facts.dry_run or (facts.pool is not None and facts.pool.mode == "observe")
