"""What a stream has to do, and what it hears besides bcd's messages: jobs in the database and the gateway's own events.

receiver/gateway/machine.py decides on them, receiver/gateway/jobs.py does them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from receiver.gateway import messages as m
from receiver.gateway.limits import Limit
from receiver.values import Command, CommandResult, InventoryOutcome, Offer, SessionStart, Status

RETRY = 15.0  # seconds until bcd should try again when the database did not answer, at least

# ---- jobs: what is to be done in the database


@dataclass(frozen=True, slots=True)
class Begin:
    """Take the next epoch. Answered by Begun."""

    hello: m.Hello


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Drivers or capabilities changed: write them, in the same epoch. No answer."""

    hello: m.Hello


@dataclass(frozen=True, slots=True)
class Judge:
    """Record what a report says, and what telemetry came to with it. No answer."""

    status: Status


@dataclass(frozen=True, slots=True)
class FindWanted:
    """Which sections' bytes are not there? Answered by Wanted."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply an offer with the bytes that were asked for. Answered by Ended."""

    offer: Offer
    bodies: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class FindCommands:
    """Which commands are to be sent? Answered by Due."""


@dataclass(frozen=True, slots=True)
class Store:
    """Store how a command ended. Answered by Stored."""

    result: CommandResult


Job = Begin | Rewrite | Judge | FindWanted | Apply | FindCommands | Store
Action = m.ToNode | Job

# ---- the gateway's own events


@dataclass(frozen=True, slots=True)
class Begun:
    """The session has its epoch. `commands`: those to send, oldest first."""

    start: SessionStart
    commands: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The sections of an offer whose bytes are wanted."""

    offer: Offer
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """An offer is applied, or not."""

    outcome: InventoryOutcome


@dataclass(frozen=True, slots=True)
class Queued:
    """A command was queued for the node, or so it is said."""


@dataclass(frozen=True, slots=True)
class Due:
    """Commands to send, oldest first."""

    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of this command is committed."""

    id: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A job could not be done: the database does not answer (`ours`), or it refuses what bcd said."""

    job: Job
    reason: str
    ours: bool
    retry_after: float = RETRY


@dataclass(frozen=True, slots=True)
class Bad:
    """What bcd sent is no message, or is over a limit."""

    detail: str
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """The stream has to end for a reason outside it."""

    end: m.End
