"""The values that the receiver's rules, store and gateway hand each other. Protobuf stops at gateway/codec.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

PROTOCOL = "0.3"  # the newest version of the session protocol that this receiver speaks

Json = Any  # what json.dumps takes
Payload = Mapping[str, Json]

Trust = Literal["platform", "tenant-controlled"]
ConditionStatus = Literal["true", "false", "unknown"]
FaultKind = Literal["xid", "sxid"]
OutcomeStatus = Literal["applied", "unchanged", "advisory", "refused", "retry"]

NODE_STATUSES = ("adopting", "adopted", "maintenance", "retired", "deleted")
TRUSTS = ("platform", "tenant-controlled")
POOL_KINDS = ("gpu", "vps-host", "sandbox")
SHARINGS = ("exclusive", "mig", "timeslice", "mps")
POOL_MODES = ("enforce", "observe")
NODE_KINDS = ("host", "site-agent")
CONDITION_STATUSES = ("true", "false", "unknown")
DISRUPTION_KINDS = ("remediation", "workflow", "rollout", "maintenance")
COMMAND_RESULTS = ("succeeded", "failed", "refused", "expired")
COMMAND_STATES = ("queued", "sent", *COMMAND_RESULTS, "cancelled")
RUN_KINDS = ("node.reboot", "gpu.reset", "diag.nvml", "diag.dcgm")
RUN_ENDED = ("succeeded", "failed", "cancelled")
RUN_STATES = ("queued", "waiting", "running", "verifying", *RUN_ENDED)
ATTEMPT_STATES = ("running", "passed", "failed", "cancelled")  # of acceptance
LABEL_SOURCES = ("inventory", "system", "operator")
HEALTH_SOURCES = ("xid", "inventory")
READ, PROVISION, ADMIN = "compute:nodes:read", "compute:nodes:provision", "compute:admin"
PERMISSIONS = (READ, PROVISION, ADMIN)  # of a token of the API
ALL = "*"  # the tenant of who sees all
STATUS_HANDLERS = ("conditions", "xid", "pressure")  # what becomes of status reports: setting status.handlers

SECTION_BYTES = 8 << 20
SECTIONS_PER_OFFER = 16
PAGE_ROWS = 1_000  # of an answer of the API
TOKEN_DAYS = 366  # that a token lives
TOKEN_USES = 10_000  # of a token to join with
REASON_BYTES = 2 << 10  # of what an operator gives as the reason of an order
LABEL_CHARACTERS = 63  # of a label's value
LABELS = 256  # that operators give a node


def rfc3339(moment: datetime) -> str:
    """A time as people and logs have it: in UTC, to the second.

    >>> rfc3339(datetime(2026, 11, 29, 16, 20, 1, 5, UTC))
    '2026-11-29T16:20:01Z'
    """
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, slots=True)
class SectionRef:
    """One section of an offer. `hash` is lower-case hexadecimal SHA-256 of its bytes, `size` their number."""

    name: str
    schema_version: int
    hash: str
    size: int


@dataclass(frozen=True, slots=True)
class Missing:
    """A section that could not be collected, and why, in words."""

    name: str
    error: str


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node offers (SPEC A3). `boot_id`: the boot it was collected in; `trigger`: why ("boot", "refresh", ...)."""

    digest: str
    sections: tuple[SectionRef, ...]
    missing: tuple[Missing, ...] = ()
    collected_at: datetime | None = None
    boot_id: str = ""
    trigger: str = ""

    @property
    def hashes(self) -> dict[str, str]:
        """Section name to hash."""
        return {section.name: section.hash for section in self.sections}


@dataclass(frozen=True, slots=True)
class InventoryOutcome:
    """How an offer ended. `section` and `reason` are set with "refused"; `reason` with "retry" too.

    `snapshot_id`: the appended snapshot, or with "unchanged" the applied one.
    """

    status: OutcomeStatus
    digest: str
    snapshot_id: str | None = None
    section: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver that bcd advertises: `libvirt-kvm`, its version, and the kinds of work it takes."""

    id: str
    version: str = ""
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HelloFacts:
    """What a Hello says, and the tenant that an unknown node is created in.

    `certificate`: the fingerprint of the one that the peer came with; None on an insecure receiver, which takes nodes at their
    word. `previous_instance_id`: of the run of bcd before this one, or empty.
    """

    protocol_version: str
    daemon_version: str
    boot_id: str
    instance_id: str
    previous_epoch: int | None = None
    drivers: tuple[Driver, ...] = ()
    capabilities: tuple[str, ...] = ()
    tenant_id: str = "default"
    receiver_id: str = ""
    certificate: str | None = None
    previous_instance_id: str = ""


@dataclass(frozen=True, slots=True)
class SessionStart:
    """What a session begins with. `applied_digest` may be `advisory:<digest>`, or None before the first inventory.

    `quarantined`: it ended in the moment in which it began: the node's identity is used twice.
    """

    node_id: str
    tenant_id: str
    epoch: int
    applied_digest: str | None
    plan_rev: int
    created: bool
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class KernelLog:
    """The state of bcd's kernel-log reader."""

    available: bool
    complete: bool
    lost_records: int = 0
    unattributed: int = 0
    overflow: int = 0


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition as a status report has it. `bus_id` says of which device it is where no `device_id` does; 0: no count.

    `status` None: one that this version does not know.
    """

    type: str
    status: ConditionStatus | None
    reason: str = ""
    message: str = ""
    device_id: str = ""
    bus_id: str = ""
    count: int = 0

    @property
    def device(self) -> str:
        """The device that it is of: a GPU's UUID, else a bus id; empty for the node as a whole."""
        return self.device_id or self.bus_id


@dataclass(frozen=True, slots=True)
class Fault:
    """An XID of a GPU, or an SXid of a switch (which has a bus id and no device id), and how often this boot saw it."""

    kind: FaultKind
    number: int
    device_id: str
    bus_id: str
    count: int
    message: str = ""

    @property
    def device(self) -> str:
        """The device that it is of: a GPU's UUID, or a switch's bus id."""
        return self.device_id or self.bus_id

    @property
    def code(self) -> str:
        """As conditions and device health name it.

        >>> Fault("sxid", 12028, "", "00000000:05:00.0", 1).code
        'SXid12028'
        """
        return ("Xid" if self.kind == "xid" else "SXid") + str(self.number)


class Pressure(NamedTuple):
    """A node's load in percent: `some avg10` of the kernel's pressure files, and the share of CPU time stolen.

    `number`: the same with each report that repeats a sample; 0: no report repeats one.
    """

    cpu: float
    memory: float
    io: float
    steal: float
    number: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """What a status report says. `collected_at`: the last collection that it confirms."""

    digest: str
    collected_at: datetime | None = None
    missing: tuple[Missing, ...] = ()
    kernel_log: KernelLog | None = None
    abandoned_workers: int = 0
    conditions: tuple[Condition, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """A command as it is handed to a node. `start_within`: seconds after which it must not start any more; None: no limit."""

    id: str
    kind: str
    payload: Payload
    idempotency_key: str
    start_within: float | None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended, as its node says; `status` is one of COMMAND_RESULTS."""

    id: str
    status: str
    reason: str = ""
    payload: Json = None


@dataclass(frozen=True, slots=True)
class Change:
    """One difference of two inventories. `before` and `after` are small objects for people; None: there was none.

    `type` is one of planning.diff.CHANGE_TYPES; `device_id` is a GPU's UUID, or None where the change is no GPU's.
    """

    type: str
    before: Payload | None = None
    after: Payload | None = None
    device_id: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """An event as a rule decides it; id, time, tenant, pool, node and schemaVersion are added where it is written."""

    type: str
    payload: Payload = field(default_factory=dict)
