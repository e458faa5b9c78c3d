"""How repairs, commands and acceptance look to a person (views.py says where each is used)."""

from collections.abc import Iterable, Mapping
from typing import Any

from receiver.client.words import plain

Object = Mapping[str, Any]


def run(row: Object) -> Object:
    """One line a repair; its steps: remediation.get."""
    return {
        **{key: row.get(key) for key in ("id", "nodeId", "kind")},
        "state": state(row),
        **{key: row.get(key) for key in ("reason", "createdAt", "endedAt")},
        "for": causes(row),
        **{key: row.get(key) for key in ("by", "poolId", "tenantId")},
    }


def run_page(value: Object) -> Object:
    """One repair: what it is, what for, and what became of it, step by step."""
    keys = ("commandId", "bootId", "createdAt", "startedAt", "verifyingAt", "endedAt", "tenantId")
    return {
        **{key: value.get(key) for key in ("id", "nodeId", "poolId", "kind")},
        "state": state(value),
        "reason": value.get("reason"),
        "for": causes(value),
        "devices": value.get("devices"),
        "by": value.get("by"),
        **({"force": True} if value.get("force") else {}),
        **{key: value.get(key) for key in keys},
        "steps": value.get("steps") or [],
    }


def state(row: Object) -> str:
    """
    >>> state({"state": "failed", "escalated": True}), state({"state": "queued", "observed": True})
    ('failed, escalated', 'queued, only observed')
    """
    marks = ["escalated" if row.get("escalated") else "", "only observed" if row.get("observed") else ""]
    return ", ".join([str(row.get("state")), *filter(None, marks)])


def causes(row: Object) -> str | None:
    """What a repair is for, in words.

    >>> causes({"causes": [{"code": "Xid79", "deviceId": "GPU-1"}, {"code": "GpuLost", "deviceId": "GPU-1"}]})
    'Xid79, GpuLost on GPU-1'
    """
    found: dict[str, list[str]] = {}
    for one in row.get("causes") or []:
        found.setdefault(one.get("deviceId") or "", []).append(str(one.get("code")))
    return "; ".join(", ".join(codes) + (f" on {device}" if device else "") for device, codes in found.items()) or None


def command(row: Object) -> Object:
    """One line a command; what the node answered: commands.get."""
    keys = ("id", "nodeId", "kind", "state", "reason", "createdAt", "finishedAt", "by", "notAfter", "tenantId")
    return {key: row.get(key) for key in keys}


def command_page(value: Object) -> Object:
    """One command, with its answer: the checks of a diagnosis, those that did not pass first."""
    return {**value, "payload": value.get("payload") or None, "result": result(value.get("result"))}


def attempt(value: Object) -> Object:
    """An attempt at acceptance: a line a check, and of each what did not pass."""
    checks = value.get("checks") or []
    return {**value, "checks": [_check(one) for one in checks]}


def _check(row: Object) -> Object:
    found = row.get("result") or {}
    bad = [one for one in found.get("checks") or [] if isinstance(one, Mapping) and one.get("result") in ("fail", "unknown")]
    keys = ("kind", "status", "reason")
    told = {key: row.get(key) for key in keys}
    return {**told, "found": _found(bad) or plain_result(found), "commandId": row.get("commandId")}


def _found(rows: Iterable[Object]) -> list[str]:
    return [f"{one.get('check')} {one.get('result')}: {one.get('reason')}" for one in rows]


def plain_result(found: Object) -> str | None:
    """What an answer says besides its checks.

    >>> plain_result({"passed": True, "checks": []}), plain_result({})
    ('passed yes', None)
    """
    return ", ".join(f"{key} {plain(one)}" for key, one in found.items() if key not in ("checks", "results")) or None


_WORST = {"fail": 0, "unknown": 1, "not-applicable": 3}


def result(found: Object | None) -> Object | None:
    """What a node answered, the checks that did not pass first."""
    checks = (found or {}).get("checks")
    if found is None or not isinstance(checks, list):
        return found
    return {**found, "checks": sorted(checks, key=lambda one: _WORST.get(str(one.get("result")), 2))}


def stop(row: Object) -> Object:
    """One line for what does not go on in a pool."""
    detail = row.get("detail") or {}
    return {**{key: row.get(key) for key in ("kind", "since")}, "detail": plain(detail), "confirmedBy": row.get("confirmedBy")}
