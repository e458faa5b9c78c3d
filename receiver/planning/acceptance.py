"""Acceptance (SPEC B7): what an `adopting` node needs to be taken into service. Pure; runs behind every writer of a node.

A node that has nothing to prove passes at once (`NoChecks`): one without a pool, a site agent, or one whose pool's
`policy.acceptance` is empty. Of a pool with checks, the node stays `adopting` until they have passed.
"""

from dataclasses import replace

from bettercompute.contract.sections import ADVISORY

from receiver.events import event
from receiver.planning.inventory_conditions import baseline
from receiver.planning.lifecycle import become
from receiver.planning.view import ConditionRow, Draft, Facts, set_conditions
from receiver.values import Json

TYPE, NO_CHECKS = "AcceptanceFailed", "NoChecks"


def settle(facts: Facts, before: Draft, draft: Draft) -> None:
    """Passes a node that is ready and has no checks to pass.

    The inventory of a passed attempt is the node's baseline, so it has to be at hand: behind a writer that has not loaded it the
    node is queued, to be planned again with it.
    """
    if draft.node.trust_epoch != before.node.trust_epoch or not ready(facts, draft) or checks(facts):
        return
    if facts.sections is None:
        draft.plan_again = True
        return
    passed(facts, draft, NO_CHECKS)


def ready(facts: Facts, draft: Draft) -> bool:
    """Whether an attempt may begin: `adopting`, connected, the platform's, nobody's duplicate, and an inventory of this boot is
    applied with its `gpus`. A failed attempt is sticky: only nodes.adopt begins another.
    """
    node = draft.node
    against = {row.type for row in draft.conditions.values() if row.status == "true"}
    if (running := draft.conditions.get((TYPE, ""))) is not None and running.status == "unknown":
        against.add(TYPE)
    return (
        node.status == "adopting"
        and node.trust == "platform"
        and facts.online
        and not facts.advisory
        and bool(facts.boot_id)
        and node.inventory_boot == facts.boot_id
        and _said_by_the_node(node.plan_key)
        and "gpus" in facts.fresh
        and not against & {TYPE, "DuplicateIdentity"}
    )


def _said_by_the_node(plan_key: Json) -> bool:
    """Whether the inventory came after the last lease: its digest is forgotten when one ends, and a tenant's is marked."""
    digest = (plan_key or {}).get("digest")
    return isinstance(digest, str) and not digest.startswith(ADVISORY)


def checks(facts: Facts) -> tuple[str, ...]:
    """The kinds of commands that the node has to pass, each once, in the policy's order; none for who has nothing to prove."""
    if facts.pool is None or facts.kind == "site-agent":
        return ()
    return tuple(dict.fromkeys(str(one["kind"]) for one in facts.pool.policy.acceptance))


def passed(facts: Facts, draft: Draft, reason: str) -> None:
    """The node is in service with the inventory that it has now as its baseline. Where that is another than before, the node is
    planned again: what was missed by the old one is not by this."""
    become(draft, "adopted", reason)
    draft.events.append(event("node.adopted", {"attempt": draft.node.attempt, "specGeneration": 1}))
    now = baseline(facts.sections or {})
    draft.plan_again |= draft.node.baseline not in (None, now)
    draft.node = replace(draft.node, baseline=now)
    set_conditions(draft, (TYPE,), [ConditionRow(TYPE, status="false", reason=reason)])
