"""Which repairs are queued, what they wait for, and how they begin (SPEC B8)."""

from dataclasses import replace

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.apply import nodes, pool_stops, repairs
from receiver.apply.health import clear_device_health
from receiver.apply.trust import set_trust
from receiver.store.database import Connection
from tests.receiver.apply.repair_world import GPU, ILL, LOST, OFF, POOL, SECOND, SXID, World, world
from tests.receiver.builders import NODE, gpu, gpus

__all__ = ["world"]


def test_a_fault_queues_its_repair_in_the_transaction_that_opens_it_and_wakes_who_repairs(world: World) -> None:
    world.tx.execute("LISTEN bc_remediation")
    world.reports(OFF)
    assert world.runs() == [("node.reboot", "queued")]
    assert (world.run()["devices"], world.run()["boot_id"], world.run()["by"]) == ([GPU], "boot-1", "")
    assert world.run()["causes"] == [{"code": "Xid79", "source": "xid", "bootId": "boot-1", "deviceId": GPU}]
    assert (world.told(), world.steps()) == (["queued"], [("queued", "Xid79")])
    world.tx.commit()
    assert NODE in [note.payload for note in world.tx.notifies(timeout=5, stop_after=1)]


def test_a_report_that_repeats_the_fault_queues_nothing_more(world: World) -> None:
    world.reports(OFF)
    world.reports(replace(OFF, count=7))
    world.collects()
    assert len(world.runs()) == 1
    assert world.told() == ["queued"]


@pytest.mark.parametrize(("section", "kind"), [(LOST, "node.reboot"), (ILL, "gpu.reset")])
def test_a_finding_queues_what_its_remedy_is(world: World, section: pb.GpusSection, kind: str) -> None:
    world.collects(section)
    assert world.runs() == [(kind, "queued")]


@pytest.mark.parametrize("number", [48, 31, 74])
def test_what_a_person_looks_at_queues_nothing(world: World, number: int) -> None:
    world.reports(replace(OFF, number=number, message=f"{number}, words"))
    assert world.runs() == []


def test_a_fault_of_a_whole_switch_queues_a_reboot_that_has_to_bring_all_gpus_back(world: World) -> None:
    world.reports(replace(SXID, number=12020, message="12020, Fatal, words"))
    found = world.run()
    assert (found["kind"], found["devices"]) == ("node.reboot", [GPU, SECOND])


def test_a_reboot_swallows_the_nodes_queued_resets(world: World) -> None:
    world.collects(ILL)
    world.reports(OFF)
    assert world.runs() == [("gpu.reset", "cancelled"), ("node.reboot", "queued")]
    assert [one["code"] for one in world.run()["causes"]] == ["RowRemapPending", "Xid79"]
    assert not world.run()["escalated"]
    assert world.node()["status"] == "adopted"


def test_what_opens_while_a_reboot_waits_joins_it(world: World) -> None:
    world.reports(OFF)
    world.collects(gpus(gpu(0), gpu(1, row_remap=pb.RowRemap(pending=True))))
    assert world.runs() == [("node.reboot", "queued")]
    assert world.run()["devices"] == [GPU, SECOND]
    assert world.steps()[-1] == ("queued", "RowRemapPending joined it")


def test_each_reset_group_has_its_run_and_a_group_has_one(world: World) -> None:
    pending = {"row_remap": pb.RowRemap(pending=True)}
    world.collects(gpus(gpu(0, architecture="hopper", **pending), gpu(1, architecture="hopper", **pending)))
    assert world.runs() == [("gpu.reset", "queued")] * 2

    linked = [pb.NvLink(link=0, active=True, peer_type="gpu", peer_bus_id=gpu(1 - number).bus_id) for number in range(2)]
    old = [gpu(number, architecture="volta", nvlinks=[linked[number]], **pending) for number in range(2)]
    world.tx.execute("DELETE FROM remediation_steps")
    world.tx.execute("DELETE FROM remediation_runs")
    world.collects(gpus(*old))
    assert world.runs() == [("gpu.reset", "queued")]
    assert world.run()["devices"] == [GPU, SECOND]


@pytest.mark.parametrize("where", ["maintenance", "paused", "pool-maintenance", "tenant"])
def test_nothing_queues_where_no_repair_may_begin(world: World, where: str) -> None:
    if where == "maintenance":
        nodes.maintenance(world.tx, NODE, None, "alice", "look")
    elif where == "tenant":
        set_trust(world.tx, NODE, "tenant-controlled", "lease_1", "alice")
    else:
        kind = "remediation" if where == "paused" else "maintenance"
        world.tx.execute("INSERT INTO pool_stops (pool_id, tenant_id, kind) VALUES (%s, 'default', %s)", [POOL, kind])
    world.reports(OFF)
    world.collects(LOST)
    assert world.runs() == []


def test_an_observing_pool_records_what_would_be_done_and_tells_nothing(world: World) -> None:
    world.policy("observe")
    world.reports(OFF)
    world.step()
    assert (world.runs(), world.run()["observed"], world.sent()) == ([("node.reboot", "cancelled")], True, [])
    assert world.steps()[1:] == [("waiting", "would send node.reboot"), ("cancelled", "only observed: would send node.reboot")]
    assert (world.told(), world.disruptions(), world.node()["draining"]) == ([], [], False)
    world.reports(replace(OFF, count=2))
    assert len(world.runs()) == 1, "once"
    world.policy("enforce")
    assert world.runs() == [("node.reboot", "cancelled"), ("node.reboot", "queued")], "it has had no repair"


def test_a_reboot_waits_until_the_whole_node_has_no_live_booking(world: World) -> None:
    world.books(SECOND)
    world.reports(OFF)
    world.step()
    world.step()
    assert world.runs() == [("node.reboot", "waiting")]
    assert world.steps()[1:] == [("waiting", "1 live bookings: booking_1")], "a reason is told once"
    world.ends()
    world.step()
    assert world.runs() == [("node.reboot", "running")]


def test_a_reset_waits_for_the_gpus_of_its_group_only(world: World) -> None:
    world.books(SECOND, "other")
    world.books(GPU, "mine")
    world.collects(ILL)
    world.step()
    assert world.run()["reason"] == "1 live bookings: mine"
    world.ends("mine")
    world.step()
    assert world.runs() == [("gpu.reset", "running")]


def test_a_start_drains_the_node_writes_its_disruption_and_hands_the_command_over(world: World) -> None:
    world.reports(OFF)
    world.step()
    found = world.run()
    assert (found["state"], world.node()["draining"], world.bookable()) == ("running", True, [])
    assert world.disruptions() == [(found["id"], True)]
    (one,) = world.sent()
    assert (one.id, one.kind, one.payload) == (found["command_id"], "node.reboot", {})
    assert one.idempotency_key == f"remediation:{found['id']}"
    assert one.start_within == pytest.approx(600, abs=30)
    assert world.told() == ["queued", "started"]


def test_a_start_of_a_reset_drains_its_group_and_leaves_the_rest_of_the_node(world: World) -> None:
    world.collects(ILL)
    world.step()
    (one,) = world.sent()
    assert (one.kind, one.payload) == ("gpu.reset", {"deviceId": GPU})
    drained = world.tx.execute("SELECT id FROM devices WHERE draining").fetchall()
    assert (drained, world.node()["draining"], world.bookable()) == ([(GPU,)], False, [SECOND])


def test_a_run_waits_for_the_budget_and_for_a_node_that_is_connected(world: World) -> None:
    world.policy(disruptionBudget=0)
    world.reports(OFF)
    world.step()
    assert world.run()["reason"] == "the pool's disruption budget is 0"
    world.policy(disruptionBudget=1)
    world.tx.execute("UPDATE nodes SET connected = false")
    world.step()
    assert (world.runs(), world.run()["reason"]) == ([("node.reboot", "waiting")], "the node is not connected")


def test_a_step_that_is_made_twice_starts_nothing_twice(world: World) -> None:
    world.reports(OFF)
    for _ in range(3):
        world.step()
    assert (len(world.sent()), len(world.disruptions()), world.told()) == (1, 1, ["queued", "started"])


def test_a_run_whose_fault_is_cleared_before_it_begins_is_cancelled_and_nobody_is_bothered(world: World) -> None:
    world.reports(OFF)
    clear_device_health(world.tx, GPU, "looked at")
    world.step()
    assert (world.runs(), world.node()["status"], world.run()["escalated"]) == ([("node.reboot", "cancelled")], "adopted", False)
    assert world.told() == ["queued"]


def test_a_waiting_run_of_a_tenants_machine_is_cancelled_and_one_under_way_goes_no_further(world: World) -> None:
    world.reports(OFF)
    world.step()
    set_trust(world.tx, NODE, "tenant-controlled", "lease_1", "alice")
    world.step()
    assert (world.runs(), world.run()["reason"]) == ([("node.reboot", "cancelled")], "the node is tenant-controlled")
    assert (world.disruptions()[0][1], world.node()["draining"], world.node()["status"]) == (False, False, "adopted")
    assert world.tx.execute("SELECT state FROM commands").fetchall() == [("cancelled",)]


def test_a_waiting_run_whose_node_came_back_with_another_boot_is_verified_and_nothing_is_rebooted(world: World) -> None:
    world.books(SECOND)
    world.reports(OFF)
    world.step()
    world.reboots()
    world.step()
    assert (world.runs(), world.sent(), world.opened()) == ([("node.reboot", "succeeded")], [], [])
    assert [state for state, _ in world.steps()] == ["queued", "waiting", "verifying", "succeeded"]


def test_a_fault_of_an_earlier_boot_that_queues_late_reboots_nothing(world: World) -> None:
    nodes.maintenance(world.tx, NODE, None, "alice", "look")
    world.reports(OFF)
    world.reboots()
    nodes.adopt(world.tx, NODE, "alice", "done")
    assert world.run()["boot_id"] == "boot-1"
    world.step()
    assert (world.runs(), world.sent()) == ([("node.reboot", "succeeded")], [])


def test_the_work_takes_every_node_with_an_open_run_on_and_one_that_cannot_be_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.reports(OFF)
    seen = []

    def fails(tx: Connection, node_id: str) -> None:
        seen.append(node_id)
        tx.execute("SELECT 1/0")

    with monkeypatch.context() as patch:
        patch.setattr(repairs, "step_node", fails)
        repairs.work(lambda work: work(world.tx))
    assert seen == [NODE]
    repairs.work(lambda work: work(world.tx))
    assert world.runs() == [("node.reboot", "running")]


def test_a_node_that_is_moved_while_its_pool_is_asked_waits_for_the_word_of_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.reports(OFF)
    world.tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES ('pool_b', 'default', 'b')")

    def moves(tx: Connection, *asked: object) -> None:
        tx.execute("UPDATE nodes SET pool_id = 'pool_b'")

    with monkeypatch.context() as patch:
        patch.setattr(pool_stops, "gate", moves)
        world.step()
    assert (world.runs(), world.run()["reason"]) == ([("node.reboot", "waiting")], "its pool has not been asked yet")
    world.step()
    assert world.runs() == [("node.reboot", "running")]
