"""When a node is a person's (SPEC B8, "Escalation"): repairs that fail, do not last, or are too many. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from receiver.planning.lifecycle import become
from receiver.planning.remediation import RESET, advance
from receiver.planning.view import Draft, Facts, Run
from receiver.values import Payload

BY = "remediation"  # whose the node's maintenance is
LIMITS = ((3, timedelta(hours=24)), (5, timedelta(days=7)))  # so many runs on a node in so long; one more is a person's
NOT_TAKEN = ("refused: NotAllowed", "failed: UnsupportedCommand")  # as a run says that its node does not take the command
RELAPSE = timedelta(hours=1)  # a fault that is back so soon was not cleared


@dataclass(frozen=True, slots=True)
class Past:
    """A run of the node that began, and has ended. `causes`: as Run's."""

    id: str
    began: datetime
    ended: datetime
    causes: Sequence[Payload] = ()

    def was_for(self, run: Run) -> bool:
        """Whether it was for the same fault of the same device, in whichever boot."""
        return bool(_faults(self.causes) & _faults(run.causes))


def too_many(run: Run, past: Iterable[Past], queued: datetime, now: datetime) -> str | None:
    """Why this run is a person's instead of being begun, in words; None: it may begin. `queued`: when the run was."""
    newest_first = sorted(past, key=lambda one: one.began, reverse=True)
    for most, window in LIMITS:
        if sum(now - one.began < window for one in newest_first) >= most:
            return f"more than {most} runs on the node in {window / timedelta(hours=1):g} h"
    back_at = queued
    for one in newest_first[:2]:
        if not one.was_for(run) or back_at - one.ended > RELAPSE:
            return None
        back_at = one.began
    if len(newest_first) < 2:
        return None
    return f"two runs in a row did not clear {', '.join(sorted(code for code, _ in _faults(run.causes)))}"


def escalate(facts: Facts, draft: Draft, run: Run) -> None:
    """A run that has ended is a person's: so is the node from now on, but for a reset where the pool's policy says `device`: the
    GPU's faults stay open, and it is not tried again. (Its event is told where the evidence is at hand: apply/repairs.py.)

    The same for a reset that the node does not take by its own settings: nothing was tried, so nothing speaks against the others.
    """
    draft.put("runs", replace(run, escalated=True))
    to_device = facts.pool is not None and facts.pool.policy.escalate_to == "device"
    if run.kind == RESET and (to_device or run.reason in NOT_TAKEN):
        return
    why = f"{run.kind} {run.id} {run.state}: {run.reason}"
    for other in list(draft.runs.values()):
        if other.id != run.id and not other.begun:
            advance(draft, other, "cancelled", "the node is in maintenance")
    if draft.node.status in ("adopting", "adopted"):
        become(draft, "maintenance", why)
        draft.node = replace(draft.node, maintenance_by=BY, maintenance_reason=why)


def _faults(causes: Iterable[Payload]) -> frozenset[tuple[str, str]]:
    return frozenset((one["code"], one["deviceId"]) for one in causes)
