from dataclasses import replace

import pytest

from receiver.events import event
from receiver.planning.modes import barred, hush, in_maintenance, observing
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


@pytest.mark.parametrize(
    ("before", "after", "pool", "marked"),
    [
        ("adopted", "adopted", False, False),
        ("maintenance", "maintenance", False, True),
        ("adopted", "adopted", True, True),
        ("adopted", "maintenance", False, False),  # what gave the node to a person is for them to know
        ("maintenance", "adopting", False, False),
    ],
)
def test_what_is_told_while_maintenance_lasts_is_marked(before: str, after: str, pool: bool, marked: bool) -> None:
    facts = replace(FACTS, pool=Pool("pool_1", maintenance=pool))
    draft = Draft(node=replace(ADOPTED, status=after), events=[event("node.gpu.lost", {"deviceId": "GPU-1"})])
    hush(facts, Draft(node=replace(ADOPTED, status=before)), draft)
    assert draft.events[0].payload == {"deviceId": "GPU-1", "schemaVersion": 1, **({"maintenance": True} if marked else {})}
