from dataclasses import replace

import pytest

from receiver.planning.modes import barred, in_maintenance, observing
from receiver.planning.view import Draft, Facts, Node, Pool
from tests.receiver.builders import NODE

FACTS = Facts(NODE, pool=Pool("pool_1"))
ADOPTED = Node(status="adopted", pool_id="pool_1")


def test_a_node_in_service_may_be_repaired() -> None:
    assert barred(FACTS, Draft(node=ADOPTED)) is None
    assert barred(replace(FACTS, pool=None), Draft(node=replace(ADOPTED, pool_id=None))) is None


@pytest.mark.parametrize(
    ("facts", "node", "why"),
    [
        (replace(FACTS, advisory=True), ADOPTED, "the node is tenant-controlled"),
        (FACTS, replace(ADOPTED, trust="tenant-controlled"), "the node is tenant-controlled"),
        (FACTS, replace(ADOPTED, status="maintenance"), "the node is in maintenance"),
        (FACTS, replace(ADOPTED, status="retired"), "the node is retired"),
        (replace(FACTS, pool=Pool("pool_1", maintenance=True)), ADOPTED, "the pool is in maintenance"),
        (
            replace(FACTS, pool=Pool("pool_1", paused=True)),
            ADOPTED,
            "repairs of the pool are paused: too many of its nodes turned unhealthy",
        ),
    ],
)
def test_a_tenants_node_maintenance_and_a_paused_pool_bar_repairs(facts: Facts, node: Node, why: str) -> None:
    assert barred(facts, Draft(node=node)) == why


def test_maintenance_is_the_nodes_or_its_pools() -> None:
    assert in_maintenance(FACTS, Draft(node=replace(ADOPTED, status="maintenance")))
    assert in_maintenance(replace(FACTS, pool=Pool("pool_1", maintenance=True)), Draft(node=ADOPTED))
    assert not in_maintenance(FACTS, Draft(node=ADOPTED))


def test_pools_that_observe_and_receivers_on_a_dry_run_only_observe() -> None:
    assert observing(replace(FACTS, pool=Pool("pool_1", mode="observe")))
    assert observing(replace(FACTS, dry_run=True))
    assert not observing(FACTS)
