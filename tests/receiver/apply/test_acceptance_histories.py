"""Acceptance over random histories: reports, results, orders, leases and time in any order (SPEC B7)."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from receiver.apply import acceptance, command, nodes, trust
from receiver.apply.act import act
from receiver.apply.inventory import apply_inventory
from receiver.apply.replan import drain
from receiver.apply.session import end_sessions, hello
from receiver.apply.status import record_status
from receiver.errors import Refused
from receiver.store.database import Connection
from receiver.values import CommandResult, Status
from tests.receiver.builders import FACTS, NODE, OTHER, apply, gpu, gpus, host, join, offer
from tests.repetitions import times

STEPS = 30
BODIES = (host(), host(gpus=gpus(gpu(0), gpu(1), driver="550.90.07")), host(gpus=None), host(1), host(gpus=gpus(gpu(0), gpu(5))))
ONE, TWO = '{"acceptance": [{"kind": "diag.nvml"}]}', '{"acceptance": [{"kind": "diag.nvml"}, {"kind": "diag.dcgm"}]}'
POLICIES = ("{}", ONE, ONE, ONE, TWO)
RESULTS = (
    *(("succeeded", {"passed": True}) for _ in range(4)), ("succeeded", {"passed": False}), ("refused", None), ("expired", None),
)  # fmt: skip

# What must never be so, whatever has happened: rows of each of these.
NEVER = {
    "a running attempt that is not the node's present one, or that it does not stand for": """
        SELECT FROM acceptance_attempts a JOIN nodes n ON n.id = a.node_id WHERE a.state = 'running'
          AND (a.attempt <> n.attempt OR n.status <> 'adopting' OR n.trust <> 'platform')""",
    "AcceptanceFailed unknown without an attempt that runs, or one that runs without it": """
        SELECT FROM nodes n WHERE EXISTS (SELECT FROM acceptance_attempts a WHERE a.node_id = n.id AND a.state = 'running')
          <> EXISTS (SELECT FROM conditions c WHERE (c.node_id, c.type, c.status) = (n.id, 'AcceptanceFailed', 'unknown'))""",
    "a command that nobody waits for": """
        SELECT FROM commands c WHERE c.finished_at IS NULL AND NOT EXISTS (
          SELECT FROM acceptance_attempts a
          WHERE a.state = 'running' AND a.checks @> jsonb_build_array(jsonb_build_object('commandId', c.id)))""",
    "a node in service whose attempt did not pass": """
        SELECT FROM nodes n WHERE n.status = 'adopted' AND NOT EXISTS (
          SELECT FROM acceptance_attempts a WHERE (a.node_id, a.attempt, a.state) = (n.id, n.attempt, 'passed'))""",
    "a node that failed without the reason not to place on it": """
        SELECT FROM acceptance_attempts a JOIN nodes n ON (n.id, n.attempt) = (a.node_id, a.attempt)
        WHERE a.state = 'failed' AND n.status = 'adopting' AND NOT n.no_schedule_reasons @> '[{"type": "AcceptanceFailed"}]'""",
    "an attempt that passed with a check that did not": """
        SELECT FROM acceptance_attempts a, jsonb_array_elements(a.checks) AS k
        WHERE a.state = 'passed' AND k ->> 'status' <> 'succeeded'""",
    "an attempt and what is told of it": """
        SELECT FROM acceptance_attempts a LEFT JOIN LATERAL (
          SELECT count(*) FILTER (WHERE e.type = 'node.adopted') AS passed,
            count(*) FILTER (WHERE e.type = 'node.acceptance.failed') AS failed
          FROM events e WHERE e.node_id = a.node_id AND (e.payload -> 'attempt')::bigint = a.attempt) AS told ON true
        WHERE (told.passed, told.failed) <> ((a.state = 'passed')::int, (a.state = 'failed')::int)""",
    "an attempt with an end that it has not reached, or without": """
        SELECT FROM acceptance_attempts WHERE (state = 'running') = (ended_at IS NOT NULL)""",
}  # fmt: skip


class World:
    """A node of a pool with checks, and what may happen to it."""

    def __init__(self, tx: Connection, dice: random.Random) -> None:
        self.tx, self.dice, self.later = tx, dice, 0.0
        self.epoch, self.boot, self.digest = join(tx), "boot-1", ""
        tx.execute(
            "INSERT INTO pools (id, tenant_id, name, policy) VALUES ('pool_a', 'default', 'a', %s)", [dice.choice(POLICIES)]
        )
        tx.execute("UPDATE nodes SET pool_id = 'pool_a'")
        join(tx, OTHER)
        apply(tx, host(gpus=gpus(gpu(5))), OTHER)

    def connects(self) -> None:
        self.boot = self.dice.choice((self.boot, self.boot, self.boot, f"boot-{self.dice.randrange(9)}"))
        self.epoch = hello(self.tx, NODE, replace(FACTS, boot_id=self.boot, previous_epoch=self.epoch)).epoch

    def is_lost(self) -> None:
        end_sessions(self.tx, [(NODE, self.epoch, "lost")])

    def offers(self) -> None:
        bodies = self.dice.choice(BODIES)
        self.digest = offer(bodies).digest
        apply_inventory(self.tx, NODE, replace(offer(bodies), boot_id=self.boot), bodies, self.epoch)

    def reports(self) -> None:
        record_status(self.tx, NODE, self.epoch, Status(self.digest))

    def answers(self) -> None:
        """The node says how one of its commands ended, perhaps again."""
        command.due(self.tx, NODE, self.epoch, [])
        rows = self.tx.execute("SELECT id FROM commands WHERE state <> 'queued' ORDER BY id DESC LIMIT 3").fetchall()
        if rows:
            status, payload = self.dice.choice(RESULTS)
            command.record_result(self.tx, NODE, CommandResult(self.dice.choice(rows)[0], status, "", payload))

    def is_ordered(self) -> None:
        order = self.dice.choice((nodes.adopt, nodes.adopt, nodes.maintenance))
        order(self.tx, NODE)

    def is_leased(self) -> None:
        row = self.tx.execute("SELECT trust FROM nodes WHERE id = %s", [NODE]).fetchone()
        trust.set_trust(self.tx, NODE, *(("platform",) if row == ("tenant-controlled",) else ("tenant-controlled", "lease-1")))

    def has_another_policy(self) -> None:
        self.tx.execute("UPDATE pools SET policy = %s", [self.dice.choice(POLICIES)])

    def waits(self) -> None:
        self.later += self.dice.choice((1.0, 300.0, 600.0, 900.0))
        self.tx.execute(
            "CREATE OR REPLACE FUNCTION bc_clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS "
            f"'SELECT now() + interval ''{self.later} seconds'''"
        )

    def is_swept(self) -> None:
        command.outstanding(self.tx, "")
        acceptance.sweep(lambda work: work(self.tx))
        drain(self.tx)


HAPPENS: tuple[tuple[Callable[[World], None], int], ...] = (
    (World.connects, 2), (World.is_lost, 1), (World.offers, 5), (World.reports, 3), (World.answers, 6), (World.is_ordered, 2),
    (World.is_leased, 1), (World.has_another_policy, 1), (World.waits, 2), (World.is_swept, 4),
)  # fmt: skip


def settled_again(tx: Connection) -> None:
    """Nothing comes of settling twice."""
    act(tx, NODE, lambda facts, draft: None, inventory_too=True)
    query = "SELECT (SELECT max(seq) FROM events), n.plan_rev, n.status FROM nodes n WHERE n.id = %s"
    once = tx.execute(query, [NODE]).fetchone()
    act(tx, NODE, lambda facts, draft: None, inventory_too=True)
    assert tx.execute(query, [NODE]).fetchone() == once


@pytest.mark.parametrize("seed", range(times(120)))
def test_whatever_happens_an_attempt_has_one_way_and_the_node_stands_where_it_led(tx: Connection, seed: int) -> None:
    world = World(tx, random.Random(seed))
    rules, weights = zip(*HAPPENS, strict=True)
    told: list[str] = []
    for rule in world.dice.choices(rules, weights, k=STEPS):
        told.append(rule.__name__)
        try:
            with tx.transaction():
                rule(world)
        except Refused:  # as its state does not allow it
            continue
        for what, query in NEVER.items():
            assert tx.execute(query.encode()).rowcount == 0, f"{what}: {told}"
    settled_again(tx)
