"""A fault is answered at once, or, where no notification comes, with the next look (figures: tests/bench/repairs.py)."""

import asyncio
from unittest.mock import patch

from tests.handing_over import measure, p99, without_notify
from tests.repetitions import times, within

NEVER = 10**9


def test_a_reboot_is_handed_over_at_once_by_notifications_alone(database: str) -> None:
    with patch("receiver.apply.repairs.EVERY", NEVER), patch("receiver.gateway.heartbeat.COMMANDS_EVERY", NEVER):
        seconds = asyncio.run(measure(database, times(200)))
    assert p99(seconds) < within(0.25), seconds


def test_a_reboot_is_handed_over_within_six_seconds_without_any_notification(database: str) -> None:
    with without_notify():
        seconds = asyncio.run(measure(database, times(100), spread=5.0))
    assert p99(seconds) < 6.0, seconds
    assert seconds[-1] > 0.5, "it was polled"
