"""A fleet of which more than a tenth fails within a minute, and receivers that are killed meanwhile: what must never be
so never is.

`make test` has a hundred nodes and five kills; `make proof-lifecycle` a thousand, and fifty.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.repetitions import PROOF, times
from tests.simulation import invariants
from tests.simulation.fleet import Fleet
from tests.simulation.log import Entry
from tests.simulation.machine import DEAD, FALLEN, WORN, Ailment, Machine

NODES = 1000 if PROOF else 100
KILLS = times(50)
SUSPENDED = 3.0  # seconds: longer than a lease holds (receiver_process.py)
STEP = 60.0 if PROOF else 90.0  # seconds of the fleet's time
POLICY: dict[str, Any] = {"acceptance": [{"kind": "diag.nvml"}], "disruptionBudget": "3%"}
ADOPTED = "SELECT count(*) FROM nodes WHERE status = 'adopted' AND pool_id = (SELECT id FROM pools WHERE name = %s)"
AT_REST = """SELECT NOT EXISTS (SELECT FROM remediation_runs WHERE ended_at IS NULL)
  AND NOT EXISTS (SELECT FROM nodes n JOIN pools p ON p.id = n.pool_id AND p.mode = 'enforce' AND p.name = 'gpus'
    WHERE n.status = 'adopted' AND n.unhealthy)"""
# How GPUs fail, in turn: most fall off the bus, some wear, some are gone for good.
AILMENTS = (FALLEN, DEAD, FALLEN, WORN, *16 * (FALLEN,), WORN, *4 * (FALLEN,))


async def adopted(fleet: Fleet, name: str, count: int) -> None:
    """Back when all machines of the pool have passed their checks."""
    await fleet.until("adoption of all", lambda: fleet.one(ADOPTED, name) == count, 10.0)


async def fail(fleet: Fleet, machines: Sequence[Machine], within: float) -> dict[str, Ailment]:
    """One GPU of each machine fails within so many seconds; how, by node."""
    chosen = {one.node_id: ailment for one, ailment in zip(machines, itertools.cycle(AILMENTS), strict=False)}
    for part in range(6):
        for one in machines[part::6]:
            await one.fails(fleet.rng.randrange(one.gpu_count), chosen[one.node_id])
        await fleet.step(within / 6)
    return chosen


async def reboot_in_service(fleet: Fleet, machines: Sequence[Machine]) -> None:
    """A person has sound machines rebooted, while everybody wants to book what there is."""
    fleet.bookings = dict.fromkeys(fleet.bookings, fleet.now)
    fleet.demand = 0, 0.0
    await fleet.step(1.0)
    for one in machines:
        await fleet.api("nodes.reboot", nodeId=one.node_id, reason="a test")
    await fleet.step(1.0)  # nothing is in their way
    fleet.demand = 4 * NODES, 1e6
    await fleet.until("the reboots", lambda: fleet.one(AT_REST), STEP)
    fleet.demand = 0, 0.0


def of(log: Sequence[Entry], kind: str) -> list[Entry]:
    """The events of a type."""
    return [one for one in log if one.what == "events" and one.key == kind]


def assert_all_is_well(fleet: Fleet, log: Sequence[Entry], failed: dict[str, Ailment]) -> None:
    """No invariant was broken, and each node that failed is repaired or a person's: those whose GPU is gone for good are."""
    assert [str(one) for one in invariants.check(log)] == []
    pool = fleet.one("SELECT id FROM pools WHERE name = 'gpus'")
    assert invariants.loose_ends(log, pool) == []
    escalated = {one.node for one in of(log, "node.remediation.escalated")}
    repaired = {one.node for one in of(log, "node.remediation.succeeded")}
    dead = {node for node, ailment in failed.items() if ailment is DEAD}
    assert dead <= escalated
    assert failed.keys() <= repaired | escalated
    assert not dead & repaired
    assert dead, "nothing was gone for good"


def test_a_fleet_of_which_a_tenth_fails_at_once_is_paused_and_repaired_after(database: str) -> None:
    async def main() -> None:
        async with Fleet(database, hygiene_every="1s") as fleet:
            gpus = await fleet.pool("gpus", NODES, **POLICY)
            watched = await fleet.pool("watched", 4, "observe", disruptionBudget=4, breaker={"minNodes": 100})
            apart = await fleet.pool("apart", 4, disruptionBudget=4, breaker={"minNodes": 100})
            await adopted(fleet, "gpus", NODES)
            for leased in apart[:2]:
                await fleet.api(
                    "nodes.setTrust", nodeId=leased.node_id, trust="tenant-controlled", leaseId="lease_1", reason="a test"
                )
            for kept in apart[2:]:
                await fleet.api("nodes.maintenance", nodeId=kept.node_id, reason="a test")
            assert fleet.book(NODES, 900.0) > NODES // 2
            fleet.demand = NODES // 10, 900.0
            failed = await fail(fleet, gpus[: NODES * 12 // 100], 60.0)
            await fail(fleet, [*watched, *apart], 60.0)
            await fleet.until("pause", lambda: of(fleet.log(), "pool.remediation.paused"), 10.0, 300.0)
            before = Counter(one.what for one in fleet.log() if one.what == "effects")
            for _ in range(3):
                await fleet.step(60.0)
            assert fleet.one("SELECT count(*) FROM pool_stops WHERE kind = 'remediation' AND ended_at IS NULL") == 1
            await fleet.api(
                "pools.resumeRemediation", poolId=fleet.one("SELECT id FROM pools WHERE name = 'gpus'"), reason="a test"
            )
            await fleet.until("repair of all", lambda: fleet.one(AT_REST), STEP)
            await reboot_in_service(fleet, gpus[-2:])
            log = fleet.log()
            assert_all_is_well(fleet, log, failed | dict.fromkeys((one.node_id for one in gpus[-2:]), FALLEN))
            effects = [one.node for one in log if one.what == "effects"]
            assert len(effects) > before["effects"] + NODES // 20, "most repairs began after the pause"
            spared = {one.node_id for one in (*watched, *apart)}
            assert not spared & set(effects)
            assert {one.node for one in of(log, "node.remediation.queued")} <= failed.keys() | {one.node_id for one in gpus[-2:]}
            observed = fleet.rows("SELECT node_id FROM remediation_runs WHERE observed")
            assert {one["node_id"] for one in observed} == {one.node_id for one in watched}

    asyncio.run(main())


def test_receivers_that_are_killed_or_suspended_at_any_moment_do_nothing_twice(database: str) -> None:
    async def main() -> None:
        async with Fleet(database, receivers=2, hygiene_every="1s") as fleet:
            gpus = await fleet.pool("gpus", NODES, **POLICY)
            troubles = asyncio.create_task(trouble(fleet, random.Random(5)))
            fleet.tasks.append(troubles)
            failed: dict[str, Ailment] = {}
            try:
                await adopted(fleet, "gpus", NODES)
                fleet.book(NODES // 2, 600.0)
                fleet.demand = NODES // 20, 600.0
                size = NODES * 6 // 100  # a wave that the breaker lets pass
                while not troubles.done():
                    failed |= await fail(fleet, gpus[len(failed) : len(failed) + size], 60.0)
                    await fleet.until("repair of all", lambda: fleet.one(AT_REST), STEP)
                    await fleet.step(600.0)
            finally:
                troubles.cancel()
            await troubles
            log = fleet.log()
            assert_all_is_well(fleet, log, failed)
            assert Counter(one.key for one in log if one.what == "effects").most_common(1)[0][1] == 1
            assert of(log, "pool.remediation.paused") == []

    asyncio.run(main())


async def trouble(fleet: Fleet, rng: random.Random) -> None:
    """Kills one receiver or the other, now and then both, and starts it again; suspends one for longer than its leases hold.

    Mostly when the machines are back from the last time: a fleet that only connects has nothing to lose.
    """
    for number in range(KILLS):
        if rng.random() < 0.8:
            await fleet.wait_for("the machines to be back", lambda: fleet.connected() > 0.9)
        await asyncio.sleep(rng.uniform(0.1, 2.0))
        chosen = rng.choice(([0], [1], [0, 1]))
        await asyncio.gather(*(fleet.receivers.kill(one) for one in chosen))
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        await asyncio.gather(*(fleet.receivers.start(one) for one in chosen))
        if number % 5 == 0:
            await asyncio.sleep(rng.uniform(0.2, 1.0))
            await fleet.receivers.suspend(rng.choice((0, 1)), SUSPENDED)
