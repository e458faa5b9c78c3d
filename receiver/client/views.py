"""What a person sees of the API's answers: what matters, the most important first, and in words what is nested.

VIEWS has a row a list, by its path in the answer (`METHOD:PATH` where it is that method's): a function from an object to the
columns shown. ANSWERS has one for a whole answer, TEXTS for what is said above it. What is in none is shown with all that it
has; the whole of each is under `--format json`. Nodes, GPUs and pools: nodes.py; repairs, commands, acceptance:
lifecycle.py.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from receiver.client import lifecycle, nodes, why
from receiver.client.events import event
from receiver.client.words import change, counted, typed

Object = Mapping[str, Any]
DIGITS = 8  # of a hash: enough to tell two apart
WRAPPED = frozenset(
    ("what", "changed", "error", "message", "mig", "detail", "policy", "noSchedule", "images", "against", "found")
)  # texts that may take more lines than one on a terminal


def picked(*keys: str) -> Callable[[Object], Object]:
    """These keys, as they are."""
    return lambda row: {key: row.get(key) for key in keys}


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
    profiles = counted(one.get("profile", "?") for one in mig.get("instances") or [])
    return f"{now}: {profiles}" if profiles else now if now == then else f"{now}, {then} after a reset"


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


def hca(row: Object) -> Object:
    """One line an adapter."""
    ports = [
        f"{port.get('number')} {port.get('linkLayer', '?')} {port.get('guid', '')}".rstrip() for port in row.get("ports") or []
    ]
    return {**picked("name", "type", "firmware", "busId", "numaNode", "nodeGuid", "boardId")(row), "ports": ports}


def join_token(row: Object) -> Object:
    """One line a token, with how many of its uses are left."""
    left = int(row.get("uses") or 0) - int(row.get("used") or 0)
    keys = picked("id", "tenantId", "poolId", "kind", "nodeId", "expiresAt", "revokedAt", "createdBy")(row)
    return {"id": keys["id"], "left": f"{left} of {row.get('uses')}", **keys}


def new_token(row: Object, cell: why.Cell) -> Iterable[str]:
    """What is said above a new token."""
    yield "This token is shown only here. For better-compute: --token-file FILE"


def new_join_token(row: Object, cell: why.Cell) -> Iterable[str]:
    """What is said above a new string to join with."""
    yield "This token is shown only here. On the node: bcd join --token-file FILE"


VIEWS: Mapping[str, Callable[[Object], Object]] = {
    "nodes": nodes.line,
    "conditions": nodes.condition,
    "verdicts": nodes.verdict,
    "atoms": nodes.atom,
    "faults": nodes.fault,
    "history": nodes.life,
    "pools": nodes.pool,
    "stops": lifecycle.stop,
    "runs": lifecycle.run,
    "commands": lifecycle.command,
    "result.checks": picked("check", "result", "reason", "deviceId", "busId", "warning"),
    "nodes.why:devices": nodes.why_device,
    "atoms.list:atoms": nodes.bookable,
    "tokens.list:tokens": picked("id", "tenantId", "permissions", "expiresAt", "revokedAt", "name", "createdBy"),
    "joinTokens.list:tokens": join_token,
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
    "acceptance.get": lifecycle.attempt,
    **dict.fromkeys(("commands.get", "commands.cancel", "inventory.refresh"), lifecycle.command_page),
    **dict.fromkeys(("remediation.get", "remediation.cancel", "nodes.reboot", "nodes.diag", "devices.reset"), lifecycle.run_page),
    "nodes.label": lambda value: {**nodes.after(value), "labels": value.get("labels")},
    **{
        f"nodes.{verb}": nodes.after
        for verb in ("adopt", "maintenance", "retire", "delete", "move", "setTrust", "resolveIdentity")
    },
}
TEXTS: Mapping[str, Callable[[Object, why.Cell], Iterable[str]]] = {
    "nodes.why": why.lines,
    "tokens.create": new_token,
    "joinTokens.create": new_join_token,
}


# Lists that read best as one line of words.
LINES: Mapping[str, Callable[[Any], str]] = {
    "os.kernelCommandLine": lambda rows: " ".join(
        f"{row['key']}={row['value']}" if row.get("value") else row["key"] for row in rows
    ),
    "policy": lambda value: typed(value) if value else "",
}
# Lists that are in another order on the wire than a person expects.
SORTED: Mapping[str, Callable[[Object], Any]] = {
    "gpus.gpus": lambda row: (row.get("index") is None, row.get("index")),
    "conditions": lambda row: row.get("status") == "false",
}
