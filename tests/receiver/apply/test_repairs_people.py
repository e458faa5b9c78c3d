"""When a node is a person's, and what persons order and cancel (SPEC B8)."""

from dataclasses import replace

import pytest

from receiver.apply import command, nodes, repairs
from receiver.apply.health import clear_device_health
from receiver.apply.trust import set_trust
from receiver.errors import Invalid, NotFound, Refused
from receiver.values import CommandResult
from tests.receiver.apply.repair_world import GPU, ILL, OFF, SECOND, World, world
from tests.receiver.builders import NODE, gpu, gpus

__all__ = ["world"]


def test_an_escalation_takes_the_node_into_maintenance_with_the_evidence(world: World) -> None:
    world.reports(OFF)
    world.step()
    world.answers("failed", "RebootFailed")
    world.step()
    found = world.run()
    assert found["escalated"]
    assert (world.node()["status"], world.node()["maintenance_by"]) == ("maintenance", "remediation")
    assert world.told() == ["queued", "started", "failed", "escalated"]
    row = world.tx.execute("SELECT payload FROM events WHERE type = 'node.remediation.escalated'").fetchone()
    assert row is not None
    payload = row[0]
    assert (payload["runs"], payload["reason"]) == ([found["id"]], "failed: RebootFailed")
    evidence = payload["evidence"]
    assert [(one["code"], one["message"]) for one in evidence["faults"]] == [("Xid79", OFF.message)]
    assert [one["uuid"] for one in evidence["gpus"]["gpus"]] == [GPU, SECOND]
    assert world.runs() == [("node.reboot", "failed")], "a person has it: nothing is queued again"


def test_the_evidence_has_the_last_diagnosis(world: World) -> None:
    queued = command.queue(world.tx, NODE, "diag.nvml", {}, "k")
    command.record_result(world.tx, NODE, CommandResult(queued, "succeeded", "", {"passed": False}))
    world.reports(OFF)
    world.step()
    world.answers("failed", "RebootFailed")
    world.step()
    row = world.tx.execute("SELECT payload -> 'evidence' -> 'diagnosis' FROM events WHERE type LIKE '%%escalated'").fetchone()
    assert row is not None
    assert (row[0]["commandId"], row[0]["result"]) == (queued, {"passed": False})


def test_a_failed_reset_can_leave_the_node_in_service_and_the_gpu_to_a_person(world: World) -> None:
    world.policy(remediation={"escalateTo": "device"})
    world.collects(ILL)
    world.step()
    world.answers("failed", "NotHealthyAfterReset", {"group": [GPU]})
    world.step()
    assert (world.node()["status"], world.bookable(), world.run()["escalated"]) == ("adopted", [SECOND], True)
    world.collects(ILL)
    world.later(hours=3)
    world.reports()
    assert world.runs() == [("gpu.reset", "failed")], "it is not tried again"
    world.collects(gpus(gpu(0), gpu(1)))
    world.later(hours=3)
    world.collects(ILL)
    assert world.runs() == [("gpu.reset", "failed"), ("gpu.reset", "queued")], "it was gone, and has come back"


def test_a_fault_that_a_person_has_is_not_repaired_again_when_the_node_is_back(world: World) -> None:
    world.reports(OFF)
    world.step()
    world.answers("failed", "RebootFailed")
    world.step()
    nodes.adopt(world.tx, NODE, "alice", "try again")
    world.reports(replace(OFF, count=3))
    assert world.runs() == [("node.reboot", "failed")]
    clear_device_health(world.tx, GPU, "seated anew")
    world.later(hours=1)
    world.reports(replace(OFF, count=4))
    assert world.runs() == [("node.reboot", "failed"), ("node.reboot", "queued")]


def test_a_node_that_faults_every_two_hours_is_a_persons_at_the_fourth_run(world: World) -> None:
    for _ in range(3):
        world.reports(OFF)
        world.rebooted_well()
        assert world.run()["state"] == "succeeded"
        world.later(hours=2)
    world.reports(OFF)
    world.step()
    assert [state for _, state in world.runs()] == ["succeeded"] * 3 + ["cancelled"]
    assert (world.run()["reason"], world.run()["escalated"]) == ("more than 3 runs on the node in 24 h", True)
    assert (world.node()["status"], world.sent()) == ("maintenance", [])
    row = world.tx.execute("SELECT payload -> 'runs' FROM events WHERE type LIKE '%%escalated'").fetchone()
    assert row is not None
    assert len(row[0]) == 4


def test_more_than_five_runs_in_seven_days_are_a_persons(world: World) -> None:
    for _ in range(5):
        world.reports(OFF)
        world.rebooted_well()
        world.later(hours=30)
    world.reports(OFF)
    world.step()
    assert (world.run()["reason"], world.node()["status"]) == ("more than 5 runs on the node in 168 h", "maintenance")


def test_two_runs_in_a_row_that_did_not_clear_the_fault_are_enough(world: World) -> None:
    for _ in range(2):
        world.reports(OFF)
        world.rebooted_well()
        world.later(minutes=20)
    world.reports(OFF)
    world.step()
    assert (world.run()["state"], world.run()["reason"]) == ("cancelled", "two runs in a row did not clear Xid79")
    assert world.node()["status"] == "maintenance"


def test_an_ordered_reboot_waits_in_the_same_queue_and_brings_the_sound_gpus_back(world: World) -> None:
    world.books()
    run_id = repairs.reboot(world.tx, NODE, "alice", "kernel")
    world.step()
    assert (world.run()["id"], world.run()["by"], world.run()["state"]) == (run_id, "alice", "waiting")
    world.ends()
    world.rebooted_well()
    assert (world.run()["state"], world.run()["devices"]) == ("succeeded", [GPU, SECOND])


def test_force_waits_for_nothing_and_takes_a_reason(world: World) -> None:
    world.books()
    world.policy(disruptionBudget=0)
    with pytest.raises(Invalid, match="reason"):
        repairs.reboot(world.tx, NODE, "alice", "", force=True)
    repairs.reboot(world.tx, NODE, "alice", "it hangs", force=True)
    world.step()
    (one,) = world.sent()
    assert (one.kind, one.payload) == ("node.reboot", {"force": True})


def test_an_order_of_what_a_fault_has_queued_makes_that_run_the_persons(world: World) -> None:
    world.books()
    world.reports(OFF)
    run_id = repairs.reboot(world.tx, NODE, "alice", "now", force=True)
    assert world.runs() == [("node.reboot", "queued")]
    world.step()
    assert (world.run()["id"], world.run()["state"], world.sent()[0].payload) == (run_id, "running", {"force": True})
    with pytest.raises(Refused, match="is at it"):
        repairs.reboot(world.tx, NODE, "bob", "now")


@pytest.mark.parametrize("where", ["maintenance", "observe"])
def test_a_node_in_maintenance_or_in_an_observing_pool_is_repaired_by_force_only(world: World, where: str) -> None:
    if where == "observe":
        world.policy("observe")
    else:
        nodes.maintenance(world.tx, NODE, None, "alice", "look")
    with pytest.raises(Refused, match="with force"):
        repairs.reset(world.tx, GPU, "alice", "")
    repairs.reset(world.tx, GPU, "alice", "needed", force=True)
    world.step()
    assert world.sent()[0].kind == "gpu.reset"


def test_orders_for_what_is_not_there_or_not_ours_are_refused(world: World) -> None:
    with pytest.raises(NotFound):
        repairs.reset(world.tx, "GPU-none", "alice", "")
    set_trust(world.tx, NODE, "tenant-controlled", "lease_1", "alice")
    with pytest.raises(Refused, match="tenant-controlled"):
        repairs.reboot(world.tx, NODE, "alice", "it hangs", force=True)


def test_a_diagnosis_is_a_run_too_and_no_failure_of_it_is_a_persons(world: World) -> None:
    run_id = repairs.diagnose(world.tx, NODE, "diag.dcgm", {"level": 1}, "alice", "")
    world.step()
    assert (world.sent()[0].kind, world.sent()[0].payload) == ("diag.dcgm", {"level": 1})
    world.answers("failed", "NotInstalled")
    world.step()
    assert (world.run()["id"], world.run()["state"], world.node()["status"]) == (run_id, "failed", "adopted")
    repairs.diagnose(world.tx, NODE, "diag.nvml", {}, "alice", "")
    world.step()
    world.answers("succeeded", "", {"passed": False})
    world.step()
    assert (world.run()["state"], world.run()["reason"]) == ("succeeded", "the diagnosis found what is wrong")


def test_an_ordered_run_that_the_node_refuses_takes_no_sound_node_out_of_service(world: World) -> None:
    repairs.reboot(world.tx, NODE, "alice", "")
    world.step()
    world.answers("refused", "NotAllowed")
    world.step()
    assert (world.run()["state"], world.node()["status"]) == ("failed", "adopted")


def test_an_ordered_run_that_never_reached_the_node_takes_no_sound_node_out_of_service(world: World) -> None:
    repairs.reboot(world.tx, NODE, "alice", "")
    world.step()
    world.later(minutes=30)
    world.step()
    assert (world.run()["state"], world.node()["status"]) == ("failed", "adopted")


def test_a_cancelled_repair_leaves_its_open_fault_to_a_person(world: World) -> None:
    world.reports(OFF)
    repairs.cancel(world.tx, world.run()["id"], "alice", "I look")
    assert (world.run()["state"], world.run()["reason"]) == ("cancelled", "cancelled by alice: I look")
    assert (world.node()["status"], world.told()) == ("maintenance", ["queued", "escalated"])
    with pytest.raises(Refused, match="has ended"):
        repairs.cancel(world.tx, world.run()["id"], "alice")
    with pytest.raises(NotFound):
        repairs.cancel(world.tx, "run_none", "alice")


def test_a_repair_that_is_cancelled_under_way_leaves_the_node_to_a_person_for_it_may_still_reboot(world: World) -> None:
    run_id = repairs.reboot(world.tx, NODE, "alice", "")
    world.step()
    assert len(world.sent()) == 1
    repairs.cancel(world.tx, run_id, "bob")
    assert (world.run()["state"], world.node()["status"], world.bookable()) == ("cancelled", "maintenance", [])
    assert world.told() == ["queued", "started", "escalated"]


def test_an_ordered_run_without_a_fault_is_cancelled_without_consequence(world: World) -> None:
    run_id = repairs.reboot(world.tx, NODE, "alice", "")
    repairs.cancel(world.tx, run_id, "bob")
    assert (world.run()["state"], world.node()["status"]) == ("cancelled", "adopted")
