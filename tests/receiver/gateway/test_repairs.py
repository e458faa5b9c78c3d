"""A repair over real streams, from the fault to its proof (SPEC B8)."""

from tests.fake_daemon import FakeDaemon, until
from tests.receiver.builders import gpu, host
from tests.receiver.live import Live, live

GPU = gpu(0).uuid


async def in_pool(served: Live) -> FakeDaemon:
    """A node in service, in a pool of its own."""
    daemon = await served.in_service(host(2))
    pool = await served.api("pools.create", name="a")
    await served.api("nodes.move", nodeId=daemon.node_id, poolId=pool["id"], reason="test")
    return daemon


def states(served: Live) -> list[tuple[str, str]]:
    return served.rows("SELECT kind, state FROM remediation_runs ORDER BY id")


def bookable(served: Live) -> list[str]:
    return [row[0] for row in served.rows("SELECT id FROM bookable_atoms ORDER BY id")]


async def boot_again(daemon: FakeDaemon) -> None:
    await daemon.close()
    daemon.boot_id, daemon.conditions = "boot-2", {}
    await daemon.connect()


@live
async def test_an_xid_79_is_repaired_by_a_reboot_and_the_node_is_in_service_again(served: Live) -> None:
    daemon = await in_pool(served)
    daemon.xid(79, GPU, gpu(0).bus_id, 1, "79, GPU has fallen off the bus.")
    await daemon.report()
    order = await daemon.command()
    assert (order.kind, order.payload_json) == ("node.reboot", "{}")
    assert bookable(served) == []
    await boot_again(daemon)
    assert (await daemon.command()).id == order.id, "it is sent to each session until it is answered"
    await daemon.finish(order.id, bootId="boot-2", previousBootId="boot-1")
    assert states(served) in ([("node.reboot", "running")], [("node.reboot", "verifying")])
    await daemon.offer(host(2))
    await daemon.report()
    await until("the proof", lambda: states(served) == [("node.reboot", "succeeded")])
    assert bookable(served) == [GPU, gpu(1).uuid]
    told = served.rows("SELECT type FROM events WHERE starts_with(type, 'node.remediation.') ORDER BY seq")
    assert [row[0].rpartition(".")[2] for row in told] == ["queued", "started", "succeeded"]


@live
async def test_a_fault_that_the_reboot_did_not_end_is_a_persons(served: Live) -> None:
    daemon = await in_pool(served)
    daemon.xid(79, GPU, gpu(0).bus_id, 1, "79, GPU has fallen off the bus.")
    await daemon.report()
    order = await daemon.command()
    await boot_again(daemon)
    await daemon.command()
    daemon.xid(79, GPU, gpu(0).bus_id, 1, "79, GPU has fallen off the bus.")
    await daemon.report()
    await daemon.finish(order.id, bootId="boot-2", previousBootId="boot-1")
    await until("the escalation", lambda: states(served) == [("node.reboot", "failed")])
    node = await served.api("nodes.get", nodeId=daemon.node_id)
    assert node["status"] == "maintenance"
    escalated = served.rows("SELECT payload ->> 'reason' FROM events WHERE type = 'node.remediation.escalated'")
    assert escalated == [("Xid79 again",)]
