"""The task that plans nodes again (receiver/apply/replan.py). Every receiver has it, and one at a time does the work."""

import asyncio
import itertools
from collections.abc import Callable

from receiver.apply import replan
from receiver.gateway.jobs import Jobs
from receiver.store.database import NO_ANSWER, Connection

EVERY = 1.0
MISSED_EVERY = 10  # rounds
OUTDATED_EVERY = 300  # rounds: nodes that a receiver of an older version, or on a dry run, has planned meanwhile


async def replan_forever(jobs: Jobs) -> None:
    """Until it is cancelled. A database that does not answer is asked again in the next round."""
    for number in itertools.count():
        await once(jobs, number)
        await asyncio.sleep(EVERY)


async def once(jobs: Jobs, number: int) -> None:
    """A round: plans what is queued, batch after batch."""
    if number % OUTDATED_EVERY == 0:
        await _within(jobs, replan.queue_outdated)
        await _within(jobs, replan.queue_observed)
    if number % MISSED_EVERY == 0:
        await _within(jobs, replan.queue_missed)
    while await _within(jobs, replan.drain) >= replan.BATCH:
        pass


async def _within(jobs: Jobs, work: Callable[[Connection], int]) -> int:
    try:
        return await jobs.transaction(work)
    except NO_ANSWER:
        return 0
