"""XIDs and SXids that status reports carry as conditions `Xid79` and `SXid12028` (SPEC B4, "XIDs").

A report repeats every fault of the boot with its count. The stored count tells what is new, so a repeated report, a new session
or another receiver tells nothing twice.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from receiver.events import event
from receiver.planning.inventory import Publish
from receiver.values import Condition, Fault

Key = tuple[str, str]  # code and device
MOST = 1024  # faults of one boot; bcd reports 256 at most, and a hostile node is not to fill the table
_TYPE = re.compile(r"(S?)Xid(0|[1-9][0-9]{0,9})")


@dataclass(frozen=True, slots=True)
class Counted:
    """How often a fault was seen in the node's present boot, and the count that the last event of it told."""

    count: int
    told: int


@dataclass(frozen=True, slots=True)
class CountFault:
    """Store the count of a fault."""

    fault: Fault
    told: int
    reason: str


def as_fault(condition: Condition) -> Fault | None:
    """The fault that a condition is, or None: an XID names its GPU and an SXid its switch, and both are true.

    >>> as_fault(Condition("Xid79", "true", device_id="GPU-1", bus_id="00000000:18:00.0")).number
    79
    """
    match = _TYPE.fullmatch(condition.type)
    if match is None or condition.status != "true":
        return None
    count = max(condition.count, 1)  # it is reported, so there was one
    if match[1]:
        fault = Fault("sxid", int(match[2]), "", condition.bus_id, count, condition.message)
    else:
        fault = Fault("xid", int(match[2]), condition.device_id, condition.bus_id, count, condition.message)
    return fault if fault.device_id or (match[1] and fault.bus_id) else None


def plan_faults(stored: Mapping[Key, Counted], reported: Iterable[Fault]) -> Iterator[CountFault | Publish]:
    """Steps for a report's faults; `stored` are those of the same boot.

    Nothing for a count that is not above the stored one, and nothing for what is new when MOST have been stored.
    """
    for fault in reported:
        before = stored.get((fault.code, fault.device))
        if before is None and len(stored) >= MOST:
            continue
        before = before or Counted(0, 0)
        if fault.count <= before.count:
            continue
        tell = fault.count >= 2 * before.told  # the first one too
        reason = f"{before.count} were stored"
        yield CountFault(fault, fault.count if tell else before.told, reason)
        if tell:
            yield Publish(event("node.xid", _payload(fault)), reason)


def _payload(fault: Fault) -> dict[str, object]:
    device = {"deviceId": fault.device_id} if fault.device_id else {}
    return {
        "kind": fault.kind,
        "xid": fault.number,
        **device,
        "busId": fault.bus_id,
        "message": fault.message,
        "count": fault.count,
    }
