"""Repairs of nodes that become a person's, a tenant's or nobody's while they wait or are under way (SPEC B8)."""

import pytest

from receiver.apply import command, nodes, pool_stops, repairs, replan
from receiver.apply.trust import set_trust
from tests.receiver.apply.repair_world import OFF, POOL, World, world
from tests.receiver.builders import NODE

__all__ = ["world"]


def maintain_node(world: World) -> None:
    nodes.maintenance(world.tx, NODE, by="alice", reason="mine")


def maintain_pool(world: World) -> None:
    pool_stops.begin_maintenance(world.tx, POOL, by="alice", reason="firmware")


@pytest.mark.parametrize("begin", [maintain_node, maintain_pool])
def test_a_repair_that_the_node_was_not_told_of_is_over_when_maintenance_begins(world: World, begin: object) -> None:
    world.reports(OFF)
    world.step()
    assert callable(begin)
    begin(world)
    assert world.sent() == [], "the command is not sent any more"
    world.step()
    assert (world.run()["state"], world.run()["reason"]) == ("cancelled", "the node is in maintenance")
    assert (world.disruptions()[0][1], world.node()["draining"], world.told()) == (False, False, ["queued", "started"])


def test_a_repair_that_the_node_was_told_of_is_finished_in_maintenance(world: World) -> None:
    world.reports(OFF)
    world.step()
    assert len(world.sent()) == 1
    maintain_node(world)
    world.answers_by_reboot()
    world.step()
    assert (world.runs(), world.node()["status"]) == ([("node.reboot", "succeeded")], "maintenance")


def test_a_forced_reboot_is_sent_in_maintenance(world: World) -> None:
    repairs.reboot(world.tx, NODE, by="alice", reason="hangs", force=True)
    world.step()
    maintain_node(world)
    assert (world.runs(), len(world.sent())) == ([("node.reboot", "running")], 1)


def test_what_waits_is_over_in_the_transaction_that_takes_the_node_out_of_service(world: World) -> None:
    world.books()
    world.reports(OFF)
    world.step()
    maintain_node(world)
    assert (world.runs(), world.run()["reason"]) == ([("node.reboot", "cancelled")], "the node is in maintenance")
    nodes.adopt(world.tx, NODE)
    assert world.runs() == [("node.reboot", "cancelled"), ("node.reboot", "queued")], "it is broken still"
    set_trust(world.tx, NODE, "tenant-controlled", "lease_1", "alice")
    assert (world.runs()[-1], world.run()["reason"]) == (("node.reboot", "cancelled"), "the node is tenant-controlled")


def test_a_node_that_is_retired_under_repair_has_no_run_left(world: World) -> None:
    world.reports(OFF)
    world.step()
    nodes.retire(world.tx, NODE, by="alice", reason="sold")
    assert (world.runs(), world.run()["reason"]) == ([("node.reboot", "cancelled")], "the node is retired")
    assert (world.disruptions()[0][1], world.node()["draining"], world.sent()) == (False, False, [])


def test_a_run_whose_node_is_moved_out_of_its_pool_is_over_unless_a_person_ordered_it(world: World) -> None:
    world.books()
    world.reports(OFF)
    world.step()
    nodes.move(world.tx, NODE, None)
    world.step()
    assert (world.runs(), world.run()["reason"]) == ([("node.reboot", "cancelled")], "the node is in no pool any more")
    repairs.reboot(world.tx, NODE, by="alice", reason="")
    world.ends()
    world.step()
    assert world.runs()[-1] == ("node.reboot", "running")


def test_a_node_takes_no_bookings_while_another_run_is_at_it(world: World) -> None:
    world.policy(mode="observe")
    repairs.reboot(world.tx, NODE, by="alice", reason="hangs", force=True)
    world.step()
    world.reports(OFF)
    world.step()
    assert world.runs() == [("node.reboot", "running"), ("node.reboot", "cancelled")], "the second was only observed"
    assert (world.node()["draining"], world.bookable()) == (True, [])


def test_a_command_that_is_given_again_is_told_once(world: World) -> None:
    world.reports(OFF)
    world.step()
    world.later(minutes=11)
    command.outstanding(world.tx, "")  # it expires
    world.step()
    assert [reason for _, reason in world.steps() if "again" in reason] == ["expired: NotSent: it is asked again"]


def test_a_node_that_proves_itself_in_a_paused_pool_is_repaired_once_it_goes_on(world: World) -> None:
    world.policy(acceptance=[{"kind": "diag.nvml"}])
    nodes.adopt(world.tx, NODE)
    world.tx.execute("INSERT INTO pool_stops (pool_id, tenant_id, kind) VALUES (%s, 'default', 'remediation')", [POOL])
    world.reports(OFF)
    assert (world.node()["status"], world.runs()) == ("adopting", [])
    pool_stops.resume(world.tx, POOL, by="alice")
    replan.drain(world.tx)
    assert world.runs() == [("node.reboot", "queued")]


def test_a_reboot_has_as_long_as_the_pools_policy_says(world: World) -> None:
    world.policy(remediation={"rebootTimeout": 3600})
    world.reports(OFF)
    world.step()
    assert len(world.sent()) == 1
    world.later(minutes=59)
    world.step()
    assert world.run()["state"] == "running"
    world.later(minutes=1)
    world.step()
    assert (world.run()["state"], world.run()["reason"]) == ("failed", "not done within 60 min")


def test_what_a_node_under_repair_tells_wakes_who_repairs_also_where_it_is_no_event(world: World) -> None:
    world.reports(OFF)
    world.step()
    world.faults.clear()
    world.connects("boot-2")
    world.tx.commit()
    world.tx.execute("LISTEN bc_remediation")
    world.collects()  # the same inventory, in another boot
    assert world.told("node.inventory.") == ["changed"], "no other than its first"
    world.tx.commit()
    assert [note.payload for note in world.tx.notifies(timeout=5, stop_after=1)] == [NODE]
