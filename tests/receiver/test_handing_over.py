"""A fault is answered at once, or, where no notification comes, with the next look (figures: tests/bench/repairs.py)."""

import asyncio
from unittest.mock import patch

from tests.handing_over import measure, without_notify

NEVER = 10**9


def test_a_reboot_reaches_the_session_by_notifications_alone(database: str) -> None:
    with patch("receiver.apply.repairs.EVERY", NEVER), patch("receiver.gateway.heartbeat.COMMANDS_EVERY", NEVER):
        seconds = asyncio.run(measure(database, 10))
    assert seconds[5] < 1.0, seconds  # 0.25 on a machine that does nothing else


def test_a_reboot_reaches_the_session_within_six_seconds_without_any_notification(database: str) -> None:
    with without_notify():
        seconds = asyncio.run(measure(database, 6, spread=3.0))
    assert seconds[-1] < 6.0, seconds
    assert seconds[-1] > 0.5, "it was polled"
