"""Once a second: all nodes that were seen are written together, and the sessions that ended (decision 8).

Every few beats the streams are told of commands that they were not sent, and end where they are over, whatever became of the
notification.
"""

import asyncio

from receiver.apply import session, status
from receiver.gateway.jobs import Jobs
from receiver.gateway.registry import Registry
from receiver.store.database import NO_ANSWER, Connection

EVERY = 1.0
FORGET_EVERY = 600  # beats
COMMANDS_EVERY = 2  # beats: how late a command may be whose notification was missed
SESSIONS_EVERY = 5  # and the end of a stream that is over; one whose certificate expires ends so late


async def beat_forever(registry: Registry, jobs: Jobs) -> None:
    """Until it is cancelled. A database that does not answer is asked again with the next beat; nothing is lost."""
    beats = 0
    while True:
        await asyncio.sleep(EVERY)
        await beat(registry, jobs)
        beats += 1
        if beats % COMMANDS_EVERY == 0:
            await jobs.look_for_commands()
        if beats % SESSIONS_EVERY == 0:
            await jobs.look_up_epochs()
        if beats % FORGET_EVERY == 0:
            registry.forget()


async def beat(registry: Registry, jobs: Jobs) -> None:
    """Writes what has gathered, if anything has."""
    seen, gone = registry.seen, registry.gone
    registry.seen, registry.gone = {}, []
    if not seen and not gone:
        return

    def write(tx: Connection) -> dict[str, int]:
        session.end_sessions(tx, gone)
        return status.touch(tx, sorted(seen.items()))

    try:
        plan_revs = await jobs.transaction(write)
    except NO_ANSWER:
        registry.seen = {**seen, **registry.seen}
        registry.gone[:0] = gone
        return
    registry.touched(plan_revs)
    for node_id in seen.keys() - plan_revs.keys():  # its row is locked at the moment, or another session has it
        if node_id in registry.current:
            registry.seen.setdefault(node_id, seen[node_id])
