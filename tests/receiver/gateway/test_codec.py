"""Bytes of the wire to values: everything of session.proto that the gateway reads, and what it makes of nonsense."""

import json
from datetime import UTC, datetime

import pytest
from bettercompute.agent.v1 import session_pb2 as pb
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from receiver import values
from receiver.gateway import messages as m
from receiver.gateway.codec import END_REASONS, KEPT, RESULTS, BadMessage, Said, decode, encode
from receiver.gateway.limits import LIMITS, OverLimit

NOW = datetime(2026, 11, 29, 16, 20, 1, 250_000, tzinfo=UTC)
STAMP = Timestamp(seconds=int(NOW.timestamp()), nanos=250_000_000)


def decoded(**message: object) -> m.FromNode:
    return decode(pb.SessionRequest(**message).SerializeToString())  # type: ignore[arg-type]


def test_hello_is_read_whole() -> None:
    driver = pb.Driver(id="libvirt-kvm", version="9.0", kinds=["vm"])
    hello = pb.Hello(
        protocol_version="0.3",
        daemon_version="0.1.0",
        boot_id="b",
        instance_id="i",
        previous_epoch=0,
        sent_at=STAMP,
        drivers=[driver],
        capabilities=["nvml"],
        digest="d",
        previous_instance_id="before",
    )
    drivers = (values.Driver("libvirt-kvm", "9.0", ("vm",)),)
    assert decoded(hello=hello) == m.Hello("0.3", "0.1.0", "b", "i", 0, NOW, drivers, ("nvml",), "d", "before")
    assert decoded(hello=pb.Hello()) == m.Hello("", "", "", ""), "no epoch is not epoch 0"


def test_a_report_is_read_whole() -> None:
    report = pb.StatusReport(
        seq=4,
        sent_at=STAMP,
        digest="d",
        collected_at=STAMP,
        missing=[pb.MissingSection(name="gpus", error="settling")],
        kernel_log=pb.KernelLog(available=True, lost_records=2, unattributed=3, overflow=4),
        abandoned_workers=1,
    )
    log = values.KernelLog(True, False, 2, 3, 4)
    status = values.Status("d", NOW, (values.Missing("gpus", "settling"),), log, 1)
    assert decoded(status_report=report) == m.Report(status)
    assert decoded(status_report=pb.StatusReport()) == m.Report(values.Status(""))


def test_a_report_that_says_the_same_is_not_read_again() -> None:
    said, reports = Said(), []
    for seq in (1, 2):
        report = pb.StatusReport(seq=seq, digest="d", pressure=pb.Pressure(cpu=seq), abandoned_workers=seq // 3)
        report.sent_at.CopyFrom(Timestamp(seconds=STAMP.seconds + seq))
        reports.append(decode(pb.SessionRequest(status_report=report).SerializeToString(), said, (NOW.timestamp(),) * 2))
    first, second = reports
    assert isinstance(first, m.Report)
    assert isinstance(second, m.Report)
    assert second.status is first.status
    assert [(one.pressure, one.offset) for one in (first, second)] == [
        (values.Pressure(1, 0, 0, 0), 0.75),
        (values.Pressure(2, 0, 0, 0), 1.75),
    ]


def test_a_report_that_says_something_else_is_read_and_one_that_is_bad_leaves_nothing_behind() -> None:
    said, bad = Said(), pb.StatusReport(digest="d", missing=[pb.MissingSection(name="No Name")])
    for _ in range(2):
        with pytest.raises(BadMessage):
            decode(pb.SessionRequest(status_report=bad).SerializeToString(), said)
    for digest in ("d", "e"):
        report = decode(pb.SessionRequest(status_report=pb.StatusReport(digest=digest)).SerializeToString(), said)
        assert report == m.Report(values.Status(digest))


def test_of_a_long_report_the_bytes_are_not_kept() -> None:
    said, many = Said(), [pb.Condition(type=f"Xid{number}", message="x" * 2000) for number in range(1 + KEPT // 2000)]
    decode(pb.SessionRequest(status_report=pb.StatusReport(conditions=many)).SerializeToString(), said)
    assert said.data is None


@pytest.mark.parametrize("status", ["succeeded", "failed", "refused", "expired"])
def test_a_commands_result_is_read_whole(status: str) -> None:
    word = pb.CommandStatus.Value(f"COMMAND_STATUS_{status.upper()}")
    result = pb.CommandResult(id="cmd_1", status=word, reason="gpu-busy", payload_json='{"passed": true}')
    assert decoded(command_result=result) == values.CommandResult("cmd_1", status, "gpu-busy", {"passed": True})
    assert decoded(command_result=pb.CommandResult(status=word)) == values.CommandResult("", status, "", None)


def test_a_result_whose_status_is_unknown_has_failed() -> None:
    result = values.CommandResult("c", "failed", "UnknownStatus 0 why")
    assert decoded(command_result=pb.CommandResult(id="c", reason="why")) == result


@pytest.mark.parametrize("text", ["{", "NaN", "[1e999]", '"\\ud800"', "[" * 100_000, "9" * 5000])
def test_a_payload_that_postgres_cannot_hold_is_kept_as_text(text: str) -> None:
    found = decoded(command_result=pb.CommandResult(id="c", status=pb.COMMAND_STATUS_SUCCEEDED, payload_json=text))
    assert isinstance(found, values.CommandResult)
    assert (found.status, found.payload) == ("succeeded", {"unreadable": text[:2048]})


def test_a_command_is_written_whole() -> None:
    sent = encode(values.Command("cmd_1", "diag.nvml", {"expect": {"gpuCount": 8}}, "key", 600.0), NOW).command
    assert (sent.id, sent.kind, json.loads(sent.payload_json)) == ("cmd_1", "diag.nvml", {"expect": {"gpuCount": 8}})
    assert (sent.idempotency_key, sent.start_within) == ("key", Duration(seconds=600))
    assert encode(values.Command("c", "k", {}, "", 0.0), NOW).command.HasField("start_within"), "too late is not no limit"
    assert not encode(values.Command("c", "k", {}, "", None), NOW).command.HasField("start_within")
    assert encode(m.Ack("cmd_1"), NOW).command_ack.id == "cmd_1"


def test_pressure_is_read_and_a_sample_that_is_none_is_dropped() -> None:
    sample = pb.Pressure(cpu=1.5, memory=0.0, io=100.0, steal=0.25, number=7)
    report = decoded(status_report=pb.StatusReport(pressure=sample))
    assert isinstance(report, m.Report)
    assert report.pressure == values.Pressure(1.5, 0.0, 100.0, 0.25, 7)
    for bad in (float("nan"), float("inf"), -0.1, 100.1):
        report = decoded(status_report=pb.StatusReport(pressure=pb.Pressure(cpu=1.0, io=bad)))
        assert isinstance(report, m.Report)
        assert report.pressure is None


def test_conditions_faults_and_what_is_neither_are_told_apart() -> None:
    true, unknown = pb.CONDITION_STATUS_TRUE, pb.CONDITION_STATUS_UNKNOWN
    report = pb.StatusReport(
        conditions=[
            pb.Condition(type="MPSDown", status=unknown, reason="R\0", message="m\0", since=STAMP),
            pb.Condition(type="Xid79", status=true, device_id="GPU-1", bus_id="b", count=3, message="79, x"),
            pb.Condition(type="AcceptanceFailed", status=pb.CONDITION_STATUS_FALSE),
            pb.Condition(type="FabricManagerDown"),
        ]
    )
    status = values.Status(
        "",
        conditions=(values.Condition("MPSDown", "unknown", "R", "m"),),
        faults=(values.Fault("xid", 79, "GPU-1", "b", 3, "79, x"),),
    )
    assert decoded(status_report=report) == m.Report(status, ("AcceptanceFailed", "FabricManagerDown"))


def test_an_offer_and_a_chunk_are_read_whole() -> None:
    section = pb.SectionOffer(name="os", schema_version=1, hash="h", size=3)
    offer = pb.InventoryOffer(digest="d", sections=[section], collected_at=STAMP, boot_id="b", trigger="boot")
    expected = values.Offer("d", (values.SectionRef("os", 1, "h", 3),), (), NOW, "b", "boot")
    assert decoded(inventory_offer=offer) == expected
    chunk = pb.InventorySections(digest="d", name="os", data=b"x", last=True)
    assert decoded(inventory_sections=chunk) == m.Chunk("d", "os", b"x", True)


@pytest.mark.parametrize("data", [b"", b"\x9a\x3f\x03abc"])
def test_what_has_no_reader_is_ignored(data: bytes) -> None:
    assert decode(data) == m.Ignored()


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"GET / HTTP/1.1\r\n\r\n"])
def test_bytes_that_are_no_message_are_bad(data: bytes) -> None:
    with pytest.raises(BadMessage, match="SessionRequest"):
        decode(data)


@pytest.mark.parametrize("seconds", [10**15, -(10**15), -1])
def test_a_time_of_no_calendar_is_bad_and_named(seconds: int) -> None:
    report = pb.StatusReport()
    report.sent_at.seconds = seconds
    with pytest.raises(BadMessage, match=r"StatusReport\.sent_at"):
        decoded(status_report=report)


def test_the_text_limit_counts_bytes() -> None:
    condition = pb.Condition(type="C", message="é" * 1025)
    with pytest.raises(OverLimit, match="2050, at most 2048"):
        decoded(status_report=pb.StatusReport(conditions=[condition]))


LONG = "x" * 257


@pytest.mark.parametrize(
    "message",
    [
        {"hello": pb.Hello(protocol_version="9" * 5000)},
        {"hello": pb.Hello(boot_id=LONG)},
        {"hello": pb.Hello(previous_instance_id=LONG)},
        {"hello": pb.Hello(capabilities=["nvml", LONG])},
        {"hello": pb.Hello(drivers=[pb.Driver(id="d", kinds=[LONG])])},
        {"status_report": pb.StatusReport(digest=LONG)},
        {"inventory_offer": pb.InventoryOffer(boot_id=LONG)},
        {"inventory_sections": pb.InventorySections(name=LONG)},
    ],
    ids=lambda message: next(iter(message)),
)
def test_names_versions_and_ids_are_short(message: dict[str, object]) -> None:
    with pytest.raises(OverLimit, match=r"bytes a name, version or id: \d+, at most 256"):
        decoded(**message)


def test_what_is_missing_is_a_few_sections_with_names() -> None:
    many = [pb.MissingSection(name=f"s{number}") for number in range(17)]
    with pytest.raises(OverLimit, match="missing sections a message: 17, at most 16"):
        decoded(status_report=pb.StatusReport(missing=many))
    for name in ("", "a\0b", "Gpus", "x" * 33):
        with pytest.raises(BadMessage, match="no section's name"):
            decoded(inventory_offer=pb.InventoryOffer(missing=[pb.MissingSection(name=name)]))


def test_messages_to_bcd_are_written_whole() -> None:
    welcome = encode(m.Welcome("node_1", 7, 30.0, "d"), NOW).welcome
    assert (welcome.node_id, welcome.epoch, welcome.applied_digest, welcome.now) == ("node_1", 7, "d", STAMP)
    assert welcome.status_interval == Duration(seconds=30)
    assert (welcome.limits.chunk_bytes, welcome.limits.message_bytes) == (1 << 20, 4 << 20)
    request = encode(m.Request(True, ("os",), "d"), NOW).inventory_request
    assert request == pb.InventoryRequest(offer=True, sections=["os"], digest="d")
    result = encode(m.Result("d", "refused", "os", "why", 1.5, "inv_1"), NOW).inventory_result
    assert (result.status, result.section, result.reason) == (pb.INVENTORY_STATUS_REFUSED, "os", "why")
    assert (result.retry_after.ToTimedelta().total_seconds(), result.snapshot_id) == (1.5, "inv_1")
    assert not encode(m.Result("d", "applied"), NOW).inventory_result.HasField("retry_after")


def test_every_reason_and_status_of_the_protocol_can_be_said() -> None:
    assert {*END_REASONS.values(), pb.SESSION_END_REASON_UNSPECIFIED} == set(pb.SessionEndReason.values())
    assert {*RESULTS.values(), pb.INVENTORY_STATUS_UNSPECIFIED} == set(pb.InventoryStatus.values())


def test_every_limit_has_a_name_of_its_own() -> None:
    assert len({limit.name for limit in LIMITS}) == len(LIMITS)
