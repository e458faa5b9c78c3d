"""When what is said: the conversation with the gateway as a table of (phase, event) -> rule (SPEC A3). Pure.

Events are the gateway's messages and our own: Opened, HelloChanged, StatusChanged, InventoryChanged, CommandDone, Tick, Lost. A
rule returns the next state and what goes out: messages to send, and notes to the daemon (Welcomed, Answered, CollectAgain,
Ordered, Acknowledged, Close). A pair that is not in the table changes nothing: the peer may be newer, or messages crossed.

One State outlives its stream: `Opened` begins the next session and keeps what was applied or refused. Times are seconds
of one monotonic clock.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from bettercompute.contract.sections import same_digest

from agent.session import messages as m

REPORT_GAP = 1.0  # at most one report a second, after the first change
WELCOME_LIMIT = 30.0  # without a Welcome by then the stream is given up
ANSWER_LIMIT = 120.0  # without a word about an offer by then it counts as never made,
UNANSWERED_HOLD = 300.0  # and is made again after this
REFUSED_HOLD = 3600.0  # a digest that was refused twice is not offered again before this
RETRY_DEFAULT = 60.0  # `retry` without a time
RESULT_GAP = 60.0  # a command's result that nobody acknowledges is sent again after this, and in each new session
APPLIED = ("applied", "unchanged", "advisory")  # the receiver has the inventory


class Phase(Enum):
    """Where a session stands."""

    CLOSED = "closed"
    GREETING = "greeting"  # Hello is out
    IDLE = "idle"  # welcomed, no offer under way
    OFFERED = "offered"  # an offer is out, its sections not yet asked for
    SENT = "sent"  # the sections asked for are out, the result is not here


# ---- our own events


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream is open: greet."""

    hello: m.Hello


@dataclass(frozen=True, slots=True)
class HelloChanged:
    """What Hello would say is now this: said again on the open stream when drivers or capabilities differ (A7)."""

    hello: m.Hello


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """What the status report says is now this."""

    status: m.Status


@dataclass(frozen=True, slots=True)
class InventoryChanged:
    """A collection ended (with the same digest or another)."""

    inventory: m.InventoryOffer


@dataclass(frozen=True, slots=True)
class CommandDone:
    """A command has ended: its result is sent until it is acknowledged."""

    result: m.CommandResult


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: the state's `deadline` is reached."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream is gone."""


# ---- notes to the daemon


@dataclass(frozen=True, slots=True)
class Greeting:
    """The stream's own note: Hello is about to be sent as this node."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The session has this epoch: keep it for the next Hello."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Answered:
    """An offer has its result."""

    result: m.InventoryResult


@dataclass(frozen=True, slots=True)
class CollectAgain:
    """The offer was refused for the first time: collect once more."""

    section: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ordered:
    """The gateway orders this."""

    command: m.Command


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The gateway has the result of this command for good."""

    id: str


@dataclass(frozen=True, slots=True)
class Close:
    """End the stream. `end` is what the gateway said; None: it did not answer in time."""

    end: m.SessionEnd | None


Output = m.ToGateway | Greeting | Welcomed | Answered | CollectAgain | Ordered | Acknowledged | Close
Outputs = tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """A digest that is not to be offered before `until`. `refusals` counts how often in a row it was refused."""

    digest: str
    until: float
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """A session, and what outlives it: `status`, `inventory`, `hold`, `results`."""

    phase: Phase = Phase.CLOSED
    since: float = 0.0  # of the phase, for its limit
    said: m.Hello | None = None  # the last Hello of this stream
    hello: m.Hello | None = None  # what it would be now
    interval: float = 30.0
    chunk_bytes: int = 1 << 20
    applied: str = ""  # the receiver's digest, as far as it told
    offered: m.InventoryOffer | None = None  # under way
    seq: int = 0
    reported_at: float | None = None
    changed_at: float | None = None  # when a change was last reported
    dirty: bool = False  # the status differs from the one last reported
    status: m.Status = field(default_factory=m.Status)
    inventory: m.InventoryOffer | None = None
    hold: Hold | None = None
    results: tuple[m.CommandResult, ...] = ()  # not acknowledged yet
    unsent: tuple[m.CommandResult, ...] = ()  # those of them that are due
    results_at: float = 0.0  # when the last of them went out

    @property
    def welcomed(self) -> bool:
        """Reports and offers may be sent."""
        return self.phase in _WELCOMED

    @property
    def is_applied(self) -> bool:
        """The receiver has applied the inventory of now, as far as it told."""
        return self.inventory is not None and same_digest(self.inventory.digest, self.applied or None)

    @property
    def deadline(self) -> float | None:
        """When Tick is due; None: never, as long as nothing happens."""
        times = []
        if self.phase is Phase.GREETING:
            times.append(self.since + WELCOME_LIMIT)
        if self.welcomed:
            times.append(self.report_at)
            if self.results:
                times.append(self.results_at + RESULT_GAP)
        if self.phase in _UNDER_WAY:
            times.append(self.since + ANSWER_LIMIT)
        if self.phase is Phase.IDLE and self.held_until is not None and not self.is_applied:
            times.append(self.held_until)
        return min(times, default=None)

    @property
    def report_at(self) -> float:
        """When the next report is due: at once on a change (at most one a second after the first), else every interval."""
        if self.reported_at is None:
            return self.since
        if self.dirty:
            return self.since if self.changed_at is None else self.changed_at + REPORT_GAP
        return self.reported_at + self.interval

    @property
    def held_until(self) -> float | None:
        """Until when the inventory of now is not to be offered; None: it may be."""
        same = self.hold and self.inventory and self.hold.digest == self.inventory.digest
        return self.hold.until if self.hold and same else None


Rule = Callable[[State, Any, float], tuple[State, Outputs]]


def step(state: State, event: object, now: float) -> tuple[State, Outputs]:
    """What follows from an event: its rule, then the report and the offer that are due."""
    rule = TABLE.get((state.phase, type(event)), _nothing)
    state, out = rule(state, event, now)
    state, hello = _hello_due(state, now)
    state, offer = _offer_due(state, now)
    state, report = _report_due(state, now)
    state, results = _results_due(state, now)
    # After Welcome the report goes first (A3); later the offer does, so that the gateway does not ask for it on the report.
    return state, out + hello + (report + offer if state.seq == 1 else offer + report) + results


# ---- rules


def _nothing(state: State, event: object, now: float) -> tuple[State, Outputs]:
    return state, ()


def _open(state: State, event: Opened, now: float) -> tuple[State, Outputs]:
    return replace(_closed(state), phase=Phase.GREETING, since=now, said=event.hello, hello=event.hello), (event.hello,)


def _hello(state: State, event: HelloChanged, now: float) -> tuple[State, Outputs]:
    return replace(state, hello=event.hello), ()


def _welcome(state: State, event: m.Welcome, now: float) -> tuple[State, Outputs]:
    welcomed = replace(
        state,
        phase=Phase.IDLE,
        since=now,
        interval=event.status_interval,
        chunk_bytes=event.chunk_bytes,
        applied=event.applied_digest,
        unsent=state.results,
    )
    return welcomed, (Welcomed(event.epoch),)


def _end(state: State, event: m.SessionEnd, now: float) -> tuple[State, Outputs]:
    return _closed(state), (Close(event),)


def _lost(state: State, event: Lost, now: float) -> tuple[State, Outputs]:
    return _closed(state), ()


def _status(state: State, event: StatusChanged, now: float) -> tuple[State, Outputs]:
    # When it was collected alone is told with the next report: it must not be what an XID has to wait a second for.
    same = replace(event.status, collected_at=state.status.collected_at) == state.status
    return replace(state, status=event.status, dirty=state.dirty or not same), ()


def _inventory(state: State, event: InventoryChanged, now: float) -> tuple[State, Outputs]:
    new = event.inventory
    hold = state.hold if state.hold and state.hold.digest == new.digest else None
    if hold and hold.refusals == 1:  # the one more collection gave the same: it may be offered once more
        hold = replace(hold, until=now)
    if state.offered and state.offered.digest != new.digest:  # a newer offer replaces the one under way
        state = replace(state, phase=Phase.IDLE, offered=None, applied="")
    return replace(state, inventory=new, hold=hold), ()


def _asked(state: State, event: m.InventoryRequest, now: float) -> tuple[State, Outputs]:
    # The receiver does not have it, whatever it said before.
    return (replace(state, applied=""), ()) if event.offer else (state, ())


def _wanted(state: State, event: m.InventoryRequest, now: float) -> tuple[State, Outputs]:
    if state.offered is None or event.offer or event.digest != state.offered.digest:
        return state, ()
    sections = tuple(s for s in state.offered.sections if s.name in event.sections)
    bodies = (m.Bodies(event.digest, sections, state.chunk_bytes),) if sections else ()
    return replace(state, phase=Phase.SENT, since=now), bodies


def _result(state: State, event: m.InventoryResult, now: float) -> tuple[State, Outputs]:
    about = state.offered or state.inventory
    if about is None or event.digest != about.digest:
        return state, ()
    idle = replace(state, phase=Phase.IDLE, since=now, offered=None)
    refusals = state.hold.refusals if state.hold and state.hold.digest == event.digest else 0
    if event.status == "refused":
        hold = Hold(event.digest, now + REFUSED_HOLD, refusals + 1)
        again = () if refusals else (CollectAgain(event.section, event.reason),)
        return replace(idle, hold=hold), (Answered(event), *again)
    if event.status in APPLIED:
        return replace(idle, applied=event.digest, hold=None), (Answered(event),)
    # `retry`; and a word of a newer gateway, which ends the offer too.
    after = RETRY_DEFAULT if event.retry_after is None else event.retry_after
    return replace(idle, hold=Hold(event.digest, now + after, refusals)), (Answered(event),)


def _ordered(state: State, event: m.Command, now: float) -> tuple[State, Outputs]:
    return state, (Ordered(event),)


def _done(state: State, event: CommandDone, now: float) -> tuple[State, Outputs]:
    others = tuple(r for r in state.results if r.id != event.result.id)
    unsent = tuple(r for r in state.unsent if r.id != event.result.id)
    return replace(state, results=(*others, event.result), unsent=(*unsent, event.result)), ()


def _acknowledged(state: State, event: m.CommandAck, now: float) -> tuple[State, Outputs]:
    left, unsent = (tuple(r for r in results if r.id != event.id) for results in (state.results, state.unsent))
    return replace(state, results=left, unsent=unsent), (Acknowledged(event.id),)


def _tick(state: State, event: Tick, now: float) -> tuple[State, Outputs]:
    if state.phase is Phase.GREETING and now >= state.since + WELCOME_LIMIT:
        return _closed(state), (Close(None),)
    if state.phase in _UNDER_WAY and now >= state.since + ANSWER_LIMIT:
        hold = Hold(state.offered.digest, now + UNANSWERED_HOLD) if state.offered else state.hold
        return replace(state, phase=Phase.IDLE, since=now, offered=None, hold=hold), ()
    return state, ()


def _closed(state: State) -> State:
    return State(applied=state.applied, status=state.status, inventory=state.inventory, hold=state.hold, results=state.results)


_OPEN = (Phase.GREETING, Phase.IDLE, Phase.OFFERED, Phase.SENT)
_WELCOMED = (Phase.IDLE, Phase.OFFERED, Phase.SENT)
_UNDER_WAY = (Phase.OFFERED, Phase.SENT)

TABLE: Mapping[tuple[Phase, type], Rule] = {
    (Phase.CLOSED, Opened): _open,
    (Phase.GREETING, m.Welcome): _welcome,
    (Phase.IDLE, m.InventoryRequest): _asked,
    **{(phase, m.InventoryRequest): _wanted for phase in _UNDER_WAY},
    **{(phase, HelloChanged): _hello for phase in _OPEN},
    **{(phase, m.InventoryResult): _result for phase in _WELCOMED},  # late ones too
    **{(phase, m.Command): _ordered for phase in _WELCOMED},
    **{(phase, m.CommandAck): _acknowledged for phase in _WELCOMED},
    **{(phase, CommandDone): _done for phase in Phase},
    **{(phase, m.SessionEnd): _end for phase in _OPEN},
    **{(phase, Tick): _tick for phase in _OPEN},
    **{(phase, Lost): _lost for phase in _OPEN},
    **{(phase, StatusChanged): _status for phase in Phase},
    **{(phase, InventoryChanged): _inventory for phase in Phase},
}


# ---- what is due


def _hello_due(state: State, now: float) -> tuple[State, Outputs]:
    said, new = state.said, state.hello
    if not state.welcomed or said is None or new is None:
        return state, ()
    if (said.drivers, said.capabilities) == (new.drivers, new.capabilities):
        return state, ()
    return replace(state, said=new), (new,)


def _offer_due(state: State, now: float) -> tuple[State, Outputs]:
    offer = state.inventory
    held = state.held_until is not None and now < state.held_until
    if state.phase is not Phase.IDLE or offer is None or state.is_applied or held:
        return state, ()
    return replace(state, phase=Phase.OFFERED, since=now, offered=offer), (offer,)


def _report_due(state: State, now: float) -> tuple[State, Outputs]:
    if not state.welcomed or now < state.report_at:
        return state, ()
    report = m.StatusReport(state.seq + 1, state.status)
    # What moves by itself (pressure) changes with each report that is due anyway: that must not hold up the next change.
    due_anyway = state.reported_at is None or now >= state.reported_at + state.interval
    changed_at = state.changed_at if due_anyway else now
    return replace(state, seq=report.seq, reported_at=now, changed_at=changed_at, dirty=False), (report,)


def _results_due(state: State, now: float) -> tuple[State, Outputs]:
    if not state.welcomed or not state.results:
        return state, ()
    due = state.results if now >= state.results_at + RESULT_GAP else state.unsent
    return (replace(state, unsent=(), results_at=now), due) if due else (state, ())
