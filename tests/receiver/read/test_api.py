"""What the API answers (SPEC B9), asked as the command line asks, over a real receiver and Postgres."""

import asyncio
from typing import Any
from unittest.mock import patch

import grpc
import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import SECTIONS, encode, section_hash
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from receiver.client.methods import methods
from receiver.errors import Invalid
from receiver.ids import mint
from receiver.read import tokens
from receiver.read.api import READS, SERVICES
from receiver.read.tokens import Forbidden, Scope
from tests.fake_daemon import FakeDaemon, until
from tests.receiver.live import Live, live, serving


def gpu(number: int) -> pb.Gpu:
    return pb.Gpu(uuid=f"GPU-{number}", bus_id=f"00000000:{number:02X}:00.0", vram_bytes=80 << 30)


def sections(gpus: int = 2, hostname: str = "gpu-1", serial: str = "A") -> dict[str, bytes]:
    return {
        "os": encode(pb.OsSection(hostname=hostname)),
        "gpus": encode(pb.GpusSection(gpus=[gpu(number) for number in range(gpus)])),
        "disks": encode(pb.DisksSection(disks=[pb.Disk(name="nvme0n1", serial=serial)])),
    }


async def reporting(served: Live, *offers: dict[str, bytes]) -> FakeDaemon:
    """A daemon that is connected and has offered these, one after the other."""
    daemon = served.daemon()
    await daemon.connect()
    for bodies in offers:
        assert (await daemon.offer(bodies)).snapshot_id
    return daemon


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details() or ""


def test_every_method_has_a_handler() -> None:
    assert set(READS) <= {name for name, method in methods().items() if not method.streaming}


@live
async def test_inventory_get_answers_the_latest_snapshot_with_its_sections(served: Live) -> None:
    daemon = await reporting(served, sections(2), sections(1))
    answer = await served.api("inventory.get", nodeId=daemon.node_id)
    assert list(answer) == ["snapshotId", "appliedSnapshotId", "advisory", "createdAt", "sections", "missing"]
    assert answer["snapshotId"] == answer["appliedSnapshotId"]
    assert answer["advisory"] is False
    assert sorted(answer["sections"]) == ["disks", "gpus", "os"]
    assert [one["uuid"] for one in answer["sections"]["gpus"]["gpus"]] == ["GPU-0"]
    assert answer["sections"]["gpus"]["gpus"][0]["vramBytes"] == str(80 << 30), "proto3 JSON writes 64 bits as text"
    assert answer["sections"]["os"]["hostname"] == "gpu-1"
    assert answer["missing"] == []


@live
async def test_inventory_get_answers_an_older_snapshot_by_id(served: Live) -> None:
    first = sections()
    del first["disks"]
    daemon = await reporting(served, first, sections(1))
    oldest = (await served.api("inventory.history", nodeId=daemon.node_id))["snapshots"][-1]["id"]
    answer = await served.api("inventory.get", nodeId=daemon.node_id, snapshotId=oldest)
    assert answer["snapshotId"] == oldest != answer["appliedSnapshotId"]
    assert len(answer["sections"]["gpus"]["gpus"]) == 2
    assert {row["name"]: row["lastSnapshotId"] for row in answer["missing"]}["disks"] is None
    code, text = await refused(served.api("inventory.get", nodeId=daemon.node_id, snapshotId="inv_x"))
    assert (code, "inv_x" in text) == (grpc.StatusCode.NOT_FOUND, True)


@live
async def test_a_missing_section_is_shown_with_its_error_and_where_it_was_last(served: Live) -> None:
    daemon = await reporting(served, sections())
    snapshot = (await served.api("inventory.get", nodeId=daemon.node_id))["snapshotId"]
    lacking = {name: body for name, body in sections().items() if name != "gpus"}
    await daemon.offer(lacking, {"gpus": "Hang: NVML did not answer"})
    answer = await served.api("inventory.get", nodeId=daemon.node_id)
    assert answer["missing"] == [{"name": "gpus", "error": "Hang: NVML did not answer", "lastSnapshotId": snapshot}]
    assert answer["snapshotId"] == snapshot, "an absence appends nothing"


@live
async def test_fields_and_sections_of_a_newer_daemon_read_fine(served: Live) -> None:
    bodies = {**sections(), "os": sections()["os"] + b"\x9a\x3f\x03abc", "power": b"\x01\x02"}
    daemon = await reporting(served, bodies)
    answer = await served.api("inventory.get", nodeId=daemon.node_id)
    assert answer["sections"]["os"]["hostname"] == "gpu-1"
    history = await served.api("inventory.history", nodeId=daemon.node_id)
    assert history["snapshots"][0]["sections"]["power"] == section_hash(b"\x01\x02")


@live
async def test_history_is_newest_first_in_pages_and_says_what_changed(served: Live) -> None:
    offers = [sections(1), sections(2), sections(2, "gpu-2"), sections(1)]
    daemon = await reporting(served, *offers)
    pages, cursor = [], ""
    while cursor is not None:
        page = await served.api("inventory.history", nodeId=daemon.node_id, limit=3, cursor=cursor)
        pages.append([snapshot["changed"] for snapshot in page["snapshots"]])
        cursor = page["nextCursor"]
    assert pages == [[["gpus", "os"], ["os"], ["gpus"]], [["disks", "gpus", "os"]]]
    newest = (await served.api("inventory.history", nodeId=daemon.node_id, limit=1))["snapshots"][0]
    assert list(newest) == ["id", "digest", "advisory", "createdAt", "sections", "changed"]
    assert newest["sections"] == {name: section_hash(body) for name, body in sorted(offers[-1].items())}


@live
async def test_diff_compares_the_last_two_or_those_that_are_named(served: Live) -> None:
    daemon = await reporting(served, sections(2), sections(1), sections(1, serial="B"))
    three, two, one = [row["id"] for row in (await served.api("inventory.history", nodeId=daemon.node_id))["snapshots"]]
    node = {"nodeId": daemon.node_id}

    async def types(**keys: str) -> tuple[str, str, list[tuple[str, str | None]]]:
        answer = await served.api("inventory.diff", **node, **keys)
        return answer["from"], answer["to"], [(change["type"], change["deviceId"]) for change in answer["changes"]]

    assert await types() == (two, three, [("disk.replaced", None)])
    assert await types(to=two) == (one, two, [("gpu.missing", "GPU-1")])
    assert await types(**{"from": one}) == (one, three, [("gpu.missing", "GPU-1"), ("disk.replaced", None)])
    assert await types(**{"from": three, "to": one}) == (three, one, [("gpu.added", "GPU-1"), ("disk.replaced", None)])
    change = (await served.api("inventory.diff", **node))["changes"][0]
    assert (change["before"]["serial"], change["after"]["serial"]) == ("A", "B")


@live
async def test_diff_of_one_snapshot_is_from_null_and_empty(served: Live) -> None:
    daemon = await reporting(served, sections())
    answer = await served.api("inventory.diff", nodeId=daemon.node_id)
    assert list(answer.values())[0::2] == [None, []]


@live
async def test_a_node_without_inventory_is_not_found_for_the_inventory_methods_only(served: Live) -> None:
    daemon = await reporting(served)
    for method in ("inventory.get", "inventory.history", "inventory.diff"):
        code, text = await refused(served.api(method, nodeId=daemon.node_id))
        assert (code, daemon.node_id in text) == (grpc.StatusCode.NOT_FOUND, True)
    node = await served.api("nodes.get", nodeId=daemon.node_id)
    assert (node["appliedSnapshotId"], node["hostname"], node["connected"]) == (None, None, True)
    assert (await served.api("events.list", nodeId=daemon.node_id))["events"]


@live
async def test_a_node_of_another_tenant_is_not_found_for_every_method(served: Live) -> None:
    daemon = await reporting(served, sections(2), sections(1))
    for method in ("inventory.get", "inventory.history", "inventory.diff", "nodes.get", "events.list"):
        assert (await refused(served.api(method, nodeId=daemon.node_id, tenantId="acme")))[0] == grpc.StatusCode.NOT_FOUND
        assert await served.api(method, nodeId=daemon.node_id, tenantId="default")
    assert (await served.api("nodes.list", tenantId="acme"))["nodes"] == []
    assert (await served.api("events.list", tenantId="acme"))["events"] == []
    assert (await _watched(served, node_id=daemon.node_id, tenant_id="acme"))[0] == grpc.StatusCode.NOT_FOUND
    assert (await _watched(served, node_id=mint("node")))[0] == grpc.StatusCode.NOT_FOUND


@live
async def test_rows_are_seen_by_the_tenant_they_belonged_to_when_written(served: Live) -> None:
    daemon = await reporting(served, sections(2))
    await daemon.offer({name: body for name, body in sections(2).items() if name != "disks"}, {"disks": "of default"})
    condition = "INSERT INTO conditions (node_id, type, device_id, tenant_id, status)"
    served.rows(f"{condition} SELECT id, 'RebootRequired', '', tenant_id, 'true' FROM nodes RETURNING 1")
    label = "INSERT INTO node_labels (node_id, key, tenant_id, value, source)"
    served.rows(f"{label} SELECT id, 'k', tenant_id, 'v', 'operator' FROM nodes RETURNING 1")
    served.rows("UPDATE nodes SET tenant_id = 'acme' RETURNING 1")
    node = await served.api("nodes.get", nodeId=daemon.node_id, tenantId="acme")
    assert (node["hostname"], node["missing"], node["conditions"], node["labels"]) == (None, [], [], {})
    assert (await served.api("nodes.get", nodeId=daemon.node_id))["missing"][0]["error"] == "of default", "tenant * sees all"
    await daemon.offer(sections(1), {"cpu": "of acme"})
    node = await served.api("nodes.get", nodeId=daemon.node_id, tenantId="acme")
    assert (node["hostname"], [one["error"] for one in node["missing"]]) == ("gpu-1", ["of acme"])
    history = await served.api("inventory.history", nodeId=daemon.node_id, tenantId="acme")
    assert len(history["snapshots"]) == 1
    assert len((await served.api("inventory.history", nodeId=daemon.node_id))["snapshots"]) == 2


def test_a_tenants_token_reads_that_tenant_only() -> None:
    assert tokens.narrowed(Scope("acme"), "acme") == Scope("acme")
    for scope in (Scope("*"), Scope("acme")):
        with pytest.raises(Invalid, match="tenantId is empty"):
            tokens.narrowed(scope, "")
    with pytest.raises(Forbidden, match="acme, not of other"):
        tokens.narrowed(Scope("acme"), "other")


@live
async def test_a_tenants_token_cannot_name_another(served: Live) -> None:
    with served.calling("acme"):
        assert (await served.api("nodes.list"))["nodes"] == []
        code, _ = await refused(served.api("nodes.list", tenantId="other"))
    assert code == grpc.StatusCode.PERMISSION_DENIED


@live
async def test_nodes_are_listed_in_pages_and_filtered(served: Live) -> None:
    ids = sorted([(await reporting(served, sections(hostname=f"gpu-{n}"))).node_id for n in range(3)])
    served.rows("INSERT INTO pools (id, tenant_id, name) VALUES ('pool_a', 'default', 'a') RETURNING 1")
    served.rows("UPDATE nodes SET pool_id = 'pool_a', status = 'adopted' WHERE id = %s RETURNING 1", ids[0])

    async def listed(**keys: object) -> list[str]:
        return [node["id"] for node in (await served.api("nodes.list", **keys))["nodes"]]

    assert await listed() == ids
    assert await listed(poolId="pool_a") == await listed(status="adopted") == ids[:1]
    assert await listed(status="adopting") == ids[1:]
    page = await served.api("nodes.list", limit=2)
    assert page["nextCursor"] == ids[1]
    assert await listed(cursor=page["nextCursor"]) == ids[2:]
    code, text = await refused(served.api("nodes.list", status="broken"))
    assert (code, "adopted" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@live
async def test_a_node_is_told_with_labels_conditions_and_reasons(served: Live) -> None:
    node = (await reporting(served, sections())).node_id
    served.rows("INSERT INTO node_labels VALUES (%s, 'rack', 'default', 'r12', 'operator') RETURNING 1", node)
    served.rows(
        "INSERT INTO conditions (node_id, type, device_id, tenant_id, status, reason) "
        "VALUES (%s, 'GpuLost', 'GPU-1', 'default', 'true', 'Xid79') RETURNING 1",
        node,
    )
    served.rows("""UPDATE nodes SET no_schedule_reasons = '[{"owner": "health", "type": "GpuLost"}]' RETURNING 1""")
    answer = await served.api("nodes.get", nodeId=node)
    assert answer["labels"]["rack"] == "r12"
    assert answer["noScheduleReasons"] == [{"owner": "health", "type": "GpuLost"}]
    (condition,) = answer["conditions"]
    assert (condition["type"], condition["status"], condition["deviceId"]) == ("GpuLost", "true", "GPU-1")
    assert (condition["reason"], condition["message"]) == ("Xid79", None)


@live
async def test_a_session_left_over_from_a_killed_receiver_is_not_connected(served: Live) -> None:
    node = (await reporting(served)).node_id
    assert (await served.api("nodes.get", nodeId=node))["connected"] is True
    served.rows("UPDATE nodes SET last_seen = now() - interval '6 minutes' RETURNING 1")
    assert (await served.api("nodes.get", nodeId=node))["connected"] is False


@live
async def test_events_follow_a_cursor_and_a_filter(served: Live) -> None:
    daemon = await reporting(served, sections(2), sections(1))
    first = await served.api("events.list", nodeId=daemon.node_id, limit=2)
    rest = await served.api("events.list", nodeId=daemon.node_id, cursor=first["nextCursor"])
    told = [event["type"] for page in (first, rest) for event in page["events"]]
    taken = ["node.status", "node.adopted"]  # into service: it has nothing to prove
    changed = ["node.inventory.changed", "node.gpu.missing", "node.condition.changed"]  # GpuMissing
    assert told == ["node.joined", "node.inventory.changed", *taken, *changed]
    assert rest["events"][-1]["payload"]["schemaVersion"] == 1
    assert (await served.api("events.list", cursor=rest["nextCursor"])) == {"events": [], "nextCursor": rest["nextCursor"]}
    family = await served.api("events.list", type="node.gpu.*")
    assert [event["type"] for event in family["events"]] == ["node.gpu.missing"]
    assert (await served.api("events.list", type="node.gpu"))["events"] == []


@live
async def test_nothing_appears_behind_a_cursor(served: Live) -> None:
    """A transaction that began earlier and commits later comes after, whatever numbers it drew."""
    import psycopg

    insert = "INSERT INTO events (id, tenant_id, type) VALUES (%s, 'default', 'api.write')"
    with psycopg.connect(served.database) as slow, psycopg.connect(served.database) as quick:
        slow.execute(insert, [mint("evt")])
        quick.execute(insert, [mint("evt")])
        quick.commit()
        before = await served.api("events.list")
        assert before["events"] == [], "the quick one waits for the slow one"
        slow.commit()
    after = await served.api("events.list", cursor=before["nextCursor"])
    assert len(after["events"]) == 2


async def _watched(served: Live, **keys: Any) -> tuple[grpc.StatusCode, str]:
    """How a watch is refused."""
    from bettercompute.control.v1 import events_pb2, events_pb2_grpc

    async with grpc.aio.insecure_channel(served.receiver.config.listen_api) as channel:
        call: Any = events_pb2_grpc.EventsServiceStub(channel).Watch(events_pb2.EventsServiceWatchRequest(**keys))
        return await refused(asyncio.wait_for(call.read(), 5.0))


@live
async def test_watch_tells_each_event_as_it_is_committed(served: Live) -> None:
    from bettercompute.control.v1 import events_pb2, events_pb2_grpc

    async with grpc.aio.insecure_channel(served.receiver.config.listen_api) as channel:
        stub = events_pb2_grpc.EventsServiceStub(channel)
        call = stub.Watch(events_pb2.EventsServiceWatchRequest(type="node.inventory.*"))
        reading: asyncio.Future[Any] = asyncio.ensure_future(call.read())
        await until("the watcher to wait", lambda: served.receiver.woken._waiters, 5.0)
        with patch("receiver.read.api.POLL", 60.0):
            daemon = await reporting(served, sections())
            first = await asyncio.wait_for(reading, 5.0)
        assert first.event.node_id == daemon.node_id
        again: Any = stub.Watch(events_pb2.EventsServiceWatchRequest(cursor="0.0", node_id=daemon.node_id))
        seen = [(await asyncio.wait_for(again.read(), 5.0)).event.type for _ in range(2)]
        assert seen == ["node.joined", "node.inventory.changed"]
        call.cancel()
        again.cancel()


@live
async def test_a_watch_that_ends_because_the_receiver_stops_says_so(served: Live) -> None:
    watching = asyncio.create_task(_watched(served))
    await until("the watcher to wait", lambda: served.receiver.woken._waiters, 5.0)
    served.receiver.api.stopping = True
    await served.receiver._notify()
    code, text = await watching
    assert (code, "this receiver stops" in text) == (grpc.StatusCode.UNAVAILABLE, True)


@live
async def test_bad_requests_name_the_key_or_the_limit(served: Live) -> None:
    daemon = await reporting(served, sections())
    cases: list[tuple[str, dict[str, object], str]] = [
        ("inventory.history", {"nodeId": daemon.node_id, "limit": 1001}, "1,000"),
        ("inventory.history", {"nodeId": daemon.node_id, "cursor": "x"}, "cursor 'x'"),
        ("events.list", {"cursor": "7"}, "cursor '7'"),
        ("events.list", {"cursor": "-1.2"}, "cursor '-1.2'"),
        ("events.list", {"limit": 2**32 - 1}, "1,000"),
        ("nodes.list", {"limit": 1001}, "1,000"),
        ("nodes.list", {"cursor": "1.2"}, "cursor '1.2'"),
        ("nodes.list", {"cursor": "7\0"}, "cursor"),
        ("nodes.list", {"status": "new"}, "adopting"),
        ("events.list", {"cursor": "9" * 40 + ".1"}, "cursor"),
        ("inventory.get", {}, "nodeId"),
        ("nodes.get", {"nodeId": "a\0b"}, ""),
    ]
    for method, keys, words in cases:
        code, text = await refused(served.api(method, **keys))
        assert code == grpc.StatusCode.INVALID_ARGUMENT, method
        assert words in text
    assert (await _watched(served, cursor="x.1"))[0] == grpc.StatusCode.INVALID_ARGUMENT
    assert served.receiver.registry.met["rows an API page"] == 3, "it is counted"
    for method in ("inventory.history", "events.list"):
        assert await served.api(method, nodeId=daemon.node_id, limit=1000) == await served.api(
            method, nodeId=daemon.node_id, limit=0
        )


@live
async def test_a_database_that_is_gone_is_unavailable(served: Live) -> None:
    from sqlalchemy.exc import OperationalError

    def down(*_: object) -> None:
        raise OperationalError("select", {}, Exception("gone"))

    with patch("receiver.read.queries.node_page", down):
        code, text = await refused(served.api("nodes.list"))
    assert (code, text) == (grpc.StatusCode.UNAVAILABLE, "the database does not answer")


def _reflected(served: Live) -> Any:
    async def ask() -> list[str]:
        async with grpc.aio.insecure_channel(served.receiver.config.listen_api) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
            return [service.name async for answer in call for service in answer.list_services_response.service]

    return ask()


@live
async def test_reflection_is_there_on_a_unix_socket(served: Live) -> None:
    assert set(SERVICES) <= set(await _reflected(served))


def test_reflection_is_not_there_on_tcp(database: str) -> None:
    async def main() -> None:
        import socket

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        async with serving(database, listen_api=f"127.0.0.1:{port}") as served:
            assert (await served.api("nodes.list"))["nodes"] == []
            assert (await refused(_reflected(served)))[0] == grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(main())


def test_every_section_has_its_field_in_the_answer() -> None:
    from bettercompute.control.v1 import inventory_pb2

    assert set(inventory_pb2.Sections.DESCRIPTOR.fields_by_name) == set(SECTIONS)
