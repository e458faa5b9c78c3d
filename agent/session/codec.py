"""The session's values <-> protobuf (SPEC A3). Protobuf's types stop here; a section's bytes pass as they are.

What a newer gateway says and this version does not know (fields, enum values, whole messages) is ignored or `unspecified`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bettercompute.agent.v1 import session_pb2 as pb
from bettercompute.contract.sections import SECTIONS
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from agent.sections import Section
from agent.session import messages as m

PROTOCOL_VERSION = "0.3"
CHUNK_BYTES = 1 << 20  # A3: at most 1 MiB, whatever the gateway allows
TEXT_BYTES = 2 << 10  # B11: of a condition's message
DEFAULT_INTERVAL = 30.0


# ---- to the gateway


def encode(message: m.ToGateway, now: float) -> Iterator[pb.SessionRequest]:
    """A message as one or more of the wire's. `now`: Unix seconds, for `sent_at`."""
    yield from _ENCODERS[type(message)](message, now)


def chunks(digest: str, section: Section, chunk_bytes: int) -> Iterator[pb.SessionRequest]:
    """One section in pieces, back to back; an empty section is one empty piece."""
    size = min(chunk_bytes or CHUNK_BYTES, CHUNK_BYTES)
    starts = range(0, len(section.data), size) or range(1)
    for start in starts:
        part = pb.InventorySections(digest=digest, name=section.name, data=section.data[start : start + size])
        part.last = start + size >= len(section.data)
        yield pb.SessionRequest(inventory_sections=part)


def _hello(hello: m.Hello, now: float) -> Iterator[pb.SessionRequest]:
    message = pb.Hello(
        protocol_version=PROTOCOL_VERSION,
        daemon_version=hello.daemon_version,
        boot_id=hello.boot_id,
        instance_id=hello.instance_id,
        previous_instance_id=hello.previous_instance_id,
        previous_epoch=hello.previous_epoch,
        sent_at=_timestamp(now),
        drivers=[pb.Driver(id=d.id, version=d.version, kinds=d.kinds) for d in hello.drivers],
        capabilities=hello.capabilities,
        digest=hello.digest,
    )
    yield pb.SessionRequest(hello=message)


def _report(report: m.StatusReport, now: float) -> Iterator[pb.SessionRequest]:
    status = report.status
    message = pb.StatusReport(
        seq=report.seq,
        sent_at=_timestamp(now),
        digest=status.digest,
        collected_at=None if status.collected_at is None else _timestamp(status.collected_at),
        missing=_missing(status.missing),
        conditions=[_condition(c) for c in status.conditions],
        abandoned_workers=status.abandoned_workers,
    )
    if status.pressure is not None:
        p = status.pressure
        message.pressure.CopyFrom(pb.Pressure(cpu=p.cpu, memory=p.memory, io=p.io, steal=p.steal, number=p.number))
    if status.kernel_log is not None:
        log = status.kernel_log
        message.kernel_log.CopyFrom(
            pb.KernelLog(
                available=log.available,
                complete=log.complete,
                lost_records=log.lost_records,
                unattributed=log.unattributed,
                overflow=log.overflow,
            )
        )
    yield pb.SessionRequest(status_report=message)


def _offer(offer: m.InventoryOffer, now: float) -> Iterator[pb.SessionRequest]:
    message = pb.InventoryOffer(
        digest=offer.digest,
        sections=[_section(s) for s in sorted(offer.sections, key=lambda s: s.name)],
        missing=_missing(offer.missing),
        collected_at=_timestamp(offer.collected_at),
        boot_id=offer.boot_id,
        trigger=offer.trigger,
    )
    yield pb.SessionRequest(inventory_offer=message)


def _bodies(bodies: m.Bodies, now: float) -> Iterator[pb.SessionRequest]:
    for section in bodies.sections:
        yield from chunks(bodies.digest, section, bodies.chunk_bytes)


def _command_result(result: m.CommandResult, now: float) -> Iterator[pb.SessionRequest]:
    message = pb.CommandResult(id=result.id, reason=result.reason, payload_json=result.payload)
    message.status = pb.CommandStatus.Value(f"COMMAND_STATUS_{result.status.upper()}")
    yield pb.SessionRequest(command_result=message)


_ENCODERS: Mapping[type, Callable[[Any, float], Iterator[pb.SessionRequest]]] = {
    m.Hello: _hello,
    m.StatusReport: _report,
    m.InventoryOffer: _offer,
    m.Bodies: _bodies,
    m.CommandResult: _command_result,
}


def _section(section: Section) -> pb.SectionOffer:
    version = SECTIONS[section.name].schema_version
    return pb.SectionOffer(name=section.name, schema_version=version, hash=section.hash, size=len(section.data))


def _missing(missing: tuple[m.Missing, ...]) -> list[pb.MissingSection]:
    return [pb.MissingSection(name=x.name, error=x.error) for x in sorted(missing, key=lambda x: x.name)]


def _condition(c: m.Condition) -> pb.Condition:
    return pb.Condition(
        type=c.type,
        status=pb.ConditionStatus.Value(f"CONDITION_STATUS_{c.status.upper()}"),
        reason=_cut(c.reason),
        message=_cut(c.message),
        device_id=c.device_id,
        bus_id=c.bus_id,
        count=c.count,
        since=_timestamp(c.since),
    )


def _cut(text: str) -> str:
    """Text of a length that the gateway takes: a longer one would end the session, with every report again."""
    return text.encode(errors="replace")[:TEXT_BYTES].decode(errors="ignore")


def _timestamp(seconds: float) -> Timestamp:
    whole = int(seconds // 1)
    return Timestamp(seconds=whole, nanos=min(999_999_999, int((seconds - whole) * 1e9)))


# ---- from the gateway


def decode(response: pb.SessionResponse) -> m.FromGateway:
    """The gateway's message as a value; Unknown for one that is not known (or not used) here."""
    kind = response.WhichOneof("message")
    if kind is None or kind not in _DECODERS:
        return m.Unknown(kind or "")
    return _DECODERS[kind](getattr(response, kind))


def _welcome(w: pb.Welcome) -> m.Welcome:
    interval = _seconds(w.status_interval) if w.HasField("status_interval") else DEFAULT_INTERVAL
    return m.Welcome(
        node_id=w.node_id,
        epoch=w.epoch,
        status_interval=max(interval, 1.0),
        applied_digest=w.applied_digest,
        chunk_bytes=min(w.limits.chunk_bytes or CHUNK_BYTES, CHUNK_BYTES),
        now=w.now.seconds + w.now.nanos / 1e9 if w.HasField("now") else None,
    )


def _session_end(e: pb.SessionEnd) -> m.SessionEnd:
    retry_after = _seconds(e.retry_after) if e.HasField("retry_after") else None
    return m.SessionEnd(_word(pb.SessionEndReason, "SESSION_END_REASON_", e.reason), retry_after, e.detail)


def _request(r: pb.InventoryRequest) -> m.InventoryRequest:
    return m.InventoryRequest(r.offer, tuple(r.sections), r.digest)


def _result(r: pb.InventoryResult) -> m.InventoryResult:
    return m.InventoryResult(
        digest=r.digest,
        status=_word(pb.InventoryStatus, "INVENTORY_STATUS_", r.status),
        section=r.section,
        reason=r.reason,
        retry_after=_seconds(r.retry_after) if r.HasField("retry_after") else None,
        snapshot_id=r.snapshot_id,
    )


def _command(c: pb.Command) -> m.Command:
    start_within = _seconds(c.start_within) if c.HasField("start_within") else None
    return m.Command(c.id, c.kind, c.payload_json, c.idempotency_key, start_within)


def _ack(a: pb.CommandAck) -> m.CommandAck:
    return m.CommandAck(a.id)


_DECODERS: Mapping[str, Callable[[Any], m.FromGateway]] = {
    "welcome": _welcome,
    "session_end": _session_end,
    "inventory_request": _request,
    "inventory_result": _result,
    "command": _command,
    "command_ack": _ack,
}


def _word(enum: Any, prefix: str, number: int) -> str:
    """`SESSION_END_REASON_PROTOCOL_UNSUPPORTED` as `protocol-unsupported`; a number of a newer peer as `unspecified`."""
    names = {value: name for name, value in enum.items()}
    return str(names.get(number, prefix + "UNSPECIFIED")).removeprefix(prefix).lower().replace("_", "-")


def _seconds(duration: Duration) -> float:
    return max(0.0, float(duration.seconds) + duration.nanos / 1e9)
