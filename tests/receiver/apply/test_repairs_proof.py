"""What proves a repair (SPEC B8), step by step, with time under the control of the test."""

from dataclasses import replace

import pytest

from receiver.apply import command
from receiver.apply.health import clear_device_health
from receiver.values import CommandResult
from tests.receiver.apply.repair_world import GPU, ILL, LOST, OFF, SECOND, World, world
from tests.receiver.builders import NODE, gpu, gpus

__all__ = ["world"]


def test_a_reboot_succeeds_by_an_inventory_of_the_new_boot_and_closes_what_it_was_for(world: World) -> None:
    world.reports(OFF)
    world.step()
    (one,) = world.sent()
    world.faults.clear()
    world.connects("boot-2")
    command.record_result(world.tx, NODE, CommandResult(one.id, "succeeded", "", {"bootId": "boot-2"}))
    world.step()
    assert (world.runs(), world.opened()) == ([("node.reboot", "verifying")], ["Xid79"]), "another boot id alone proves nothing"
    world.collects()
    world.step()
    assert (world.runs(), world.opened()) == ([("node.reboot", "succeeded")], [])
    assert world.told() == ["queued", "started", "succeeded"]
    assert (world.node()["draining"], world.disruptions()[0][1], world.bookable()) == (False, False, [GPU, SECOND])
    closed = world.tx.execute("SELECT closed_reason FROM device_health").fetchone()
    assert closed == (f"repaired by run {world.run()['id']}",)
    assert "cleared" in world.told("node.gpu.")


def test_a_reboot_after_which_the_gpu_is_still_gone_is_no_success(world: World) -> None:
    world.collects(LOST)
    world.step()
    world.reboots(LOST)
    for minutes in (0, 29):
        world.later(minutes=minutes)
        world.step()
        assert world.runs() == [("node.reboot", "verifying")]
    world.later(minutes=1)
    world.step()
    assert world.runs() == [("node.reboot", "failed")]
    assert world.run()["reason"] == f"{GPU} has GpuLost, 30 min after it began"
    assert (world.node()["status"], world.node()["maintenance_by"]) == ("maintenance", "remediation")


def test_a_gpu_that_is_on_no_list_after_the_reboot_is_no_success(world: World) -> None:
    world.reports(OFF)
    world.step()
    world.reboots(gpus(gpu(1)))
    world.step()
    assert world.runs() == [("node.reboot", "verifying")]
    world.later(minutes=30)
    world.step()
    assert (world.runs(), world.opened()) == ([("node.reboot", "failed")], ["Xid79"])


def test_a_fault_with_a_policy_since_the_reboot_is_a_failure_at_once(world: World) -> None:
    world.reports(OFF)
    world.step()
    world.faults.clear()
    world.connects("boot-2")
    world.reports(replace(OFF, number=48, message="48, DBE"))
    world.collects()
    world.step()
    assert (world.run()["state"], world.run()["reason"]) == ("failed", "Xid48 again")


def test_a_reset_succeeds_by_its_command_and_the_next_inventory_that_shows_the_gpu_in_health(world: World) -> None:
    world.collects(ILL)
    world.step()
    world.collects(ILL)
    world.answers("succeeded", "", {"group": [GPU]})
    world.step()
    assert world.runs() == [("gpu.reset", "verifying")]
    world.collects(gpus(gpu(0), gpu(1)))
    world.step()
    assert (world.runs(), world.bookable()) == ([("gpu.reset", "succeeded")], [GPU, SECOND])
    assert world.node()["status"] == "adopted"


def test_a_reset_is_not_proven_by_the_inventory_of_before(world: World) -> None:
    world.policy(xid={"95": {"policy": "device"}})
    world.reports(replace(OFF, number=119, message="119, Timeout waiting for RPC from GSP"))
    assert world.runs() == [("gpu.reset", "queued")]
    world.step()
    world.faults.clear()
    world.answers("succeeded", "", {"group": [GPU]})
    world.step()
    assert world.runs() == [("gpu.reset", "verifying")]
    world.collects()
    world.step()
    assert (world.runs(), world.opened()) == ([("gpu.reset", "succeeded")], [])


def test_a_fault_after_a_proven_reset_opens_although_the_node_counts_from_one_again(world: World) -> None:
    gsp = replace(OFF, number=119, count=5, message="119, Timeout waiting for RPC from GSP")
    world.reports(gsp)
    world.step()
    world.faults.clear()
    world.answers("succeeded", "", {"group": [GPU]})
    world.collects()
    world.step()
    assert (world.run()["state"], world.opened()) == ("succeeded", [])
    world.reports(replace(gsp, count=1))
    assert world.opened() == ["Xid119"]


def test_a_fault_between_a_reset_and_its_proof_is_a_failure(world: World) -> None:
    gsp = replace(OFF, number=119, count=5, message="119, Timeout waiting for RPC from GSP")
    world.reports(gsp)
    world.step()
    world.faults.clear()
    world.answers("succeeded", "", {"group": [GPU]})
    world.reports(replace(gsp, count=1))
    world.collects()
    world.step()
    assert (world.run()["state"], world.run()["reason"], world.opened()) == ("failed", "Xid119 again", ["Xid119"])


@pytest.mark.parametrize(
    ("status", "reason"),
    [("failed", "NotRebooted"), ("refused", "NotAllowed"), ("refused", "RateLimited")],
)
def test_a_command_that_is_not_done_fails_the_run(world: World, status: str, reason: str) -> None:
    world.reports(OFF)
    world.step()
    world.answers(status, reason)
    world.step()
    assert (world.run()["state"], world.run()["reason"]) == ("failed", f"{status}: {reason}")
    assert (world.node()["status"], world.disruptions()[0][1], world.node()["draining"]) == ("maintenance", False, False)


def test_a_node_that_is_busy_just_after_its_last_booking_is_asked_again_for_a_while(world: World) -> None:
    world.collects(ILL)
    world.step()
    for _ in range(3):
        world.answers("refused", "gpu-busy")
        world.step()
        assert world.sent() == [], "not at once"
        world.later(minutes=1)
        world.step()
        assert len(world.sent()) == 1
    assert (world.runs(), len(world.disruptions())) == ([("gpu.reset", "running")], 1)
    world.later(minutes=12)
    world.answers("refused", "gpu-busy")
    world.step()
    assert world.run()["reason"] == "refused: gpu-busy, for 15 min"
    assert world.told() == ["queued", "started", "failed", "escalated"]


def test_a_run_that_nothing_comes_of_fails_after_its_time_and_its_command_is_sent_no_more(world: World) -> None:
    world.reports(OFF)
    world.step()
    assert len(world.sent()) == 1
    world.later(minutes=30)
    world.step()
    assert (world.run()["state"], world.run()["reason"], world.sent()) == ("failed", "not done within 30 min", [])


def test_a_lost_gpu_has_not_come_back_because_a_person_closed_its_finding(world: World) -> None:
    world.collects(LOST)
    world.step()
    clear_device_health(world.tx, GPU, "known", force=True)
    world.reboots(LOST)
    world.step()
    assert world.runs() == [("node.reboot", "verifying")]


@pytest.mark.parametrize("seen", [False, True], ids=["running", "verifying"])
def test_what_opens_in_the_boot_that_a_reboot_led_to_waits_for_a_run_of_its_own(world: World, seen: bool) -> None:
    world.reports(OFF)
    world.step()
    world.faults.clear()
    world.connects("boot-2")
    if seen:
        world.step()
        assert world.runs() == [("node.reboot", "verifying")]
    world.reports(replace(OFF, device_id=SECOND, bus_id=gpu(1).bus_id))
    assert [one["deviceId"] for one in world.run()["causes"]] == [GPU]
    world.collects()
    world.step()
    assert world.runs() == [("node.reboot", "succeeded"), ("node.reboot", "queued")]
    assert [one["deviceId"] for one in world.run()["causes"]] == [SECOND]


def test_a_command_that_came_too_late_is_given_again_once_the_node_is_connected(world: World) -> None:
    world.reports(OFF)
    world.step()
    world.tx.execute("UPDATE nodes SET connected = false")
    world.later(minutes=11)
    command.outstanding(world.tx, "")
    assert world.tx.execute("SELECT state, reason FROM commands").fetchall() == [("expired", "NotSent")]
    world.step()
    assert (world.runs(), world.sent()) == ([("node.reboot", "running")], [])
    world.connects()
    world.step()
    assert [one.kind for one in world.sent()] == ["node.reboot"]
    world.answers("expired", "NotStarted")
    world.step()
    assert [one.kind for one in world.sent()] == ["node.reboot"]
    world.later(minutes=19)
    world.step()
    assert (world.run()["reason"], world.sent()) == ("not done within 30 min", [])
