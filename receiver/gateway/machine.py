"""When what is said on one stream: a table of (phase, event) -> rule (SPEC A3). Pure.

Events are bcd's messages, and the gateway's own: how a job in the database went (Begun, Wanted, Ended, Due, Stored, Failed), and
what comes from outside the stream (Queued, Leave).
A rule answers what to do next, in order: send a message, or do a job whose event comes before bcd's next message is looked at. So
the messages of a stream are handled in order, and at most one job of a stream is under way. Times are seconds of one clock.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bettercompute.contract.sections import same_digest

from receiver.gateway import limits
from receiver.gateway import messages as m
from receiver.gateway.limits import Bucket, Limit, NodeLimits
from receiver.gateway.work import (
    Action,
    Apply,
    Bad,
    Begin,
    Begun,
    Due,
    Ended,
    Failed,
    FindCommands,
    FindWanted,
    Judge,
    Leave,
    Queued,
    Rewrite,
    Store,
    Stored,
    Wanted,
)
from receiver.planning.offer import check_offer
from receiver.values import PROTOCOL, CommandResult, Offer

PROTOCOL_MAJOR = int(PROTOCOL.partition(".")[0])
UPLOAD_LIMIT = 120.0  # seconds without a chunk after which an offer is no longer under way
RETRY_SOON = 1.0  # and when bytes that were there are gone: the next offer asks for them


class Phase(StrEnum):
    """Where a stream stands."""

    NEW = "new"  # no Hello yet
    BEGINNING = "beginning"  # Hello is there, the epoch not yet
    OPEN = "open"
    ENDED = "ended"


Actions = tuple[Action, ...]


@dataclass(slots=True)
class Upload:
    """An offer under way: the sections asked for, and what has come of them. `at`: when something last did."""

    offer: Offer
    at: float
    wanted: tuple[str, ...] = ()
    parts: dict[str, bytearray] = field(default_factory=dict)
    done: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Machine:
    """One stream. `rates` outlive it: they are the node's. `met` is called with each limit that a message was over, `bad` with
    the types of conditions that a report may not set, `news` with each report: False, and nothing of it is to be recorded."""

    node_id: str
    rates: NodeLimits
    interval: float
    met: Callable[[Limit], None]
    bad: Callable[[tuple[str, ...]], None] = lambda types: None
    news: Callable[[m.Report], bool] = lambda report: True
    phase: Phase = Phase.NEW
    epoch: int = 0
    applied: str | None = None
    upload: Upload | None = None

    def on(self, event: object, now: float) -> Actions:
        """What follows from an event. A pair that is not in the table changes nothing."""
        rule = TABLE.get((self.phase, type(event)))
        return () if rule is None else rule(self, event, now)

    def end(self, end: m.End) -> Actions:
        """The stream ends with this."""
        self.phase, self.upload = Phase.ENDED, None
        return (end,)

    def finish(self, result: m.Result) -> Actions:
        """The offer under way ends with this."""
        self.upload = None
        return (result,)

    def over(self, bucket: Bucket, now: float, amount: int = 1) -> float:
        """Takes from a rate; what it lacks in seconds, counted, or 0.0."""
        wait = bucket.take(now, amount)
        if wait:
            self.met(bucket.limit)
        return wait


# ---- rules: the session


def _hello(machine: Machine, hello: m.Hello, now: float) -> Actions:
    major = hello.protocol_version.partition(".")[0]
    if not major.isdecimal():
        return machine.end(m.End("bad-message", None, f"protocol version {hello.protocol_version!r} is not MAJOR.MINOR"))
    if int(major) != PROTOCOL_MAJOR:
        detail = f"bcd speaks protocol {hello.protocol_version}, this receiver {PROTOCOL_MAJOR}.x"
        return machine.end(m.End("protocol-unsupported", None, detail))
    machine.phase = Phase.BEGINNING
    return (Begin(hello),)


def _not_hello(machine: Machine, message: object, now: float) -> Actions:
    return machine.end(m.End("bad-message", None, f"{type(message).__name__} came before Hello"))


def _begun(machine: Machine, event: Begun, now: float) -> Actions:
    machine.phase, machine.epoch, machine.applied = Phase.OPEN, event.start.epoch, event.start.applied_digest
    welcome = m.Welcome(event.start.node_id, event.start.epoch, machine.interval, event.start.applied_digest or "")
    return (welcome, *event.commands)


def _again(machine: Machine, hello: m.Hello, now: float) -> Actions:
    if wait := machine.over(machine.rates.reports, now):  # a change is told at the rate of reports, or rows are written for ever
        return _too_fast(machine, wait)
    return (Rewrite(hello),)


def _too_fast(machine: Machine, wait: float) -> Actions:
    return machine.end(m.End("bad-message", wait, limits.REPORTS.text(), limits.REPORTS.code))


def _bad(machine: Machine, event: Bad, now: float) -> Actions:
    if event.limit:
        machine.met(event.limit)
    return machine.end(m.End("bad-message", None, event.detail, event.limit.code if event.limit else "INVALID_ARGUMENT"))


def _leave(machine: Machine, event: Leave, now: float) -> Actions:
    return machine.end(event.end)


def _failed(machine: Machine, event: Failed, now: float) -> Actions:
    job = event.job
    if not event.ours:
        return machine.end(m.End("bad-message", None, event.reason))
    if isinstance(job, Begin):
        return machine.end(m.End("overloaded", event.retry_after, event.reason))
    if isinstance(job, FindWanted | Apply):
        machine.rates.offers.give_back()
        return machine.finish(m.Result(job.offer.digest, "retry", reason=event.reason, retry_after=event.retry_after))
    return ()  # a report is judged again with the next one, commands are looked for again, and bcd repeats a result


# ---- rules: status


def _report(machine: Machine, report: m.Report, now: float) -> Actions:
    if wait := machine.over(machine.rates.reports, now):
        return _too_fast(machine, wait)
    if report.bad:
        machine.bad(report.bad)
    reported = report.status.digest
    if machine.upload is not None and now - machine.upload.at > UPLOAD_LIMIT:
        machine.upload = None  # bcd has given it up
    judge = (Judge(report.status),) if machine.news(report) else ()
    if not reported or machine.upload is not None or same_digest(reported, machine.applied):
        return judge
    return (*judge, m.Request(offer=True))


# ---- rules: inventory


def _offer(machine: Machine, offer: Offer, now: float) -> Actions:
    machine.upload = None  # a newer offer replaces the one under way
    wait = machine.over(machine.rates.offers, now)
    if wait:
        return (m.Result(offer.digest, "retry", reason=machine.rates.offers.limit.text(), retry_after=wait),)
    section, reason = _fault(machine, offer)
    if reason:
        return (m.Result(offer.digest, "refused", section, reason),)
    machine.upload = Upload(offer, now)
    return (FindWanted(offer),)


def _fault(machine: Machine, offer: Offer) -> tuple[str, str]:
    """What is wrong with an offer before any byte of it has come: the section (perhaps none) and the reason; or twice ""."""
    if len(offer.sections) > limits.SECTIONS.most:
        machine.met(limits.SECTIONS)
        return "", limits.SECTIONS.text(len(offer.sections))
    for section in offer.sections:
        if section.size > limits.SECTION_BYTES.most:
            machine.met(limits.SECTION_BYTES)
            return section.name, limits.SECTION_BYTES.text(section.size)
    refusal = check_offer(offer)
    return (refusal.section, refusal.reason) if refusal else ("", "")


def _wanted(machine: Machine, event: Wanted, now: float) -> Actions:
    upload = machine.upload
    if upload is None or upload.offer is not event.offer:
        return ()
    sizes = {section.name: section.size for section in upload.offer.sections}
    wait = machine.over(machine.rates.section_bytes, now, sum(sizes[name] for name in event.names))
    if wait:
        return machine.finish(m.Result(upload.offer.digest, "retry", reason=limits.DAILY_BYTES.text(), retry_after=wait))
    upload.wanted = event.names
    request = m.Request(sections=event.names, digest=upload.offer.digest)
    return (request, *(() if event.names else (Apply(upload.offer, {}),)))


def _chunk(machine: Machine, chunk: m.Chunk, now: float) -> Actions:
    upload = machine.upload
    if upload is None or chunk.digest != upload.offer.digest or chunk.name in upload.done:
        return ()  # of an offer that was replaced or has its result
    if chunk.name not in upload.wanted:
        return machine.end(m.End("bad-message", None, f"section {chunk.name} was not asked for"))
    size = next(section.size for section in upload.offer.sections if section.name == chunk.name)
    part = upload.parts.setdefault(chunk.name, bytearray())
    part += chunk.data
    upload.at = now
    if len(part) > size or (chunk.last and len(part) != size):
        reason = f"{len(part)} bytes came, {size} were offered"
        return machine.finish(m.Result(upload.offer.digest, "refused", chunk.name, reason))
    if chunk.last:
        upload.done[chunk.name] = bytes(upload.parts.pop(chunk.name))
    complete = len(upload.done) == len(upload.wanted)
    return (Apply(upload.offer, upload.done),) if complete else ()


def _ended(machine: Machine, event: Ended, now: float) -> Actions:
    outcome = event.outcome
    if outcome.status in ("applied", "unchanged", "advisory"):
        machine.applied = outcome.digest
    if outcome.status in ("applied", "advisory"):
        machine.rates.advisory = outcome.status == "advisory"
    retry_after = RETRY_SOON if outcome.status == "retry" else None
    return machine.finish(
        m.Result(outcome.digest, outcome.status, outcome.section, outcome.reason, retry_after, outcome.snapshot_id or "")
    )


# ---- rules: commands


def _queued(machine: Machine, event: Queued, now: float) -> Actions:
    return (FindCommands(),)


def _due(machine: Machine, event: Due, now: float) -> Actions:
    return event.commands


def _result(machine: Machine, result: CommandResult, now: float) -> Actions:
    return (Store(result),)


def _stored(machine: Machine, event: Stored, now: float) -> Actions:
    return (m.Ack(event.id),)


Rule = Callable[[Machine, Any, float], Actions]
_LIVE = (Phase.NEW, Phase.BEGINNING, Phase.OPEN)

TABLE: Mapping[tuple[Phase, type], Rule] = {
    (Phase.NEW, m.Hello): _hello,
    **{(Phase.NEW, kind): _not_hello for kind in (m.Report, Offer, m.Chunk, CommandResult)},
    (Phase.BEGINNING, Begun): _begun,
    (Phase.OPEN, m.Hello): _again,
    (Phase.OPEN, m.Report): _report,
    (Phase.OPEN, Offer): _offer,
    (Phase.OPEN, Wanted): _wanted,
    (Phase.OPEN, m.Chunk): _chunk,
    (Phase.OPEN, Ended): _ended,
    (Phase.OPEN, Queued): _queued,
    (Phase.OPEN, Due): _due,
    (Phase.OPEN, CommandResult): _result,
    (Phase.OPEN, Stored): _stored,
    **{(phase, Failed): _failed for phase in _LIVE},
    **{(phase, Bad): _bad for phase in _LIVE},
    **{(phase, Leave): _leave for phase in _LIVE},
}
