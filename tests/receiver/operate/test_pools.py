"""`pools.*` (SPEC B0, B9), asked as the command line asks, over a real receiver and Postgres."""

import json

import grpc

from receiver.ids import mint
from tests.receiver.live import Live, live, refused

POLICY = {"expect": {"gpuCount": 8}, "xid": {"109": {"policy": None}}, "acceptance": [{"kind": "diag.nvml"}]}


async def created(served: Live, **keys: object) -> str:
    return str((await served.api("pools.create", **{"name": "h100", **keys}))["id"])


@live
async def test_a_pool_has_what_it_was_created_with_and_defaults_for_the_rest(served: Live) -> None:
    pool = await served.api("pools.create", name="h100", gpuModel="H100", policy=json.dumps(POLICY), reason="new racks")
    assert pool["id"].startswith("pool_")
    told = {key: pool[key] for key in ("name", "kind", "gpuModel", "sharing", "mode", "policy", "nodes", "tenantId")}
    assert told == {
        "name": "h100",
        "kind": "gpu",
        "gpuModel": "H100",
        "sharing": "exclusive",
        "mode": "enforce",
        "policy": POLICY,
        "nodes": 0,
        "tenantId": "default",
    }
    assert await served.api("pools.get", poolId=pool["id"]) == pool
    assert (await served.api("pools.list"))["pools"] == [pool]


@live
async def test_set_changes_what_is_named_and_has_the_nodes_planned_again(served: Live) -> None:
    pool = await created(served, gpuModel="H100", policy=json.dumps(POLICY))
    node = served.daemon()
    await node.connect()
    await served.api("nodes.move", nodeId=node.node_id, poolId=pool, reason="racked")
    served.rows("DELETE FROM replan RETURNING 1")
    changed = await served.api("pools.set", poolId=pool, sharing="timeslice", policy='{"sharing": {"replicas": 8}, "xid": null}')
    assert changed["policy"] == {"acceptance": POLICY["acceptance"], "expect": {"gpuCount": 8}, "sharing": {"replicas": 8}}
    assert (changed["sharing"], changed["gpuModel"], changed["nodes"], changed["revision"]) == ("timeslice", "H100", 1, 2)
    queued = served.rows("SELECT count(*) FROM replan")[0][0] or served.rows("SELECT plan_rev FROM nodes")[0][0] > 1
    assert queued, "it is queued, or was planned meanwhile"
    again = await served.api("pools.set", poolId=pool, sharing="timeslice")
    assert again["revision"] == 2, "what changes nothing is no change"
    assert (await served.api("pools.set", poolId=pool, gpuModel="", mode="observe"))["gpuModel"] is None


@live
async def test_a_pool_with_nodes_stays_and_an_empty_one_goes(served: Live) -> None:
    pool = await created(served)
    node = served.daemon()
    await node.connect()
    await served.api("nodes.move", nodeId=node.node_id, poolId=pool, reason="racked")
    code, text = await refused(served.api("pools.delete", poolId=pool))
    assert (code, node.node_id in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    await served.api("nodes.move", nodeId=node.node_id, poolId="", reason="sold")
    assert await served.api("pools.delete", poolId=pool, reason="sold") == {"poolId": pool}
    assert (await refused(served.api("pools.get", poolId=pool)))[0] == grpc.StatusCode.NOT_FOUND
    assert (await served.api("pools.list"))["pools"] == []


@live
async def test_names_are_of_one_tenant(served: Live) -> None:
    pool = await created(served)
    code, text = await refused(served.api("pools.create", name="h100"))
    assert (code, "'h100'" in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    other = await served.api("pools.create", name="h100", tenantId="acme")
    assert other["tenantId"] == "acme"
    assert [one["id"] for one in (await served.api("pools.list", tenantId="acme"))["pools"]] == [other["id"]]
    assert (await refused(served.api("pools.get", poolId=pool, tenantId="acme")))[0] == grpc.StatusCode.NOT_FOUND
    spare = await created(served, name="spare")
    assert (await refused(served.api("pools.set", poolId=spare, name="h100")))[0] == grpc.StatusCode.FAILED_PRECONDITION


@live
async def test_pools_are_listed_in_pages(served: Live) -> None:
    pools = sorted([await created(served, name=f"pool-{number}") for number in range(3)])
    page = await served.api("pools.list", limit=2)
    assert ([one["id"] for one in page["pools"]], page["nextCursor"]) == (pools[:2], pools[1])
    rest = await served.api("pools.list", cursor=page["nextCursor"])
    assert ([one["id"] for one in rest["pools"]], rest["nextCursor"]) == (pools[2:], None)
    assert (await refused(served.api("pools.list", cursor="x")))[0] == grpc.StatusCode.INVALID_ARGUMENT


WRONG: list[tuple[dict[str, str], str]] = [
    ({"name": ""}, "name is needed"),
    ({"name": "a b"}, "name 'a b' is none"),
    ({"name": "x" * 64}, "1 to 63"),
    ({"kind": "bare"}, "kind 'bare' is none of gpu, vps-host, sandbox"),
    ({"sharing": "all"}, "sharing 'all' is none of exclusive, mig, timeslice, mps"),
    ({"mode": "off"}, "mode 'off' is none of enforce, observe"),
    ({"gpuModel": "h100"}, "did you mean H100"),
    ({"policy": '{"expect": {"gpuCount": "8"}}'}, "policy.expect.gpuCount is '8'"),
    ({"policy": '{"sharing": {"replicas": 49}}'}, "policy.sharing.replicas is 49; it may be a whole number, 1 to 48"),
    ({"policy": '{"colour": "red"}'}, "policy.colour is no key"),
    ({"reason": "x" * 2049}, "reason has 2,049 bytes; it may have 2,048"),
]


@live
async def test_what_is_wrong_is_named_and_makes_no_pool(served: Live) -> None:
    for keys, named in WRONG:
        code, text = await refused(served.api("pools.create", **{"name": "h100", **keys}))
        assert (code, named in text) == (grpc.StatusCode.INVALID_ARGUMENT, True), text
    assert served.rows("SELECT count(*) FROM pools") == [(0,)]
    assert served.rows("SELECT count(*) FROM events WHERE type = 'api.write'") == [(0,)]


@live
async def test_what_does_not_exist_is_not_found(served: Live) -> None:
    for method, keys in (("pools.get", {}), ("pools.set", {"mode": "observe"}), ("pools.delete", {})):
        code, text = await refused(served.api(method, poolId=(pool := mint("pool")), **keys))
        assert (code, pool in text) == (grpc.StatusCode.NOT_FOUND, True)
    code, text = await refused(served.api("pools.set", poolId=await created(served)))
    assert (code, "nothing to set" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@live
async def test_each_write_is_audited_with_its_request(served: Live) -> None:
    pool = await created(served, policy=json.dumps(POLICY), reason="new racks")
    await served.api("pools.set", poolId=pool, policy='{"xid": null}')
    await served.api("pools.delete", poolId=pool)
    written = (await served.api("events.list", type="api.write"))["events"]
    assert [(one["poolId"], one["nodeId"], one["payload"]["method"]) for one in written] == [
        (pool, None, "pools.create"),
        (pool, None, "pools.set"),
        (pool, None, "pools.delete"),
    ]
    assert written[0]["payload"] == {
        "by": "operator",
        "method": "pools.create",
        "reason": "new racks",
        "request": {"name": "h100", "policy": POLICY},
        "schemaVersion": 1,
    }
    assert written[1]["payload"]["request"] == {"policy": {"xid": None}, "poolId": pool}


# ---- what does not go on in a pool


@live
async def test_a_pool_is_in_maintenance_until_a_time_or_until_it_is_ended(served: Live) -> None:
    pool = await created(served)
    told = await served.api("pools.maintenance", poolId=pool, until="2999-01-01T08:00:00Z", reason="new switches")
    (stop,) = told["stops"]
    until = {"by": "operator", "reason": "new switches", "until": "2999-01-01T08:00:00+00:00"}
    assert (stop["kind"], stop["detail"], told["id"]) == ("maintenance", until, pool)
    again = await served.api("pools.maintenance", poolId=pool, reason="and new cables")
    assert [one["detail"] for one in again["stops"]] == [{"by": "operator", "reason": "and new cables"}]
    assert (await served.api("pools.maintenance", poolId=pool, end="true", reason="done"))["stops"] == []
    for keys, status, words in (
        ({"end": "true"}, grpc.StatusCode.FAILED_PRECONDITION, "is not in maintenance"),
        ({"until": "2001-01-01T00:00:00Z"}, grpc.StatusCode.INVALID_ARGUMENT, "is past"),
        ({"until": "2999-01-01T00:00:00Z", "end": "true"}, grpc.StatusCode.INVALID_ARGUMENT, "until and end"),
    ):
        code, text = await refused(served.api("pools.maintenance", poolId=pool, reason="why not", **keys))
        assert (code, words in text) == (status, True), text


@live
async def test_repairs_that_are_paused_go_on_by_a_persons_word(served: Live) -> None:
    pool = await created(served)
    code, text = await refused(served.api("pools.resumeRemediation", poolId=pool, reason="it was the switch"))
    assert (code, "not paused" in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    served.rows("INSERT INTO pool_stops (pool_id, tenant_id, kind) VALUES (%s, 'default', 'remediation') RETURNING 1", pool)
    told = await served.api("pools.resumeRemediation", poolId=pool, reason="it was the switch")
    assert told["stops"] == []
    (event,) = (await served.api("events.list", type="pool.remediation.resumed"))["events"]
    assert (event["poolId"], event["payload"]["by"]) == (pool, "operator")


@live
async def test_what_hygiene_has_suspended_is_confirmed_by_condition(served: Live) -> None:
    pool = await created(served)
    for condition, words in (
        ("NotReporting", "NotReporting is not suspended"),
        ("Xid79", "no condition of hygiene"),
        ("", "condition is needed"),
    ):
        _, text = await refused(served.api("pools.confirmHygiene", poolId=pool, condition=condition, reason="it is so"))
        assert words in text
    served.rows("INSERT INTO pool_stops (pool_id, tenant_id, kind) VALUES (%s, 'default', 'NotReporting') RETURNING 1", pool)
    told = await served.api("pools.confirmHygiene", poolId=pool, condition="NotReporting", reason="a rack is off")
    assert [(one["kind"], one["confirmedBy"]) for one in told["stops"]] == [("NotReporting", "operator")]
