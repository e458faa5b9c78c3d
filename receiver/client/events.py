"""What an event tells, in words: WORDS has a row a type whose payload reads badly as keys and values. The rest is shown so."""

from collections.abc import Callable, Mapping
from typing import Any

from receiver.client.lifecycle import causes
from receiver.client.words import change, plain, typed

Object = Mapping[str, Any]


def event(row: Object) -> Object:
    """One line an event."""
    return {"time": row.get("time"), "type": row.get("type"), "what": payload(row), **_envelope(row)}


def _envelope(row: Object) -> Object:
    return {"nodeId": row.get("nodeId"), "tenantId": row.get("tenantId")}


def payload(event: Object) -> str:
    """What an event tells, in words; without what its envelope says too, or an event of its own, as each change has one."""
    told = {key: value for key, value in (event.get("payload") or {}).items() if key != "schemaVersion"}
    words = WORDS.get(str(event.get("type", "")))
    if words is not None:
        return words({**told, "envelope": event})
    if isinstance(told.get("before") or told.get("after"), Mapping):
        return change(told)
    rest = {key: value for key, value in told.items() if value not in (None, "", [])}
    subject, message = rest.pop("deviceId", ""), rest.pop("message", "")
    return ": ".join(filter(None, [subject, ", ".join(f"{key} {plain(value)}" for key, value in rest.items()), message]))


def _inventory(told: Object) -> str:
    words = [f"{', '.join(told.get('sections') or [])} in {told.get('snapshotId')}"]
    words += [f"{count} change{'s' * (count > 1)}"] if (count := len(told.get("changes") or [])) else []
    return "; ".join([*words, "advisory"] if told.get("advisory") else words)


def _status(told: Object) -> str:
    """
    >>> _status({"from": "adopted", "to": "maintenance", "reason": "a fan"})
    'adopted -> maintenance: a fan'
    """
    return _because(f"{told.get('from')} -> {told.get('to')}", told.get("reason"))


def _condition(told: Object) -> str:
    """
    >>> _condition({"condition": "Xid79", "status": "true", "reason": "NodeFault", "noSchedule": True, "deviceId": "GPU-1"})
    'Xid79 true, NoSchedule, on GPU-1: NodeFault'
    """
    marks = [
        "NoSchedule" if told.get("noSchedule") else "",
        "would be NoSchedule" if told.get("wouldNoSchedule") else "",
        "a tenant's word" if told.get("advisory") else "",
        f"on {device}" if (device := told.get("deviceId") or told.get("busId")) else "",
    ]
    return _because(", ".join([f"{told.get('condition')} {told.get('status')}", *filter(None, marks)]), told.get("reason"))


def _gpu(told: Object) -> str:
    """
    >>> _gpu({"deviceId": "GPU-1", "gpuProduct": "H100-SXM5-80GB", "serial": "165", "code": "Xid48", "reason": "double-bit"})
    'GPU-1 (H100-SXM5-80GB, serial 165): Xid48, double-bit'
    """
    what = [told.get("gpuProduct"), f"serial {serial}" if (serial := told.get("serial")) else None]
    named = f"{told.get('deviceId')} ({', '.join(filter(None, what))})" if any(what) else str(told.get("deviceId"))
    return _because(named, ", ".join(filter(None, [told.get("code"), told.get("reason")])))


def _xid(told: Object) -> str:
    """
    >>> _xid({"kind": "xid", "xid": 48, "deviceId": "GPU-1", "count": 2, "policy": "device", "message": "48, DBE"})
    'Xid 48 on GPU-1, count 2, policy device: 48, DBE'
    """
    kind = "SXid" if told.get("kind") == "sxid" else "Xid"
    marks = [
        f"count {told['count']}" if told.get("count") else "",
        "of another node's GPU" if told.get("foreign") else "",
        f"policy {told['policy']}" if told.get("policy") else "",
        f"caused by {plain(told['causedBy'])}" if told.get("causedBy") else "",
    ]
    subject = f"{kind} {told.get('xid')} on {told.get('deviceId') or told.get('busId')}"
    return _because(", ".join([subject, *filter(None, marks)]), told.get("message"))


def _hardware(told: Object) -> str:
    """
    >>> _hardware({"before": "ab" * 32, "after": "cd" * 32, "identifiers": {
    ...     "gpu": {"before": ["GPU-1", "GPU-2"], "after": ["GPU-1", "GPU-3"]}, "serial": {"before": None, "after": "S2"}}})
    'abababababab -> cdcdcdcdcdcd: gpu GPU-2 -> GPU-3, serial - -> S2'
    """
    keys = (str(told.get(key) or "-")[:12] for key in ("before", "after"))
    kinds = told.get("identifiers")
    listed = kinds.items() if isinstance(kinds, Mapping) else ()
    return _because(" -> ".join(keys), ", ".join(f"{kind} {_differs(sides)}" for kind, sides in listed))


def _differs(sides: Any) -> str:
    """Of two lists what only one of them has."""
    if not isinstance(sides, Mapping):
        return plain(sides)
    before, after = sides.get("before"), sides.get("after")
    if isinstance(before, list) and isinstance(after, list):
        before, after = [one for one in before if one not in after], [one for one in after if one not in before]
    return f"{plain(before)} -> {plain(after)}"


def _escalated(told: Object) -> str:
    """
    >>> _escalated({"runs": ["run_2", "run_1"], "reason": "Timeout", "evidence": {"causes": [{"code": "Xid79"}], "gpus": {}}})
    'run_2 after 1 before: Timeout; Xid79'
    """
    runs, evidence = told.get("runs") or [], told.get("evidence")
    before = f" after {len(runs) - 1} before" if len(runs) > 1 else ""
    what = causes(evidence) if isinstance(evidence, Mapping) else None
    said = "; ".join(str(one) for one in (told.get("reason"), what) if one)
    return _because(f"{runs[0] if runs else 'no run'}{before}", said)


def _run(told: Object) -> str:
    """
    >>> _run({"runId": "run_1", "kind": "node.reboot", "reason": "Xid79"})
    'node.reboot run_1: Xid79'
    """
    return _because(f"{told.get('kind')} {told.get('runId')}", told.get("reason"))


def _write(told: Object) -> str:
    """
    >>> _write({"method": "nodes.move", "by": "alice", "reason": "rack 12", "request": {"nodeId": "node_1", "poolId": "pool_1"},
    ...         "envelope": {"nodeId": "node_1"}})
    'nodes.move by alice (poolId=pool_1): rack 12'
    >>> _write({"method": "pools.set", "by": "alice", "request": {"policy": {"links": None}}, "envelope": {}})
    'pools.set by alice (policy={"links": null})'
    """
    asked = told.get("request")
    if isinstance(asked, Mapping):
        asked = {key: value for key, value in asked.items() if value != told["envelope"].get(key)}
        asked = " ".join(f"{key}={typed(value)}" for key, value in asked.items())
    asked = f" ({asked})" if asked else ""
    return _because(f"{told.get('method')} by {told.get('by')}{asked}", told.get("reason"))


def _because(what: str, reason: Any) -> str:
    return f"{what}: {reason}" if reason else what


WORDS: Mapping[str, Callable[[Object], str]] = {
    "node.inventory.changed": _inventory,
    "node.images.changed": _inventory,
    "node.status": _status,
    "node.condition.changed": _condition,
    "node.gpu.quarantined": _gpu,
    "node.gpu.cleared": _gpu,
    "node.hardware.changed": _hardware,
    "node.xid": _xid,
    **{f"node.remediation.{word}": _run for word in ("queued", "started", "succeeded", "failed")},
    "node.remediation.escalated": _escalated,
    "api.write": _write,
}
