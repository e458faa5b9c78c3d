"""Benchmarks: each figure beside a floor that is measured in the same run. Not timed tests: `make bench` prints one table.

One more costs a generator of Rows in a file here and its line in __main__.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `ratio` is figure / floor; `aim` bounds it from above, or from below where `at_least`. None: none."""

    what: str
    figure: float
    unit: str
    floor_name: str
    floor: float | None
    aim: float | None
    at_least: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """figure / floor."""
        return self.figure / self.floor if self.floor else None

    @property
    def verdict(self) -> str:
        """`met`, `missed`, or `-` where there is no floor or aim."""
        if self.ratio is None or self.aim is None:
            return "-"
        return "met" if (self.ratio >= self.aim if self.at_least else self.ratio <= self.aim) else "missed"


def percentile(values: Iterable[float], share: float) -> float:
    """The value that this share of them is at most; 0.0 of none.

    >>> percentile(range(1, 101), 0.5), percentile(range(1, 101), 0.99), percentile([3.0], 0.99)
    (51, 100, 3.0)
    """
    there = sorted(values)
    return there[min(len(there) - 1, int(share * len(there)))] if there else 0.0
