"""Bytes of the wire to values and back: the only file of the gateway that knows bettercompute.agent.v1 (session.proto).

Times become aware datetimes, durations seconds. What this version does not know is ignored; what breaks a limit raises.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import singledispatch

from bettercompute.agent.v1 import session_pb2 as pb
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from receiver import values
from receiver.gateway import limits
from receiver.gateway import messages as m
from receiver.planning import clock
from receiver.planning.conditions import sort_out
from receiver.planning.offer import is_name

MOVING = ("seq", "sent_at", "pressure")  # of a report: what differs with each, and is no news
KEPT = 16 << 10  # bytes of a report
LOOKED_AT = 4 * limits.SECTIONS.most  # sections of an offer: it is refused for fewer, and a message has room for two millions
RESULT = 256 << 10  # characters of a command's payload; bcd sends a quarter of it, and four MiB of JSON hold up all streams
Between = tuple[float, float]  # seconds since 1970
YEAR_10000 = 253_402_300_800  # begins so many seconds after 1970, and no datetime is in it
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

END_REASONS = {
    "superseded": pb.SESSION_END_REASON_SUPERSEDED,
    "revoked": pb.SESSION_END_REASON_REVOKED,
    "draining": pb.SESSION_END_REASON_DRAINING,
    "overloaded": pb.SESSION_END_REASON_OVERLOADED,
    "protocol-unsupported": pb.SESSION_END_REASON_PROTOCOL_UNSUPPORTED,
    "bad-message": pb.SESSION_END_REASON_BAD_MESSAGE,
}
RESULTS = {
    "applied": pb.INVENTORY_STATUS_APPLIED,
    "unchanged": pb.INVENTORY_STATUS_UNCHANGED,
    "advisory": pb.INVENTORY_STATUS_ADVISORY,
    "refused": pb.INVENTORY_STATUS_REFUSED,
    "retry": pb.INVENTORY_STATUS_RETRY,
}
COMMAND_RESULTS = {
    pb.COMMAND_STATUS_SUCCEEDED: "succeeded",
    pb.COMMAND_STATUS_FAILED: "failed",
    pb.COMMAND_STATUS_REFUSED: "refused",
    pb.COMMAND_STATUS_EXPIRED: "expired",
}
CONDITION_STATUSES: Mapping[int, values.ConditionStatus] = {
    pb.CONDITION_STATUS_TRUE: "true",
    pb.CONDITION_STATUS_FALSE: "false",
    pb.CONDITION_STATUS_UNKNOWN: "unknown",
}


class BadMessage(Exception):
    """Bytes that are no message of this protocol. `str()` says what is wrong."""


@dataclass(slots=True)
class Said:
    """What a stream's last report said, and the bytes that say so: a report with the same bytes is not read again."""

    data: bytes | None = None
    status: values.Status = field(default_factory=lambda: values.Status(""))
    bad: tuple[str, ...] = ()


def decode(data: bytes, said: Said | None = None, came: Between | None = None) -> m.FromNode:
    """One message of bcd. `said` is its stream's; `came`: the times between which it came, for a report's offset.

    Raises OverLimit, or BadMessage for bytes or times that mean nothing.
    """
    limits.check(limits.MESSAGE_BYTES, len(data))
    request = pb.SessionRequest()
    try:
        request.ParseFromString(data)
    except DecodeError as error:
        raise BadMessage(f"{len(data)} bytes are no SessionRequest: {error}") from error
    kind = request.WhichOneof("message")
    if kind == "hello":
        return _hello(request.hello)
    if kind == "status_report":
        return _report(request.status_report, said or Said(), came)
    if kind == "inventory_offer":
        return _offer(request.inventory_offer)
    if kind == "inventory_sections":
        chunk = request.inventory_sections
        limits.check(limits.CHUNK_BYTES, len(chunk.data))
        _words(chunk.digest, chunk.name)
        return m.Chunk(chunk.digest, chunk.name, chunk.data, chunk.last)
    if kind == "command_result":
        return _result(request.command_result)
    return m.Ignored()


def _hello(hello: pb.Hello) -> m.Hello:
    limits.check(limits.DRIVERS, len(hello.drivers))
    limits.check(limits.CAPABILITIES, len(hello.capabilities))
    _words(hello.protocol_version, hello.daemon_version, hello.boot_id, hello.instance_id, hello.digest, *hello.capabilities)
    _words(hello.previous_instance_id)
    for driver in hello.drivers:
        limits.check(limits.KINDS, len(driver.kinds))
        _words(driver.id, driver.version, *driver.kinds)
    return m.Hello(
        hello.protocol_version,
        hello.daemon_version,
        hello.boot_id,
        hello.instance_id,
        hello.previous_epoch if hello.HasField("previous_epoch") else None,
        _time(hello.sent_at, "Hello.sent_at") if hello.HasField("sent_at") else None,
        tuple(values.Driver(driver.id, driver.version, tuple(driver.kinds)) for driver in hello.drivers),
        tuple(hello.capabilities),
        hello.digest,
        hello.previous_instance_id,
    )


def _report(report: pb.StatusReport, said: Said, came: Between | None) -> m.Report:
    sent_at = _seconds(report.sent_at, "StatusReport.sent_at") if report.HasField("sent_at") else None
    pressure = _pressure(report.pressure) if report.HasField("pressure") else None
    for name in MOVING:
        report.ClearField(name)  # type: ignore[arg-type]
    data = report.SerializeToString()
    if data != said.data:
        said.status, said.bad = _status(report)
        said.data = data if len(data) <= KEPT else None
    offset = None if sent_at is None or came is None else clock.offset(sent_at, *came)
    return m.Report(said.status, said.bad, pressure, offset)


def _status(report: pb.StatusReport) -> tuple[values.Status, tuple[str, ...]]:
    """What a report says, and the types of conditions that it may not set."""
    limits.check(limits.CONDITIONS, len(report.conditions))
    found = sort_out(_condition(one) for one in report.conditions)
    _words(report.digest)
    log = report.kernel_log
    status = values.Status(
        digest=report.digest,
        collected_at=_time(report.collected_at, "StatusReport.collected_at") if report.HasField("collected_at") else None,
        missing=_missing(report.missing),
        kernel_log=values.KernelLog(log.available, log.complete, log.lost_records, log.unattributed, log.overflow)
        if report.HasField("kernel_log")
        else None,
        abandoned_workers=report.abandoned_workers,
        conditions=found.conditions,
        faults=found.faults,
    )
    return status, found.bad


def _pressure(sample: pb.Pressure) -> values.Pressure | None:
    """A sample, unless some of it is no share of anything."""
    cpu, memory, io, steal = sample.cpu, sample.memory, sample.io, sample.steal
    shares = 0 <= cpu <= 100 and 0 <= memory <= 100 and 0 <= io <= 100 and 0 <= steal <= 100
    return values.Pressure(cpu, memory, io, steal, sample.number) if shares else None


def _condition(one: pb.Condition) -> values.Condition:
    _words(one.type, one.device_id, one.bus_id)
    for text in (one.reason, one.message):
        limits.check(limits.MESSAGE_TEXT, len(text.encode()))
    return values.Condition(
        _clean(one.type),
        CONDITION_STATUSES.get(one.status),
        reason=_clean(one.reason),
        message=_clean(one.message),
        device_id=_clean(one.device_id),
        bus_id=_clean(one.bus_id),
        count=one.count,
    )


def _offer(offer: pb.InventoryOffer) -> values.Offer:
    _words(offer.digest, offer.boot_id)
    return values.Offer(
        digest=offer.digest,
        sections=tuple(values.SectionRef(s.name, s.schema_version, s.hash, s.size) for s in offer.sections[:LOOKED_AT]),
        missing=_missing(offer.missing),
        collected_at=_time(offer.collected_at, "InventoryOffer.collected_at") if offer.HasField("collected_at") else None,
        boot_id=offer.boot_id,
        trigger=offer.trigger[: limits.WORD.most],  # for people: losing its end beats losing the offer
    )


def _result(result: pb.CommandResult) -> values.CommandResult:
    _words(result.id)
    status = COMMAND_RESULTS.get(result.status)
    reason = _cut(result.reason if status else f"UnknownStatus {result.status} {result.reason}".rstrip())
    return values.CommandResult(result.id, status or "failed", reason, _json(result.payload_json))


def _json(text: str) -> values.Json:
    """A result's payload; None without one. What is no JSON that Postgres holds is kept as text, or it would come for ever."""
    if not text:
        return None
    if len(text) > RESULT:
        return {"unreadable": _cut(text)}
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # no NaN, no half of a surrogate pair
    except (ValueError, RecursionError):
        return {"unreadable": _cut(text)}
    return value


def _missing(rows: Sequence[pb.MissingSection]) -> tuple[values.Missing, ...]:
    limits.check(limits.MISSING, len(rows))
    for row in rows:
        if not is_name(row.name):
            raise BadMessage(f"a missing section is called {row.name[:64]!r}, which is no section's name")
    return tuple(values.Missing(row.name, _cut(row.error)) for row in rows)


def _words(*texts: str) -> None:
    """What is kept as it comes, with no rule that looks at it, is short at least."""
    limits.check(limits.WORD, max(len(text.encode()) for text in texts))


def _cut(text: str) -> str:
    """An error's text cut to the length that a message may have: losing its end beats losing the report."""
    return _clean(text.encode()[: limits.MESSAGE_TEXT.most].decode(errors="ignore"))


def _clean(text: str) -> str:
    """Text that Postgres holds as it is, so that what is stored equals what is reported."""
    return text.replace("\0", "")


def _seconds(stamp: Timestamp, name: str) -> float:
    """Since 1970."""
    seconds = stamp.seconds + stamp.nanos / 1e9
    if not 0 <= seconds < YEAR_10000:
        raise BadMessage(f"{name} is {stamp.seconds} s after 1970: before it, or no time of any calendar")
    return seconds


def _time(stamp: Timestamp, name: str) -> datetime:
    _seconds(stamp, name)
    return EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)


@singledispatch
def encode(message: m.ToNode, now: datetime) -> pb.SessionResponse:
    """A message to bcd; `now` goes into Welcome. Raises TypeError for what is none: our bug."""
    raise TypeError(f"{type(message).__name__} is no message to bcd")


@encode.register
def _(message: m.Welcome, now: datetime) -> pb.SessionResponse:
    bounds = pb.Limits(
        message_bytes=limits.MESSAGE_BYTES.most,
        section_bytes=limits.SECTION_BYTES.most,
        chunk_bytes=limits.CHUNK_BYTES.most,
        conditions=limits.CONDITIONS.most,
        message_text_bytes=limits.MESSAGE_TEXT.most,
    )
    stamp = Timestamp()
    stamp.FromDatetime(now)
    welcome = pb.Welcome(
        node_id=message.node_id,
        epoch=message.epoch,
        status_interval=_duration(message.status_interval),
        now=stamp,
        applied_digest=message.applied_digest,
        limits=bounds,
    )
    return pb.SessionResponse(welcome=welcome)


@encode.register
def _(message: m.End, now: datetime) -> pb.SessionResponse:
    end = pb.SessionEnd(reason=END_REASONS[message.reason], retry_after=_duration(message.retry_after), detail=message.detail)
    return pb.SessionResponse(session_end=end)


@encode.register
def _(message: m.Request, now: datetime) -> pb.SessionResponse:
    request = pb.InventoryRequest(offer=message.offer, sections=message.sections, digest=message.digest)
    return pb.SessionResponse(inventory_request=request)


@encode.register
def _(message: m.Result, now: datetime) -> pb.SessionResponse:
    result = pb.InventoryResult(
        digest=message.digest,
        status=RESULTS[message.status],
        section=message.section,
        reason=message.reason,
        retry_after=_duration(message.retry_after),
        snapshot_id=message.snapshot_id,
    )
    return pb.SessionResponse(inventory_result=result)


@encode.register
def _(message: values.Command, now: datetime) -> pb.SessionResponse:
    command = pb.Command(
        id=message.id,
        kind=message.kind,
        payload_json=json.dumps(message.payload),
        idempotency_key=message.idempotency_key,
        start_within=_duration(message.start_within),
    )
    return pb.SessionResponse(command=command)


@encode.register
def _(message: m.Ack, now: datetime) -> pb.SessionResponse:
    return pb.SessionResponse(command_ack=pb.CommandAck(id=message.id))


def _duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    duration = Duration()
    duration.FromTimedelta(timedelta(seconds=seconds))
    return duration
