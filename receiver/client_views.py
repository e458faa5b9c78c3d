"""What a person sees of the API's answers: what matters, the most important first, and in words what is nested.

VIEWS has a row a list, by its path in the answer (`METHOD:PATH` where it is that method's): a function from an object to the
columns shown. ANSWERS has one for a whole answer, TEXTS for what is said above it. What is in none is shown with all that it
has; the whole of each is under `--format json`. Nodes, GPUs and pools: client_nodes.py.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from receiver import client_nodes as nodes
from receiver import client_why

Object = Mapping[str, Any]
DIGITS = 8  # of a hash: enough to tell two apart
WRAPPED = frozenset(
    ("what", "changed", "error", "message", "mig", "detail", "policy", "noSchedule", "images", "against")
)  # texts that may take more lines than one on a terminal


def picked(*keys: str) -> Callable[[Object], Object]:
    """These keys, as they are."""
    return lambda row: {key: row.get(key) for key in keys}


def change(one: Object) -> str:
    """A change of two inventories in words.

    >>> change({"type": "disk.replaced", "before": {"name": "sda", "serial": "A"}, "after": {"name": "sda", "serial": "B"}})
    'sda: serial A -> B'
    >>> change({"type": "gpu.missing", "deviceId": "GPU-1", "before": {"name": "NVIDIA H100", "index": 3}, "after": None})
    'GPU-1: NVIDIA H100, index 3'
    """
    before, after = one.get("before") or {}, one.get("after") or {}
    subject = one.get("deviceId") or (before or after).get("name") or ""
    if before and after:
        differ = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        words = [f"{key} {_plain(before.get(key))} -> {_plain(after.get(key))}" for key in differ]
    else:
        there = {**before, **after}
        words = [text for key, value in there.items() if (text := _plain(value) if key == "name" else f"{key} {_plain(value)}")]
        words.sort(key=lambda word: word != there.get("name"))
    return f"{subject}: {', '.join(words)}" if subject else ", ".join(words)


def payload(event: Object) -> str:
    """What an event tells, in words; without what its envelope says too, or an event of its own, as each change has one."""
    told = dict(event.get("payload") or {})
    kind = str(event.get("type", ""))
    if "before" in told or "after" in told:
        return change(told)
    if kind in ("node.inventory.changed", "node.images.changed"):
        words = [f"{', '.join(told.get('sections', []))} in {told.get('snapshotId')}"]
        words += [f"{count} change{'s' * (count > 1)}"] if (count := len(told.get("changes", []))) else []
        return "; ".join([*words, "advisory"] if told.get("advisory") else words)
    rest = {key: value for key, value in told.items() if key != "schemaVersion" and value not in (None, "", [])}
    subject = rest.pop("deviceId", "")
    message = rest.pop("message", "")
    return ": ".join(filter(None, [subject, ", ".join(f"{key} {_plain(value)}" for key, value in rest.items()), message]))


def snapshot(row: Object) -> Object:
    """With the hashes of those sections only that changed."""
    hashes = row.get("sections") or {}
    changed = [f"{name} {str(hashes.get(name, ''))[:DIGITS]}".rstrip() for name in row.get("changed", [])]
    return {**picked("id", "createdAt")(row), "changed": changed, "digest": row.get("digest"), "advisory": row.get("advisory")}


def gpu(row: Object) -> Object:
    """One line a GPU."""
    links = row.get("nvlinks") or []
    return {
        **picked("index", "uuid")(row),
        "health": ", ".join(_unhealthy(row)) or "ok",
        "mig": _mig(row.get("mig") or {}),
        **picked("name", "busId", "serial", "vramBytes", "numaNode")(row),
        "nvlinks": f"{sum(bool(link.get('active')) for link in links)} of {len(links)} active" if links else None,
    }


def _mig(mig: Object) -> str | None:
    if not mig.get("capable"):
        return None
    now, then = (("on" if mig.get(key) else "off") for key in ("current", "pending"))
    counted = _counted(one.get("profile", "?") for one in mig.get("instances") or [])
    return f"{now}: {counted}" if counted else now if now == then else f"{now}, {then} after a reset"


def _unhealthy(row: Object) -> Iterable[str]:
    if row.get("assigned"):
        yield "assigned to a VM"
    elif row.get("state") not in (None, "", "ok"):
        yield str(row["state"])
    ecc, remap, retired = row.get("ecc") or {}, row.get("rowRemap") or {}, row.get("retiredPages") or {}
    if int((ecc.get("volatile") or {}).get("total") or 0):
        yield f"{ecc['volatile']['total']} uncorrectable ECC errors"
    if remap.get("failure"):
        yield "row remap failed"
    if remap.get("pending"):
        yield "row remap pending"
    if retired.get("pending"):
        yield "page retirement pending"
    if row.get("recoveryAction") not in (None, "", "none"):
        yield f"recovery action {row['recoveryAction']}"


def event(row: Object) -> Object:
    """One line an event."""
    return {**picked("time", "type")(row), "what": payload(row), "nodeId": row.get("nodeId"), "tenantId": row.get("tenantId")}


def hca(row: Object) -> Object:
    """One line an adapter."""
    ports = [
        f"{port.get('number')} {port.get('linkLayer', '?')} {port.get('guid', '')}".rstrip() for port in row.get("ports") or []
    ]
    return {**picked("name", "type", "firmware", "busId", "numaNode", "nodeGuid", "boardId")(row), "ports": ports}


VIEWS: Mapping[str, Callable[[Object], Object]] = {
    "nodes": nodes.line,
    "conditions": nodes.condition,
    "verdicts": nodes.verdict,
    "atoms": nodes.atom,
    "faults": nodes.fault,
    "history": nodes.life,
    "pools": nodes.pool,
    "nodes.why:devices": nodes.why_device,
    "atoms.list:atoms": nodes.bookable,
    "images.list:nodes": nodes.images,
    "snapshots": snapshot,
    "changes": lambda row: {"type": row.get("type"), "what": change(row)},
    "events": event,
    "gpus.gpus": gpu,
    "gpus.pciFunctions": picked("busId", "deviceId", "subsystemId", "classCode", "driver", "numaNode"),
    "disks.disks": picked(
        "name", "model", "serial", "bytes", "transport", "busId", "numaNode", "root", "wwn", "firmware", "rotational"
    ),
    "nics.nics": picked(
        "name", "kind", "permanentMac", "driver", "busId", "numaNode", "firmware", "sriovConfigured", "sriovTotal"
    ),
    "nics.hcas": hca,
    "memory.dimms": picked("locator", "serial", "bytes", "type", "configuredMts", "part", "manufacturer", "bank"),
}


ANSWERS: Mapping[str, Callable[[Object], Object]] = {
    "nodes.get": nodes.page,
    "nodes.why": lambda value: {"devices": value.get("devices") or []},
    "devices.get": nodes.device_page,
    **{
        f"nodes.{verb}": nodes.after
        for verb in ("adopt", "maintenance", "retire", "delete", "move", "label", "setTrust", "resolveIdentity")
    },
}
TEXTS: Mapping[str, Callable[[Object, client_why.Cell], Iterable[str]]] = {"nodes.why": client_why.lines}


# Lists that read best as one line of words.
LINES: Mapping[str, Callable[[list[Object]], str]] = {
    "os.kernelCommandLine": lambda rows: " ".join(
        f"{row['key']}={row['value']}" if row.get("value") else row["key"] for row in rows
    ),
}
# Lists that are in another order on the wire than a person expects.
SORTED: Mapping[str, Callable[[Object], Any]] = {
    "gpus.gpus": lambda row: (row.get("index") is None, row.get("index")),
    "conditions": lambda row: row.get("status") == "false",
}


def _counted(words: Iterable[str]) -> str:
    """
    >>> _counted(["1g.10gb", "2g.20gb", "1g.10gb"])
    '2 x 1g.10gb, 1 x 2g.20gb'
    """
    return ", ".join(f"{count} x {word}" for word, count in Counter(words).items())


def _plain(value: Any) -> str:
    """A value within a sentence: MIG instances as their profiles, other objects as their keys and values."""
    if isinstance(value, list):
        profiles = [one["profile"] for one in value if isinstance(one, Mapping) and "profile" in one]
        return (_counted(profiles) if profiles else ", ".join(_plain(one) for one in value)) or "none"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_plain(one)}" for key, one in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
