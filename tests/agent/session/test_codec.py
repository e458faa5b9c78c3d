"""Values <-> wire; what a newer gateway says is no error."""

import pytest
from bettercompute.agent.v1 import session_pb2 as pb
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from agent.sections import Section
from agent.session import codec
from agent.session import messages as m

NOW = 1717171717.25


def one(message: m.ToGateway) -> pb.SessionRequest:
    (request,) = codec.encode(message, NOW)
    return request


def test_hello_carries_who_and_when_and_an_absent_epoch_is_absent() -> None:
    hello = m.Hello("0.1.0", "boot", "instance", None, (m.Driver("libvirt-kvm", "10.0", ("vm",)),), ("nvml",), "d1")
    wire = one(hello).hello
    assert (wire.protocol_version, wire.daemon_version, wire.boot_id, wire.instance_id) == ("0.3", "0.1.0", "boot", "instance")
    assert (wire.sent_at.seconds, wire.sent_at.nanos, wire.digest) == (1717171717, 250_000_000, "d1")
    assert not wire.HasField("previous_epoch")
    assert [(d.id, d.version, list(d.kinds)) for d in wire.drivers] == [("libvirt-kvm", "10.0", ["vm"])]
    assert wire.previous_instance_id == ""
    again = one(m.Hello("0.1.0", "boot", "instance", previous_epoch=0, previous_instance_id="before")).hello
    assert again.previous_instance_id == "before"
    assert again.HasField("previous_epoch")


def test_a_report_says_what_is_there_and_leaves_out_what_is_not() -> None:
    wire = one(m.StatusReport(1, m.Status())).status_report
    assert (wire.seq, wire.digest) == (1, "")
    assert not any(wire.HasField(name) for name in ("collected_at", "pressure", "kernel_log"))
    full = m.Status(
        digest="d1",
        collected_at=99.5,
        missing=(m.Missing("gpus", "settling"), m.Missing("disks", "Hang: x")),
        conditions=(m.Condition("Xid79", "unknown", 5.0, "r", "text", "GPU-1", "00000000:18:00.0", 3),),
        pressure=m.Pressure(1.0, 2.0, 3.0, 4.0, 5),
        kernel_log=m.KernelLog(True, False, 7, 1, 2),
        abandoned_workers=2,
    )
    wire = one(m.StatusReport(2, full)).status_report
    assert [missing.name for missing in wire.missing] == ["disks", "gpus"]
    assert wire.conditions[0].status == pb.CONDITION_STATUS_UNKNOWN
    assert (wire.conditions[0].device_id, wire.conditions[0].count, wire.conditions[0].since.seconds) == ("GPU-1", 3, 5)
    assert (wire.pressure.steal, wire.pressure.number) == (4.0, 5)
    assert (wire.kernel_log.available, wire.kernel_log.lost_records, wire.kernel_log.complete) == (True, 7, False)
    assert (wire.collected_at.nanos, wire.abandoned_workers) == (500_000_000, 2)


def test_an_offer_names_its_sections_by_name_with_their_hashes() -> None:
    offer = m.InventoryOffer("d1", (Section("os", b"oo"), Section("cpu", b"")), (), 1.0, "boot", "refresh")
    wire = one(offer).inventory_offer
    assert [(s.name, s.schema_version, s.hash, s.size) for s in wire.sections] == [
        ("cpu", 1, Section("cpu", b"").hash, 0),
        ("os", 1, Section("os", b"oo").hash, 2),
    ]
    assert (wire.boot_id, wire.trigger) == ("boot", "refresh")


@given(st.binary(max_size=200), st.integers(1, 50))
def test_chunks_are_the_section_s_bytes_in_order_and_only_the_last_says_so(data: bytes, size: int) -> None:
    parts = [request.inventory_sections for request in codec.chunks("d1", Section("cpu", data), size)]
    assert b"".join(part.data for part in parts) == data
    assert all(len(part.data) <= size for part in parts)
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert {(part.digest, part.name) for part in parts} == {("d1", "cpu")}


def test_a_chunk_is_never_over_one_mebibyte_whatever_the_gateway_allows() -> None:
    big = Section("cpu", bytes(3 * codec.CHUNK_BYTES + 1))
    bodies = m.Bodies("d1", (big, Section("os", b"")), 1 << 30)
    sizes = [len(request.inventory_sections.data) for request in codec.encode(bodies, NOW)]
    assert sizes == [codec.CHUNK_BYTES] * 3 + [1, 0]


def test_welcome_has_sane_defaults_where_the_gateway_says_nothing() -> None:
    bare = codec.decode(pb.SessionResponse(welcome=pb.Welcome(node_id="n", epoch=3)))
    assert bare == m.Welcome("n", 3, 30.0, "", codec.CHUNK_BYTES)
    busy = pb.Welcome(status_interval=Duration(nanos=1), limits=pb.Limits(chunk_bytes=1000))
    assert codec.decode(pb.SessionResponse(welcome=busy)) == m.Welcome("", 0, 1.0, "", 1000)
    timed = pb.Welcome(now=Timestamp(seconds=1_700_000_000, nanos=250_000_000))
    welcome = codec.decode(pb.SessionResponse(welcome=timed))
    assert isinstance(welcome, m.Welcome)
    assert welcome.now == 1_700_000_000.25


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (pb.SESSION_END_REASON_SUPERSEDED, "superseded"),
        (pb.SESSION_END_REASON_PROTOCOL_UNSUPPORTED, "protocol-unsupported"),
        (pb.SESSION_END_REASON_BAD_MESSAGE, "bad-message"),
        (pb.SESSION_END_REASON_UNSPECIFIED, "unspecified"),
        (99, "unspecified"),
    ],
)
def test_session_end_reasons_are_the_spec_s_words(number: int, reason: str) -> None:
    end = pb.SessionEnd(reason=number, detail="why")  # type: ignore[arg-type]
    assert codec.decode(pb.SessionResponse(session_end=end)) == m.SessionEnd(reason, None, "why")


def test_times_to_wait_are_seconds_and_never_negative() -> None:
    end = pb.SessionEnd(retry_after=Duration(seconds=2, nanos=500_000_000))
    assert codec.decode(pb.SessionResponse(session_end=end)) == m.SessionEnd("unspecified", 2.5)
    late = pb.InventoryResult(digest="d", status=pb.INVENTORY_STATUS_RETRY, retry_after=Duration(seconds=-5))
    assert codec.decode(pb.SessionResponse(inventory_result=late)) == m.InventoryResult("d", "retry", retry_after=0.0)


def test_requests_and_results_come_through() -> None:
    request = pb.InventoryRequest(offer=True, sections=["a", "b"], digest="d")
    assert codec.decode(pb.SessionResponse(inventory_request=request)) == m.InventoryRequest(True, ("a", "b"), "d")
    result = pb.InventoryResult(digest="d", status=99, section="s", reason="r", snapshot_id="i")  # type: ignore[arg-type]
    assert codec.decode(pb.SessionResponse(inventory_result=result)) == m.InventoryResult("d", "unspecified", "s", "r", None, "i")


def test_a_command_comes_through_and_no_time_limit_is_not_one_of_zero() -> None:
    command = pb.Command(id="cmd_1", kind="gpu.reset", payload_json='{"deviceId": "GPU-1"}', idempotency_key="k")
    assert codec.decode(pb.SessionResponse(command=command)) == m.Command("cmd_1", "gpu.reset", '{"deviceId": "GPU-1"}', "k")
    command.start_within.CopyFrom(Duration(seconds=0))
    decoded = codec.decode(pb.SessionResponse(command=command))
    assert isinstance(decoded, m.Command)
    assert decoded.start_within == 0.0
    assert codec.decode(pb.SessionResponse(command_ack=pb.CommandAck(id="cmd_1"))) == m.CommandAck("cmd_1")


@pytest.mark.parametrize(
    ("status", "number"),
    [
        ("succeeded", pb.COMMAND_STATUS_SUCCEEDED),
        ("failed", pb.COMMAND_STATUS_FAILED),
        ("refused", pb.COMMAND_STATUS_REFUSED),
        ("expired", pb.COMMAND_STATUS_EXPIRED),
    ],
)
def test_a_command_s_result_is_the_spec_s_word_on_the_wire(status: str, number: int) -> None:
    wire = one(m.CommandResult("cmd_1", status, "RateLimited", '{"x": 1}')).command_result
    assert (wire.id, wire.status, wire.reason, wire.payload_json) == ("cmd_1", number, "RateLimited", '{"x": 1}')


@pytest.mark.parametrize(
    "data",
    [b"", b"\x9a\x06\x03abc"],
    ids=["nothing-set", "of-a-newer-gateway"],
)
def test_what_is_not_known_is_unknown_and_no_error(data: bytes) -> None:
    assert isinstance(codec.decode(pb.SessionResponse.FromString(data)), m.Unknown)
