"""What the node says of itself: the status report's content, and the same for a person on this host. Pure: values in, value out.

Conditions, pressure and the kernel log's state are handed in by whoever watches them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.faults import Fault, Ledger
from agent.inventory import Inventory
from agent.sections import Failed, Section, nvml_error
from agent.session import messages as m
from agent.settling import REASON as SETTLING

CONDITIONS = 256  # that a report may hold (B11)


def missing(inventory: Inventory | None) -> tuple[m.Missing, ...]:
    """The sections that are not there, with their errors, sorted by name."""
    return tuple(m.Missing(f.name, error_text(f)) for f in inventory.failed) if inventory else ()


def error_text(failed: Failed) -> str:
    """A failed section's error on the wire: `Hang: no answer within 60 s`; settling is one word (A2)."""
    return SETTLING if failed.reason == SETTLING else f"{failed.reason}: {failed.message}"


def report(
    inventory: Inventory | None,
    abandoned: int = 0,
    conditions: Iterable[m.Condition] = (),
    pressure: m.Pressure | None = None,
    kernel_log: m.KernelLog | None = None,
) -> m.Status:
    """The content of a status report. Of more conditions than it may hold, the last handed in are counted with the overflow."""
    told = tuple(conditions)
    if kernel_log and len(told) > CONDITIONS:
        kernel_log = replace(kernel_log, overflow=kernel_log.overflow + len(told) - CONDITIONS)
    return m.Status(
        digest=inventory.digest if inventory else "",
        collected_at=inventory.collected_at if inventory else None,
        missing=missing(inventory),
        conditions=tuple(sorted(told[:CONDITIONS], key=lambda c: (c.type, c.device_id, c.bus_id))),
        pressure=pressure,
        kernel_log=kernel_log,
        abandoned_workers=abandoned,
    )


def offer(inventory: Inventory) -> m.InventoryOffer:
    """The inventory as it is offered."""
    return m.InventoryOffer(
        digest=inventory.digest,
        sections=inventory.sections,
        missing=missing(inventory),
        collected_at=inventory.collected_at,
        boot_id=inventory.boot_id,
        trigger=inventory.trigger,
    )


def capabilities(inventory: Inventory | None, boot_id: str) -> tuple[str, ...]:
    """What this node can do. `nvml`: NVML answered in the last collection of this boot (A7)."""
    section = _gpus(inventory) if inventory and inventory.boot_id == boot_id else None
    answered = section is not None and not section.HasField("error") and section.driver.HasField("nvml_version")
    return ("nvml",) if answered else ()


def moment(seconds: float | None) -> str | None:
    """Unix seconds as RFC 3339 in UTC, `2026-03-01T12:00:00.250Z`."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def describe_conditions(conditions: Iterable[m.Condition]) -> list[dict[str, Any]]:
    """The conditions for `bcd status`, in the order of the report; absent keys are empty."""
    return [
        {
            "type": c.type,
            "status": c.status,
            "reason": c.reason,
            "message": c.message,
            "deviceId": c.device_id,
            "busId": c.bus_id,
            "count": c.count,
            "since": moment(c.since),
        }
        for c in sorted(conditions, key=lambda c: (c.type, c.device_id, c.bus_id))
    ]


def describe(inventory: Inventory | None, faults: Ledger | None = None) -> Mapping[str, Any]:
    """The inventory for `bcd status`, lowerCamelCase; its devices with their open faults."""
    if inventory is None:
        return {"digest": None, "collectedAt": None, "trigger": None, "sections": [], "missing": [], "devices": []}
    return {
        "digest": inventory.digest,
        "collectedAt": moment(inventory.collected_at),
        "trigger": inventory.trigger,
        "sections": [
            {"name": s.name, "hash": s.hash, "bytes": len(s.data), "collectedAt": moment(inventory.ages[s.name])} | _error(s)
            for s in inventory.sections
        ],
        "missing": [
            {"name": f.name, "error": error_text(f), "detail": f.message, "collectedAt": moment(inventory.ages[f.name])}
            for f in inventory.failed
        ],
        "devices": _devices(inventory, faults),
    }


def _error(section: Section) -> dict[str, str]:
    error = nvml_error(pb.GpusSection.FromString(section.data)) if section.name == "gpus" else ""
    return {"error": error} if error else {}


def _devices(inventory: Inventory, faults: Ledger | None) -> list[dict[str, Any]]:
    section = _gpus(inventory)
    return [] if section is None else [_device(gpu, faults.of(gpu.uuid) if faults else ()) for gpu in section.gpus]


def _device(gpu: pb.Gpu, faults: Sequence[Fault]) -> dict[str, Any]:
    """A GPU as device plugins read it: `offer` says whether it may be handed out. No fault with a policy may be open."""
    return {
        "deviceId": gpu.uuid,
        "busId": gpu.bus_id,
        "state": gpu.state,
        "assigned": gpu.assigned,
        "faults": [_fault(fault) for fault in faults],
        "offer": gpu.state == "ok" and not gpu.assigned and all(fault.policy.policy is None for fault in faults),
    }


def _fault(fault: Fault) -> dict[str, Any]:
    mig = {key: value for key, value in (("gi", fault.gi), ("ci", fault.ci)) if value is not None}
    return {
        "type": fault.type,
        "name": fault.policy.name,
        "policy": fault.policy.policy,
        "action": fault.policy.action,
        "count": fault.count,
        "since": moment(fault.first_at),
        "last": moment(fault.last_at),
        "message": fault.message,
        "remembered": fault.remembered,
        **mig,
    }


def _gpus(inventory: Inventory | None) -> pb.GpusSection | None:
    for section in inventory.sections if inventory else ():
        if section.name == "gpus":
            return pb.GpusSection.FromString(section.data)
    return None
