"""How nodes, GPUs, atoms and pools look to a person (views.py says where each is used)."""

from collections.abc import Iterable, Mapping
from typing import Any

Object = Mapping[str, Any]

# What an order may have changed of a node.
_AFTER = (
    *("id", "hostname", "status", "statusSince", "bookable", "noScheduleReasons", "wouldNoSchedule"),
    *("poolId", "trust", "leaseId", "maintenance"),
)
_PAGE = (
    *("id", "hostname", "status", "statusSince", "bookable", "noScheduleReasons", "wouldNoSchedule", "maintenance", "poolId"),
    *("trust", "leaseId", "connected", "lastSeenAt", "missing", "collectedAt", "daemonVersion", "bootId"),
    *("hardwareKey", "hardwareKeyTrusted", "appliedSnapshotId", "tenantId", "createdAt"),
)


def line(row: Object) -> Object:
    """One line a node; all of one: nodes.get."""
    return {
        **{key: row.get(key) for key in ("id", "hostname")},
        "status": _status(row),
        "bookable": _bookable(row.get("atoms") or []),
        "noSchedule": _types(row, "noScheduleReasons") + [f"({one})" for one in _types(row, "wouldNoSchedule")],
        **{key: row.get(key) for key in ("connected", "poolId")},
        "trust": None if row.get("trust") == "platform" else row.get("trust"),
        "missing": [one["name"] for one in row.get("missing") or []],
        "lastSeenAt": row.get("lastSeenAt"),
    }


def _status(row: Object) -> str:
    """
    >>> _status({"status": "adopted", "draining": True}), _status({"status": "retired"})
    ('adopted, draining', 'retired')
    """
    return f"{row.get('status')}, draining" if row.get("draining") else str(row.get("status"))


def _types(row: Object, key: str) -> list[str]:
    return [reason["type"] for reason in row.get(key) or []]


def _bookable(atoms: Iterable[Object]) -> str | None:
    found = [bool(one.get("bookable")) for one in atoms]
    return f"{sum(found)} of {len(found)}" if found else None


def page(value: Object) -> Object:
    """One node: what stands against it first, then a line a GPU; atoms only where a GPU has others than itself."""
    atoms = value.get("atoms") or []
    told = {**value, "status": _status(value), "bookable": _bookable(atoms), **_reasons(value)}
    shared = any(one["id"] != one["deviceId"] for one in atoms)
    return {
        **{key: told.get(key) for key in _PAGE},
        "conditions": value.get("conditions"),
        "verdicts": value.get("verdicts"),
        "devices": [device(one, [atom for atom in atoms if atom["deviceId"] == one["id"]]) for one in value.get("devices") or []],
        **({"atoms": atoms} if shared else {}),
        "labels": value.get("labels"),
    }


def after(value: Object) -> Object:
    """A node after an order: what it may have changed."""
    told = {**value, "status": _status(value), "bookable": _bookable(value.get("atoms") or []), **_reasons(value)}
    return {key: told.get(key) for key in _AFTER if told.get(key) not in (None, "", [], {})}


def _reasons(value: Object) -> Object:
    keys = ("noScheduleReasons", "wouldNoSchedule")
    return {key: [f"{one['type']} by {one['owner']}" for one in value.get(key) or []] for key in keys}


def device(row: Object, atoms: list[Object]) -> Object:
    """One line a GPU, with its atoms."""
    attributes = row.get("attributes") or {}
    reasons = {one["reason"] for one in atoms if one.get("reason")}
    return {
        "index": attributes.get("index"),
        "id": row.get("id"),
        "bookable": _bookable(atoms),
        "why": ", ".join(sorted(reasons)) or None,
        "state": ", ".join(_states(row)) or "ok",
        "gpuProduct": attributes.get("gpuProduct"),
        "serial": row.get("serial"),
        "pciBusId": attributes.get("pciBusId"),
    }


def _states(row: Object) -> Iterable[str]:
    yield from [one["code"] for one in row.get("faults") or []]
    if not row.get("present"):
        yield "missing"
    yield from [key for key in ("lost", "assigned", "draining") if row.get(key)]
    if row.get("partitionPending"):
        yield "MIG mode pending"


def device_page(value: Object) -> Object:
    """One GPU: in words what it is in, then faults, attributes, atoms."""
    kept = ("id", "serial", "nodeId", "healthy")
    return {
        **{key: value.get(key) for key in kept},
        "state": ", ".join(_states(value)) or "ok",
        "bookable": _bookable(value.get("atoms") or []),
        **{key: value.get(key) for key in ("missingSince", "createdAt", "tenantId")},
        **{key: value.get(key) for key in ("faults", "attributes", "atoms")},
    }


def condition(row: Object) -> Object:
    """One line a condition; those that are over come last."""
    keys = ("type", "status", "since", "noSchedule", "reason", "deviceId", "busId", "message")
    return {**{key: row.get(key) for key in keys}, "evidence": row.get("evidence"), "advisory": row.get("advisory") or None}


def verdict(row: Object) -> Object:
    """One line an XID: what it comes to, and who says so."""
    told = {key: row.get(key) for key in ("code", "deviceId", "count", "policy", "source", "action", "name", "since")}
    return {**told, "policy": row.get("policy") or "event only"}


def atom(row: Object) -> Object:
    """One line an atom of a node or GPU."""
    keys = ("id", "profile", "bookable", "reason", "bookingId", "generation")
    return {**{key: row.get(key) for key in keys}, "retiring": row.get("retiring") or None}


def bookable(row: Object) -> Object:
    """One line an atom that can be booked."""
    attributes = row.get("attributes") or {}
    keys = ("poolId", "deviceId", "generation", "tenantId")
    return {
        "id": row.get("id"),
        "nodeId": row.get("nodeId"),
        "gpuProduct": attributes.get("gpuProduct"),
        "profile": row.get("profile"),
        **{key: None if key == "deviceId" and row.get(key) == row.get("id") else row.get(key) for key in keys},
    }


def fault(row: Object) -> Object:
    """One line a fault."""
    return {key: row.get(key) for key in ("code", "source", "since", "count", "detail", "bootId")}


def life(row: Object) -> Object:
    """One line of a GPU's life."""
    return {key: row.get(key) for key in ("time", "event", "nodeId", "detail", "deviceId", "serial")}


def pool(row: Object) -> Object:
    """One line a pool."""
    return {
        **{key: row.get(key) for key in ("id", "name", "kind", "gpuModel", "sharing", "mode", "nodes")},
        "stopped": [one.get("kind") for one in row.get("stops") or []],
        **{key: row.get(key) for key in ("policy", "tenantId")},
    }


def why_device(row: Object) -> Object:
    """One line a GPU: how much of it can be booked."""
    keys = ("serial", "gpuProduct")
    return {
        **{key: row.get(key) for key in ("index", "deviceId")},
        "bookable": f"{row.get('bookable')} of {row.get('atoms')}",
        "booked": row.get("booked") or None,
        "against": row.get("against"),
        **{key: row.get(key) for key in keys},
    }


def images(row: Object) -> Object:
    """One line a node: the images that it holds."""
    return {"nodeId": row.get("nodeId"), "images": [one.get("name") or one.get("digest") for one in row.get("images") or []]}
