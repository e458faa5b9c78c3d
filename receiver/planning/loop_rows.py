"""Rows of a node that acceptance and remediation keep (SPEC B7, B8), and what they order: part of the view (planning/view.py)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from receiver.values import RUN_ENDED, Json, Payload

HealthKey = tuple[str, str, str, str]  # device, source, code, boot
HealthSource = Literal["xid", "inventory"]
RunKind = Literal["node.reboot", "gpu.reset", "diag.nvml", "diag.dcgm"]
AttemptState = Literal["running", "passed", "failed", "cancelled"]
RunState = Literal["queued", "waiting", "running", "verifying", "succeeded", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Cause:
    """What a run is for: a fault (source `xid`) or finding (source `inventory`) of a GPU, or an SXid of a switch (its bus id)."""

    device_id: str
    source: HealthSource
    code: str
    boot_id: str = ""

    @property
    def key(self) -> HealthKey:
        """The key of the row of device health; of a switch's, which has none, in the same form."""
        return self.device_id, self.source, self.code, self.boot_id

    def as_json(self) -> Payload:
        """As it is stored and told."""
        return {"deviceId": self.device_id, "source": self.source, "code": self.code, "bootId": self.boot_id}


@dataclass(frozen=True, slots=True)
class Run:
    """A repair (SPEC B8). Those that have not ended are loaded.

    `devices`: UUIDs, sorted: a reset's group; of a reboot the GPUs that it has to bring back. `causes`: Cause.as_json().
    `payload`: of a diagnosis' command. `by`: who ordered it; empty: a fault did. `force`: it waits for nothing. `boot_id`: the
    node's when it was queued. `observed`: it only tells what would be done.
    """

    id: str
    kind: RunKind
    pool_id: str | None = None
    devices: Sequence[str] = ()
    causes: Sequence[Payload] = ()
    payload: Payload = field(default_factory=dict)
    by: str = ""
    force: bool = False
    state: RunState = "queued"
    escalated: bool = False
    observed: bool = False
    reason: str = ""
    boot_id: str = ""
    command_id: str | None = None

    @property
    def key(self) -> str:
        """Its id."""
        return self.id

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in RUN_ENDED

    @property
    def under_way(self) -> bool:
        """Whether the node is at it, or its proof is awaited."""
        return self.state in ("running", "verifying")

    @property
    def begun(self) -> bool:
        """Whether it waits no more."""
        return self.under_way or self.ended

    @property
    def cause_keys(self) -> frozenset[HealthKey]:
        """What it is for, as rows of device health are keyed."""
        return frozenset(Cause(one["deviceId"], one["source"], one["code"], one["bootId"]).key for one in self.causes)


@dataclass(frozen=True, slots=True)
class Order:
    """A run that is to be: it gets an id when it is stored (planning/remediation.py, `place`). Fields as Run's."""

    kind: RunKind
    devices: Sequence[str] = ()
    causes: Sequence[Payload] = ()
    payload: Payload = field(default_factory=dict)
    by: str = ""
    force: bool = False
    observed: bool = False
    reason: str = ""
    boot_id: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A line in a run's history: the state that it has from now on, or still, and why."""

    run_id: str
    state: RunState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of the node to be accepted (SPEC B7): the present one, and whichever runs.

    `checks`, in the order of the policy: `{"kind", "commandId"?, "status", "reason"?}`; a status is "running" or how it ended.
    """

    attempt: int
    state: AttemptState = "running"
    reason: str = ""
    checks: Sequence[Payload] = ()

    @property
    def key(self) -> int:
        """Its number."""
        return self.attempt


@dataclass(frozen=True, slots=True)
class CommandOrder:
    """A command that the node is to be sent: it gets an id when it is stored. `start_within`: seconds, for its latest start."""

    kind: str
    payload: Payload
    key: str  # of idempotency
    by: str
    start_within: float
    id: str = ""


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """A command that nothing is waited for any more: "expired" or "cancelled", unless it has ended."""

    id: str
    state: Literal["expired", "cancelled"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CommandState:
    """How far a command has come. `late`: seconds since its latest start; below zero before."""

    state: str
    reason: str = ""
    result: Json = None
    late: float = 0.0
