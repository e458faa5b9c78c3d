"""`devices.*` (SPEC B2, B4, B9), asked as the command line asks, over a real receiver and Postgres."""

import grpc

from tests.fake_daemon import FakeDaemon, until
from tests.receiver.builders import gpu, gpus, host
from tests.receiver.live import Live, live, refused

MESSAGE = "48, pid=7, name=secret, An uncorrectable double bit error"


async def faulty(served: Live, number: int = 48) -> FakeDaemon:
    """A node in service whose GPU 0 has reported an XID, which is recorded."""
    daemon = await served.in_service(host(2))
    daemon.set_condition(f"Xid{number}", device_id=gpu(0).uuid, bus_id=gpu(0).bus_id, count=1, message=MESSAGE)
    await daemon.report()
    await until("the fault", lambda: served.rows("SELECT count(*) FROM node_faults") == [(1,)])
    return daemon


@live
async def test_a_clear_closes_xids_and_the_gpu_is_bookable_again(served: Live) -> None:
    node = (await faulty(served)).node_id
    device = await served.api("devices.get", deviceId=gpu(0).uuid)
    assert (device["nodeId"], device["healthy"], [one["code"] for one in device["faults"]]) == (node, False, ["Xid48"])
    assert device["faults"][0]["detail"]["message"] == MESSAGE
    assert [(one["id"], one["bookable"]) for one in device["atoms"]] == [(gpu(0).uuid, False)]
    cleared = await served.api("devices.clear", deviceId=gpu(0).uuid, reason="reseated")
    assert cleared == {"deviceId": gpu(0).uuid, "nodeId": node, "closed": ["Xid48"], "healthy": True, "stands": []}
    device = await served.api("devices.get", deviceId=gpu(0).uuid)
    assert (device["healthy"], device["faults"], device["atoms"][0]["bookable"]) == (True, [], True)


@live
async def test_a_clear_of_xids_names_the_findings_that_stand(served: Live) -> None:
    daemon = await faulty(served)
    await daemon.offer(host(gpus=gpus(gpu(0, row_remap={"pending": True}), gpu(1))))
    cleared = await served.api("devices.clear", deviceId=gpu(0).uuid, reason="reseated")
    assert (cleared["closed"], cleared["stands"], cleared["healthy"]) == (["Xid48"], ["RowRemapPending"], False)


@live
async def test_what_the_inventory_shows_is_not_cleared_without_force(served: Live) -> None:
    worn = gpus(gpu(0, row_remap={"failure": True}))
    await served.in_service(host(gpus=worn))
    code, text = await refused(served.api("devices.clear", deviceId=gpu(0).uuid, reason="try"))
    assert (code, "RowRemapFailure" in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    cleared = await served.api("devices.clear", deviceId=gpu(0).uuid, reason="known", force="true")
    assert (cleared["closed"], cleared["healthy"]) == (["RowRemapFailure"], True)


@live
async def test_a_count_that_no_driver_reaches_is_read_all_the_same(served: Live) -> None:
    node = (await faulty(served)).node_id
    for table in ("node_faults", "device_health"):
        served.rows(f"UPDATE {table} SET count = 9223372036854775807 RETURNING 1")
    assert (await served.api("nodes.get", nodeId=node))["verdicts"][0]["count"] == 4294967295
    assert (await served.api("devices.get", deviceId=gpu(0).uuid))["faults"][0]["count"] == 4294967295


@live
async def test_history_tells_a_gpus_life_by_uuid_and_serial_newest_first(served: Live) -> None:
    node = (await faulty(served)).node_id
    await served.api("devices.clear", deviceId=gpu(0).uuid, reason="reseated")
    told = (await served.api("devices.history", deviceId=gpu(0).uuid))["history"]
    events = [one["event"] for one in told]
    assert (events[0], "quarantined" in events, {one["nodeId"] for one in told}) == ("cleared", True, {node})
    assert (await served.api("devices.history", serial=str(gpu(0).serial)))["history"] == told
    page = await served.api("devices.history", deviceId=gpu(0).uuid, limit=1)
    rest = await served.api("devices.history", deviceId=gpu(0).uuid, cursor=page["nextCursor"])
    assert [*page["history"], *rest["history"]] == told
    code, text = await refused(served.api("devices.history"))
    assert (code, text) == (grpc.StatusCode.INVALID_ARGUMENT, "deviceId or serial is needed")
    for method in ("devices.get", "devices.history"):
        code, text = await refused(served.api(method, deviceId="GPU-none"))
        assert (code, "GPU-none" in text) == (grpc.StatusCode.NOT_FOUND, True)


@live
async def test_a_gpu_is_transferred_to_the_node_that_has_it_now(served: Live) -> None:
    owner = (await served.in_service(host(2))).node_id
    other = served.daemon()
    await other.connect()
    await other.offer(host(gpus=gpus(gpu(0)), system=None, nics=None))
    keys = {"deviceId": gpu(0).uuid, "toNode": other.node_id, "reason": "moved by hand"}
    device = await served.api("devices.transfer", **keys)
    assert (device["id"], device["nodeId"]) == (gpu(0).uuid, other.node_id)
    told = await served.api("nodes.get", nodeId=owner)
    assert [(one["type"], one["status"]) for one in told["conditions"]] == [("DuplicateIdentity", "true")]
    code, text = await refused(served.api("devices.transfer", **keys))
    assert (code, other.node_id in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@live
async def test_nodes_get_shows_where_a_verdict_comes_from(served: Live) -> None:
    node = (await faulty(served, 109)).node_id

    async def verdict() -> tuple[str | None, str]:
        (one,) = (await served.api("nodes.get", nodeId=node))["verdicts"]
        assert (one["code"], one["deviceId"], one["count"]) == ("Xid109", gpu(0).uuid, 1)
        return one["policy"], one["source"]

    assert (await verdict())[1] == "table"
    pool = (await served.api("pools.create", name="lenient", policy='{"xid": {"109": {"policy": null}}}'))["id"]
    await served.api("nodes.move", nodeId=node, poolId=pool, reason="lenient")
    assert await verdict() == (None, "pool")


@live
async def test_what_a_driver_says_of_processes_is_for_the_platform_only(served: Live) -> None:
    node = (await faulty(served)).node_id

    async def said() -> list[str]:
        told = await served.api("nodes.get", nodeId=node)
        events = (await served.api("events.list", nodeId=node, type="node.xid"))["events"]
        history = (await served.api("devices.history", deviceId=gpu(0).uuid))["history"]
        return [str(one) for one in (told, events, history)]

    assert all("secret" in text for text in (await said())[:2])
    with served.calling("default"):
        texts = await said()
        assert not any("secret" in text for text in texts)
        assert "'message': '48'" in texts[1]
