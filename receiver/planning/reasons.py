"""From conditions to what placement avoids a node for, and what is told of it (SPEC B3). Runs for every writer of a node.

A type is a reason while at least one of its rows is true, NoSchedule here, and not a tenant's word. Here means: by the rule in
condition_types.py and the pool that the node has now, so a move or an edit of the pool is judged by the same rule.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from receiver.events import event
from receiver.planning.condition_types import NoSchedule, condition_type
from receiver.planning.view import ConditionRow, Draft, Facts, Notice
from receiver.values import Payload

TEXT_BYTES = 2 << 10  # of a message or reason (SPEC B11)
EXPOSURE = "ForeignGpuExposure"  # a change of it concerns whoever has booked the node

Told = tuple[str, str, bool, bool, bool]
_ABSENT: Told = ("false", "", False, False, False)


def settle(facts: Facts, before: Draft, draft: Draft) -> None:
    """Sets each row's `no_schedule` and the node's reasons, and tells what has changed since `before`.

    Of a tenant's machine flags and reasons stay as they are; its word is told as `advisory`.
    """
    for key, row in list(draft.conditions.items()):
        flag = row.no_schedule if facts.advisory and not row.advisory else _is_reason(facts, draft, row)
        draft.conditions[key] = replace(row, reason=cut(row.reason), message=cut(row.message), no_schedule=flag)
    if not facts.advisory:
        _set_reasons(facts, before, draft)
    for row in _changed(before, draft):
        draft.events.append(event("node.condition.changed", _payload(row, draft)))
        if row.type == EXPOSURE and not facts.advisory:
            draft.notices.append(Notice("AtomUnhealthy", row.device_id or None))


def cut(text: str) -> str:
    """The beginning of a text, in TEXT_BYTES: losing its end beats losing the condition."""
    return text if len(text) * 4 <= TEXT_BYTES else text.encode(errors="replace")[:TEXT_BYTES].decode(errors="ignore")


def _in_mps_pools(facts: Facts, draft: Draft, row: ConditionRow) -> bool:
    return facts.pool is not None and facts.pool.sharing == "mps"


def _in_vps_host_pools(facts: Facts, draft: Draft, row: ConditionRow) -> bool:
    return facts.pool is not None and facts.pool.kind == "vps-host"


def _by_policy_links(facts: Facts, draft: Draft, row: ConditionRow) -> bool:
    return facts.pool is not None and facts.pool.policy.links == "node"


def _by_policy_on_gpu_missing(facts: Facts, draft: Draft, row: ConditionRow) -> bool:
    """What the pool says; else the node where its GPUs have NVLink peers, now or when it passed acceptance."""
    said = facts.pool.policy.on_gpu_missing if facts.pool is not None else None
    if said is not None:
        return said == "node"
    links = (draft.node.baseline or {}).get("links") or {}
    return any(links.values()) or any(one.attributes.get("nvlinkPeers") for one in draft.devices.values())


# The words of condition_types.py -> whether a true row is a reason.
RULES: Mapping[NoSchedule, Callable[[Facts, Draft, ConditionRow], bool]] = {
    "yes": lambda facts, draft, row: True,
    "no": lambda facts, draft, row: False,
    "in mps pools": _in_mps_pools,
    "in vps-host pools": _in_vps_host_pools,
    "policy.links": _by_policy_links,
    "policy.onGpuMissing": _by_policy_on_gpu_missing,
    "as written": lambda facts, draft, row: row.no_schedule,  # of an XID the verdict, which planning/faults.py writes
}


def _is_reason(facts: Facts, draft: Draft, row: ConditionRow) -> bool:
    rule = RULES[condition_type(row.type).no_schedule]
    return row.status == "true" and not row.advisory and rule(facts, draft, row)


def _set_reasons(facts: Facts, before: Draft, draft: Draft) -> None:
    """A type of which a tenant's word is still the last keeps its reason, or has none, as when the lease began."""
    advisory = {row.type for row in draft.conditions.values() if row.advisory}
    stood = advisory.intersection((*before.node.no_schedule_reasons, *before.node.would_no_schedule))
    reasons = tuple(sorted(stood | {row.type for row in draft.conditions.values() if row.no_schedule}))
    observing = facts.pool is not None and facts.pool.mode == "observe"
    draft.node = replace(
        draft.node, no_schedule_reasons=() if observing else reasons, would_no_schedule=reasons if observing else ()
    )


def _changed(before: Draft, draft: Draft) -> Iterator[ConditionRow]:
    """The rows that events tell of, by key. One that is gone is false: it went with its device."""
    for key in sorted(before.conditions.keys() | draft.conditions.keys()):
        old, new = before.conditions.get(key), draft.conditions.get(key)
        if _told(old, before) != _told(new, draft):
            yield new or replace(before.conditions[key], status="false", reason="", no_schedule=False, advisory=False)


def _told(row: ConditionRow | None, draft: Draft) -> Told:
    """What events tell apart. The message is for people who look; whose word it is that a condition is not there is nothing."""
    if row is None:
        return _ABSENT
    return row.status, row.reason, *_avoided(row, draft), row.advisory and row.status != "false"


def _avoided(row: ConditionRow, draft: Draft) -> tuple[bool, bool]:
    """Whether placement avoids the node for this row, and whether it would if the pool did not only observe."""
    node = draft.node
    return row.no_schedule and row.type in node.no_schedule_reasons, row.no_schedule and row.type in node.would_no_schedule


def _payload(row: ConditionRow, draft: Draft) -> Payload:
    avoided, would = _avoided(row, draft)
    return {
        "condition": row.type,
        "status": row.status,
        "reason": row.reason,
        "noSchedule": avoided,
        **({"wouldNoSchedule": True} if would else {}),
        **({"deviceId": row.device_id} if row.device_id and row.device_id != row.bus_id else {}),
        **({"busId": row.bus_id} if row.bus_id else {}),
        **({"advisory": True} if row.advisory else {}),
    }
