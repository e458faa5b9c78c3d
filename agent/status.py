"""What the node says of itself: the status report's content, and the same for a person on this host. Pure: values in, value out.

Conditions, pressure and the kernel log's state are handed in by whoever watches them.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.inventory import Inventory
from agent.sections import Failed, Section, nvml_error
from agent.session import messages as m
from agent.settling import REASON as SETTLING


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
    """The content of a status report."""
    return m.Status(
        digest=inventory.digest if inventory else "",
        collected_at=inventory.collected_at if inventory else None,
        missing=missing(inventory),
        conditions=tuple(sorted(conditions, key=lambda c: (c.type, c.device_id, c.bus_id))),
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


def describe(inventory: Inventory | None) -> Mapping[str, Any]:
    """The inventory for `bcd status`, lowerCamelCase."""
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
        "devices": _devices(inventory),
    }


def _error(section: Section) -> dict[str, str]:
    error = nvml_error(pb.GpusSection.FromString(section.data)) if section.name == "gpus" else ""
    return {"error": error} if error else {}


def _devices(inventory: Inventory) -> list[dict[str, Any]]:
    section = _gpus(inventory)
    return [] if section is None else [_device(gpu) for gpu in section.gpus]


def _device(gpu: pb.Gpu) -> dict[str, Any]:
    """A GPU as device plugins read it: `offer` says whether it may be handed out."""
    return {
        "deviceId": gpu.uuid,
        "busId": gpu.bus_id,
        "state": gpu.state,
        "assigned": gpu.assigned,
        "faults": [],
        "offer": gpu.state == "ok" and not gpu.assigned,
    }


def _gpus(inventory: Inventory | None) -> pb.GpusSection | None:
    for section in inventory.sections if inventory else ():
        if section.name == "gpus":
            return pb.GpusSection.FromString(section.data)
    return None
