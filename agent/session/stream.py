"""DOOR: gRPC. Keeps one session with the receiver open for ever: connects, carries the machine's messages, comes back.

What is said and when is machine.py's; this file owns the channel, the clock, the timer and the wait between two sessions.
A connection that fails is what happens in the field: logged once per cause, tried again.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc.aio
from bettercompute.agent.v1 import session_pb2 as pb
from bettercompute.agent.v1.session_pb2_grpc import AgentServiceStub
from google.protobuf.message import DecodeError

from agent import status
from agent.errors import UserError
from agent.identity import Access, NotJoined
from agent.session import channel, codec, machine, reconnect
from agent.session import messages as m

if TYPE_CHECKING:
    _Call = grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]

CODE_LIMIT = 5.0  # a call that is over says how within this
LOOK = 5.0  # a node without a usable identity looks for one again after this
STEADY = 30.0  # a session that lasted this long ends the run of failures

_CALL_ENDED = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)  # how a call tells that it is over

_log = logging.getLogger("bcd.session")


@dataclass
class _Outbox:
    """What waits to be sent: messages in order, then the bodies of sections, one section at a time.

    So a status report never waits for more than the one section that is on its way (A3).
    """

    messages: deque[m.ToGateway] = field(default_factory=deque)
    bodies: deque[m.Bodies] = field(default_factory=deque)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, message: m.ToGateway) -> None:
        if isinstance(message, m.Bodies):
            self.bodies.extend(m.Bodies(message.digest, (s,), message.chunk_bytes) for s in message.sections)
        else:
            if isinstance(message, m.InventoryOffer):
                self.bodies.clear()  # a newer offer replaces the one under way
            self.messages.append(message)
        self.ready.set()

    def take(self) -> m.ToGateway | None:
        queue = self.messages or self.bodies
        return queue.popleft() if queue else None


@dataclass
class Sent:
    """What this run of bcd has sent, over all sessions."""

    reports: int = 0
    offers: int = 0
    sections: int = 0
    section_bytes: int = 0

    def count(self, message: m.ToGateway) -> None:
        """Counts a message that is about to go."""
        if isinstance(message, m.StatusReport):
            self.reports += 1
        elif isinstance(message, m.InventoryOffer):
            self.offers += 1
        elif isinstance(message, m.Bodies):
            self.sections += len(message.sections)
            self.section_bytes += sum(len(section.data) for section in message.sections)

    def describe(self) -> dict[str, int]:
        """For `bcd status`."""
        return {
            "reports": self.reports,
            "offers": self.offers,
            "sections": self.sections,
            "sectionBytes": self.section_bytes,
        }


@dataclass(frozen=True, slots=True)
class LinkState:
    """The session for a person: `connecting`, `connected`, `waiting` or `not joined`. `epoch`: the last session's; times are Unix
    seconds."""

    state: str
    since: float
    server: str
    epoch: int | None = None
    error: str = ""
    next_attempt: float | None = None


class Link:
    """This node's session with one of its receivers: of several, the next one with each attempt, a random one first.

    `access` is asked for identity and addresses at each attempt (it may raise UserError: then it is asked again soon), `hello`
    and `status` for what is true now, at each session and at each report that is due by its interval. `note` is told Greeting,
    Welcomed, Answered, CollectAgain, Ordered, Acknowledged and Close, synchronously.
    """

    def __init__(
        self,
        access: Callable[[], Access],
        hello: Callable[[], m.Hello],
        status: Callable[[], m.Status],
        note: Callable[[machine.Output], None],
    ) -> None:
        self.machine = machine.State()
        self.state = LinkState("connecting", time.time(), "")
        self.sent = Sent()
        self.clock_difference: float | None = None  # seconds that the receiver's clock was ahead at the last Welcome
        self._access = access
        self._server = ""
        self._hello = hello
        self._status = status
        self._note = note
        self._outbox = _Outbox()
        self._ended = asyncio.Event()
        self._end: m.SessionEnd | None = None
        self._again = asyncio.Event()
        self._fed = asyncio.Event()

    def feed(self, event: object) -> None:
        """Takes what happened (of the gateway or of the daemon) through the machine, and sends what follows."""
        now = asyncio.get_running_loop().time()
        self.machine, outputs = machine.step(self.machine, event, now)
        for output in outputs:
            if isinstance(output, m.ToGateway):
                self._outbox.put(output)
            elif isinstance(output, machine.Close):
                self._end = output.end or m.SessionEnd("unspecified", detail="the receiver does not answer")
                self._ended.set()
                self._note(output)
            else:
                self._heed(output)
        self._fed.set()

    def describe(self) -> dict[str, Any]:
        """The session for `bcd status`."""
        return {
            "session": self.state.state,
            "server": self.state.server,
            "sessionSince": status.moment(self.state.since),
            "sessionError": self.state.error,
            "nextAttemptAt": status.moment(self.state.next_attempt),
            "epoch": self.state.epoch,
            "clockDifference": self.clock_difference,
            "applied": self.machine.is_applied,
            "sent": self.sent.describe(),
        }

    def reconnect(self) -> None:
        """Ends the session, or the wait for it, and opens the next one at once, with the identity and the servers of then."""
        self._again.set()
        self._ended.set()

    async def run(self) -> None:
        """Session after session; ends only when it is cancelled."""
        failures, turn = 0, random.randrange(1 << 16)
        while True:
            self._ended.clear()
            self._again.clear()
            self._end = None
            started = time.monotonic()
            try:
                access = self._access()
            except UserError as error:
                delay = LOOK
                self._cannot(error)
            else:
                self._server = access.servers[turn % len(access.servers)]
                turn += 1
                ending = await self._session(access)
                failures = 0 if time.monotonic() - started >= STEADY else failures + 1
                delay = reconnect.delay(self._end, failures, random.random())
                self._report(_with_clock(ending, access), 0.0 if self._again.is_set() else delay)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._again.wait()

    async def _session(self, access: Access) -> str:
        """One session, from Hello to its end. Returns why it ended, for a person."""
        self._move("connecting", error=self.state.error)
        self._outbox = _Outbox()
        async with channel.connect(self._server, access) as connection:
            call = AgentServiceStub(connection).Session(metadata=channel.caller(access))
            self._note(machine.Greeting(access.node_id))
            self.feed(machine.Opened(self._hello()))
            tasks = [
                asyncio.create_task(self._read(call)),
                asyncio.create_task(self._write(call)),
                asyncio.create_task(self._keep_time()),
                asyncio.create_task(self._ended.wait()),
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                return await self._why(tasks, call)
            finally:
                self.feed(machine.Lost())
                call.cancel()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _why(self, tasks: "Iterable[asyncio.Task[Any]]", call: "_Call") -> str:
        for task in tasks:
            error = task.exception() if task.done() and not task.cancelled() else None
            if isinstance(error, DecodeError):
                return f"a message of the receiver does not parse: {error}"
            if error is not None and not isinstance(error, _CALL_ENDED):
                raise error
        if self._ended.is_set():
            return "" if self._end is None else f"{self._end.reason}: {self._end.detail}".removesuffix(": ")
        try:
            async with asyncio.timeout(CODE_LIMIT):
                code, details = await call.code(), await call.details()
        except TimeoutError:
            return "the stream broke off"
        return "the receiver closed the stream" if code is grpc.StatusCode.OK else f"{code.name}: {details}"

    async def _read(self, call: "_Call") -> None:
        while isinstance(response := await call.read(), pb.SessionResponse):  # not so at the end of the stream
            message = codec.decode(response)
            if isinstance(message, m.Welcome) and message.now is not None:
                self.clock_difference = message.now - time.time()
            self.feed(message)
            if self._ended.is_set():
                return

    async def _write(self, call: "_Call") -> None:
        while True:
            await self._outbox.ready.wait()
            self._outbox.ready.clear()
            while (message := self._outbox.take()) is not None:
                self.sent.count(message)
                for request in codec.encode(message, time.time()):
                    await call.write(request)

    async def _keep_time(self) -> None:
        """Tells the machine when its deadline is reached, with the status as it is then."""
        while True:
            self._fed.clear()
            try:
                async with asyncio.timeout_at(self.machine.deadline):
                    await self._fed.wait()
            except TimeoutError:
                self.feed(machine.StatusChanged(self._status()))
                self.feed(machine.Tick())

    def _heed(self, output: machine.Output) -> None:
        if isinstance(output, machine.Welcomed):
            self._move("connected", epoch=output.epoch)
            _log.info("session with %s is open, epoch %d", self._server, output.epoch)
        self._note(output)

    def _cannot(self, error: UserError) -> None:
        """There is nothing to connect with. Logged once per cause."""
        said = str(error).replace("\n  ", ": ")
        if said != self.state.error:
            _log.warning("no session: %s", said)
        self._server = ""
        self._move("not joined" if isinstance(error, NotJoined) else "waiting", error=said, next_attempt=time.time() + LOOK)

    def _report(self, error: str, delay: float) -> None:
        """Logs the end of a session: a cause that repeats itself once."""
        if error and error != self.state.error:
            _log.warning("session with %s ended: %s; next attempt in %.1f s", self._server, error, delay)
        self._move("waiting", error=error, next_attempt=time.time() + delay)

    def _move(self, state: str, *, epoch: int | None = None, error: str = "", next_attempt: float | None = None) -> None:
        epoch = self.state.epoch if epoch is None else epoch
        self.state = LinkState(state, time.time(), self._server, epoch, error, next_attempt)


def _with_clock(error: str, access: Access) -> str:
    """Why a session ended; first what is wrong with the certificate by our clock, of which the handshake tells nothing."""
    trouble = access.joined.trouble(time.time()) if access.joined and error else ""
    return f"{trouble}; {error}" if trouble else error
