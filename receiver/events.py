"""Every event type that is published, in one place (SPEC B9). Docs and `events.list` filters are generated from EVENTS.

An event's envelope is id, time, tenant, pool, node, type; its payload always carries `schemaVersion`, and `maintenance: true`
where a person has the node or its pool, so that nobody is called for it. One more event costs a row here. A payload may gain
fields within a version; one that loses or changes a field is the next version.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from receiver.values import Event, Payload


@dataclass(frozen=True, slots=True)
class EventType:
    """One type: what it tells, and the fields of its payload (`?`: not always there)."""

    name: str
    tells: str
    fields: tuple[str, ...]
    schema_version: int = 1


_CHANGE = ("snapshotId", "deviceId?", "before?", "after?")
_INVENTORY = ("snapshotId", "digest", "sections", "changes", "advisory?")
_XID = ("kind", "xid", "deviceId?", "busId", "message", "count", "policy?", "causedBy?", "foreign?")
_RUN = ("runId", "kind", "reason?")

EVENTS: Mapping[str, EventType] = {
    row.name: row
    for row in (
        EventType("node.joined", "a node is known for the first time, or came back by a token bound to it", ("by",)),
        EventType("node.status", "a node's status changed", ("from", "to", "reason?")),
        EventType("node.inventory.changed", "an inventory other than the applied one was appended", _INVENTORY),
        EventType("node.images.changed", "only the image cache differs; in place of node.inventory.changed", _INVENTORY),
        EventType("node.gpu.missing", "neither NVML nor PCI shows a GPU that was there", _CHANGE),
        EventType("node.gpu.added", "a GPU is there that was not", _CHANGE),
        EventType("node.gpu.lost", "NVML cannot reach a GPU that PCI still shows", ("deviceId", "busId?")),
        EventType(
            "node.gpu.quarantined",
            "a fault took a GPU out of placement",
            ("deviceId", "gpuProduct?", "serial?", "code", "reason"),
        ),
        EventType("node.gpu.cleared", "a GPU's fault is closed", ("deviceId", "gpuProduct?", "serial?", "code", "reason")),
        EventType("node.mig.layout.changed", "a GPU's MIG mode or instances differ", _CHANGE),
        EventType("node.disk.replaced", "another disk stands under a kernel name", _CHANGE),
        EventType("node.driver.changed", "the NVIDIA driver's or CUDA's version differs", _CHANGE),
        EventType("node.hardware.changed", "the machine's hardware key is another", ("before", "after", "identifiers")),
        EventType(
            "node.condition.changed",
            "a condition changed its status or its reason",
            ("condition", "status", "reason", "noSchedule", "wouldNoSchedule?", "deviceId?", "busId?", "advisory?"),
        ),
        EventType("node.xid", "the driver reported an XID or (kind sxid) an SXid: the first, or the count doubled", _XID),
        EventType("node.acceptance.started", "the checks of an adopting node began", ("attempt", "commandIds", "checks")),
        EventType("node.acceptance.failed", "a node did not pass its checks", ("attempt", "reason", "commandId?")),
        EventType("node.adopted", "a node passed and is in service", ("attempt", "specGeneration")),
        EventType("node.remediation.queued", "a repair is queued", _RUN),
        EventType("node.remediation.started", "a repair began", _RUN),
        EventType("node.remediation.succeeded", "a repair is proven", _RUN),
        EventType("node.remediation.failed", "a repair did not help", _RUN),
        EventType("node.remediation.escalated", "a person is needed", ("runs", "reason", "evidence")),
        EventType(
            "pool.remediation.paused", "too many nodes of a pool turned unhealthy: no new repair starts", ("nodes", "limit")
        ),
        EventType("pool.remediation.resumed", "repairs of a pool go on", ("by",)),
        EventType("security.node.duplicate-session", "two daemons use one node's identity", ("epoch", "previousEpoch?")),
        EventType("security.node.quarantined", "a node's certificate was revoked", ("reason",)),
        EventType("fleet.hygiene.suspended", "a sweep would have hit too many nodes of a pool", ("condition", "poolId", "nodes")),
        EventType("api.write", "an operator's call that changed something", ("method", "by", "reason?", "request")),
    )
}


def event(name: str, payload: Payload) -> Event:
    """An event of a type that is listed. Raises KeyError for another: that is our bug."""
    return Event(name, {**payload, "schemaVersion": EVENTS[name].schema_version})
