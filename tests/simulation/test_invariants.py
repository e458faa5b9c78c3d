"""The checker is checked: a story in which all is well has no violation, and each violation that is planted in it is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation import invariants
from tests.simulation.story import BUDGET, CALM, NODE, OTHER, POOL, Story, fleet, healed


def rules(story: Story) -> set[str]:
    """The rules that the checker sees broken."""
    return {one.rule for one in invariants.check(story.entries)}


def test_a_repair_that_went_well_breaks_no_rule_and_leaves_nothing_open() -> None:
    story = healed()
    assert invariants.check(story.entries) == []
    assert invariants.loose_ends(story.entries, POOL) == []


# ---- planted violations: each a story, and the rule that it breaks


def over_budget() -> Story:
    story = fleet()
    story.start()
    story.fault(node=OTHER, gpu="GPU-2")
    story.run("queued", "run_2", OTHER, causes=[], devices=["GPU-2"])
    story.start("run_2", OTHER)
    return story


def over_budget_with_a_workflow() -> Story:
    story = fleet()
    story.tell("disruptions", "dis_w", OTHER, pool_id=POOL, kind="workflow", owner="w", ended_at=None)
    story.start()
    return story


def over_a_budget_of_nothing() -> Story:
    story = fleet({"disruptionBudget": "0%", "breaker": {"minNodes": 3}})
    story.start()
    return story


def hit_a_booking() -> Story:
    story = fleet()
    story.book(gpu="GPU-9")
    story.start()
    return story


def booked_while_draining() -> Story:
    story = fleet()
    story.start()
    story.book(gpu="GPU-9")
    return story


def rebooted_with_a_booking() -> Story:
    story = booked_while_draining()
    story.effect()
    return story


def reset_of_a_booked_gpu() -> Story:
    story = fleet()
    story.run("queued", kind="gpu.reset")
    story.book()
    story.start()
    return story


def in_trust(**node: Any) -> Callable[[], Story]:
    def planted() -> Story:
        story = fleet()
        story.node(**node)
        story.start()
        return story

    return planted


def in_observe_mode() -> Story:
    story = fleet()
    story.pool(BUDGET, "observe")
    story.start()
    return story


def while_it_observes() -> Story:
    story = fleet()
    story.start(observed=True)
    return story


def while_paused() -> Story:
    story = fleet()
    story.tell("pool_stops", "remediation", "", pool_id=POOL, ended_at=None, confirmed_by=None)
    story.start()
    return story


def past_the_breaker() -> Story:
    story = fleet(CALM)
    story.fault(node=OTHER, gpu="GPU-2")
    story.start()
    return story


def rebooted_twice_for_one_fault() -> Story:
    story = healed()
    story.entries = story.entries[:-4]  # it does not succeed
    story.run("failed")
    story.run("queued", "run_2")
    story.start("run_2")
    story.tell("commands", "cmd_run_2", state="sent")
    story.tell("effects", "cmd_run_2", kind="node.reboot", boot_id="boot-2")
    return story


def effect_twice() -> Story:
    story = healed()
    story.tell("effects", "cmd_run_1", kind="node.reboot", boot_id="boot-2")
    return story


def effect_of_nobody() -> Story:
    story = healed()
    story.tell("effects", "cmd_9", kind="node.reboot", boot_id="boot-2")
    return story


def effect_before_it_was_sent() -> Story:
    story = fleet()
    story.start()
    story.tell("effects", "cmd_run_1", kind="node.reboot", boot_id="boot-1")
    return story


def two_reboots_at_once() -> Story:
    story = fleet()
    story.run("queued", "run_2", causes=[])
    return story


def two_resets_of_one_gpu() -> Story:
    story = Story()
    story.pool(BUDGET)
    story.node()
    story.run("queued", kind="gpu.reset", devices=["GPU-1", "GPU-2"])
    story.run("queued", "run_2", kind="gpu.reset", devices=["GPU-2"])
    return story


def back_from_the_end() -> Story:
    story = healed()
    story.run("waiting")
    return story


def skips_a_state() -> Story:
    story = fleet()
    story.run("succeeded", causes=[])
    return story


def acts_while_it_observes() -> Story:
    story = fleet()
    story.run("waiting", observed=True, command_id="cmd_1")
    return story


def sent_to_a_tenant() -> Story:
    story = fleet()
    story.start()
    story.node(trust="tenant-controlled")
    story.tell("commands", "cmd_run_1", state="sent")
    return story


def another_result() -> Story:
    story = healed()
    story.tell("commands", "cmd_run_1", state="failed")
    return story


def second_command() -> Story:
    story = healed()
    story.tell("commands", "cmd_8", kind="node.reboot", idempotency_key="remediation:run_1", state="queued")
    return story


def success_in_the_same_boot() -> Story:
    story = fleet()
    story.start()
    story.effect(boot="boot-1")
    story.succeed()
    return story


def success_with_a_fault() -> Story:
    story = fleet()
    story.start()
    story.effect()
    story.succeed(cleared=False)
    return story


def success_with_a_new_fault_of_its_gpu() -> Story:
    story = fleet()
    story.start()
    story.effect()
    story.fault(code="GpuLost", source="inventory", boot="")
    story.succeed()
    return story


def paused_twice() -> Story:
    story = healed()
    story.event("pool.remediation.paused")
    story.event("pool.remediation.paused")
    return story


def untold() -> Story:
    story = healed()
    story.entries = [one for one in story.entries if one.key != "node.remediation.started"]
    story.run("queued", "run_2")
    story.entries.pop()
    return story


PLANTED: list[tuple[Callable[[], Story], str]] = [
    (over_budget, "within_budget"),
    (over_budget_with_a_workflow, "within_budget"),
    (over_a_budget_of_nothing, "within_budget"),
    (hit_a_booking, "nobody_is_hit"),
    (reset_of_a_booked_gpu, "nobody_is_hit"),
    (booked_while_draining, "nothing_slips_in"),
    (rebooted_with_a_booking, "effect_is_due"),
    (in_trust(trust="tenant-controlled"), "where_it_may"),
    (in_trust(status="maintenance"), "where_it_may"),
    (in_trust(status="retired"), "where_it_may"),
    (in_observe_mode, "where_it_may"),
    (while_it_observes, "where_it_may"),
    (while_paused, "where_it_may"),
    (past_the_breaker, "breaker_holds"),
    (rebooted_twice_for_one_fault, "one_reboot_a_fault"),
    (effect_twice, "effect_is_due"),
    (effect_of_nobody, "effect_is_due"),
    (effect_before_it_was_sent, "effect_is_due"),
    (two_reboots_at_once, "one_at_a_time"),
    (two_resets_of_one_gpu, "one_at_a_time"),
    (back_from_the_end, "run_goes_on"),
    (back_from_the_end, "run_stays_ended"),
    (skips_a_state, "run_goes_on"),
    (acts_while_it_observes, "run_stays_ended"),
    (sent_to_a_tenant, "sent_where_it_may"),
    (another_result, "command_ends_once"),
    (second_command, "command_ends_once"),
    (success_in_the_same_boot, "success_is_proven"),
    (success_with_a_fault, "success_is_proven"),
    (success_with_a_new_fault_of_its_gpu, "success_is_proven"),
    (paused_twice, "told_when_paused"),
    (untold, "told_as_it_was"),
]


@pytest.mark.parametrize(("planted", "rule"), PLANTED)
def test_finds_what_was_planted(planted: Callable[[], Story], rule: str) -> None:
    assert rule in rules(planted())


def test_every_rule_has_been_broken_once() -> None:
    listed = {rule.__name__ for rules_of in invariants.RULES.values() for rule in rules_of}
    assert {rule for _, rule in PLANTED} == {*listed, "success_is_proven", "told_as_it_was"}


def test_an_order_by_force_waits_for_nothing() -> None:
    story = fleet()
    story.book(gpu="GPU-9")
    story.tell("disruptions", "dis_w", OTHER, pool_id=POOL, kind="workflow", owner="w", ended_at=None)
    story.start(force=True, by="op")
    story.effect()
    assert rules(story) == set()


def test_a_fault_that_opens_again_may_have_another_reboot() -> None:
    story = healed()
    story.fault()
    story.run("queued", "run_2", boot_id="boot-2")
    story.start("run_2")
    story.effect("run_2", boot="boot-3")
    story.succeed("run_2")
    assert rules(story) == set()


def test_turns_that_are_over_and_those_that_a_person_knows_of_stop_nothing() -> None:
    story = fleet(CALM)
    story.fault(node=OTHER, gpu="GPU-2")
    late = replace(story.entries[-1], at=story.at)
    story.tell("pool_stops", "remediation", "", pool_id=POOL, ended_at=None, confirmed_by=None)
    story.tell("pool_stops", "remediation", "", ended_at="then", confirmed_by="op")
    story.start()
    assert rules(story) == set()
    waited = fleet(CALM)
    waited.at = late.at + invariants.WINDOW
    waited.start()
    assert rules(waited) == set()


def test_tells_what_is_left_at_the_end() -> None:
    story = fleet()
    story.start()
    story.tell("nodes", OTHER, OTHER, status="maintenance")
    left = invariants.loose_ends(story.entries, POOL)
    for part in (
        f"{OTHER} is maintenance",
        f"{NODE} has",
        f"{NODE} is draining",
        "run_1 of",
        "disruption dis_run_1",
        "cmd_run_1 of",
    ):
        assert any(one.startswith(part) for one in left), (part, left)
    story.event("node.remediation.escalated", OTHER)
    assert not any(one.startswith(OTHER) for one in invariants.loose_ends(story.entries, POOL))
