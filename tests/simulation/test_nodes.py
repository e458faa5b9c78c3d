"""What becomes of single nodes, over hours of the fleet's time, and of a fleet that had no receiver for a while."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from receiver.store import database as db
from receiver.store.embedded import EmbeddedPostgres
from tests.simulation import invariants
from tests.simulation.fleet import Fleet
from tests.simulation.log import Entry
from tests.simulation.machine import DEAD, FALLEN, STUCK, WORN, Machine
from tests.simulation.test_fleet import of

LOOSE: dict[str, Any] = {"disruptionBudget": 100, "breaker": {"minNodes": 100}}  # a pool in which each node is on its own
IDLE = "SELECT NOT EXISTS (SELECT FROM remediation_runs WHERE node_id = %s AND ended_at IS NULL)"
SUCCEEDED = "node.remediation.succeeded"


@dataclass(frozen=True, slots=True)
class Lives:
    """What was witnessed, and which node was whose."""

    log: Sequence[Entry]
    nodes: dict[str, str]

    def told(self, name: str, *kinds: str) -> list[str]:
        """The last words of the types of the node's events, in order: of those that begin so."""
        mine = [one.key for one in self.log if one.what == "events" and one.node == self.nodes[name]]
        return [one.rpartition(".")[2] for one in mine if one.startswith(kinds or ("node.remediation.",))]

    def effects(self, name: str) -> list[str]:
        """What happened to the machine."""
        return [one.value["kind"] for one in self.log if one.what == "effects" and one.node == self.nodes[name]]

    def status(self, name: str) -> str:
        """What the node is at the end."""
        return str([one.value["status"] for one in self.log if one.what == "nodes" and one.node == self.nodes[name]][-1])

    def escalation(self, name: str) -> dict[str, Any]:
        """The payload of the one escalation of the node."""
        (one,) = [one for one in of(self.log, "node.remediation.escalated") if one.node == self.nodes[name]]
        return dict(one.value["payload"])


NAMES = ("gone", "relapsing", "by_itself", "stuck", "worn", "well")


@pytest.fixture(scope="module")
def lives(server: EmbeddedPostgres) -> Iterator[Lives]:
    """Six nodes over eight hours."""
    name = f"lives_{os.getpid()}"
    db.create_database(server.url(), name, template="template_bc")
    yield asyncio.run(_live(server.url(name)))
    with db.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


async def _live(database: str) -> Lives:
    async with Fleet(database) as fleet:
        made = await fleet.pool("gpus", len(NAMES), **LOOSE)
        nodes = dict(zip(NAMES, made, strict=True))
        await fleet.until("adoption", lambda: fleet.one("SELECT count(*) FROM nodes WHERE status = 'adopted'") == len(NAMES))
        await nodes["gone"].fails(0, DEAD)
        await nodes["stuck"].fails(0, STUCK)
        await nodes["worn"].fails(1, WORN)
        while fleet.book(100, 1e9):  # nothing is free
            pass
        await nodes["by_itself"].fails(0, FALLEN)
        await fleet.step()
        nodes["by_itself"].crash()
        await fleet.until("proof", lambda: nodes["by_itself"].node_id in {one.node for one in of(fleet.log(), SUCCEEDED)})
        assert fleet.bookings
        fleet.bookings = dict.fromkeys(fleet.bookings, fleet.now)
        for _ in range(4):
            await _for_two_hours(fleet, nodes["relapsing"])
        return Lives(fleet.log(), {name: one.node_id for name, one in nodes.items()})


async def _for_two_hours(fleet: Fleet, relapsing: Machine) -> None:
    """It faults at their beginning."""
    end = fleet.now + timedelta(hours=2)
    await relapsing.fails(2, FALLEN)
    await fleet.step()
    await fleet.until("the end of its run", lambda: fleet.one(IDLE, relapsing.node_id), 100.0)
    await fleet.step((end - fleet.now).total_seconds())


def test_nothing_happened_that_must_not(lives: Lives) -> None:
    assert [str(one) for one in invariants.check(lives.log)] == []
    assert lives.told("well") == lives.effects("well") == []


def test_a_reboot_after_which_the_gpu_is_still_gone_is_no_success(lives: Lives) -> None:
    assert lives.effects("gone") == ["node.reboot"]
    assert lives.told("gone") == ["queued", "started", "failed", "escalated"]
    assert lives.status("gone") == "maintenance"
    payload = lives.escalation("gone")
    assert "GpuLost" in str(payload["reason"])
    assert payload["evidence"]


def test_a_node_that_faults_every_two_hours_is_escalated_at_the_fourth_run(lives: Lives) -> None:
    assert lives.effects("relapsing") == 3 * ["node.reboot"]
    assert lives.told("relapsing") == [*3 * ["queued", "started", "succeeded"], "queued", "escalated"]
    assert lives.status("relapsing") == "maintenance"
    payload = lives.escalation("relapsing")
    assert len(payload["runs"]) == 4
    assert "more than 3 runs" in str(payload["reason"])


def test_a_node_that_has_booted_by_itself_is_not_rebooted_and_its_bookings_stay(lives: Lives) -> None:
    assert lives.effects("by_itself") == []
    assert lives.told("by_itself") == ["queued", "succeeded"]
    assert lives.status("by_itself") == "adopted"


def test_a_reset_that_helps_leaves_the_node_in_service_and_one_that_does_not_calls_a_person(lives: Lives) -> None:
    assert lives.effects("worn") == lives.effects("stuck") == ["gpu.reset"]
    assert lives.told("worn") == ["queued", "started", "succeeded"]
    assert lives.told("stuck") == ["queued", "started", "failed", "escalated"]
    assert (lives.status("worn"), lives.status("stuck")) == ("adopted", "maintenance")


def test_nodes_that_had_no_receiver_for_twenty_minutes_are_not_blamed(database: str) -> None:
    async def main() -> None:
        async with Fleet(database, hygiene_every="0.3s") as fleet:
            made = await fleet.pool("gpus", 10)
            await fleet.until("adoption", lambda: fleet.one("SELECT count(*) FROM nodes WHERE status = 'adopted'") == 10)
            await fleet.receivers.kill(0)
            made[0].silent = True
            for _ in range(20):
                fleet.clock.advance(60.0)
            await fleet.receivers.start(0)
            await fleet.steps(11, 50.0)
            assert blamed(fleet) == set(), "they had ten minutes to come back"
            await fleet.steps(2, 50.0)
            assert blamed(fleet) == {made[0].node_id}

    asyncio.run(main())


def blamed(fleet: Fleet) -> set[str]:
    """Nodes that are or were NotReporting."""
    told = of(fleet.log(), "node.condition.changed")
    return {one.node for one in told if one.value["payload"]["condition"] == "NotReporting"}
