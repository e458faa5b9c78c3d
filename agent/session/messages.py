"""What can be said between bcd and the gateway, as values (SPEC A3). The codec alone knows protobuf.

Times here are Unix seconds, durations seconds, digests and hashes lower-case hexadecimal.
"""

from dataclasses import dataclass, field

from agent.sections import Section

# ---- from bcd


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver that this node offers: `libvirt-kvm`, version, kinds (`vm`)."""

    id: str
    version: str
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """Who calls. `digest` is empty before the first collection."""

    daemon_version: str
    boot_id: str
    instance_id: str
    previous_epoch: int | None = None
    drivers: tuple[Driver, ...] = ()
    capabilities: tuple[str, ...] = ()
    digest: str = ""
    previous_instance_id: str = ""  # of the run before, as long as its session may be the current one


@dataclass(frozen=True, slots=True)
class Missing:
    """A section that the inventory lacks, and why in one text."""

    name: str
    error: str


@dataclass(frozen=True, slots=True)
class Condition:
    """`{type, status, reason?, message?, since}`; `status` is `true`, `false` or `unknown`."""

    type: str
    status: str
    since: float
    reason: str = ""
    message: str = ""
    device_id: str = ""
    bus_id: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class Pressure:
    """Percent: `some avg10` of PSI, and the share of CPU time stolen. `number`: of the sample, from 1."""

    cpu: float
    memory: float
    io: float
    steal: float
    number: int = 0


@dataclass(frozen=True, slots=True)
class KernelLog:
    """The state of the kernel-log reader."""

    available: bool
    complete: bool
    lost_records: int = 0
    unattributed: int = 0
    overflow: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """What a status report says, without its number and time."""

    digest: str = ""
    collected_at: float | None = None
    missing: tuple[Missing, ...] = ()
    conditions: tuple[Condition, ...] = ()
    pressure: Pressure | None = None
    kernel_log: KernelLog | None = None
    abandoned_workers: int = 0


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A status as the `seq`-th report of a session, from 1."""

    seq: int
    status: Status


@dataclass(frozen=True, slots=True)
class InventoryOffer:
    """The hashes of an inventory; `sections` keep their bytes so that an answer can be given. Sorted by name."""

    digest: str
    sections: tuple[Section, ...]
    missing: tuple[Missing, ...]
    collected_at: float
    boot_id: str
    trigger: str


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bytes of the sections that were asked for, of the offer with this digest. Sent in chunks."""

    digest: str
    sections: tuple[Section, ...]
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended: `succeeded`, `failed`, `refused` or `expired`; sent until it is acknowledged. `payload` is JSON."""

    id: str
    status: str
    reason: str = ""
    payload: str = ""


# ---- from the gateway


@dataclass(frozen=True, slots=True)
class Welcome:
    """Hello was accepted."""

    node_id: str
    epoch: int
    status_interval: float
    applied_digest: str
    chunk_bytes: int
    now: float | None = None  # Unix seconds by the gateway's clock


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """The gateway is about to close. `reason` in the SPEC's words, `unspecified` for one that is not known here."""

    reason: str
    retry_after: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class InventoryRequest:
    """Send an offer (`offer`), or the named sections of the offer with this digest, perhaps none."""

    offer: bool
    sections: tuple[str, ...] = ()
    digest: str = ""


@dataclass(frozen=True, slots=True)
class InventoryResult:
    """The end of an offer. `status`: `applied`, `unchanged`, `advisory`, `refused`, `retry`."""

    digest: str
    status: str
    section: str = ""
    reason: str = ""
    retry_after: float | None = None
    snapshot_id: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """An order (A7). `payload` is JSON; `start_within`: seconds left in which it may start, None: no limit."""

    id: str
    kind: str
    payload: str = ""
    idempotency_key: str = ""
    start_within: float | None = None


@dataclass(frozen=True, slots=True)
class CommandAck:
    """The gateway has a command's result for good."""

    id: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A message that this version does not know: ignored."""

    name: str = field(default="")


FromGateway = Welcome | SessionEnd | InventoryRequest | InventoryResult | Command | CommandAck | Unknown
ToGateway = Hello | StatusReport | InventoryOffer | Bodies | CommandResult
