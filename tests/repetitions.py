"""How often a test repeats and how fast it must be: `make test` and what `make proof-*` does (which sets BC_PROOF=1)."""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

PROOF = os.environ.get("BC_PROOF") == "1"


def within(seconds: float) -> float:
    """`seconds` under `make proof-*`, else ten times that: `make test` runs beside others on a busy machine."""
    return seconds if PROOF else 10 * seconds


def times(full: int) -> int:
    """`full` under `make proof-*`, else a tenth of it, at least 1."""
    return full if PROOF else max(1, full // 10)


def some(cases: Sequence[T]) -> Sequence[T]:
    """All of them under `make proof-*`, else every tenth, beginning with the first."""
    return cases if PROOF else cases[::10]
