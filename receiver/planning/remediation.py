"""Remediation (SPEC B8): what repairs are queued for a node's faults, joined, swallowed, ordered and cancelled. Pure.

`queue` runs behind every writer of a node, so a repair is queued in the transaction that opens its fault. What becomes of a run
then is planning/repairing.py's.
"""

from dataclasses import fields, replace

from receiver.events import event
from receiver.ids import Mint
from receiver.planning.view import Draft, Order, Run, RunState, Step


def place(draft: Draft, mint: Mint) -> None:
    """Makes runs of the draft's orders, with ids, and tells of them."""
    for order in draft.orders:
        run = Run(mint("run"), pool_id=draft.node.pool_id, **{one.name: getattr(order, one.name) for one in fields(Order)})
        advance(draft, run, "queued", order.reason)


# The states that events tell of.
_TOLD = {"queued": "queued", "running": "started", "succeeded": "succeeded", "failed": "failed"}


def advance(draft: Draft, run: Run, state: RunState, reason: str = "") -> Run:
    """The run is in this state, for this reason: a line in its history, and an event unless it only observes."""
    now = replace(run, state=state, reason=reason)
    draft.put("runs", now)
    draft.steps.append(Step(now.id, state, reason))
    if state in _TOLD and not now.observed:
        told = {"runId": now.id, "kind": now.kind, **({"reason": reason} if reason else {})}
        draft.events.append(event(f"node.remediation.{_TOLD[state]}", told))
    return now
