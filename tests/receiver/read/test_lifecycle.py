"""Runs, commands, acceptance and what a pool has stopped, as the API tells of them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import psycopg
from psycopg.types.json import Jsonb

from receiver.apply import command
from receiver.ids import mint
from receiver.values import CommandResult, Payload
from tests.receiver.builders import gpu, host
from tests.receiver.live import Live, live, refused

UUID = gpu(0).uuid


def write(served: Live, statement: str, *arguments: Any) -> None:
    with psycopg.connect(served.database, autocommit=True) as tx:
        tx.execute(statement.encode(), [Jsonb(one) if isinstance(one, list | dict) else one for one in arguments])


def queued(served: Live, node: str, kind: str, key: str, payload: Payload | None = None, **more: Any) -> str:
    with psycopg.connect(served.database) as tx:
        return command.queue(tx, node, kind, payload or {}, key, **more)


def ended(served: Live, node: str, command_id: str, status: Any, reason: str = "", payload: Any = None) -> None:
    with psycopg.connect(served.database) as tx:
        assert command.record_result(tx, node, CommandResult(command_id, status, reason, payload))


def planned(served: Live, node: str, state: str = "queued", pool: str | None = None, **more: Any) -> str:
    """A run, written as the loop does."""
    values = {"kind": "node.reboot", "tenant_id": "default", "pool_id": pool, **more, "state": state}
    over = "now()" if state in ("succeeded", "failed", "cancelled") else "NULL"
    names = ", ".join(f'"{name}"' for name in values)
    marks = ", ".join("%s" for _ in values)
    statement = f"INSERT INTO remediation_runs (id, node_id, ended_at, {names}) VALUES (%s, %s, {over}, {marks})"
    run_id = mint("run")
    write(served, statement, run_id, node, *values.values())
    return run_id


@live
async def test_a_command_is_told_whole(served: Live) -> None:
    daemon = await served.in_service(host(1))
    node = daemon.node_id
    await daemon.close()
    late = datetime.now(UTC) + timedelta(minutes=10)
    one = queued(served, node, "diag.nvml", "k", {"expect": {"gpuCount": 8}}, not_after=late, by="acceptance")
    told = await served.api("commands.get", commandId=one)
    assert {**told, "createdAt": 0, "notAfter": 0} == {
        **dict.fromkeys(("reason", "result", "sentAt", "finishedAt"), None),
        "id": one,
        "nodeId": node,
        "tenantId": "default",
        "kind": "diag.nvml",
        "state": "queued",
        "payload": {"expect": {"gpuCount": 8}},
        "by": "acceptance",
        "idempotencyKey": "k",
        "notAfter": 0,
        "createdAt": 0,
    }
    assert told["createdAt"] < told["notAfter"]
    ended(served, node, one, "failed", "NotInstalled", {"message": "no dcgmi"})
    told = await served.api("commands.get", commandId=one)
    assert (told["state"], told["reason"], told["result"]) == ("failed", "NotInstalled", {"message": "no dcgmi"})
    assert told["finishedAt"]


@live
async def test_commands_come_newest_first_and_by_what_is_asked_for(served: Live) -> None:
    node, other = served.daemon(), served.daemon()
    for daemon in (node, other):
        await daemon.connect()
    first = queued(served, node.node_id, "diag.nvml", "1")
    second = queued(served, node.node_id, "inventory.refresh", "2")
    third = queued(served, other.node_id, "diag.nvml", "3")
    ended(served, node.node_id, first, "succeeded")

    async def listed(**keys: object) -> list[str]:
        return [one["id"] for one in (await served.api("commands.list", **keys))["commands"]]

    assert await listed() == [third, second, first]
    assert await listed(nodeId=node.node_id) == [second, first]
    assert await listed(kind="diag.nvml") == [third, first]
    assert await listed(state="succeeded") == [first]
    assert await listed(state="open") == [third, second]
    assert await listed(state="open", nodeId=node.node_id) == [second]
    page = await served.api("commands.list", limit=2)
    assert await listed(cursor=page["nextCursor"]) == [first]
    code, text = await refused(served.api("commands.list", state="asleep"))
    assert (code, "state 'asleep' is none of open, queued, sent" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert (await refused(served.api("commands.list", cursor=mint("run"))))[0] == grpc.StatusCode.INVALID_ARGUMENT
    assert (await refused(served.api("commands.list", nodeId=mint("node"))))[0] == grpc.StatusCode.NOT_FOUND
    assert (await refused(served.api("commands.get", commandId=mint("cmd"))))[0] == grpc.StatusCode.NOT_FOUND
    assert (await refused(served.api("commands.get")))[1] == "commandId is needed"


@live
async def test_a_run_is_told_step_by_step(served: Live) -> None:
    node = (await served.in_service(host(1))).node_id
    cause = {"code": "Xid79", "deviceId": UUID, "bootId": "boot-1", "source": "xid"}
    run = planned(served, node, "failed", reason="Timeout", devices=[UUID], causes=[cause], escalated=True, boot_id="boot-1")
    for state, reason in (("queued", "Xid79"), ("waiting", "booked"), ("failed", "Timeout")):
        into = "INSERT INTO remediation_steps (run_id, node_id, tenant_id, state, reason) VALUES (%s, %s, 'default', %s, %s)"
        write(served, into, run, node, state, reason)
    told = await served.api("remediation.get", runId=run)
    assert (told["state"], told["reason"], told["escalated"], told["observed"]) == ("failed", "Timeout", True, False)
    assert (told["kind"], told["nodeId"], told["devices"], told["causes"]) == ("node.reboot", node, [UUID], [cause])
    assert (told["by"], told["commandId"], told["bootId"], told["startedAt"]) == (None, None, "boot-1", None)
    assert [(one["state"], one["reason"]) for one in told["steps"]] == [
        ("queued", "Xid79"),
        ("waiting", "booked"),
        ("failed", "Timeout"),
    ]
    assert told["createdAt"] <= told["endedAt"]
    (line,) = (await served.api("remediation.list"))["runs"]
    assert line == {**told, "steps": []}


@live
async def test_runs_come_newest_first_and_by_what_is_asked_for(served: Live) -> None:
    pool = (await served.api("pools.create", name="h100"))["id"]
    node = (await served.in_service(host(1))).node_id
    # The loop that would take these runs further has been taken by somebody who does nothing.
    served.rows("UPDATE leases SET holder = 'nobody', token = token + 1, expires_at = 'infinity' RETURNING name")
    first = planned(served, node, "succeeded", pool)
    second = planned(served, node, "failed", escalated=True)
    third = planned(served, node, "waiting", pool)

    async def listed(**keys: object) -> list[str]:
        return [one["id"] for one in (await served.api("remediation.list", **keys))["runs"]]

    assert await listed() == [third, second, first] == await listed(nodeId=node)
    assert await listed(poolId=pool) == [third, first]
    assert await listed(poolId=pool, state="succeeded") == [first]
    assert await listed(state="open") == [third]
    assert (await listed(escalated="true"), await listed(escalated="false")) == ([second], [third, first])
    assert await listed(cursor=(await served.api("remediation.list", limit=1))["nextCursor"]) == [second, first]
    for keys in ({"nodeId": mint("node")}, {"poolId": mint("pool")}):
        assert (await refused(served.api("remediation.list", **keys)))[0] == grpc.StatusCode.NOT_FOUND
    assert "state 'x' is none of open, queued" in (await refused(served.api("remediation.list", state="x")))[1]
    assert (await refused(served.api("remediation.get", runId=mint("run"))))[0] == grpc.StatusCode.NOT_FOUND


@live
async def test_an_attempt_is_told_with_what_the_node_found(served: Live) -> None:
    node = (await served.in_service(host(1))).node_id
    one = queued(served, node, "diag.nvml", "k")
    ended(served, node, one, "succeeded", "", {"passed": False})
    checks = [{"kind": "diag.nvml", "commandId": one, "status": "succeeded", "reason": "diag.nvml:gpu.count"}]
    checks.append({"kind": "diag.dcgm", "commandId": mint("cmd"), "status": "running", "reason": ""})
    into = """INSERT INTO acceptance_attempts (node_id, attempt, tenant_id, state, reason, checks, ended_at)
      VALUES (%s, 7, 'default', 'failed', 'diag.nvml:gpu.count', %s, now())"""
    write(served, into, node, checks)
    told = await served.api("acceptance.get", nodeId=node, attempt=7)
    assert (told["state"], told["reason"], told["attempt"]) == ("failed", "diag.nvml:gpu.count", 7)
    assert told["status"] == "adopted", "the node's"
    assert [(row["kind"], row["status"], row["reason"], row["result"]) for row in told["checks"]] == [
        ("diag.nvml", "succeeded", "diag.nvml:gpu.count", {"passed": False}),
        ("diag.dcgm", "running", None, None),
    ]
    write(served, "UPDATE nodes SET attempt = 7 WHERE id = %s", node)
    assert await served.api("acceptance.get", nodeId=node) == told, "the last"
    code, text = await refused(served.api("acceptance.get", nodeId=node, attempt=9))
    assert (code, text) == (grpc.StatusCode.NOT_FOUND, f"node {node} has no attempt 9; its last is 7")


@live
async def test_an_attempt_that_has_not_begun_waits(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    told = await served.api("acceptance.get", nodeId=daemon.node_id)
    assert (told["state"], told["attempt"], told["checks"], told["startedAt"]) == ("waiting", 1, [], None)
    assert (await refused(served.api("acceptance.get", nodeId=mint("node"))))[0] == grpc.StatusCode.NOT_FOUND


@live
async def test_a_pool_tells_what_does_not_go_on_in_it(served: Live) -> None:
    pool = (await served.api("pools.create", name="h100"))["id"]
    into = (
        "INSERT INTO pool_stops (pool_id, tenant_id, kind, detail, confirmed_by, ended_at) VALUES (%s, 'default', %s, %s, %s, %s)"
    )
    write(served, into, pool, "remediation", {"nodes": 7, "limit": 5}, None, None)
    write(served, into, pool, "NotReporting", {"nodes": 40}, "alice", None)
    write(served, into, pool, "maintenance", {}, None, datetime.now(UTC))
    for told in (await served.api("pools.get", poolId=pool), (await served.api("pools.list"))["pools"][0]):
        assert [{**one, "since": 0} for one in told["stops"]] == [
            {"kind": "NotReporting", "since": 0, "detail": {"nodes": 40}, "confirmedBy": "alice"},
            {"kind": "remediation", "since": 0, "detail": {"nodes": 7, "limit": 5}, "confirmedBy": None},
        ]


@live
async def test_what_is_another_tenants_is_not_told(served: Live) -> None:
    node = (await served.in_service(host(1))).node_id
    one, run = queued(served, node, "diag.nvml", "k"), planned(served, node)
    with served.calling("acme"):
        assert (await served.api("commands.list"))["commands"] == []
        assert (await served.api("remediation.list"))["runs"] == []
        for name, keys in (
            ("commands.get", {"commandId": one}),
            ("commands.list", {"nodeId": node}),
            ("remediation.get", {"runId": run}),
            ("remediation.list", {"nodeId": node}),
            ("acceptance.get", {"nodeId": node}),
        ):
            assert (await refused(served.api(name, **keys)))[0] == grpc.StatusCode.NOT_FOUND


BUSY = {"message": "in use by process secret", "users": [{"what": "process", "name": "secret"}]}
FAULT = {"code": "Xid79", "source": "xid", "message": "79, pid=7, name=secret, GPU has fallen off the bus."}


@live
async def test_who_is_not_of_the_platform_sees_no_names_of_processes(served: Live) -> None:
    daemon = await served.in_service(host(1))
    node = daemon.node_id
    one = queued(served, node, "gpu.reset", "k")
    ended(served, node, one, "refused", "gpu-busy", BUSY)
    evidence = {"faults": [FAULT], "diagnosis": {"commandId": one, "result": BUSY}}
    into = """INSERT INTO events (id, tenant_id, node_id, type, payload)
      VALUES (%s, 'default', %s, 'node.remediation.escalated', %s)"""
    write(served, into, mint("evt"), node, {"runs": [], "reason": "Timeout", "evidence": evidence})

    async def told() -> list[Any]:
        escalated = (await served.api("events.list", type="node.remediation.escalated"))["events"]
        return [await served.api("commands.get", commandId=one), (await served.api("commands.list"))["commands"], escalated]

    assert all("secret" in str(answer) for answer in await told())
    with served.calling("default"):
        command, commands, (escalated,) = await told()
        assert "secret" not in str([command, commands, escalated])
        assert (command["reason"], command["result"]) == ("gpu-busy", {})
        assert escalated["payload"]["evidence"] == {
            "faults": [{**FAULT, "message": "79"}],
            "diagnosis": {"commandId": one, "result": {}},
        }
