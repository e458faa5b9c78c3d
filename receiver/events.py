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
    """One type: what it tells, what a person does about it, and the fields of its payload (`?`: not always there)."""

    name: str
    tells: str
    todo: str
    fields: tuple[str, ...]
    schema_version: int = 1


_CHANGE = ("snapshotId", "deviceId?", "before?", "after?")
_INVENTORY = ("snapshotId", "digest", "sections", "changes", "advisory?")
_XID = ("kind", "xid", "deviceId?", "busId", "message", "count", "policy?", "causedBy?", "foreign?")
_RUN = ("runId", "kind", "reason?")

EVENTS: Mapping[str, EventType] = {
    row.name: row
    for row in (
        EventType(
            "node.joined",
            "a node is known for the first time, or came back by a token bound to it",
            "nothing, if you gave out that token (`by`); else joinTokens.revoke and nodes.retire",
            ("by",),
        ),
        EventType("node.status", "a node's status changed", "nothing; `reason` says why", ("from", "to", "reason?")),
        EventType(
            "node.inventory.changed",
            "an inventory other than the applied one was appended",
            "nothing; inventory.diff shows it",
            _INVENTORY,
        ),
        EventType(
            "node.images.changed", "only the image cache differs; in place of node.inventory.changed", "nothing", _INVENTORY
        ),
        EventType(
            "node.gpu.missing",
            "neither NVML nor PCI shows a GPU that was there",
            "see whether somebody took it out; else reboot, and look at the slot",
            _CHANGE,
        ),
        EventType(
            "node.gpu.added", "a GPU is there that was not", "nothing; a pool's expect.gpuCount may have to follow", _CHANGE
        ),
        EventType(
            "node.gpu.lost",
            "NVML cannot reach a GPU that PCI still shows",
            "nothing in a pool that repairs: a reboot is queued; else nodes.reboot",
            ("deviceId", "busId?"),
        ),
        EventType(
            "node.gpu.quarantined",
            "a fault took a GPU out of placement",
            "see nodes.why: what repairs it, and whether that begins by itself",
            ("deviceId", "gpuProduct?", "serial?", "code", "reason"),
        ),
        EventType(
            "node.gpu.cleared", "a GPU's fault is closed", "nothing", ("deviceId", "gpuProduct?", "serial?", "code", "reason")
        ),
        EventType(
            "node.mig.layout.changed",
            "a GPU's MIG mode or instances differ",
            "nothing, if somebody meant it; else MigLayoutMismatch says what is wanted",
            _CHANGE,
        ),
        EventType("node.disk.replaced", "another disk stands under a kernel name", "nothing, if somebody replaced it", _CHANGE),
        EventType(
            "node.driver.changed", "the NVIDIA driver's or CUDA's version differs", "nothing, if somebody upgraded it", _CHANGE
        ),
        EventType(
            "node.hardware.changed",
            "the machine's hardware key is another",
            "see that it is the same machine: a new board, or disks in another chassis",
            ("before", "after", "identifiers"),
        ),
        EventType(
            "node.condition.changed",
            "a condition changed its status or its reason",
            "what the table of conditions says of its type",
            ("condition", "status", "reason", "noSchedule", "wouldNoSchedule?", "deviceId?", "busId?", "advisory?"),
        ),
        EventType(
            "node.xid",
            "the driver reported an XID or (kind sxid) an SXid: the first, or the count doubled",
            "what the table of XIDs says of its number",
            _XID,
        ),
        EventType(
            "node.acceptance.started", "the checks of an adopting node began", "nothing", ("attempt", "commandIds", "checks")
        ),
        EventType(
            "node.acceptance.failed",
            "a node did not pass its checks",
            "see acceptance.get; once it is mended, nodes.adopt",
            ("attempt", "reason", "commandId?"),
        ),
        EventType("node.adopted", "a node passed and is in service", "nothing", ("attempt", "specGeneration")),
        EventType("node.remediation.queued", "a repair is queued", "nothing", _RUN),
        EventType("node.remediation.started", "a repair began", "nothing", _RUN),
        EventType("node.remediation.succeeded", "a repair is proven", "nothing", _RUN),
        EventType(
            "node.remediation.failed", "a repair did not help", "nothing yet: another one is tried, or it is escalated", _RUN
        ),
        EventType(
            "node.remediation.escalated",
            "a person is needed",
            "look at the machine (`evidence`); then devices.clear and nodes.adopt",
            ("runs", "reason", "evidence"),
        ),
        EventType(
            "pool.remediation.paused",
            "too many nodes of a pool turned unhealthy: no new repair starts",
            "find the common cause (power, switch, driver); then pools.resumeRemediation",
            ("nodes", "limit"),
        ),
        EventType("pool.remediation.resumed", "repairs of a pool go on", "nothing", ("by",)),
        EventType(
            "security.node.duplicate-session",
            "two daemons use one node's identity",
            "look for a copy of its data_dir or its disk, before it is the fourth time",
            ("epoch", "previousEpoch?"),
        ),
        EventType(
            "security.node.quarantined",
            "a node's certificate was revoked",
            "find the copy; then joinTokens.create nodeId=..., and join the real machine",
            ("reason",),
        ),
        EventType(
            "fleet.hygiene.suspended",
            "a sweep would have hit too many nodes of a pool",
            "find the common cause (network, clock, bcd's version); then pools.confirmHygiene",
            ("condition", "poolId", "nodes"),
        ),
        EventType("api.write", "an operator's call that changed something", "nothing", ("method", "by", "reason?", "request")),
    )
}


def event(name: str, payload: Payload) -> Event:
    """An event of a type that is listed. Raises KeyError for another: that is our bug."""
    return Event(name, {**payload, "schemaVersion": EVENTS[name].schema_version})
