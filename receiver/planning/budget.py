"""The disruption budget of a pool (SPEC B8): how many disruptions of it may be open at once, whoever disrupts. Pure."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Load:
    """A pool as a whole, as it is now (read by receiver/store/pool_load.py).

    `in_service`: nodes that are adopted; `disrupted`: open rows of `disruptions`, of workflows and rollouts too; `turned`:
    distinct nodes that turned unhealthy within the breaker's window; `unhealthy`: nodes in service that are so now; `paused`:
    the breaker has tripped; `maintenance`: a person has the whole pool.
    """

    in_service: int = 0
    disrupted: int = 0
    turned: int = 0
    unhealthy: int = 0
    paused: bool = False
    maintenance: bool = False


def limit(budget: str | int, in_service: int) -> int:
    """How many disruptions may be open: a number as it is; a percentage of the nodes in service, rounded down, at least one.

    >>> limit("5%", 100), limit("5%", 7), limit("0%", 100), limit(3, 100)
    (5, 1, 0, 3)
    """
    if isinstance(budget, int):
        return budget
    share = Fraction(budget.removesuffix("%")) / 100
    return max(1, int(share * in_service)) if share else 0


def full(budget: str | int, load: Load) -> str | None:
    """Why no further disruption may begin, in words; None: one may."""
    most = limit(budget, load.in_service)
    if load.disrupted < most:
        return None
    if most == 0:
        return f"the pool's disruption budget is {budget}"
    return f"{load.disrupted} of at most {most} disruptions are open (budget {budget} of {load.in_service} nodes in service)"
