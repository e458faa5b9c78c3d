"""`nodes.*` that change something (SPEC B0, B2, B9), asked as the command line asks, over a real receiver and Postgres."""

import grpc

from receiver.ids import mint
from tests.receiver.builders import gpu, gpus, host
from tests.receiver.live import Live, live, refused

BOOKING = """INSERT INTO bookings (booking_id, tenant_id, node_id, device_id, atom_id, atom_generation)
SELECT 'book-1', tenant_id, node_id, device_id, id, generation FROM atoms ORDER BY id LIMIT 1 RETURNING booking_id"""
FAILED = grpc.StatusCode.FAILED_PRECONDITION


@live
async def test_maintenance_takes_a_node_out_and_adopt_brings_it_back(served: Live) -> None:
    node = (await served.in_service(host())).node_id
    told = await served.api("nodes.maintenance", nodeId=node, until="2999-01-01T08:00:00Z", reason="a fan")
    assert (told["id"], told["status"]) == (node, "maintenance")
    kept = told["maintenance"]
    assert (kept["by"], kept["reason"], kept["until"]) == ("operator", "a fan", "2999-01-01T08:00:00Z")
    assert (await served.api("atoms.list"))["atoms"] == []
    assert {one["reason"] for one in told["atoms"]} == {"NotAdopted"}
    told = await served.api("nodes.adopt", nodeId=node, reason="fan replaced")
    assert (told["status"], "maintenance" in told) == ("adopted", False), "it has no checks to pass"
    assert len((await served.api("atoms.list"))["atoms"]) == 2
    code, text = await refused(served.api("nodes.maintenance", nodeId=node, until="2001-01-01T00:00:00Z", reason="late"))
    assert (code, "until" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@live
async def test_a_booked_node_is_not_retired_and_only_a_retired_one_is_deleted(served: Live) -> None:
    node = (await served.in_service(host())).node_id
    code, text = await refused(served.api("nodes.delete", nodeId=node, reason="sold"))
    assert (code, "retired" in text) == (FAILED, True)
    served.rows(BOOKING)
    code, text = await refused(served.api("nodes.retire", nodeId=node, reason="sold"))
    assert (code, "book-1" in text) == (FAILED, True)
    assert (await served.api("nodes.get", nodeId=node))["status"] == "adopted"
    served.rows("UPDATE bookings SET ended_at = now() RETURNING 1")
    retired = await served.api("nodes.retire", nodeId=node, reason="sold")
    assert (retired["status"], retired["devices"], retired["atoms"]) == ("retired", [], [])
    assert (await served.api("nodes.delete", nodeId=node, reason="sold"))["status"] == "deleted"
    assert (await served.api("nodes.list"))["nodes"] == [], "a tombstone is listed only when it is asked for"
    assert [one["id"] for one in (await served.api("nodes.list", status="deleted"))["nodes"]] == [node]
    code, text = await refused(served.api("nodes.adopt", nodeId=node, reason="again"))
    assert (code, "tombstone" in text) == (FAILED, True)


@live
async def test_a_move_plans_the_node_by_its_new_pool(served: Live) -> None:
    node = (await served.in_service(host())).node_id
    pool = (await served.api("pools.create", name="shared", sharing="timeslice", policy='{"sharing": {"replicas": 2}}'))["id"]
    moved = await served.api("nodes.move", nodeId=node, poolId=pool, reason="shared from now on")
    assert moved["poolId"] == pool
    assert [one["id"] for one in moved["atoms"]] == [f"{gpu(number).uuid}::{slot}" for number in (0, 1) for slot in (0, 1)]
    assert len((await served.api("atoms.list", poolId=pool))["atoms"]) == 4
    code, text = await refused(served.api("nodes.move", nodeId=node, reason="forgot which"))
    assert (code, "poolId is needed" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    moved = await served.api("nodes.move", nodeId=node, poolId="", reason="out")
    assert (moved["poolId"], [one["id"] for one in moved["atoms"]]) == (None, [gpu(0).uuid, gpu(1).uuid])
    code, text = await refused(served.api("nodes.move", nodeId=node, poolId=(none := mint("pool")), reason="where?"))
    assert (code, none in text) == (grpc.StatusCode.NOT_FOUND, True)


@live
async def test_labels_are_written_and_removed_and_others_are_refused_by_name(served: Live) -> None:
    node = (await served.in_service(host())).node_id
    told = await served.api("nodes.label", nodeId=node, labels="rack=r12,row=b", reason="racked")
    assert (told["labels"]["rack"], told["labels"]["row"], told["labels"]["gpu.count"]) == ("r12", "b", "2")
    assert [one["id"] for one in (await served.api("nodes.list", selector="rack in (r11, r12), gpu.count>1"))["nodes"]] == [node]
    told = await served.api("nodes.label", nodeId=node, remove="rack,row", reason="moved")
    assert "rack" not in told["labels"]
    assert (await served.api("nodes.list", selector="rack=*"))["nodes"] == []
    for key in ("gpu.count", "bc.dev/driver.x"):
        code, text = await refused(served.api("nodes.label", nodeId=node, labels=f"{key}=1", reason="mine"))
        assert (code, key in text) == (FAILED, True)
    code, text = await refused(served.api("nodes.label", nodeId=node, reason="nothing"))
    assert (code, "labels or remove is needed" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@live
async def test_trust_is_given_with_a_lease_and_taken_back(served: Live) -> None:
    node = (await served.in_service(host())).node_id
    code, text = await refused(served.api("nodes.setTrust", nodeId=node, trust="tenant-controlled"))
    assert (code, "leaseId" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    code, text = await refused(served.api("nodes.setTrust", nodeId=node, trust="half"))
    assert (code, "platform, tenant-controlled" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    told = await served.api("nodes.setTrust", nodeId=node, trust="tenant-controlled", leaseId="lease-1")
    assert (told["trust"], told["leaseId"]) == ("tenant-controlled", "lease-1")
    assert {one["reason"] for one in told["atoms"]} == {"TenantControlled"}
    told = await served.api("nodes.setTrust", nodeId=node, trust="platform")
    assert (told["trust"], told["leaseId"]) == ("platform", None)


@live
async def test_a_duplicate_is_resolved(served: Live) -> None:
    node = (await served.in_service(host())).node_id
    other = served.daemon()
    await other.connect()
    await other.offer(host())
    told = await served.api("nodes.get", nodeId=other.node_id)
    assert {"owner": "health", "type": "DuplicateIdentity"} in told["noScheduleReasons"]
    assert {"otherNode": node} in [one["evidence"] for one in told["conditions"]]
    code, text = await refused(served.api("nodes.resolveIdentity", nodeId=other.node_id, action="merge", reason="?"))
    assert (code, "keep, reject, distinct" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    told = await served.api("nodes.resolveIdentity", nodeId=other.node_id, action="reject", reason="a cloned disk")
    assert told["status"] == "retired"
    assert (await served.api("nodes.get", nodeId=node))["status"] == "adopted"


@live
async def test_who_may_not_see_the_other_node_does_not_retire_it(served: Live) -> None:
    node = (await served.in_service(host())).node_id
    other = served.daemon()
    await other.connect()
    await other.offer(host())
    served.rows("UPDATE nodes SET tenant_id = 'acme' WHERE id = %s RETURNING 1", other.node_id)
    keep = {"nodeId": other.node_id, "action": "keep", "reason": "mine", "tenantId": "acme"}
    code, text = await refused(served.api("nodes.resolveIdentity", **keep))
    assert (code, "of another tenant" in text) == (FAILED, True)
    assert (await served.api("nodes.get", nodeId=node))["status"] == "adopted"


@live
async def test_atoms_and_images_are_answered_for_placement(served: Live) -> None:
    node = (await served.in_service(host(2))).node_id
    (first, second) = (await served.api("atoms.list"))["atoms"]
    assert (first["id"], first["nodeId"], first["generation"]) == (gpu(0).uuid, node, 1)
    assert (first["attributes"]["gpuModel"], first["attributes"]["index"]) == ("H100", 0)
    page = await served.api("atoms.list", limit=1, selector="gpu.model=H100")
    assert page["atoms"] == [first]
    assert (await served.api("atoms.list", cursor=page["nextCursor"]))["atoms"] == [second]
    served.rows(BOOKING)
    assert (await served.api("atoms.list", nodeId=node))["atoms"] == [second]
    told = {one["id"]: one for one in (await served.api("nodes.get", nodeId=node))["atoms"]}
    assert (told[first["id"]]["reason"], told[first["id"]]["bookingId"]) == ("Booked", "book-1")
    code, text = await refused(served.api("atoms.list", selector="gpu.model in"))
    assert (code, "selector: position 13" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    code, text = await refused(served.api("images.list"))
    assert (code, text) == (grpc.StatusCode.INVALID_ARGUMENT, "poolId is needed")


@live
async def test_a_selector_and_a_condition_choose_nodes(served: Live) -> None:
    await served.in_service(host(1))
    lost = host(1, gpus=gpus(gpu(4, state="lost")), nics=None, system=None)
    bad = served.daemon()
    await bad.connect()
    await bad.offer(lost)
    told = await served.api("nodes.list", condition="GpuLost")
    assert [one["id"] for one in told["nodes"]] == [bad.node_id]
    assert (await served.api("nodes.list", condition="Xid79"))["nodes"] == []


@live
async def test_an_order_needs_a_reason_of_a_reasonable_length(served: Live) -> None:
    node = (await served.in_service(host(1))).node_id
    for length in (0, 2049):
        code, text = await refused(served.api("nodes.retire", nodeId=node, reason="x" * length))
        assert (code, text.startswith("reason ")) == (grpc.StatusCode.INVALID_ARGUMENT, True)
