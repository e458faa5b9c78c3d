"""Streams over real gRPC, and a real Postgres below (SPEC A3, B1, B11)."""

import asyncio
import threading
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import grpc
import psycopg
import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.agent.v1 import session_pb2 as wire
from bettercompute.contract.sections import digest, encode, section_hash
from grpc_health.v1 import health_pb2, health_pb2_grpc
from psycopg_pool import PoolTimeout

from receiver.apply import status as status_module
from receiver.gateway import jobs as jobs_module
from receiver.gateway import limits, work
from receiver.gateway.heartbeat import beat
from receiver.ids import mint
from receiver.store.database import NO_ANSWER, Connection
from tests.fake_daemon import FakeDaemon, Over, until
from tests.receiver.live import Live, live, serving

OS = encode(pb.OsSection(hostname="gpu-1"))
GPUS = encode(pb.GpusSection(gpus=[pb.Gpu(uuid="GPU-1", bus_id="00000000:18:00.0")]))
BOTH = {"os": OS, "gpus": GPUS}


def row(served: Live, daemon: FakeDaemon, columns: str) -> tuple[Any, ...]:
    (found,) = served.rows(f"SELECT {columns} FROM nodes WHERE id = %s", daemon.node_id)
    return found


async def ending(daemon: FakeDaemon) -> Over:
    """How the stream ends, whatever comes before."""
    try:
        while True:
            await daemon.receive()
    except Over as over:
        return over


@live
async def test_an_inventory_travels_once_and_is_applied(served: Live) -> None:
    daemon = served.daemon(chunk=7)
    welcome = await daemon.connect()
    assert (welcome.node_id, welcome.epoch, welcome.applied_digest) == (daemon.node_id, 1, "")
    assert (welcome.status_interval.seconds, welcome.limits.section_bytes) == (30, 8 << 20)
    result = await daemon.offer(BOTH)
    assert (result.status, result.digest) == (wire.INVENTORY_STATUS_APPLIED, daemon.digest)
    assert row(served, daemon, "applied_digest, applied_snapshot_id") == (daemon.digest, result.snapshot_id)
    assert served.rows("SELECT encode(hash, 'hex'), body FROM sections ORDER BY size") == [
        (section_hash(body), body) for body in sorted(BOTH.values(), key=len)
    ]
    assert (await daemon.offer(BOTH)).status == wire.INVENTORY_STATUS_UNCHANGED
    assert daemon.sent_bytes == len(OS) + len(GPUS)


@live
async def test_a_second_node_of_the_tenant_sends_no_bytes(served: Live) -> None:
    first, second = served.daemon(), served.daemon()
    for daemon in (first, second):
        await daemon.connect()
        assert (await daemon.offer(BOTH)).status == wire.INVENTORY_STATUS_APPLIED
    assert second.sent_bytes == 0


@live
async def test_the_applied_digest_is_told_to_the_next_session(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    await daemon.offer(BOTH)
    await daemon.close()
    assert (await daemon.connect()).applied_digest == daemon.digest
    assert daemon.epoch == 2
    await daemon.report()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(daemon.call.read(), 0.3)


@live
async def test_asks_for_an_offer_when_a_report_names_another_digest(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    daemon.digest = "ab" * 32
    await daemon.report()
    assert (await daemon.receive()).inventory_request.offer


@live
async def test_a_section_that_is_not_what_it_says_is_refused_and_the_session_goes_on(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    for name, body, words in [("os", b"\xff\xff\xff", "do not parse"), ("gpus", GPUS, "hash")]:
        offer = daemon.offer_of({name: body}, {})
        sent = {name: body if name == "os" else body[:-1] + b"\0"}
        await daemon.send(inventory_offer=offer)
        request = (await daemon.receive()).inventory_request
        await daemon.send_sections(request.digest, sent, request.sections)
        result = (await daemon.receive()).inventory_result
        assert (result.status, result.section) == (wire.INVENTORY_STATUS_REFUSED, name)
        assert words in result.reason
    assert served.rows("SELECT count(*) FROM sections") == [(0,)]
    assert row(served, daemon, "applied_digest") == (None,)
    assert (await daemon.offer(BOTH)).status == wire.INVENTORY_STATUS_APPLIED


@live
async def test_messages_of_newer_peers_are_ignored(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    unknown = b"\x9a\x3f\x03abc"  # field 1011
    message = wire.SessionRequest.FromString(unknown)
    await daemon.call.write(message)
    report = wire.StatusReport.FromString(daemon.status().SerializeToString() + unknown)
    await daemon.send(status_report=report)
    assert (await daemon.offer(BOTH)).status == wire.INVENTORY_STATUS_APPLIED


@live
async def test_another_protocol_major_is_unsupported(served: Live) -> None:
    daemon = served.daemon(protocol_version="7.0")
    with pytest.raises(Over) as over:
        await daemon.connect()
    assert over.value.end is not None
    assert over.value.end.reason == wire.SESSION_END_REASON_PROTOCOL_UNSUPPORTED
    assert "7.0" in over.value.end.detail
    assert served.rows("SELECT count(*) FROM nodes") == [(0,)]


@live
async def test_a_newer_stream_supersedes_the_older_one(served: Live) -> None:
    older = served.daemon()
    await older.connect()
    newer = served.daemon(node_id=older.node_id, epoch=1)
    assert (await newer.connect()).epoch == 2
    over = await ending(older)
    assert over.end is not None
    assert over.end.reason == wire.SESSION_END_REASON_SUPERSEDED
    assert (await newer.offer(BOTH)).status == wire.INVENTORY_STATUS_APPLIED
    await beat(served.receiver.registry, served.receiver.jobs)
    assert row(served, newer, "connected, epoch") == (True, 2)


def test_a_newer_stream_at_another_receiver_supersedes_the_older_one(database: str) -> None:
    async def main() -> None:
        async with serving(database) as one, serving(database) as other:
            older = one.daemon()
            await older.connect()
            newer = other.daemon(node_id=older.node_id, epoch=1)
            await newer.connect()
            over = await ending(older)
            assert over.end is not None
            assert over.end.reason == wire.SESSION_END_REASON_SUPERSEDED

    asyncio.run(main())


def test_a_notification_that_was_missed_is_made_up_for(database: str) -> None:
    async def main() -> None:
        async with serving(database) as one:
            older = one.daemon()
            await older.connect()
            one.rows("UPDATE nodes SET epoch = epoch + 1 RETURNING 1")
            await one.receiver.jobs.look_up_epochs()
            assert (await ending(older)).end is not None

    asyncio.run(main())


@live
async def test_a_report_of_a_superseded_session_records_nothing_and_ends_it(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    served.rows("UPDATE nodes SET epoch = epoch + 1 RETURNING 1")
    daemon.missing = {"gpus": "settling"}
    await daemon.report()
    over = await ending(daemon)
    assert over.end is not None
    assert over.end.reason == wire.SESSION_END_REASON_SUPERSEDED
    assert served.rows("SELECT count(*) FROM node_missing_sections") == [(0,)]


@live
async def test_an_offer_of_a_superseded_session_is_not_applied_and_ends_it(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    served.rows("UPDATE nodes SET epoch = epoch + 1 RETURNING 1")  # it began at another receiver, whose notification is late
    with pytest.raises(Over) as over:
        await daemon.offer(BOTH)
    assert over.value.end is not None
    assert over.value.end.reason == wire.SESSION_END_REASON_SUPERSEDED
    assert row(served, daemon, "applied_digest") == (None,)


@live
async def test_a_report_that_changes_nothing_touches_no_row_but_last_seen(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    await daemon.offer(BOTH)
    judged = []
    transaction = served.receiver.jobs.transaction

    async def counting(work: Any) -> Any:
        judged.append(work)
        return await transaction(work)

    await daemon.report()
    await until("the first report", lambda: served.receiver.registry.current[daemon.node_id].judged)
    await beat(served.receiver.registry, served.receiver.jobs)
    await daemon.report()  # the apply raised plan_rev: judged once more
    stream = served.receiver.registry.current[daemon.node_id]
    await until("the second", lambda: stream.judged and stream.judged[1] == stream.plan_rev)
    with patch.object(served.receiver.jobs, "transaction", counting):
        seen = served.receiver.registry.seen
        seen.clear()
        await daemon.report()
        await until("the third", lambda: daemon.node_id in seen)
        assert judged == []
        await beat(served.receiver.registry, served.receiver.jobs)
        assert len(judged) == 1, "one statement for all nodes that were seen"
        served.rows("UPDATE nodes SET plan_rev = plan_rev + 1 RETURNING 1")  # somebody else wrote
        served.receiver.registry.seen[daemon.node_id] = 1
        await beat(served.receiver.registry, served.receiver.jobs)
        before = len(judged)
        await daemon.report()
        await until("the report to be judged again", lambda: len(judged) > before)


@live
async def test_a_report_is_judged_under_the_lock_at_once_where_its_session_has_said_something_else_before(served: Live) -> None:
    """Not the first one of a session, and not one that is judged again because somebody else has written."""
    daemon, known = served.daemon(), list[bool]()
    await daemon.connect()
    record = status_module.record_status

    def noting(*arguments: Any, **named: Any) -> bool:
        known.append(named["changed"])
        return record(*arguments, **named)

    with patch.object(status_module, "record_status", noting):
        await daemon.report()
        daemon.set_condition("RebootRequired")
        await daemon.report()
        await daemon.dealt_with()
        served.rows("UPDATE nodes SET plan_rev = plan_rev + 1 RETURNING 1")
        await beat(served.receiver.registry, served.receiver.jobs)
        await daemon.report()
        await daemon.dealt_with()
    assert known == [False, True, False]


@live
async def test_messages_and_what_comes_from_outside_are_handled_one_after_the_other(served: Live) -> None:
    daemon, began, ended = served.daemon(), list[type](), list[type]()
    await daemon.connect()

    async def slow(_: object, __: object, job: work.Job) -> work.Due | None:
        assert began == ended, "one job of a stream at a time"
        began.append(type(job))
        await asyncio.sleep(0.02)
        ended.append(type(job))
        return work.Due(()) if isinstance(job, work.FindCommands) else None

    with patch.dict(jobs_module.JOBS, {work.FindCommands: slow, work.Judge: slow}):
        for pause in (0.0, 0.01, 0.03) * 3:
            await daemon.report()
            await asyncio.sleep(pause)
            served.receiver.registry.queued(daemon.node_id)
            await asyncio.sleep(pause)
        await daemon.dealt_with()
        await until("the last look", lambda: not served.receiver.registry.current[daemon.node_id].queued and began == ended)
    assert began.count(work.Judge) == 9
    assert began.count(work.FindCommands) > 3


@live
async def test_a_missing_section_is_kept_with_its_error_until_it_is_back(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    await daemon.offer(BOTH)
    missing = "SELECT name, error FROM node_missing_sections"
    daemon.missing = {"disks": "no sysfs \0" + "x" * 5000}
    await daemon.report()
    await until("the error", lambda: served.rows(missing))
    ((name, error),) = served.rows(missing)
    assert (name, error[:10], len(error)) == ("disks", "no sysfs x", 2047)
    daemon.missing = {}
    await daemon.report()
    await until("its end", lambda: not served.rows(missing))


@live
async def test_a_second_hello_rewrites_drivers_in_the_same_epoch(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    await daemon.send(hello=daemon.hello(wire.Driver(id="libvirt-kvm", version="9", kinds=["vm"])))
    await until("the drivers", lambda: row(served, daemon, "drivers")[0])
    assert row(served, daemon, "epoch, drivers") == (1, [{"id": "libvirt-kvm", "version": "9", "kinds": ["vm"]}])


@live
async def test_conditions_and_xids_of_a_report_are_recorded_shown_and_told_once(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    daemon.set_condition("NvmlUnavailable", reason="Hang", message="no answer")
    daemon.xid(79, "GPU-1", "00000000:18:00.0", message="79, GPU has fallen off the bus.")
    daemon.sxid(12028, "00000000:05:00.0")
    daemon.sxid(12028, "00000000:06:00.0")
    told = """SELECT type, payload ->> 'condition', payload ->> 'xid' FROM events
              WHERE type IN ('node.xid', 'node.condition.changed') ORDER BY seq"""
    await daemon.report()
    await until("the events", lambda: len(served.rows(told)) == 5)
    assert sorted(served.rows(told), key=str) == [
        ("node.condition.changed", "NvmlUnavailable", None),
        ("node.condition.changed", "Xid79", None),
        *[("node.xid", None, "12028")] * 2,
        ("node.xid", None, "79"),
    ]
    node = await served.api("nodes.get", nodeId=daemon.node_id)
    shown, xid = node["conditions"]
    assert (shown["type"], shown["status"], shown["reason"], shown["message"]) == ("NvmlUnavailable", "true", "Hang", "no answer")
    assert (xid["type"], xid["status"], xid["deviceId"], xid["noSchedule"]) == ("Xid79", "true", "GPU-1", True)
    assert [one["type"] for one in node["noScheduleReasons"]] == ["NvmlUnavailable", "Xid79"]
    daemon.set_condition("NvmlUnavailable", False)
    await daemon.report()
    await until("the end of the condition", lambda: len(served.rows(told)) == 6)
    node = await served.api("nodes.get", nodeId=daemon.node_id)
    assert [one["status"] for one in node["conditions"]] == ["false", "true"]
    assert [one["type"] for one in node["noScheduleReasons"]] == ["Xid79"]


def test_another_receiver_tells_nothing_twice(database: str) -> None:
    async def main() -> None:
        told = "SELECT type, payload ->> 'condition' FROM events ORDER BY seq"
        xid = ("node.condition.changed", "Xid79")
        async with serving(database) as one:
            daemon = one.daemon()
            await daemon.connect()
            daemon.set_condition("NvmlUnavailable", reason="Hang")
            daemon.xid(79, "GPU-1", "00000000:18:00.0", count=7)
            await daemon.report()
            await until("the events", lambda: xid in one.rows(told))
            before = one.rows(told)
        async with serving(database) as other:
            daemon.target = other.receiver.config.listen_session
            other.daemons.append(daemon)
            await daemon.connect()
            await daemon.report()
            registry = other.receiver.registry
            await until("the report", lambda: daemon.node_id in registry.current and registry.current[daemon.node_id].judged)
            assert other.rows(told) == before

    asyncio.run(main())


@live
async def test_a_report_repeated_with_conditions_and_xids_is_no_statement(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    daemon.set_condition("NvmlUnavailable", reason="Hang")
    daemon.xid(79, "GPU-1", "00000000:18:00.0")
    daemon.set_pressure(cpu=1.0)
    await daemon.report()
    stream = served.receiver.registry.current[daemon.node_id]
    await until("the first report", lambda: stream.judged)
    await beat(served.receiver.registry, served.receiver.jobs)
    with patch.object(served.receiver.jobs, "transaction", side_effect=AssertionError("a statement")):
        seen = served.receiver.registry.seen
        seen.clear()
        daemon.set_pressure(cpu=99.0)  # telemetry is not written
        await daemon.report()
        await until("the second", lambda: daemon.node_id in seen)
        seen.clear()


def test_a_handler_that_is_not_in_force_records_nothing(database: str) -> None:
    async def main() -> None:
        async with serving(database, status_handlers=("xid",)) as served:
            daemon = served.daemon()
            await daemon.connect()
            daemon.set_condition("NvmlUnavailable")
            daemon.xid(79, "GPU-1", "b")
            await daemon.report()
            await until("the XID", lambda: served.rows("SELECT code FROM node_faults") == [("Xid79",)])
            assert served.rows("SELECT type FROM conditions") == [("Xid79",)]

    asyncio.run(main())


@live
async def test_a_condition_that_reports_may_not_set_is_dropped_and_counted(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    daemon.set_condition("AcceptanceFailed")
    daemon.set_condition("NvmlUnavailable")
    await daemon.report()
    await daemon.report()
    await until("the count", lambda: served.receiver.registry.dropped["bad-condition"] == 2)
    await until("the other", lambda: served.rows("SELECT type FROM conditions") == [("NvmlUnavailable",)])


BAD = [
    (dict.fromkeys(["conditions"], limits.CONDITIONS.most + 1), "INVALID_ARGUMENT: conditions a report: 257, at most 256"),
    (dict.fromkeys(["text"], limits.MESSAGE_TEXT.most + 1), "bytes a condition's message: 2049, at most 2048"),
    (dict.fromkeys(["drivers"], limits.DRIVERS.most + 1), "drivers a Hello: 65, at most 64"),
    (dict.fromkeys(["kinds"], limits.KINDS.most + 1), "kinds a driver: 33, at most 32"),
    (dict.fromkeys(["chunk"], limits.CHUNK_BYTES.most + 1), "bytes a chunk: 1048577, at most 1048576"),
    (dict.fromkeys(["message"], limits.MESSAGE_BYTES.most), "RESOURCE_EXHAUSTED: bytes a message"),
]


def _over(what: str, count: int, daemon: FakeDaemon) -> dict[str, Any]:
    if what == "conditions":
        return {"status_report": wire.StatusReport(conditions=[wire.Condition(type=f"C{n}") for n in range(count)])}
    if what == "text":
        return {"status_report": wire.StatusReport(conditions=[wire.Condition(type="C", message="x" * count)])}
    if what == "drivers":
        return {"hello": daemon.hello(*[wire.Driver(id=f"d{n}") for n in range(count)])}
    if what == "kinds":
        return {"hello": daemon.hello(wire.Driver(id="d", kinds=[f"k{n}" for n in range(count)]))}
    return {"inventory_sections": wire.InventorySections(digest="d", name="os", data=b"x" * count)}


@pytest.mark.parametrize(("case", "words"), BAD, ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_a_message_over_a_limit_ends_the_session_naming_it(case: dict[str, int], words: str, database: str) -> None:
    async def main() -> None:
        async with serving(database) as served:
            daemon = served.daemon()
            await daemon.connect()
            ((what, count),) = case.items()
            await daemon.send(**_over(what, count, daemon))
            over = await ending(daemon)
            assert over.end is not None
            assert over.end.reason == wire.SESSION_END_REASON_BAD_MESSAGE
            assert words in over.end.detail
            assert over.code is not None
            assert over.end.detail.startswith(over.code.name), "the stream's status says it too"
            assert [name for name in served.receiver.registry.met if name in words], "it is counted"

    asyncio.run(main())


@live
async def test_a_value_that_postgres_cannot_hold_is_a_bad_message(served: Live) -> None:
    def out_of_range(*_: object) -> None:
        raise psycopg.DataError("out of range")

    with patch("receiver.apply.session.hello", out_of_range), pytest.raises(Over) as over:
        await served.daemon().connect()
    assert over.value.end is not None
    assert over.value.end.reason == wire.SESSION_END_REASON_BAD_MESSAGE


@live
async def test_a_stream_without_a_node_id_is_refused(served: Live) -> None:
    for metadata in ((), (("bc-node-id", "node_x"),), (("bc-node-id", mint("node")),) * 2):
        daemon = served.daemon()
        await daemon.open(metadata)
        over = await ending(daemon)
        assert over.code == grpc.StatusCode.UNAUTHENTICATED


@live
async def test_a_third_stream_of_one_node_is_refused(served: Live) -> None:
    daemons = [served.daemon(node_id="node_01hf7yat000000000000000000") for _ in range(3)]
    await daemons[0].open()
    await daemons[1].open()
    await until("two streams", lambda: len(served.receiver.registry.greeting) == 2)
    await daemons[2].open()
    over = await ending(daemons[2])
    assert over.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "streams a node" in over.details


@live
async def test_sessions_started_faster_than_the_rate_are_overloaded(served: Live) -> None:
    served.receiver.registry.starts.level, served.receiver.registry.starts.at = 0.0, served.receiver.registry.now() + 5
    with pytest.raises(Over) as over:
        await served.daemon().connect()
    assert over.value.end is not None
    assert over.value.end.reason == wire.SESSION_END_REASON_OVERLOADED
    assert over.value.end.retry_after.seconds >= 1


@live
async def test_a_node_that_comes_again_and_again_takes_no_sessions_from_the_others(served: Live) -> None:
    with patch("receiver.gateway.limits.NODE_SESSIONS", replace(limits.NODE_SESSIONS, burst=2)):
        restless = served.daemon()
        for _ in range(2):
            await restless.connect()
            await restless.close()
        with pytest.raises(Over) as over:
            await restless.connect()
    assert over.value.end is not None
    assert over.value.end.reason == wire.SESSION_END_REASON_OVERLOADED
    assert "sessions started a minute and node" in over.value.end.detail
    assert over.value.end.retry_after.seconds >= 1
    assert served.receiver.registry.met["sessions started a minute and node"] == 1
    await served.daemon().connect()


@live
async def test_a_stream_that_says_no_hello_is_closed(served: Live) -> None:
    with patch("receiver.gateway.session.HELLO_SECONDS", 0.3):
        daemon = served.daemon()
        await daemon.open()

        async def other_things() -> None:
            while True:
                await daemon.call.write(wire.SessionRequest.FromString(b"\x9a\x3f\x03abc"))
                await asyncio.sleep(0.05)

        saying = asyncio.create_task(other_things())
        over = await asyncio.wait_for(ending(daemon), 3.0)
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)
    assert over.end is not None
    assert "no Hello" in over.end.detail


@live
async def test_what_fails_beside_the_message_that_is_waited_for_ends_the_stream(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    with patch("receiver.gateway.jobs.command.due", side_effect=RuntimeError("our bug")):
        served.receiver.registry.queued(daemon.node_id)
        over = await asyncio.wait_for(ending(daemon), 5.0)
    assert over.code is grpc.StatusCode.UNKNOWN
    assert served.receiver.registry.streams == {}


@live
async def test_a_database_that_fails_costs_a_retry_and_no_session(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()

    def down(*_: object) -> None:
        raise psycopg.OperationalError("the server went away")

    with patch("receiver.apply.inventory.wanted", down):
        result = await daemon.offer(BOTH)
    assert result.status == wire.INVENTORY_STATUS_RETRY
    assert 15 <= result.retry_after.ToTimedelta().total_seconds() <= 30, "not everybody at once"
    assert "went away" in result.reason
    assert (await daemon.offer(BOTH)).status == wire.INVENTORY_STATUS_APPLIED


@live
async def test_a_read_only_database_costs_retries_and_no_session(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    for mode, status in (("on", wire.INVENTORY_STATUS_RETRY), ("off", wire.INVENTORY_STATUS_APPLIED)):
        with psycopg.connect(served.database, autocommit=True, options="-c default_transaction_read_only=off") as admin:
            admin.execute(f"ALTER DATABASE {admin.info.dbname} SET default_transaction_read_only = {mode}")
            others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            admin.execute(f"SELECT pg_terminate_backend(pid) {others}")
        await daemon.report()
        await beat(served.receiver.registry, served.receiver.jobs)
        result = await daemon.offer(BOTH)
        while "connection" in result.reason:  # those that were dropped are replaced one by one
            result = await daemon.offer(BOTH)
        assert result.status == status, result.reason
    assert list(served.receiver.registry.current) == [daemon.node_id]


@live
async def test_a_database_that_stays_away_is_said_once_and_keeps_nobody_waiting(served: Live) -> None:
    jobs = served.receiver.jobs

    def away(timeout: float) -> None:
        if threading.current_thread().name.startswith("database"):  # singletons have threads of their own
            waited.append(timeout)
        raise PoolTimeout("no connection")

    waited: list[float] = []
    with patch.object(jobs.pool, "connection", away), patch.object(jobs_module.LOG, "warning") as warning:
        for _ in range(5):
            with pytest.raises(PoolTimeout):
                await jobs.transaction(lambda _: None)
    assert (waited[0], set(waited[1:])) == (jobs_module.PATIENT, {jobs_module.IMPATIENT})
    assert warning.call_count == 1
    with patch.object(jobs_module.LOG, "info") as info:
        await jobs.transaction(lambda _: None)
        await jobs.transaction(lambda _: None)
    info.assert_called_once_with("the database answers again")


@pytest.mark.parametrize(
    "kind", ["AdminShutdown", "DiskFull", "ReadOnlySqlTransaction", "QueryCanceled", "LockNotAvailable", "TooManyConnections"]
)
def test_what_a_database_may_suffer_is_no_bug_of_ours(kind: str) -> None:
    assert issubclass(getattr(psycopg.errors, kind), NO_ANSWER)


@live
async def test_a_heartbeat_that_dies_ends_the_receiver(served: Live) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("our bug")

    served.receiver.check()
    with patch("receiver.gateway.heartbeat.EVERY", 0.01), patch("receiver.apply.status.touch", broken):
        served.receiver.registry.seen["node"] = 1
        await until("its end", served.receiver.chores[0].done)
    with pytest.raises(AssertionError, match="our bug"):
        served.receiver.check()


@live
async def test_connections_that_the_database_drops_are_replaced(served: Live) -> None:
    older = served.daemon()
    await older.connect()
    served.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await older.report()
    for _ in range(4):
        result = await older.offer(BOTH)
        if result.status == wire.INVENTORY_STATUS_APPLIED:
            break
        assert result.status == wire.INVENTORY_STATUS_RETRY
    assert result.status == wire.INVENTORY_STATUS_APPLIED
    assert (await served.api("nodes.get", nodeId=older.node_id))["hostname"] == "gpu-1"
    listening = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'receiver listen' AND datname = current_database()"
    )
    await until("the listener to come back", lambda: served.rows(listening) == [(1,)])


@live
async def test_a_crash_within_an_apply_leaves_nothing(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    from receiver.apply import inventory

    apply = inventory.apply_inventory

    def dies(tx: Connection, *arguments: Any) -> None:
        apply(tx, *arguments)
        raise psycopg.OperationalError("terminating connection")

    with patch("receiver.apply.inventory.apply_inventory", dies):
        assert (await daemon.offer(BOTH)).status == wire.INVENTORY_STATUS_RETRY
    assert served.rows("SELECT (SELECT count(*) FROM inventory_snapshots), (SELECT count(*) FROM sections)") == [(0, 0)]
    assert (await daemon.offer(BOTH)).status == wire.INVENTORY_STATUS_APPLIED


def test_draining_tells_each_stream_when_to_come_back(database: str) -> None:
    async def main() -> None:
        async with serving(database) as served:
            daemons = [served.daemon() for _ in range(3)]
            for daemon in daemons:
                await daemon.connect()
            stopping = asyncio.create_task(served.receiver.stop())
            waits = set()
            for daemon in daemons:
                over = await ending(daemon)
                assert over.end is not None
                assert over.end.reason == wire.SESSION_END_REASON_DRAINING
                waits.add(over.end.retry_after.ToTimedelta())
            assert len(waits) == 3, "not all at the same time"
            await stopping
            query = "SELECT n.connected, s.end_reason FROM nodes n JOIN sessions s ON s.node_id = n.id"
            assert served.rows(query) == [(False, "draining")] * 3

    asyncio.run(main())


@live
async def test_a_lost_stream_is_written_as_ended(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    await daemon.close()
    await until("the stream to be gone", lambda: not served.receiver.registry.current)
    await beat(served.receiver.registry, served.receiver.jobs)
    assert row(served, daemon, "connected") == (False,)


@live
async def test_a_daemon_that_hangs_up_during_an_apply_has_it_applied_all_the_same(served: Live) -> None:
    from receiver.apply import inventory

    daemon, apply = served.daemon(), inventory.apply_inventory
    begun, go_on = threading.Event(), threading.Event()

    def slow(tx: Connection, *arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(10)
        return apply(tx, *arguments)

    await daemon.connect()
    with patch("receiver.apply.inventory.apply_inventory", slow):
        offering = asyncio.create_task(daemon.offer(BOTH))
        await until("the apply", begun.is_set)
        await daemon.close()
        await asyncio.gather(offering, return_exceptions=True)
        go_on.set()
        await until("the apply's end", lambda: row(served, daemon, "applied_digest") == (daemon.digest,))
    assert not served.receiver.registry.current


@live
async def test_health_is_served_on_both_listeners(served: Live) -> None:
    config = served.receiver.config
    names = {
        config.listen_session: "bettercompute.agent.v1.AgentService",
        config.listen_api: "bettercompute.control.v1.NodesService",
    }
    for target, name in names.items():
        async with grpc.aio.insecure_channel(target) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_the_fake_daemon_offers_what_the_contract_says() -> None:
    offer = FakeDaemon("").offer_of(BOTH, {"disks": "no"})
    assert offer.digest == digest({name: section_hash(body) for name, body in BOTH.items()})
    assert [section.name for section in offer.sections] == ["gpus", "os"]
