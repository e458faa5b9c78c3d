"""What is concluded of telemetry: samples and clocks are judged in memory, what is concluded is written when it changes.

Who concludes: planning/pressure.py, planning/clock.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from receiver.planning.view import ConditionRow, Draft, Facts
from receiver.values import ConditionStatus


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A condition of the node as a whole, as telemetry has it."""

    type: str
    status: ConditionStatus
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """A stored condition with which a session begins. `boot_id`: the boot in which it was concluded."""

    status: ConditionStatus = "false"
    boot_id: str = ""


def settle(facts: Facts, draft: Draft, concluded: Iterable[Conclusion]) -> None:
    """Sets the conditions whose status is another; of a tenant's machine none (SPEC B2, Trust).

    Reason and message are those of the moment at which the status changed: what moves with each sample is never written.
    """
    if facts.advisory:
        return
    for one in concluded:
        row = draft.conditions.get((one.type, ""))
        if one.status != (row.status if row else "false"):
            boot = {"bootId": facts.boot_id} if one.status != "false" else {}
            draft.put(
                "conditions", ConditionRow(one.type, status=one.status, reason=one.reason, message=one.message, evidence=boot)
            )
