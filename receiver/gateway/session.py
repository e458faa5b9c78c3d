"""One stream: reads bcd's messages, hands them to the machine, says what it answers, does its jobs. Nothing is decided here."""

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import grpc
from bettercompute.agent.v1 import session_pb2 as pb

from receiver.callers import NoIdentity, caller
from receiver.gateway import codec
from receiver.gateway import messages as m
from receiver.gateway.identity import peer
from receiver.gateway.jobs import Jobs
from receiver.gateway.limits import OverLimit
from receiver.gateway.machine import Machine, Phase
from receiver.gateway.registry import Registry, Stream, draining
from receiver.gateway.work import Action, Bad, Begin, Leave

HELLO_SECONDS = 10.0  # a stream without a Hello by then is closed
PROMPT = 0.05  # seconds: a message that was waited for longer was not there before

LOG = logging.getLogger("receiver.gateway")
Context = grpc.aio.ServicerContext[bytes, pb.SessionResponse]


class Sessions:
    """AgentService.Session, for every stream. `interval`: seconds between reports; `insecure`: who calls says so itself."""

    def __init__(self, registry: Registry, jobs: Jobs, interval: float, insecure: bool = False) -> None:
        self.registry = registry
        self.jobs = jobs
        self.interval = interval
        self.insecure = insecure

    async def serve(self, _: object, context: Context) -> None:
        """The handler of one stream; ends when it is over. A refusal before Hello is a gRPC status that says why."""
        try:
            who = caller(context)
            node = peer(who.metadata, who.auth, self.insecure)
            stream = self.registry.admit(node.node_id, node.certificate)
        except NoIdentity as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        except OverLimit as error:
            await context.abort(grpc.StatusCode[error.limit.code], str(error))
        if self.registry.draining:
            stream.tell(draining(self.registry.jitter()))
        conversation = _Conversation(self, stream, context)
        reason = "lost"
        try:
            reason = await conversation.run()
        finally:
            self.registry.left(stream, reason)
            LOG.info("session ended", extra={"node": stream.node_id, "epoch": stream.epoch, "reason": reason})


class _Conversation:
    """The state of one stream's handler."""

    def __init__(self, sessions: Sessions, stream: Stream, context: Context) -> None:
        self.registry = sessions.registry
        self.jobs = sessions.jobs
        self.stream = stream
        self.context = context
        # (Of these alone: a stream that is over is to be freed at once, without a search for circles.)
        registry, jobs = self.registry, self.jobs
        self.machine = Machine(
            stream.node_id,
            registry.rates[stream.node_id],
            sessions.interval,
            lambda limit: registry.met.update([limit.name]),
            lambda types: registry.bad_conditions(stream, types),
            lambda report: jobs.is_news(stream, report),
        )
        self.said = codec.Said()
        self.following = False  # a message of bcd's: what comes from outside meanwhile is heard after it
        self.hearing: asyncio.Task[None] | None = None  # what comes from outside: bcd's next message waits for its end
        self.last: m.End | None = None
        self.empty = time.time()  # when it was last known that no message waits to be read

    async def run(self) -> str:
        """Until the stream ends; the reason."""
        loop, reading = asyncio.get_running_loop(), asyncio.current_task()
        assert reading is not None
        self.stream.wake = lambda: self._wake(reading)
        limit = loop.call_later(HELLO_SECONDS, self._no_hello)
        if self.stream.leave:
            self.stream.wake()
        try:
            return await self._listen()
        except asyncio.CancelledError:
            if self.hearing and self.hearing.done():
                self.hearing.result()  # raises what is our bug
            if self.machine.phase is not Phase.ENDED:
                raise  # the peer is gone
            reading.uncancel()
            return self._reason()
        finally:
            limit.cancel()
            self.stream.wake = lambda: None
            if self.hearing:
                self.hearing.cancel()
                self.hearing = None

    async def _listen(self) -> str:
        """bcd's messages, one after the other."""
        while True:
            asked = time.time()
            data: Any = await self.context.read()
            came = time.time()
            if came - asked > PROMPT:
                self.empty = came
            while self.hearing and not self.hearing.done():
                await asyncio.wait((self.hearing,))
            if data is grpc.aio.EOF:
                return "closed"
            self.following = True
            message: m.FromNode | Bad
            try:
                message = codec.decode(data, self.said, (self.empty, came))  # it may have waited for the end of a job
            except (codec.BadMessage, OverLimit) as error:
                message = Bad(str(error), error.limit if isinstance(error, OverLimit) else None)
            if actions := self.machine.on(message, self.registry.now()):
                await self._follow(actions)
            self.following = False
            if self.machine.phase is Phase.ENDED:
                return self._reason()
            if self.stream.leave or self.stream.queued:
                self.stream.wake()

    def _wake(self, reading: asyncio.Task[Any]) -> None:
        """Something has come from outside: it is heard beside the message that is waited for, which gRPC cannot take back."""
        if not self.following and (self.hearing is None or self.hearing.done()):
            self.hearing = asyncio.create_task(self._hear(reading))
            self.hearing.add_done_callback(lambda done: self._heard(done, reading))

    async def _hear(self, reading: asyncio.Task[Any]) -> None:
        while self.machine.phase is not Phase.ENDED and (event := self.stream.outside()):
            await self._follow(self.machine.on(event, self.registry.now()))
        if self.machine.phase is Phase.ENDED:
            reading.cancel()

    def _heard(self, hearing: asyncio.Task[None], reading: asyncio.Task[Any]) -> None:
        """What failed in there ends the stream, as it does elsewhere."""
        if self.hearing is hearing and not hearing.cancelled() and hearing.exception():
            reading.cancel()

    def _no_hello(self) -> None:
        """HELLO_SECONDS are over, whatever came meanwhile."""
        if self.machine.phase is Phase.NEW:
            self.stream.tell(m.End("bad-message", None, f"no Hello within {HELLO_SECONDS:g} s", "INVALID_ARGUMENT"))

    def _reason(self) -> str:
        return self.last.reason if self.last else "closed"

    async def _follow(self, actions: Sequence[Action]) -> None:
        """Says and does what the machine answered; what a job's event leads to comes next, before bcd's next message."""
        for action in actions:
            if isinstance(action, m.ToNode):
                await self._say(action)
                continue
            if isinstance(action, Begin) and (
                end := self.registry.bars(self.stream) or self.registry.overload(self.stream.node_id)
            ):
                event: object | None = Leave(end)
            else:
                began = self.registry.now()
                event = await self.jobs.do(self.stream, action)
                self.machine.rates.reports.forgive(self.registry.now() - began)
            if event is not None:
                await self._follow(self.machine.on(event, self.registry.now()))

    async def _say(self, message: m.ToNode) -> None:
        await self.context.write(codec.encode(message, datetime.now(UTC)))
        if isinstance(message, m.Welcome):
            LOG.info("session began", extra={"node": message.node_id, "epoch": message.epoch})
        elif isinstance(message, m.End):
            self.last = message
            self.context.set_code(grpc.StatusCode[message.code])
            self.context.set_details(message.detail)
            LOG.info("session ends", extra={"node": self.stream.node_id, "reason": message.reason, "detail": message.detail})
        elif isinstance(message, m.Result):
            self.registry.results[message.status] += 1
            level = logging.WARNING if message.status in ("refused", "retry") else logging.INFO
            facts = {"snapshot": message.snapshot_id, "section": message.section, "reason": message.reason}
            LOG.log(level, f"inventory {message.status}", extra={"node": self.stream.node_id, **facts})
