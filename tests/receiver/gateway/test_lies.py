"""What a node says of what is not its own changes nothing, and is counted (SPEC B3, "From status reports"; B4, step 2)."""

from typing import Any

from bettercompute.agent.v1 import session_pb2 as pb

from tests.fake_daemon import FakeDaemon
from tests.receiver.builders import gpu, gpus, host
from tests.receiver.live import Live, live

VIEW = """SELECT
  (SELECT jsonb_agg(to_jsonb(d) ORDER BY d.id) FROM devices d),
  (SELECT jsonb_agg(to_jsonb(a) ORDER BY a.id, a.generation) FROM atoms a),
  (SELECT jsonb_agg(to_jsonb(c) ORDER BY c.node_id, c.type, c.device_id) FROM conditions c),
  (SELECT jsonb_agg(to_jsonb(h) ORDER BY h.device_id, h.code) FROM device_health h),
  (SELECT jsonb_agg(jsonb_build_array(n.status, n.no_schedule_reasons, n.would_no_schedule) ORDER BY n.id) FROM nodes n)"""
DROPPED = ("bad-condition", "foreign-xid")


async def two(served: Live) -> tuple[FakeDaemon, FakeDaemon]:
    """Two nodes in service, with two GPUs each."""
    daemons = []
    for first in (0, 2):
        daemon = served.daemon()
        await daemon.connect()
        section = gpus(gpu(first), gpu(first + 1))
        result = await daemon.offer(host(gpus=section))
        assert result.status == pb.INVENTORY_STATUS_APPLIED
        await daemon.report()
        await daemon.dealt_with()
        daemons.append(daemon)
    return daemons[0], daemons[1]


def seen(served: Live) -> list[Any]:
    return served.rows(VIEW)


def counted(served: Live) -> list[int]:
    return [served.receiver.registry.dropped[reason] for reason in DROPPED]


def xids(served: Live, *columns: str) -> list[Any]:
    listed = ", ".join(f"payload -> '{one}'" for one in columns)
    return served.rows(f"SELECT node_id, {listed} FROM events WHERE type = 'node.xid' ORDER BY seq")


@live
async def test_an_xid_of_another_nodes_gpu_changes_nothing_and_is_counted(served: Live) -> None:
    owner, liar = await two(served)
    before = seen(served)
    liar.xid(79, str(gpu(0).uuid), str(gpu(0).bus_id), message="79, GPU has fallen off the bus.")
    liar.xid(48, str(gpu(1).uuid), str(gpu(1).bus_id), message="48, DBE")
    await liar.report()
    await liar.dealt_with()
    assert seen(served) == before
    assert xids(served, "foreign", "policy") == [(liar.node_id, True, None)] * 2
    assert counted(served) == [0, 2]
    await liar.report()
    await liar.dealt_with()
    assert (seen(served), counted(served)) == (before, [0, 2]), "what repeats is told once"
    owner.xid(48, str(gpu(1).uuid), str(gpu(1).bus_id), message="48, DBE")
    await owner.report()
    await owner.dealt_with()
    assert seen(served) != before, "its own node is believed"
    assert counted(served) == [0, 2]


@live
async def test_acceptance_that_a_node_gives_itself_changes_nothing_and_is_counted(served: Live) -> None:
    _, liar = await two(served)
    served.rows(
        """INSERT INTO conditions (node_id, type, device_id, tenant_id, status, reason, no_schedule)
           VALUES (%s, 'AcceptanceFailed', '', 'default', 'true', 'Expired', true) RETURNING type""",
        liar.node_id,
    )
    before = seen(served)
    for status in (pb.CONDITION_STATUS_FALSE, pb.CONDITION_STATUS_TRUE, pb.CONDITION_STATUS_UNKNOWN):
        report = liar.status()
        report.conditions.append(pb.Condition(type="AcceptanceFailed", status=status))
        await liar.send(status_report=report)
    await liar.dealt_with()
    assert seen(served) == before
    assert counted(served) == [3, 0]


@live
async def test_the_receivers_own_conditions_are_nothing_for_reports_to_end(served: Live) -> None:
    owner, _ = await two(served)
    owner.xid(48, str(gpu(1).uuid), str(gpu(1).bus_id), message="48, DBE")
    await owner.report()
    await owner.dealt_with()
    before = seen(served)
    report = owner.status()
    del report.conditions[:]
    for kind in ("Xid48", "GpuLost", "CpuPressure", "ClockSkew", "DuplicateIdentity", "InventoryStale", "NoSuchType"):
        report.conditions.append(pb.Condition(type=kind, status=pb.CONDITION_STATUS_FALSE, device_id=str(gpu(1).uuid)))
    await owner.send(status_report=report)
    await owner.dealt_with()
    assert seen(served) == before
    assert counted(served) == [7, 0]
