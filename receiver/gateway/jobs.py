"""What a stream has done in the database: each job is one transaction, in a bounded pool of threads."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import psycopg
from psycopg_pool import PoolTimeout

from receiver.apply import command, inventory, session, status, telemetry
from receiver.gateway import messages as m
from receiver.gateway import work
from receiver.gateway.registry import BARRED, Registry, Stream, superseded
from receiver.gateway.telemetry import Telemetry
from receiver.measures import Measures
from receiver.planning.pressure import Levels
from receiver.planning.telemetry import Standing
from receiver.store.database import NO_ANSWER, Connection, Pool, transact
from receiver.values import STATUS_HANDLERS, Command, Event, HelloFacts, SessionStart

T = TypeVar("T")
_Beginning = tuple[SessionStart, Mapping[str, Standing], Sequence[Command]]
PATIENT = 10.0  # seconds for a connection
IMPATIENT = 0.1  # and while there was none the last time: streams must not wait in a queue behind each other
WARN_EVERY = 30.0  # seconds

LOG = logging.getLogger("receiver.gateway")


class Jobs:
    """The one way from a stream to the database.

    `tenant`: of nodes that are not known yet; `handlers`: of status reports; `levels`: of pressure.
    """

    def __init__(
        self,
        pool: Pool,
        threads: Executor,
        registry: Registry,
        tenant: str,
        receiver_id: str,
        handlers: Collection[str] = STATUS_HANDLERS,
        levels: Levels | None = None,
        measures: Measures | None = None,
    ) -> None:
        self.pool = pool
        self.threads = threads
        self.registry = registry
        self.tenant = tenant
        self.receiver_id = receiver_id
        self.handlers = handlers
        self.levels = (levels or Levels()) if "pressure" in handlers else None
        self.measures = measures or Measures()
        self.under_way = 0  # transactions: those that wait for a thread or a connection too
        self.away = False  # there was no connection the last time
        self.failures, self.warned = 0, -WARN_EVERY

    async def do(self, stream: Stream, job: work.Job) -> object | None:
        """Does a job; the event that answers it, or None. What the database refuses is the event Failed."""
        began = self.registry.now()
        try:
            event: object | None = await JOBS[type(job)](self, stream, job)
        except NO_ANSWER as error:
            wait = work.RETRY * (1 + self.registry.jitter())  # not everybody at once
            return work.Failed(job, f"the database does not answer: {_line(error)}", True, wait)
        except psycopg.DataError as error:  # the wire has values that Postgres has not
            return work.Failed(job, f"not storable: {_line(error)}", ours=False)
        finally:
            self.measures.jobs.labels(NAMES[type(job)]).observe(self.registry.now() - began)
        return event

    async def transaction(self, do: Callable[[Connection], T]) -> T:
        """Runs `do` in a transaction, in a thread; again where it loses a race."""
        self.under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, self._within, do)
        finally:
            self.under_way -= 1

    def _within(self, do: Callable[[Connection], T]) -> T:
        try:
            answer = transact(self.pool, do, IMPATIENT if self.away else PATIENT)
        except NO_ANSWER as error:
            self.away = isinstance(error, PoolTimeout)
            self._warn(error)
            raise
        if self.away:
            LOG.info("the database answers again")
        self.away = False
        return answer

    def _warn(self, error: Exception) -> None:
        """Not once for each stream."""
        self.failures += 1
        if (now := self.registry.now()) - self.warned >= WARN_EVERY:
            LOG.warning("the database does not answer", extra={"reason": _line(error), "times": self.failures})
            self.failures, self.warned = 0, now

    def _facts(self, stream: Stream, hello: m.Hello) -> HelloFacts:
        return HelloFacts(
            hello.protocol_version,
            hello.daemon_version,
            hello.boot_id,
            hello.instance_id,
            hello.previous_epoch,
            hello.drivers,
            hello.capabilities,
            self.tenant,
            self.receiver_id,
            stream.certificate,
            hello.previous_instance_id,
        )

    async def begin(self, stream: Stream, job: work.Begin) -> work.Begun | work.Leave:
        """Takes the next epoch, and what is due with it; an older stream of the node ends. One that may have no session is sent
        away."""
        facts, node_id = self._facts(stream, job.hello), stream.node_id

        def begin(tx: Connection) -> _Beginning:
            start = session.hello(tx, node_id, facts)
            return start, telemetry.standing(tx, node_id), () if start.quarantined else command.due(tx, node_id, start.epoch, ())

        beginning = asyncio.ensure_future(self.transaction(begin))
        try:
            start, standing, due = await asyncio.shield(beginning)
        except session.Revoked as error:
            return work.Leave(self.registry.bar(stream, str(error)))
        except asyncio.CancelledError:
            beginning.add_done_callback(lambda done: self._abandoned(stream, done))
            raise
        if start.quarantined:
            return work.Leave(self.registry.bar(stream, BARRED[session.REVOKED]))
        stream.telemetry = Telemetry.begin(self.levels, standing, facts.boot_id)
        self.registry.begun(stream, start.epoch, start.plan_rev)
        return work.Begun(start, self._sent(stream, due))

    def _abandoned(self, stream: Stream, beginning: "asyncio.Future[_Beginning]") -> None:
        """The peer hung up while its epoch was committed: nobody has that session."""
        if not beginning.cancelled() and beginning.exception() is None:
            self.registry.gone.append((stream.node_id, beginning.result()[0].epoch, "lost"))

    async def rewrite(self, stream: Stream, job: work.Rewrite) -> None:
        """Writes drivers and capabilities that changed."""
        facts = self._facts(stream, job.hello)
        await self.transaction(lambda tx: session.hello_again(tx, stream.node_id, stream.epoch, facts))

    def is_news(self, stream: Stream, report: m.Report) -> bool:
        """Notes the node as seen, and what its telemetry came to. False: nothing of the report is to be recorded."""
        self.registry.seen[stream.node_id] = stream.epoch
        stream.telemetry.follow(report.pressure, report.offset)
        return stream.is_news(report.status)

    async def judge(self, stream: Stream, job: work.Judge) -> None:
        """Records a report when it is news, and what telemetry came to with it when that is."""
        plan_rev, node_id, epoch = stream.plan_rev, stream.node_id, stream.epoch
        concluded, news = stream.telemetry.concluded, stream.judged != (job.status, plan_rev)
        changed = stream.judged is not None and stream.judged[0] != job.status
        told: list[Event] = []

        def record(tx: Connection) -> bool:
            told.clear()  # of a try that lost a race
            return (
                not news or status.record_status(tx, node_id, epoch, job.status, self.handlers, tell=told.extend, changed=changed)
            ) and (not concluded or telemetry.record_host_pressure(tx, node_id, concluded, epoch))

        if await self.transaction(record):
            self.registry.told(stream, told)
            stream.judged = (job.status, plan_rev)
            stream.telemetry.record(concluded)
        else:
            stream.tell(superseded(None))

    async def find_wanted(self, stream: Stream, job: work.FindWanted) -> work.Wanted:
        """Asks which sections' bytes the node's tenant has not sent."""
        names = await self.transaction(lambda tx: inventory.wanted(tx, stream.node_id, job.offer))
        return work.Wanted(job.offer, tuple(names))

    async def apply(self, stream: Stream, job: work.Apply) -> work.Ended | None:
        """Applies an offer, unless another session has the node by now: that one has offered what is newer."""
        try:
            return work.Ended(
                await self.transaction(
                    lambda tx: inventory.apply_inventory(tx, stream.node_id, job.offer, job.bodies, stream.epoch)
                )
            )
        except inventory.Superseded:
            stream.tell(superseded(None))
            return None

    async def find_commands(self, stream: Stream, job: work.FindCommands) -> work.Due:
        """Asks what is to be sent to this session, and notes it as sent."""
        found = await self.transaction(lambda tx: command.due(tx, stream.node_id, stream.epoch, sorted(stream.sent)))
        return work.Due(self._sent(stream, found))

    def _sent(self, stream: Stream, found: Sequence[Command]) -> tuple[Command, ...]:
        stream.sent.update(one.id for one in found)
        return tuple(found)

    async def store(self, stream: Stream, job: work.Store) -> work.Stored:
        """Stores how a command ended."""
        if not await self.transaction(lambda tx: command.record_result(tx, stream.node_id, job.result)):
            LOG.warning("result of an unknown command", extra={"node": stream.node_id, "command": job.result.id[:64]})
        stream.sent.discard(job.result.id)
        return work.Stored(job.result.id)

    async def look_for_commands(self) -> None:
        """Notifications may have been missed: has the streams look whose node has a command that they were not sent."""
        try:
            self.registry.outstanding(await self.transaction(lambda tx: command.outstanding(tx, self.receiver_id)))
        except NO_ANSWER:  # it is looked for again in a few seconds
            return

    def session_began(self, payload: str) -> None:
        """A notification of apply.session.CHANNEL: `<nodeId> <epoch>`, of whichever receiver."""
        node_id, _, epoch = payload.partition(" ")
        self.registry.taken(node_id, int(epoch))

    def session_disbelieved(self, payload: str) -> None:
        """A notification of apply.session.DISBELIEVED: `<nodeId> <epoch> <reason>`."""
        node_id, epoch, reason = payload.split(" ")
        self.registry.disbelieved(node_id, int(epoch), reason)

    async def look_up_epochs(self) -> None:
        """Ends the streams whose node has a newer session, that are not believed, or whose certificate is good no more.

        Notifications may have been missed, or come before the stream had its epoch; and of what expires there is none.
        """
        known = {node_id: stream.epoch for node_id, stream in self.registry.current.items()}
        try:
            over = await self.transaction(lambda tx: session.over(tx, known))
        except NO_ANSWER:  # it is looked up again in a few seconds
            return
        for one in over:
            if one.reason == session.SUPERSEDED:
                self.registry.taken(one.node_id, one.epoch)
            else:
                self.registry.disbelieved(one.node_id, one.epoch, one.reason)


JOBS: dict[type, Callable[[Jobs, Stream, Any], Any]] = {
    work.Begin: Jobs.begin,
    work.Rewrite: Jobs.rewrite,
    work.Judge: Jobs.judge,
    work.FindWanted: Jobs.find_wanted,
    work.Apply: Jobs.apply,
    work.FindCommands: Jobs.find_commands,
    work.Store: Jobs.store,
}
NAMES = {kind: run.__name__ for kind, run in JOBS.items()}  # of measures


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
