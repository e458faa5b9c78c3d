"""What follows from the endpoint's answer to a batch of events (SPEC B10). Pure.

Events are sent in their order, a batch at a time; nothing behind a batch is sent before it is done with. An answer is about the
endpoint (it is away, busy, moved, or does not know our secret): the same is sent again, ever later, for ever. Or it is about the
content (the other 4xx): the batch is halved until the event that is the cause is alone, and that one, refused TRIES times
over some minutes, is skipped and counted: it stays in `events.list`, and the rest of the world is told on.
"""

from dataclasses import dataclass
from typing import Literal

BATCH = 100  # events that are sent together at most
TRIES = 8  # times that an event may be refused
FIRST, LONGEST = 1.0, 300.0  # seconds between two tries
PATIENCE = 3600.0  # seconds that an endpoint may have us wait (Retry-After)

# Statuses of the 4xx that are about the endpoint, or about us: mended there, with nothing lost.
_ENDPOINT = frozenset({401, 403, 404, 405, 407, 408, 410, 421, 425, 429})

Verdict = Literal["delivered", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How it goes: `size` of the next batch, `failures` in a row, and how often its only event was refused."""

    size: int = BATCH
    failures: int = 0
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What follows: go on behind the batch (`done`), which was one event that is given up (`skip`), or wait `delay` seconds."""

    progress: Progress
    done: bool = False
    skip: bool = False
    delay: float = 0.0


def verdict(status: int) -> Verdict:
    """What an HTTP status says.

    >>> verdict(204), verdict(422), verdict(401), verdict(503), verdict(302)
    ('delivered', 'refused', 'failed', 'failed', 'failed')
    """
    if 200 <= status < 300:
        return "delivered"
    return "refused" if 400 <= status < 500 and status not in _ENDPOINT else "failed"


def after(now: Progress, sent: int, said: Verdict, chance: float, retry_after: float = 0.0) -> Step:
    """What follows from `said` about `sent` events. `chance` is in [0, 1); `retry_after`: seconds that the endpoint asks for."""
    if said == "delivered":
        return Step(Progress(min(BATCH, now.size * 2)), done=True)
    if said == "refused" and sent > 1:
        return Step(Progress(sent // 2))
    refusals = now.refusals + (said == "refused")
    if refusals >= TRIES:
        return Step(Progress(1), done=True, skip=True)
    delay = min(LONGEST, FIRST * 2.0 ** min(now.failures, 16)) * (0.5 + chance / 2)
    return Step(Progress(now.size, now.failures + 1, refusals), delay=max(delay, min(PATIENCE, retry_after)))
