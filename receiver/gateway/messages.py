"""What is said on a stream, as values. The codec alone knows protobuf.

Of receiver.values: `Offer` is the message InventoryOffer; `Command` and `CommandResult` are those of the same name.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from receiver.values import Command, CommandResult, Driver, Offer, Pressure, Status

EndReason = Literal["superseded", "revoked", "draining", "overloaded", "protocol-unsupported", "bad-message"]

# ---- from bcd


@dataclass(frozen=True, slots=True)
class Hello:
    """Who calls. `digest` is empty before bcd's first collection, `previous_instance_id` where bcd had no run before."""

    protocol_version: str
    daemon_version: str
    boot_id: str
    instance_id: str
    previous_epoch: int | None = None
    sent_at: datetime | None = None
    drivers: tuple[Driver, ...] = ()
    capabilities: tuple[str, ...] = ()
    digest: str = ""
    previous_instance_id: str = ""


class Report(NamedTuple):  # (what every report makes anew is a tuple: a frozen dataclass takes more than twice as long)
    """A status report: `status` is what it says, without what moves with every report.

    `bad`: types of conditions that it may not set. `offset`: seconds that the node's clock is at least ahead of this receiver's,
    or behind (below zero); None: the report does not say when it was sent.
    """

    status: Status
    bad: tuple[str, ...] = ()
    pressure: Pressure | None = None
    offset: float | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one section of the offer with this digest; `last`: the section is complete."""

    digest: str
    name: str
    data: bytes
    last: bool


@dataclass(frozen=True, slots=True)
class Ignored:
    """A message of a newer peer, or one that has no reader yet."""


FromNode = Hello | Report | Offer | Chunk | CommandResult | Ignored

# ---- to bcd


@dataclass(frozen=True, slots=True)
class Welcome:
    """Hello is accepted. `status_interval` in seconds."""

    node_id: str
    epoch: int
    status_interval: float
    applied_digest: str


@dataclass(frozen=True, slots=True)
class End:
    """The last message of a stream. `retry_after` in seconds; `detail` is for a person.

    `code`: the stream's gRPC status where that is not OK, as for what is over a limit.
    """

    reason: EndReason
    retry_after: float | None = None
    detail: str = ""
    code: str = "OK"


@dataclass(frozen=True, slots=True)
class Request:
    """Send an offer (`offer`); or: these sections of the offer with this digest, perhaps none."""

    offer: bool = False
    sections: tuple[str, ...] = ()
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """How an offer ended."""

    digest: str
    status: Literal["applied", "unchanged", "advisory", "refused", "retry"]
    section: str = ""
    reason: str = ""
    retry_after: float | None = None
    snapshot_id: str = ""


@dataclass(frozen=True, slots=True)
class Ack:
    """The result of this command is stored: bcd may forget it."""

    id: str


ToNode = Welcome | End | Request | Result | Command | Ack
