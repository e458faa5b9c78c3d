"""A node as the platform sees it: rows by key, a draft of them that rules change, and what else a plan is made from.

Every writer works the same way: lock the node, load `Facts` and the stored rows, let rules change a `Draft`, write the rows that
differ (receiver/store/view.py). So planning twice plans nothing, and one more rule is a function `(Facts, Draft) -> None`.
Times are the database's: rows do not carry them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from google.protobuf.message import Message

from receiver.planning.loop_rows import (
    Attempt,
    AttemptState,
    Cause,
    CommandEnd,
    CommandOrder,
    CommandState,
    HealthKey,
    HealthSource,
    Order,
    Run,
    RunKind,
    RunState,
    Step,
)
from receiver.planning.policy import Policy
from receiver.values import ConditionStatus, Event, Json, Payload

# The rows of the loops are part of the view.
__all__ = [
    "Attempt",
    "AttemptState",
    "Cause",
    "CommandEnd",
    "CommandOrder",
    "CommandState",
    "HealthKey",
    "HealthSource",
    "Order",
    "Run",
    "RunKind",
    "RunState",
    "Step",
]

ConditionKey = tuple[str, str]  # type, device
FaultKey = tuple[str, str]  # code, device
AtomKey = tuple[str, int]  # id, generation
LabelSource = Literal["inventory", "system", "operator"]


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool of a node. Words as in values.py; `revision` is raised by every edit of the pool or its policy.

    `paused`: the breaker has tripped, no repair is queued or started (SPEC B8). `maintenance`: a person has the whole pool.
    """

    id: str
    name: str = ""
    kind: str = "gpu"
    gpu_model: str | None = None
    sharing: str = "exclusive"
    mode: str = "enforce"
    policy: Policy = field(default_factory=Policy)
    revision: int = 1
    paused: bool = False
    maintenance: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """The node's own columns that plans change. Reasons are the types of owner `health`, sorted; others' are never touched.

    `draining`: it takes no bookings, for it is to be rebooted. `unhealthy`: something is broken, see planning/breaker.py.

    `inventory_boot`: the boot in which the applied inventory was last collected or confirmed. `baseline`: of the last passed
    acceptance, what inventory_conditions.baseline() gives. `plan_key`: see planning/node.py.
    """

    status: str = "adopting"
    pool_id: str | None = None
    trust: str = "platform"
    trust_epoch: int = 0
    lease_id: str | None = None
    maintenance_by: str | None = None
    maintenance_reason: str | None = None
    maintenance_until: str | None = None  # RFC 3339
    draining: bool = False
    unhealthy: bool = False
    attempt: int = 1  # of acceptance; another one begins with nodes.adopt
    no_schedule_reasons: tuple[str, ...] = ()
    would_no_schedule: tuple[str, ...] = ()
    inventory_boot: str | None = None
    baseline: Json = None
    plan_key: Json = None


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """A condition as stored; its key is (node, type, device_id).

    `device_id`: a GPU's UUID, a switch's bus id, or empty for the node as a whole. `no_schedule`: while it is so, it is a reason
    not to place on the node. `advisory`: a tenant's word. `count`: of an XID. `evidence`: of DuplicateIdentity, or the verdict.
    """

    type: str
    device_id: str = ""
    bus_id: str = ""
    status: ConditionStatus = "true"
    reason: str = ""
    message: str = ""
    count: int = 0
    no_schedule: bool = False
    advisory: bool = False
    evidence: Payload = field(default_factory=dict)

    @property
    def key(self) -> ConditionKey:
        """Type, and the device where it is of one."""
        return self.type, self.device_id


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. `healthy`: present and without an open fault. `attributes`: SPEC B2's, in lowerCamelCase."""

    id: str
    serial: str | None = None
    present: bool = True
    healthy: bool = True
    lost: bool = False
    assigned: bool = False
    partition_pending: bool = False
    draining: bool = False
    attributes: Payload = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The GPU's UUID."""
        return self.id


@dataclass(frozen=True, slots=True)
class Atom:
    """What placement books. `bookable` is the device's and atom's part of SPEC B0 alone: the node's part and live bookings are
    read beside it (SQL view `bookable_atoms`). `reason`: why it is not bookable, or None."""

    id: str
    generation: int
    device_id: str
    profile: str | None = None
    placement: Json = None
    bookable: bool = False
    retiring: bool = False
    healthy: bool = True
    reason: str | None = None

    @property
    def key(self) -> AtomKey:
        """Id and generation."""
        return self.id, self.generation


@dataclass(frozen=True, slots=True)
class Generation:
    """The last generation that a MIG instance's UUID had on this node, and what it was: kept when its atom goes."""

    atom_id: str
    generation: int
    device_id: str
    profile: str | None = None
    placement: Json = None
    boot_id: str = ""

    @property
    def key(self) -> str:
        """The MIG instance's UUID."""
        return self.atom_id


@dataclass(frozen=True, slots=True)
class Health:
    """A fault (source `xid`) or finding (source `inventory`) of a device; open while `closed_reason` is None.

    `cleared_count`: the count at the last clear of an XID. `detail`: a finding's values, or an XID's message, bus id and verdict.
    `boot_id`: an XID's; empty for findings. The device may be planned later, and be another node's by then: rows follow it.
    """

    device_id: str
    source: HealthSource
    code: str
    boot_id: str = ""
    count: int = 0
    cleared_count: int = 0
    detail: Payload = field(default_factory=dict)
    closed_reason: str | None = None

    @property
    def key(self) -> HealthKey:
        """Device, source, code, boot."""
        return self.device_id, self.source, self.code, self.boot_id

    @property
    def open(self) -> bool:
        """Whether it keeps the device out of placement."""
        return self.closed_reason is None


@dataclass(frozen=True, slots=True)
class Counted:
    """An XID or SXid of the node's present boot: how often it was seen, and the count that the last event of it told.

    `device_id`: a GPU's UUID or a switch's bus id. `foreign`: the GPU is another node's.
    """

    code: str
    device_id: str
    boot_id: str
    count: int = 0
    told: int = 0
    bus_id: str = ""
    message: str = ""
    foreign: bool = False

    @property
    def key(self) -> FaultKey:
        """Code and device."""
        return self.code, self.device_id


@dataclass(frozen=True, slots=True)
class Label:
    """A label and who wrote it."""

    key: str
    value: str
    source: LabelSource


@dataclass(frozen=True, slots=True)
class HardwareKey:
    """The node's present hardware key (SPEC B2). `distinct`: nodes that an operator told apart from it, sorted."""

    key: str
    trusted: bool = False
    provisional: bool = False
    identifiers: Payload = field(default_factory=dict)
    distinct: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Booking:
    """A live booking of one generation of an atom."""

    booking_id: str
    device_id: str
    atom_id: str
    atom_generation: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What a plan is made from and does not change.

    `advisory`: what the node reports is a tenant's word (SPEC B2, Trust). `sections`: the last good one of each that was applied,
    decoded; None: this plan is not about the inventory, and rules of the inventory do not run. `fresh`: the names of those that
    the applied snapshot itself has without error and the last report does not lack. `owners`: of reported devices that another
    node has, that node. `same_key`: other nodes whose trusted hardware key is the one that these sections give. `online`: a
    session is open that began since the last lease ended. `tried`: open faults that a run was for since they opened, and whether
    that run only observed. `disrupted`: somebody disrupts the node, and has said so in `disruptions`. `dry_run`: this receiver
    only records what it would do to it. `commands`: of the attempt that runs, by id. `waited`: seconds since the node is
    `adopting`, has its session and is nobody's duplicate, of which each began anew what went before; None: it is not.
    """

    node_id: str
    tenant_id: str = "default"
    kind: str = "host"
    boot_id: str = ""
    epoch: int = 0
    online: bool = False
    advisory: bool = False
    pool: Pool | None = None
    sections: Mapping[str, Message] | None = None
    fresh: frozenset[str] = frozenset()
    bookings: tuple[Booking, ...] = ()
    owners: Mapping[str, str] = field(default_factory=dict)
    same_key: tuple[str, ...] = ()
    tried: frozenset[tuple[HealthKey, bool]] = frozenset()
    disrupted: bool = False
    dry_run: bool = False
    commands: Mapping[str, CommandState] = field(default_factory=dict)
    waited: float | None = None

    @property
    def booked_devices(self) -> frozenset[str]:
        """Devices with a live booking."""
        return frozenset(one.device_id for one in self.bookings)

    @property
    def booked_atoms(self) -> frozenset[AtomKey]:
        """Atoms with a live booking, by generation."""
        return frozenset((one.atom_id, one.atom_generation) for one in self.bookings)


@dataclass(frozen=True, slots=True)
class History:
    """A line in a device's life (`devices.history`)."""

    device_id: str
    serial: str | None
    event: str
    detail: Payload = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notice:
    """A NOTIFY on `bc_reservations` at commit. `device_id` None: the node as a whole."""

    reason: str  # "AtomUnhealthy"
    device_id: str | None = None


@dataclass(slots=True)
class Draft:
    """The rows as they are to be, and what is told beside them. Begins as what is stored; rules change it in place."""

    node: Node = field(default_factory=Node)
    conditions: dict[ConditionKey, ConditionRow] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    atoms: dict[AtomKey, Atom] = field(default_factory=dict)
    generations: dict[str, Generation] = field(default_factory=dict)
    health: dict[HealthKey, Health] = field(default_factory=dict)
    faults: dict[FaultKey, Counted] = field(default_factory=dict)
    labels: dict[str, Label] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    hardware: HardwareKey | None = None
    orders: list[Order] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)  # the node turned unhealthy: by what
    commands: list[CommandOrder] = field(default_factory=list)
    ends: list[CommandEnd] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    history: list[History] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    # Devices that this node lets go, and whether its hardware key is another or gone: nodes with that evidence plan again.
    released: set[str] = field(default_factory=set)
    key_released: bool = False
    plan_again: bool = False  # with its inventory: put in the queue

    def put(self, table: str, row: Any) -> None:
        """Sets a row of `conditions`, `devices`, ... by its key."""
        getattr(self, table)[row.key] = row

    def copy(self) -> "Draft":
        """The same rows, with nothing told yet: what is stored stays as it is while rules change the copy."""
        same = Draft(node=self.node, hardware=self.hardware)
        for name in TABLES:
            setattr(same, name, dict(getattr(self, name)))
        return same


TABLES = ("conditions", "devices", "atoms", "generations", "health", "faults", "labels", "runs", "attempts")


def set_conditions(draft: Draft, types: Iterable[str], wanted: Iterable[ConditionRow], keep_unseen: bool = False) -> None:
    """The conditions of these types are exactly the wanted ones: true or unknown as given, others that are stored turn false.

    What was never true or unknown has no row. One condition has one writer, and this is how each of them writes.
    `keep_unseen`: stored rows that are not wanted stay as they are.
    """
    mine, now = frozenset(types), {row.key: row for row in wanted}
    for key, row in list(draft.conditions.items()):
        if key[0] in mine and key not in now and not keep_unseen:
            draft.conditions[key] = replace(
                row, status="false", reason="", message="", no_schedule=False, advisory=False, evidence={}
            )
    for key, row in now.items():
        if key in draft.conditions or row.status != "false":
            draft.conditions[key] = row
