"""XIDs and SXids that status reports carry as conditions `Xid79` and `SXid12028` (SPEC B4, "XIDs").

A report repeats every fault of the boot with its count. The stored count tells what is new, so a repeated report, a new session
or another receiver tells nothing twice. `count` takes a report in; `judge` draws from what is counted which faults are open, so
that an edit of the pool's policy is judged by the same rule as a report.

An XID is open while its policy is `node` or `device` and its count is above that of the last clear. A report that does not list
it any more closes nothing: that is a clear's (planning/health.py). An SXid is of a switch, which is no device of the node: its
condition is all there is of it, and keeps the count of its last clear too.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from receiver.events import event
from receiver.planning.condition_types import XID_TYPE
from receiver.planning.devices import OUT
from receiver.planning.policy import Policy
from receiver.planning.reasons import cut
from receiver.planning.verdicts import ACTIONS, Verdict, is_switch, verdict
from receiver.planning.view import ConditionKey, ConditionRow, Counted, Draft, Facts, Health, set_conditions
from receiver.values import Condition, Fault

MOST = 1024  # faults of one boot; bcd reports 256 at most, and a hostile node is not to fill the table
NO_POLICY = "it has no policy any more"  # why a fault is closed after an edit of the pool
_REASONS = {"node": "NodeFault", "device": "DeviceFault"}  # of the conditions


def as_fault(condition: Condition) -> Fault | None:
    """The fault that a condition is, or None: an XID names its GPU and an SXid its switch, and both are true.

    >>> as_fault(Condition("Xid79", "true", device_id="GPU-1", bus_id="00000000:18:00.0")).number
    79
    """
    match = XID_TYPE.fullmatch(condition.type)
    if match is None or condition.status != "true":
        return None
    count = max(condition.count, 1)  # it is reported, so there was one
    if match[1]:
        fault = Fault("sxid", int(match[2]), "", condition.bus_id, count, condition.message)
    else:
        fault = Fault("xid", int(match[2]), condition.device_id, condition.bus_id, count, condition.message)
    return fault if fault.device_id or (match[1] and fault.bus_id) else None


def verdict_on(facts: Facts, code: str, message: str) -> Verdict:
    """What a fault comes to in the node's present pool."""
    return verdict(code, message, facts.pool.policy if facts.pool is not None else Policy())


def count(facts: Facts, draft: Draft, reported: Iterable[Fault]) -> None:
    """Takes a report's faults in: stores each count that is above the stored one, and tells the first and each doubling.

    Of a GPU that is another node's nothing but the event follows. Should it become this node's while it is still reported, it is
    counted from the start. What is new when MOST have been stored is nothing.
    """
    if facts.advisory:
        return
    told = []
    for fault in reported:
        foreign = fault.device_id in facts.owners
        stored = draft.faults.get((fault.code, fault.device))
        if stored is None and len(draft.faults) >= MOST:
            continue
        if stored is None or stored.foreign != foreign:
            stored = Counted(fault.code, fault.device, facts.boot_id, foreign=foreign)
        if fault.count <= stored.count:
            continue
        tell = fault.count >= 2 * stored.told  # the first one too
        now = replace(
            stored,
            count=fault.count,
            told=fault.count if tell else stored.told,
            bus_id=fault.bus_id,
            message=cut(fault.message),
        )
        draft.put("faults", now)
        if tell:
            told.append(now)
    draft.events += [event("node.xid", _told(facts, draft, one)) for one in told]


def _told(facts: Facts, draft: Draft, one: Counted) -> dict[str, object]:
    """The event of a fault. A foreign one has no policy: nothing follows from it."""
    said = verdict_on(facts, one.code, one.message)
    cause = said.cause if said.cause is not None or not said.linked else _worst(facts, draft, one)
    return {
        "kind": "sxid" if is_switch(one.code) else "xid",
        "xid": _number(one.code),
        **({} if is_switch(one.code) else {"deviceId": one.device_id}),
        "busId": one.bus_id,
        "message": one.message,
        "count": one.count,
        "policy": None if one.foreign else said.policy,
        **({} if cause is None else {"causedBy": cause}),
        **({"foreign": True} if one.foreign else {}),
    }


def _worst(facts: Facts, draft: Draft, of: Counted) -> int | None:
    """What the driver's word (154) is about: the worst XID of the GPU in this boot. (The message names none.)"""
    ranked = [
        (_rank(verdict_on(facts, one.code, one.message)), -_number(one.code))
        for one in draft.faults.values()
        if one.device_id == of.device_id and verdict_on(facts, one.code, one.message).policy is not None
    ]
    return -max(ranked)[1] if ranked else None


def _rank(said: Verdict) -> tuple[bool, int]:
    return said.policy == "node", ACTIONS.index(said.action)


def _number(code: str) -> int:
    return int(code.lstrip("SXid"))


def judge(facts: Facts, before: Draft, draft: Draft) -> None:
    """Which faults are open, and the conditions that they are, from what is counted, cleared, and the pool's policy.

    A node that is out has none of these conditions: what is open of a GPU that it has let go goes with the GPU.
    """
    if draft.node.status in OUT:
        set_conditions(draft, [kind for kind, _ in draft.conditions if XID_TYPE.fullmatch(kind)], ())
        return
    for one in list(draft.faults.values()):
        if one.foreign or one.device_id in facts.owners:
            continue
        (_count_of_switch if is_switch(one.code) else _count_of_gpu)(facts, draft, one)
    _settle_gpus(facts, draft)
    _settle_switches(facts, draft)


def _count_of_gpu(facts: Facts, draft: Draft, one: Counted) -> None:
    key = (one.device_id, "xid", one.code, one.boot_id)
    row = draft.health.get(key)
    if row is None:
        if verdict_on(facts, one.code, one.message).policy is None or not _room(draft, one.device_id):
            return
        row = Health(one.device_id, "xid", one.code, one.boot_id)
    draft.put("health", replace(row, count=one.count, detail={"message": one.message, "busId": one.bus_id}))


def _room(draft: Draft, device_id: str) -> bool:
    """A node that makes up devices does not fill the table, and what it has is never left out for them."""
    return device_id in draft.devices or len(draft.health) < MOST


def _settle_gpus(facts: Facts, draft: Draft) -> None:
    """Closes and opens XIDs, and sets their conditions: one for all boots of (code, GPU), with the count of the present one."""
    wanted: dict[ConditionKey, ConditionRow] = {}
    for key in sorted(draft.health, key=lambda key: (key[3] == facts.boot_id, key)):
        row = draft.health[key]
        if row.source != "xid" or row.device_id in facts.owners:
            continue
        said = verdict_on(facts, row.code, row.detail.get("message", ""))
        is_open = said.policy is not None and row.count > row.cleared_count
        row = replace(
            row,
            closed_reason=None if is_open else row.closed_reason or NO_POLICY,
            detail={**row.detail, **said.as_json()},
        )
        draft.put("health", row)
        if is_open and not left_with_its_gpu(facts, draft, row):
            bus_id, message = row.detail.get("busId", ""), row.detail.get("message", "")
            one = ConditionRow(row.code, row.device_id, bus_id, message=message, count=row.count)
            wanted[one.key] = _raised(one, said, wanted.get(one.key))
    types = {kind for kind, _ in (*draft.conditions, *wanted) if kind.startswith("Xid")}
    set_conditions(draft, types, wanted.values())


def left_with_its_gpu(facts: Facts, draft: Draft, row: Health) -> bool:
    """Whether the GPU of an earlier boot's fault is no more in the node, as this boot's inventory shows: the fault goes with it.

    (One of this boot may be of a GPU that is planned later, or that has fallen off the bus: the node is not sound.)
    """
    shown = draft.node.inventory_boot == facts.boot_id
    return shown and row.boot_id != facts.boot_id and row.device_id not in draft.devices


def _raised(row: ConditionRow, said: Verdict, other: ConditionRow | None = None) -> ConditionRow:
    """A condition that a fault raises. `other`: of another boot; what is NoSchedule by either is."""
    if other is not None and other.no_schedule and said.policy != "node":
        return other
    return replace(
        row,
        status="true",
        reason=_REASONS[said.policy or "device"],
        no_schedule=said.policy == "node",
        evidence={**row.evidence, **said.as_json()},
    )


def _count_of_switch(facts: Facts, draft: Draft, one: Counted) -> None:
    row = draft.conditions.get((one.code, one.device_id))
    if row is None:
        if verdict_on(facts, one.code, one.message).policy is None or len(draft.conditions) >= MOST:
            return
        row = ConditionRow(one.code, one.device_id, one.device_id, "false")
    if row.evidence.get("bootId") != one.boot_id:  # what was cleared in another boot says nothing of this one
        row = replace(row, evidence={"bootId": one.boot_id, "clearedCount": 0})
    draft.put("conditions", replace(row, count=one.count, message=one.message))


def _settle_switches(facts: Facts, draft: Draft) -> None:
    for row in list(draft.conditions.values()):
        if not row.type.startswith("SXid"):
            continue
        said = verdict_on(facts, row.type, row.message)
        if said.policy is not None and row.count > row.evidence.get("clearedCount", 0):
            draft.put("conditions", _raised(row, said))
        elif row.status != "false":
            draft.put("conditions", replace(row, status="false", reason="", no_schedule=False))


def restart(draft: Draft, device_ids: Collection[str]) -> None:
    """The node counts these GPUs' faults from the start again. What is open stays so; what was cleared opens with the first."""
    for key, one in list(draft.faults.items()):
        if one.device_id in device_ids:
            del draft.faults[key]
    for row in list(draft.health.values()):
        if row.device_id in device_ids and row.source == "xid":
            draft.put("health", replace(row, count=row.count - row.cleared_count, cleared_count=0))
