"""`nodes.why`, asked as the command line asks, over a real receiver and Postgres."""

import io
from datetime import UTC, datetime
from typing import Any

import grpc
import psycopg
from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.apply import nodes
from receiver.client.render import render
from tests.fake_daemon import FakeDaemon, until
from tests.receiver import placement
from tests.receiver.builders import gpu, gpus, host
from tests.receiver.live import Live, live, refused


async def in_service(served: Live, count: int = 4, **sections: Any) -> FakeDaemon:
    """A node of so many GPUs that has passed its acceptance: it has no pool, so nothing to prove."""
    daemon = served.daemon()
    await daemon.connect()
    await daemon.offer(host(count, **sections))
    await daemon.report()
    status = "SELECT status FROM nodes WHERE id = %s"
    await until("the node's adoption", lambda: served.rows(status, daemon.node_id) == [("adopted",)])
    return daemon


async def repaired_by_hand(served: Live, daemon: FakeDaemon) -> None:
    """The node's pool is in maintenance: what is wrong stays so until a person ends it."""
    pool = (await served.api("pools.create", name="by-hand"))["id"]
    await served.api("nodes.move", nodeId=daemon.node_id, poolId=pool, reason="racked")
    await served.api("pools.maintenance", poolId=pool, reason="we do it")


async def why(served: Live, daemon: FakeDaemon, **keys: object) -> dict[str, Any]:
    return await served.api("nodes.why", nodeId=daemon.node_id, **keys)


async def fault(
    served: Live, daemon: FakeDaemon, number: int, on: int, message: str = "pid=7, name=secret, what it says"
) -> None:
    """The daemon reports an XID of a GPU, and the receiver has recorded it."""
    counted = "SELECT count(*) FROM node_faults"
    before = served.rows(counted)
    daemon.set_condition(f"Xid{number}", device_id=gpu(on).uuid, bus_id=gpu(on).bus_id, count=1, message=f"{number}, {message}")
    await daemon.report()
    await until("the fault to be recorded", lambda: served.rows(counted) != before)


@live
async def test_a_node_in_service_is_bookable(served: Live) -> None:
    daemon = await in_service(served, 2)
    answer = await why(served, daemon)
    assert (answer["answer"], answer["bookable"], answer["obstacles"]) == ("All 2 atoms can be booked.", True, [])
    assert (answer["status"], answer["trust"], answer["connected"]) == ("adopted", "platform", True)
    assert (answer["poolId"], answer["pool"], answer["mode"]) == (None, None, None)
    told = {"deviceId": gpu(0).uuid, "index": 0, "gpuProduct": "H100-SXM5-80GB", "serial": "165000"}
    assert answer["devices"][0] == {**told, "atoms": 1, "bookable": 1, "booked": 0, "against": []}


@live
async def test_a_fault_says_since_when_and_how_it_ends(served: Live) -> None:
    daemon = await in_service(served)
    await fault(served, daemon, 48, on=1)
    answer = await why(served, daemon)
    assert answer["answer"] == f"3 of 4 atoms can be booked: Xid48 on {gpu(1).uuid}."
    (found,) = answer["obstacles"]
    assert (found["scope"], found["deviceId"], found["what"], found["by"], found["enforced"]) == (
        "device", gpu(1).uuid, "Xid48", "xid", True,
    )  # fmt: skip
    assert datetime.fromisoformat(found["since"]) == served.rows("SELECT since FROM device_health")[0][0]
    assert found["ends"].endswith(f"better-compute api devices.clear deviceId={gpu(1).uuid} reason=...")
    assert [one["against"] for one in answer["devices"]] == [[], ["Xid48"], [], []]


@live
async def test_what_it_says_to_type_ends_it(served: Live) -> None:
    daemon = await in_service(served, 2)
    await repaired_by_hand(served, daemon)
    await fault(served, daemon, 79, on=0)
    answer = await why(served, daemon)
    assert answer["answer"] == f"Nothing can be booked: Xid79 on {gpu(0).uuid}."
    words = answer["obstacles"][0]["ends"].partition("better-compute api ")[2].split()
    await served.api(words[0], **dict(word.split("=", 1) for word in words[1:]))
    assert (await why(served, daemon))["answer"] == "All 2 atoms can be booked."


@live
async def test_a_booking_is_told_with_its_time_and_its_name_to_its_tenant_only(served: Live) -> None:
    daemon = await in_service(served, 1)
    with psycopg.connect(served.database) as tx:
        (candidate,) = placement.find(tx)
        assert placement.book(tx, "book-1", candidate)
    (found,) = (await why(served, daemon))["obstacles"]
    assert (found["what"], found["by"], found["message"]) == ("booked", "placement", "booking book-1")
    assert found["since"] is not None
    served.rows("UPDATE bookings SET tenant_id = 'acme' RETURNING 1")
    (found,) = (await why(served, daemon, tenantId="default"))["obstacles"]
    assert (found["what"], found["message"]) == ("booked", "a booking of another tenant")
    (found,) = (await why(served, daemon, deviceId=gpu(0).uuid))["obstacles"]
    assert (found["scope"], found["atomId"], found["message"]) == ("atom", gpu(0).uuid, "booking book-1")


@live
async def test_an_xids_text_is_cut_for_tenants(served: Live) -> None:
    daemon = await in_service(served, 2)
    await repaired_by_hand(served, daemon)
    await fault(served, daemon, 79, on=0)
    assert "secret" in str((await why(served, daemon))["obstacles"])
    with served.calling("default"):
        told = (await why(served, daemon))["obstacles"]
    assert [one["what"] for one in told] == ["Xid79"]
    assert "secret" not in str(told)


@live
async def test_a_maintenance_and_other_owners_are_told(served: Live) -> None:
    daemon = await in_service(served, 1)
    until_then = datetime(2036, 12, 1, 8, 0, tzinfo=UTC)
    with psycopg.connect(served.database) as tx:
        nodes.maintenance(tx, daemon.node_id, until_then, by="ana", reason="new DIMMs")
    served.rows(
        """UPDATE nodes SET no_schedule_reasons = no_schedule_reasons || '[{"owner": "metal", "type": "Wiping"}]' RETURNING 1"""
    )
    maintenance, wiping = (await why(served, daemon))["obstacles"]
    assert (maintenance["what"], maintenance["by"], maintenance["message"]) == (
        "maintenance",
        "ana",
        "new DIMMs, until 2036-12-01T08:00:00Z",
    )
    assert maintenance["since"] is not None
    assert (wiping["what"], wiping["by"], wiping["since"]) == ("Wiping", "metal", None)


@live
async def test_the_pool_is_named_with_its_mode(served: Live) -> None:
    daemon = await in_service(served, 2)
    pool = (await served.api("pools.create", name="h100", mode="observe", reason="try it"))["id"]
    await served.api("nodes.move", nodeId=daemon.node_id, poolId=pool, reason="try it")
    await fault(served, daemon, 79, on=0)
    answer = await why(served, daemon)
    assert (answer["poolId"], answer["pool"], answer["mode"]) == (pool, "h100", "observe")
    assert [(one["scope"], one["enforced"]) for one in answer["obstacles"]] == [("node", False), ("device", True)]
    assert answer["answer"].endswith("The pool only observes: else Xid79 on GPU-00000000 would keep it out.")


@live
async def test_a_node_that_has_said_nothing_yet_says_what_it_waits_for(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    answer = await why(served, daemon)
    assert (answer["answer"], answer["devices"]) == ("Nothing can be booked: adopting.", [])
    assert [one["ends"] for one in answer["obstacles"]] == ["when its first inventory is applied"]
    assert answer["obstacles"][0]["since"] is not None


@live
async def test_a_gpu_alone_leads_to_its_node(served: Live) -> None:
    daemon = await in_service(served, 2)
    answer = await served.api("nodes.why", deviceId=gpu(1).uuid)
    assert answer["nodeId"] == daemon.node_id
    assert [one["deviceId"] for one in answer["devices"]] == [gpu(1).uuid]


@live
async def test_what_is_not_there_is_named(served: Live) -> None:
    daemon = await in_service(served, 1)
    cases: list[tuple[dict[str, object], grpc.StatusCode, str]] = [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "nodeId or deviceId is needed"),
        ({"nodeId": "node_x"}, grpc.StatusCode.NOT_FOUND, "no node node_x"),
        ({"deviceId": "GPU-x"}, grpc.StatusCode.NOT_FOUND, "no device GPU-x"),
        (
            {"nodeId": daemon.node_id, "deviceId": "GPU-x"},
            grpc.StatusCode.NOT_FOUND,
            f"node {daemon.node_id} has no device GPU-x",
        ),
        ({"nodeId": daemon.node_id, "tenantId": "acme"}, grpc.StatusCode.NOT_FOUND, daemon.node_id),
        ({"deviceId": gpu(0).uuid, "tenantId": "acme"}, grpc.StatusCode.NOT_FOUND, gpu(0).uuid),
    ]
    for keys, status, words in cases:
        code, text = await refused(served.api("nodes.why", **keys))
        assert (code, words in text) == (status, True), (keys, text)


@live
async def test_a_person_sees_it_on_one_screen(served: Live) -> None:
    """What is wrong with a node of eight GPUs, each in another way, fits 40 lines."""
    changed: dict[int, dict[str, Any]] = {
        2: {"row_remap": pb.RowRemap(pending=True)},
        3: {"assigned": True},
        4: {"recovery_action": "node-reboot"},
    }
    daemon = await in_service(served, gpus=gpus(*(gpu(n) for n in range(8))))
    await repaired_by_hand(served, daemon)
    await daemon.offer(host(gpus=gpus(*(gpu(n, **changed.get(n, {})) for n in range(8)))))
    await fault(served, daemon, 48, on=1)
    out = io.StringIO()
    render(await why(served, daemon), "table", out, datetime.now(UTC), "nodes.why")
    text = out.getvalue()
    assert len(text.splitlines()) < 40
    for word in ("Xid48", "RowRemapPending", "assigned", "RecoveryActionRequired", "4 of 8 atoms can be booked", "devices.clear"):
        assert word in text
