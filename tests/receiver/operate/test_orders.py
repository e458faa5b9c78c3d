"""Orders to nodes: reboots, resets, diagnoses, refreshes, and what is called off (SPEC B8, B9), asked as the command line asks,
over a real receiver, Postgres and session."""

import asyncio
import json
from typing import Any

import grpc
import psycopg
import pytest

from receiver.apply import command
from receiver.planning.view import RunKind
from tests.fake_daemon import FakeDaemon, until
from tests.receiver import placement
from tests.receiver.builders import gpu, host
from tests.receiver.live import Live, live, refused

FAILED, INVALID = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT
UUID = gpu(0).uuid


async def becomes(served: Live, run: str, *states: str) -> dict[str, Any]:
    """The run once it is in one of these states."""
    found: dict[str, Any] = {}

    def there() -> bool:
        found["state"] = served.rows("SELECT state FROM remediation_runs WHERE id = %s", run)[0][0]
        return found["state"] in states

    await until(f"{run} to be {' or '.join(states)}", there)
    return await served.api("remediation.get", runId=run)


def booked(served: Live) -> None:
    with psycopg.connect(served.database) as tx:
        assert placement.book(tx, "book-1", placement.find(tx)[0])


def freed(served: Live) -> None:
    with psycopg.connect(served.database) as tx:
        placement.end(tx, "book-1")


# ---- reboots, resets, diagnoses


@live
async def test_a_reboot_of_an_idle_node_is_handed_to_it_and_proven_by_what_it_shows_after(served: Live) -> None:
    daemon = await served.in_service(host(2))
    run = await served.api("nodes.reboot", nodeId=daemon.node_id, reason="it hangs")
    assert (run["kind"], run["nodeId"], run["by"], run["force"]) == ("node.reboot", daemon.node_id, "operator", False)
    assert run["devices"] == [gpu(0).uuid, gpu(1).uuid], "what has to come back"
    sent = await daemon.command()
    assert (sent.kind, sent.idempotency_key, json.loads(sent.payload_json)) == ("node.reboot", f"remediation:{run['id']}", {})
    told = await served.api("nodes.get", nodeId=daemon.node_id)
    assert (told["draining"], {one["reason"] for one in told["atoms"]}) == (True, {"Draining"})
    assert (await served.api("atoms.list"))["atoms"] == []
    why = await served.api("nodes.why", nodeId=daemon.node_id)
    assert [(one["what"], run["id"] in one["message"]) for one in why["obstacles"]] == [("draining", True)]
    await daemon.close()
    daemon.boot_id = "the-next-boot"
    await daemon.connect()
    again = await daemon.command()
    assert again.id == sent.id, "it is told again, and answers that it has rebooted"
    await daemon.finish(sent.id, "succeeded")
    await daemon.offer(host(2))
    await daemon.report()
    done = await becomes(served, run["id"], "succeeded")
    assert list(dict.fromkeys(one["state"] for one in done["steps"])) == [
        "queued",
        "waiting",
        "running",
        "verifying",
        "succeeded",
    ]
    assert (done["commandId"], (await served.api("commands.get", commandId=sent.id))["by"]) == (sent.id, "operator")
    assert len((await served.api("atoms.list"))["atoms"]) == 2


@live
async def test_an_order_waits_for_bookings_and_says_so(served: Live) -> None:
    daemon = await served.in_service(host(2))
    booked(served)
    run = await served.api("nodes.reboot", nodeId=daemon.node_id, reason="it hangs")
    waits = await becomes(served, run["id"], "waiting")
    assert waits["commandId"] is None
    assert served.rows("SELECT count(*) FROM commands") == [(0,)]
    again = await served.api("nodes.reboot", nodeId=daemon.node_id, reason="it still hangs")
    assert again["id"] == run["id"], "there is one a node"
    freed(served)
    assert (await daemon.command()).kind == "node.reboot"


@live
async def test_orders_at_once_are_one_reboot(served: Live) -> None:
    daemon = await served.in_service(host(2))
    booked(served)
    calls = (served.api("nodes.reboot", nodeId=daemon.node_id, reason=f"caller {number}") for number in range(8))
    assert len({run["id"] for run in await asyncio.gather(*calls)}) == 1
    assert served.rows("SELECT count(*) FROM events WHERE type = 'api.write'") == [(8,)], "each of the callers is in the audit"
    freed(served)
    assert (await daemon.command()).kind == "node.reboot"
    assert served.rows("SELECT count(*) FROM commands") == [(1,)]


@live
async def test_force_waits_for_nothing_and_tells_the_node_so(served: Live) -> None:
    daemon = await served.in_service(host(2))
    booked(served)
    run = await served.api("nodes.reboot", nodeId=daemon.node_id, force="true", reason="on fire")
    assert run["force"]
    sent = await daemon.command()
    assert (sent.kind, json.loads(sent.payload_json)) == ("node.reboot", {"force": True})


@live
async def test_a_reset_names_the_gpu(served: Live) -> None:
    daemon = await served.in_service(host(2))
    run = await served.api("devices.reset", deviceId=UUID, reason="it is slow")
    assert (run["kind"], run["devices"]) == ("gpu.reset", [UUID])
    sent = await daemon.command()
    assert (sent.kind, json.loads(sent.payload_json)) == ("gpu.reset", {"deviceId": UUID})
    told = {one["id"]: one["draining"] for one in (await served.api("nodes.get", nodeId=daemon.node_id))["devices"]}
    assert told == {UUID: True, gpu(1).uuid: False}
    await daemon.finish(sent.id, "refused", "not-supported")
    assert (await becomes(served, run["id"], "failed"))["reason"]


@pytest.mark.parametrize(
    ("keys", "kind", "payload"),
    [
        ({}, "diag.nvml", {"expect": {"gpuCount": 2}}),
        ({"kind": "diag.nvml"}, "diag.nvml", {"expect": {"gpuCount": 2}}),
        ({"kind": "diag.dcgm"}, "diag.dcgm", {}),
        ({"kind": "diag.dcgm", "level": "3"}, "diag.dcgm", {"level": 3}),
    ],
)
def test_a_diagnosis_is_a_command_with_its_result(
    database: str, keys: dict[str, str], kind: RunKind, payload: dict[str, Any]
) -> None:
    @live
    async def check(served: Live) -> None:
        daemon = await served.in_service(host(2))
        run = await served.api("nodes.diag", nodeId=daemon.node_id, reason="a customer says", **keys)
        sent = await daemon.command()
        assert (sent.kind, json.loads(sent.payload_json)) == (kind, payload)
        found = {"passed": False, "checks": [{"check": "gpu.count", "result": "fail"}]}
        await daemon.finish(sent.id, "succeeded", "", **found)
        assert (await becomes(served, run["id"], "succeeded"))["kind"] == kind
        assert (await served.api("commands.get", commandId=sent.id))["result"] == found
        assert not (await served.api("nodes.get", nodeId=daemon.node_id))["draining"]
        assert len((await served.api("atoms.list"))["atoms"]) == 2, "a diagnosis concludes nothing by itself"

    check(database)


@live
async def test_a_diagnosis_is_of_a_kind_and_level_that_there_is(served: Live) -> None:
    node = (await served.in_service(host(1))).node_id
    for keys, words in (
        ({"kind": "node.reboot"}, "kind 'node.reboot' is none of diag.nvml, diag.dcgm"),
        ({"level": "1"}, "level is of diag.dcgm only"),
        ({"kind": "diag.dcgm", "level": "4"}, "level 4 is none of 1, 2, 3"),
    ):
        code, text = await refused(served.api("nodes.diag", nodeId=node, reason="why not", **keys))
        assert (code, words in text) == (INVALID, True), text


async def ordered(served: Live, daemon: FakeDaemon, **keys: str) -> list[tuple[grpc.StatusCode, str]]:
    """How a reboot and a reset are refused."""
    orders = (("nodes.reboot", {"nodeId": daemon.node_id}), ("devices.reset", {"deviceId": UUID}))
    return [await refused(served.api(name, **of, **{"reason": "why not", **keys})) for name, of in orders]


@live
async def test_nothing_is_ordered_on_a_tenants_machine_also_by_force(served: Live) -> None:
    daemon = await served.in_service(host(2))
    await served.api("nodes.setTrust", nodeId=daemon.node_id, trust="tenant-controlled", leaseId="lease-1")
    for force in ("false", "true"):
        for code, text in await ordered(served, daemon, force=force):
            assert (code, "tenant-controlled" in text) == (FAILED, True)
    assert served.rows("SELECT count(*) FROM remediation_runs") == [(0,)]


@live
async def test_in_maintenance_and_where_a_pool_observes_it_takes_force(served: Live) -> None:
    daemon = await served.in_service(host(2))
    await served.api("nodes.maintenance", nodeId=daemon.node_id, reason="a fan")
    for code, text in await ordered(served, daemon):
        assert (code, "maintenance" in text, "force" in text) == (FAILED, True, True)
    assert (await served.api("nodes.diag", nodeId=daemon.node_id, reason="the new fan"))["kind"] == "diag.nvml"
    assert (await daemon.command()).kind == "diag.nvml", "a diagnosis is what maintenance is for"
    pool = (await served.api("pools.create", name="watched", mode="observe"))["id"]
    await served.api("nodes.move", nodeId=daemon.node_id, poolId=pool, reason="racked")
    await served.api("nodes.adopt", nodeId=daemon.node_id, reason="done")
    for code, text in await ordered(served, daemon):
        assert (code, "observes" in text) == (FAILED, True)


@live
async def test_a_run_that_is_cancelled_goes_no_further(served: Live) -> None:
    daemon = await served.in_service(host(2))
    booked(served)
    run = (await served.api("nodes.reboot", nodeId=daemon.node_id, reason="it hangs"))["id"]
    await becomes(served, run, "waiting")
    told = await served.api("remediation.cancel", runId=run, reason="it does not")
    assert (told["state"], "it does not" in told["reason"], "operator" in told["reason"]) == ("cancelled", True, True)
    assert told["endedAt"] is not None
    code, text = await refused(served.api("remediation.cancel", runId=run, reason="again"))
    assert (code, "has ended" in text) == (FAILED, True)
    freed(served)
    assert not (await served.api("nodes.get", nodeId=daemon.node_id))["draining"]
    assert served.rows("SELECT count(*) FROM commands") == [(0,)]


# ---- commands


@live
async def test_a_node_that_is_to_refresh_is_told_so_and_one_that_waits_is_enough(served: Live) -> None:
    daemon = await served.in_service(host(1))
    first = await served.api("inventory.refresh", nodeId=daemon.node_id, reason="new DIMMs")
    assert (first["kind"], first["by"], first["payload"]) == ("inventory.refresh", "operator", {})
    sent = await daemon.command()
    assert (sent.id, sent.kind) == (first["id"], "inventory.refresh")
    assert 500 < sent.start_within.ToTimedelta().total_seconds() <= 600
    await daemon.finish(sent.id)
    await daemon.close()
    gone = "SELECT connected FROM nodes WHERE id = %s"
    await until("the end of its session", lambda: served.rows(gone, daemon.node_id) == [(False,)])
    second, third = [await served.api("inventory.refresh", nodeId=daemon.node_id, reason="more") for _ in range(2)]
    assert second["id"] == third["id"] != first["id"]
    assert (await served.api("commands.cancel", commandId=second["id"], reason="no more"))["state"] == "cancelled"
    fourth = await served.api("inventory.refresh", nodeId=daemon.node_id, reason="more")
    assert fourth["id"] != second["id"]


@live
async def test_a_tenants_machine_may_be_asked_for_its_inventory_and_a_retired_node_not(served: Live) -> None:
    daemon = await served.in_service(host(1))
    await served.api("nodes.setTrust", nodeId=daemon.node_id, trust="tenant-controlled", leaseId="lease-1")
    await served.api("inventory.refresh", nodeId=daemon.node_id, reason="what is there?")
    assert (await daemon.command()).kind == "inventory.refresh"
    await served.api("nodes.setTrust", nodeId=daemon.node_id, trust="platform")
    await served.api("nodes.retire", nodeId=daemon.node_id, reason="sold")
    code, text = await refused(served.api("inventory.refresh", nodeId=daemon.node_id, reason="more"))
    assert (code, "retired" in text) == (FAILED, True)


@live
async def test_a_command_that_was_sent_is_not_cancelled(served: Live) -> None:
    daemon = await served.in_service(host(1))
    one = (await served.api("inventory.refresh", nodeId=daemon.node_id, reason="more"))["id"]
    await daemon.command()
    code, text = await refused(served.api("commands.cancel", commandId=one, reason="less"))
    assert (code, "may have begun" in text) == (FAILED, True)


def test_what_ended_long_ago_is_forgotten_by_a_running_receiver(database: str) -> None:
    @live
    async def check(served: Live) -> None:
        daemon = await served.in_service(host(1))
        served.rows(
            """INSERT INTO commands (id, node_id, tenant_id, kind, idempotency_key, state, finished_at)
            VALUES ('cmd_old', %s, 'default', 'diag.nvml', 'k', 'succeeded', now() - 2 * %s) RETURNING id""",
            daemon.node_id,
            command.KEPT,
        )
        served.receiver.singletons.woken["commands"].set()
        await until("it to be forgotten", lambda: served.rows("SELECT count(*) FROM commands") == [(0,)])

    check(database)
