"""The wait between two sessions keeps to its bounds."""

import pytest

from agent.session import messages as m
from agent.session.reconnect import delay


@pytest.mark.parametrize(
    ("end", "failures", "low", "high"),
    [
        (None, 0, 0.25, 0.5),
        (None, 3, 2.0, 4.0),
        (None, 1000, 15.0, 30.0),
        (m.SessionEnd("unspecified"), 1, 0.5, 1.0),
        (m.SessionEnd("superseded"), 0, 30.0, 60.0),
        (m.SessionEnd("superseded", 1.0), 0, 30.0, 60.0),
        (m.SessionEnd("protocol-unsupported"), 0, 1800.0, 3600.0),
        (m.SessionEnd("overloaded", 20.0), 0, 20.0, 30.0),
        (m.SessionEnd("draining"), 0, 0.1, 2.0),
        (m.SessionEnd("draining", 8.0), 9, 8.0, 12.0),
    ],
)
def test_the_wait_keeps_to_its_bounds(end: m.SessionEnd | None, failures: int, low: float, high: float) -> None:
    assert delay(end, failures, 0.0) == pytest.approx(low)
    assert low <= delay(end, failures, 0.5) <= high
    assert delay(end, failures, 0.999999) == pytest.approx(high, rel=0.01)
