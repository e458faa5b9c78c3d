"""Acceptance over the wire: a receiver, its sessions and its singletons, as an operator sees them (SPEC B7)."""

import asyncio
import json
from typing import Any

import grpc
from bettercompute.agent.v1 import session_pb2 as wire

from tests.fake_daemon import FakeDaemon, until
from tests.receiver.builders import host
from tests.receiver.live import Live, live, refused, serving

POLICY = json.dumps({"acceptance": [{"kind": "diag.nvml"}], "expect": {"gpuCount": 2}})
PASSED: dict[str, Any] = {"passed": True, "checks": [{"check": "gpu.count", "result": "pass", "reason": "2 GPUs, 2 expected"}]}


async def in_pool(served: Live) -> FakeDaemon:
    """A daemon whose node is in a pool with checks before its first inventory."""
    daemon = served.daemon()
    await daemon.connect()
    pool = await served.api("pools.create", name="h100", policy=POLICY)
    await served.api("nodes.move", nodeId=daemon.node_id, poolId=pool["id"], reason="racked")
    return daemon


async def attempt(served: Live, daemon: FakeDaemon, state: str) -> dict[str, Any]:
    """acceptance.get, once the attempt is in this state."""
    answer = (
        "SELECT true FROM acceptance_attempts a JOIN nodes n ON n.id = a.node_id AND a.attempt = n.attempt WHERE a.state = %s"
    )
    await until(f"the attempt to be {state}", lambda: bool(served.rows(answer, state)))
    return await served.api("acceptance.get", nodeId=daemon.node_id)


@live
async def test_a_node_proves_itself_and_is_in_service(served: Live) -> None:
    daemon = await in_pool(served)
    assert (await served.api("acceptance.get", nodeId=daemon.node_id))["state"] == "waiting"
    assert (await daemon.offer(host())).status == wire.INVENTORY_STATUS_APPLIED
    command = await daemon.command()
    assert (command.kind, json.loads(command.payload_json)) == ("diag.nvml", {"expect": {"gpuCount": 2}})
    assert 0 < command.start_within.ToTimedelta().total_seconds() <= 600
    assert (await attempt(served, daemon, "running"))["checks"][0]["commandId"] == command.id
    assert await daemon.finish(command.id, **PASSED) == command.id
    passed = await attempt(served, daemon, "passed")
    assert (passed["status"], passed["attempt"], passed["reason"]) == ("adopted", 1, "Passed")
    assert passed["checks"] == [
        {"kind": "diag.nvml", "status": "succeeded", "reason": None, "commandId": command.id, "result": PASSED}
    ]
    assert [one["id"] for one in (await served.api("atoms.list", nodeId=daemon.node_id))["atoms"]]


@live
async def test_a_node_that_does_not_pass_says_why_and_waits_for_an_order(served: Live) -> None:
    daemon = await in_pool(served)
    await daemon.offer(host())
    failing = {"check": "ecc.uncorrectable", "result": "fail", "reason": "3 errors", "deviceId": "GPU-00000001"}
    await daemon.finish((await daemon.command()).id, passed=False, checks=[failing])
    failed = await attempt(served, daemon, "failed")
    assert (failed["status"], failed["reason"]) == ("adopting", "diag.nvml:ecc.uncorrectable")
    why = await served.api("nodes.why", nodeId=daemon.node_id)
    told = json.dumps(why)
    assert ("AcceptanceFailed" in told, "GPU-00000001: 3 errors" in told, "nodes.adopt" in told) == (True, True, True)
    await served.api("nodes.adopt", nodeId=daemon.node_id, reason="the GPU was replaced")
    await daemon.finish((await daemon.command()).id, **PASSED)
    assert (await attempt(served, daemon, "passed"))["attempt"] == 2
    first = await served.api("acceptance.get", nodeId=daemon.node_id, attempt=1)
    assert (first["state"], first["checks"][0]["reason"]) == ("failed", "ecc.uncorrectable")
    code, _ = await refused(served.api("acceptance.get", nodeId=daemon.node_id, attempt=3))
    assert code == grpc.StatusCode.NOT_FOUND


def test_an_attempt_goes_on_where_it_was_when_receivers_come_and_go(database: str) -> None:
    async def main() -> None:
        async with serving(database) as one:
            daemon = await in_pool(one)
            await daemon.offer(host())
            command = await daemon.command()
        async with serving(database) as other:
            again = other.daemon(node_id=daemon.node_id, boot_id=daemon.boot_id, epoch=daemon.epoch)
            await again.connect()
            assert (await again.command()).id == command.id, "it has no result yet"
            await again.finish(command.id, **PASSED)
            assert (await attempt(other, again, "passed"))["attempt"] == 1
            assert other.rows("SELECT count(*) FROM commands") == [(1,)]

    asyncio.run(main())
