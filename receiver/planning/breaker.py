"""The breaker of a pool (SPEC B8): while many of its nodes turn unhealthy at once, the cause is hardly theirs: no repair begins.

A node turns unhealthy when it goes from nothing to an open fault or finding of a GPU, a fault of a switch, or a driver or fabric
that does not answer. The turns are rows, and `Node.unhealthy` is stored, so a restart forgets nothing. Pure.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction

from receiver.planning.budget import Load
from receiver.planning.faults import left_with_its_gpu
from receiver.planning.modes import in_maintenance
from receiver.planning.verdicts import is_switch
from receiver.planning.view import Draft, Facts

WINDOW = timedelta(minutes=10)
SHARE = Fraction(10, 100)  # of the nodes in service
SOME = 1  # so many unhealthy nodes never keep a pool paused
NODE_TYPES = ("FabricManagerDown", "NvmlUnavailable")  # conditions of a node that make it unhealthy


def settle(facts: Facts, before: Draft, draft: Draft) -> None:
    """Sets whether the node is unhealthy, and counts its turn, unless it is one that is expected or was out of service."""
    causes = sorted(set(_causes(facts, draft)))
    draft.node = replace(draft.node, unhealthy=bool(causes))
    if before.node.unhealthy or not causes or draft.node.pool_id is None or facts.disrupted or in_maintenance(facts, draft):
        return
    if before.node.status == draft.node.status == "adopted":
        draft.turns.append(", ".join(causes))


def _causes(facts: Facts, draft: Draft) -> Iterator[str]:
    for row in draft.health.values():
        if row.open and row.device_id not in facts.owners and not left_with_its_gpu(facts, draft, row):
            yield row.code
    for one in draft.conditions.values():
        if one.status == "true" and not one.advisory and (one.type in NODE_TYPES or is_switch(one.type)):
            yield one.type


def limit(min_nodes: int, in_service: int) -> int:
    """The most nodes that may turn unhealthy within the window.

    >>> limit(2, 100), limit(2, 5), limit(20, 100)
    (10, 1, 19)
    """
    return max(int(SHARE * in_service), min_nodes - 1)


def trips(min_nodes: int, load: Load) -> bool:
    """Whether the pool is to be paused: more nodes turned unhealthy than may."""
    return load.turned > limit(min_nodes, load.in_service)


def calm(min_nodes: int, load: Load) -> bool:
    """Whether a paused pool goes on by itself: few nodes turned unhealthy, and few are."""
    return not trips(min_nodes, load) and load.unhealthy <= max(SOME, int(SHARE * load.in_service))
