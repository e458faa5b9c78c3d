"""The statuses of a node and what leads from one to another (SPEC B0): what an operator orders, as rules over its rows. Pure.

Each function gives a rule for receiver/apply/act.py. A rule raises Refused where the node's state does not allow it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from receiver.errors import Invalid, Refused
from receiver.events import event
from receiver.planning import devices, hardware
from receiver.planning.view import Draft, Facts

Rule = Callable[[Facts, Draft], None]


@dataclass(frozen=True, slots=True)
class Act:
    """An order: the statuses in which it is taken, the one that it leads to, and whether a live booking forbids it."""

    takes: tuple[str, ...]
    to: str
    refused_while_booked: bool = False


IN_SERVICE = ("adopting", "adopted", "maintenance")
ACTS: Mapping[str, Act] = {
    "adopt": Act(IN_SERVICE, "adopting"),
    "maintenance": Act(IN_SERVICE, "maintenance"),  # a second one says another reason, or another end
    "retire": Act(IN_SERVICE, "retired", refused_while_booked=True),
    "delete": Act(("retired",), "deleted", refused_while_booked=True),
}
# What to do instead, of a node that is in one of these.
_INSTEAD = {
    "retired": "a join with a token bound to it brings it back",
    "deleted": "only its tombstone is left",
}


def adopt(reason: str) -> Rule:
    """A new attempt: the node is `adopting` until it has passed. What an earlier one failed by is over."""

    def rule(facts: Facts, draft: Draft) -> None:
        _check("adopt", facts, draft)
        _prove_again(draft, reason)

    return rule


def rejoin(by: str) -> Rule:
    """It came back with the join token that is named: a retired one has to prove itself again; what was said with its old key is
    not believed any more."""

    def rule(facts: Facts, draft: Draft) -> None:
        if draft.node.status == "deleted":
            raise Refused(f"a node that is deleted cannot be brought back by a token: {_INSTEAD['deleted']}")
        if draft.node.status == "retired":
            _prove_again(draft, f"joined with {by}")
        disbelieve(draft)

    return rule


def maintenance(by: str, until: str | None, reason: str) -> Rule:
    """A person has it. `until`: RFC 3339, when they mean to be done; nothing ends by itself."""

    def rule(facts: Facts, draft: Draft) -> None:
        _check("maintenance", facts, draft)
        become(draft, "maintenance", reason)
        draft.node = replace(draft.node, maintenance_by=by, maintenance_reason=reason, maintenance_until=until)

    return rule


def retire(reason: str) -> Rule:
    """Out for good: its devices and its hardware key are let go, and what its session says is not believed any more."""

    def rule(facts: Facts, draft: Draft) -> None:
        _check("retire", facts, draft)
        become(draft, "retired", reason)
        devices.release_all(draft, f"the node is retired: {reason}" if reason else "the node is retired")
        hardware.release(draft)
        disbelieve(draft)

    return rule


def delete(reason: str) -> Rule:
    """Leaves a tombstone: nothing is said of the node any more, and it is in no pool."""

    def rule(facts: Facts, draft: Draft) -> None:
        _check("delete", facts, draft)
        become(draft, "deleted", reason)
        draft.labels.clear()
        draft.conditions.clear()
        draft.node = replace(
            draft.node, pool_id=None, baseline=None, inventory_boot=None, no_schedule_reasons=(), would_no_schedule=()
        )

    return rule


def move(pool_id: str | None, tenant_id: str | None) -> Rule:
    """Into another pool, which is `tenant_id`'s, or out of any (None)."""

    def rule(facts: Facts, draft: Draft) -> None:
        refuse_out(draft, "moved")
        if pool_id is not None and tenant_id != facts.tenant_id:
            raise Invalid(f"pool {pool_id} is not of the node's tenant {facts.tenant_id}")
        draft.node = replace(draft.node, pool_id=pool_id)

    return rule


def become(draft: Draft, status: str, reason: str) -> None:
    """The node has this status, and an event tells of it where it is another. Whoever had the node has it no more."""
    before = draft.node.status
    draft.node = replace(draft.node, status=status, maintenance_by=None, maintenance_reason=None, maintenance_until=None)
    if status != before:
        draft.events.append(event("node.status", {"from": before, "to": status, **({"reason": reason} if reason else {})}))


def disbelieve(draft: Draft) -> None:
    """What the node has said so far is not believed any more: another session has to say it, and is planned whatever it says."""
    draft.node = replace(draft.node, trust_epoch=draft.node.trust_epoch + 1, plan_key=None)


def refuse_out(draft: Draft, done: str) -> None:
    """Raises Refused for a node that is out for good."""
    if (instead := _INSTEAD.get(draft.node.status)) is not None:
        raise Refused(f"a node that is {draft.node.status} cannot be {done}: {instead}")


def refuse_booked(facts: Facts, done: str) -> None:
    """Raises Refused while a booking on the node is live."""
    if facts.bookings:
        held = ", ".join(f"{one.booking_id} on {one.atom_id}" for one in facts.bookings[:3])
        more = f" and {len(facts.bookings) - 3} more" if len(facts.bookings) > 3 else ""
        raise Refused(f"node {facts.node_id} cannot be {done} while a booking is live: {held}{more}")


_DONE = {"adopt": "adopted", "maintenance": "taken into maintenance", "retire": "retired", "delete": "deleted"}


def _prove_again(draft: Draft, reason: str) -> None:
    become(draft, "adopting", reason)
    draft.node = replace(draft.node, attempt=draft.node.attempt + 1)
    if (row := draft.conditions.get(("AcceptanceFailed", ""))) is not None:
        draft.put("conditions", replace(row, status="false", reason="", message="", no_schedule=False))


def _check(name: str, facts: Facts, draft: Draft) -> None:
    act = ACTS[name]
    if draft.node.status not in act.takes:
        instead = _INSTEAD.get(draft.node.status) or f"first it has to be {' or '.join(act.takes)}"
        raise Refused(f"a node that is {draft.node.status} cannot be {_DONE[name]}: {instead}")
    if act.refused_while_booked:
        refuse_booked(facts, _DONE[name])
