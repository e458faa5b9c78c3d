"""How long bcd waits between two sessions. Pure."""

from collections.abc import Mapping

from agent.session import messages as m

# SessionEnd's reason -> the bounds of the wait, in seconds.
RECONNECT: Mapping[str, tuple[float, float]] = {
    "superseded": (30.0, 60.0),  # B1: so that two copies of a node show as alternation, not as a storm
    "revoked": (300.0, 600.0),  # until a person lets the node join again
    "protocol-unsupported": (1800.0, 3600.0),  # until one side is upgraded
    "bad-message": (30.0, 60.0),  # our bug: not to be repeated in a loop
    "overloaded": (5.0, 30.0),
    "draining": (0.1, 2.0),  # another receiver is there
}
BACKOFF_FIRST, BACKOFF_LAST = 0.5, 30.0


def delay(end: m.SessionEnd | None, failures: int, jitter: float) -> float:
    """Seconds until the next attempt. `failures`: sessions in a row that came to nothing. `jitter` in [0, 1)."""
    if end is not None and end.reason in RECONNECT:
        low, high = RECONNECT[end.reason]
    else:
        high = min(BACKOFF_LAST, BACKOFF_FIRST * 2.0 ** min(failures, 16))
        low = high / 2
    wait = low + (high - low) * jitter
    if end is not None and end.retry_after is not None:
        wait = max(wait, end.retry_after * (1 + jitter / 2))
    return wait
