"""Benchmarks: each figure beside a floor that is measured in the same run. Not timed tests: `make bench` prints one table.

One more costs a generator of Rows in a file here and its line in __main__.py.
"""

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
