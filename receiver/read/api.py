"""The API's gRPC side: one row a method, one runner for all. A refusal is a gRPC status whose text names the key or the thing.

READS has what only reads; what changes something: receiver/operate/methods.py.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import grpc
import psycopg
import psycopg_pool
import sqlalchemy.exc
from bettercompute.control.v1 import (
    acceptance_pb2,
    atoms_pb2,
    commands_pb2,
    devices_pb2,
    events_pb2,
    images_pb2,
    inventory_pb2,
    join_tokens_pb2,
    nodes_pb2,
    pools_pb2,
    remediation_pb2,
    tokens_pb2,
)
from google.protobuf import message_factory
from google.protobuf.message import DecodeError, Message
from sqlalchemy import Engine, Row
from sqlalchemy.engine import Connection

from receiver import callers
from receiver.callers import Caller, NoIdentity
from receiver.client.methods import name_of
from receiver.errors import Invalid, NotFound, OverLimit, Refused
from receiver.measures import Measures
from receiver.read import queries
from receiver.read.answers import (
    acceptance,
    commands,
    devices,
    events,
    inventory,
    nodes,
    placement,
    pools,
    remediation,
    tokens,
    why,
)
from receiver.read.tokens import Forbidden, Scope, Unauthenticated, caller, narrowed
from receiver.store.database import LOST_RACE
from receiver.values import ADMIN, READ

M = TypeVar("M", bound=Message)
Context = grpc.aio.ServicerContext[Any, Any]
Who = Callable[[Connection], Scope]  # looks up what the caller of a call may see and do
Run = Callable[[Engine, Who, Any], Message]  # a method: called in a thread with the request, answers the response

SERVICES = {
    service.full_name: service
    for file in (
        acceptance_pb2,
        atoms_pb2,
        commands_pb2,
        devices_pb2,
        events_pb2,
        images_pb2,
        inventory_pb2,
        join_tokens_pb2,
        nodes_pb2,
        pools_pb2,
        remediation_pb2,
        tokens_pb2,
    )
    for service in file.DESCRIPTOR.services_by_name.values()
}


@dataclass(frozen=True, slots=True)
class Read:
    """A method that reads: its answer, and what the caller must be allowed."""

    answer: Callable[[Connection, Scope, Any], Message]
    permission: str = READ


READS: Mapping[str, Read] = {
    "inventory.get": Read(inventory.get),
    "inventory.history": Read(inventory.history),
    "inventory.diff": Read(inventory.difference),
    "nodes.list": Read(nodes.listed),
    "nodes.get": Read(nodes.get),
    "nodes.why": Read(why.answer),
    "atoms.list": Read(placement.atoms_list),
    "images.list": Read(placement.images_list),
    "pools.list": Read(pools.listed, ADMIN),
    "pools.get": Read(pools.get, ADMIN),
    "devices.get": Read(devices.get),
    "devices.history": Read(devices.history),
    "events.list": Read(events.listed),
    "acceptance.get": Read(acceptance.get),
    "commands.list": Read(commands.listed),
    "commands.get": Read(commands.get),
    "remediation.list": Read(remediation.listed),
    "remediation.get": Read(remediation.get),
    "tokens.list": Read(tokens.listed, ADMIN),
    "joinTokens.list": Read(tokens.joins_listed, ADMIN),
}
# The first that an error is of. (What the database says is not for callers.)
REFUSALS: tuple[tuple[type[Exception], grpc.StatusCode, str], ...] = (
    (NotFound, grpc.StatusCode.NOT_FOUND, ""),
    (Invalid, grpc.StatusCode.INVALID_ARGUMENT, ""),
    (Refused, grpc.StatusCode.FAILED_PRECONDITION, ""),
    (NoIdentity, grpc.StatusCode.UNAUTHENTICATED, ""),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED, ""),
    (Forbidden, grpc.StatusCode.PERMISSION_DENIED, ""),
    (sqlalchemy.exc.DataError, grpc.StatusCode.INVALID_ARGUMENT, ""),  # a zero byte in a text
    (psycopg.DataError, grpc.StatusCode.INVALID_ARGUMENT, ""),
    *((kind, grpc.StatusCode.ABORTED, "others change the same rows: try again") for kind in LOST_RACE),
    *(
        (kind, grpc.StatusCode.UNAVAILABLE, "the database does not answer")
        for kind in (
            sqlalchemy.exc.OperationalError,
            sqlalchemy.exc.InterfaceError,
            sqlalchemy.exc.TimeoutError,
            psycopg.OperationalError,
            psycopg.InterfaceError,
            psycopg_pool.PoolTimeout,
        )
    ),
)
EVENTS_CHANNEL = "bc_events"  # notified by the trigger of table events
WATCH_PAGE = 500
REFUSAL = 1_000  # characters of what a refusal says: what a caller sent may be in it, and gRPC's trailers hold 16 KiB
POLL = 1.0  # seconds: NOTIFY wakes a watcher, and this is how late it may be without


class Api:
    """The services of bettercompute.control.v1. `woken` is notified when events were committed.

    `over_limit` counts a request that is over a limit, by its name. `writes`: the methods that change something, by name.
    `insecure`: who brings no token is the platform's operator.
    """

    def __init__(
        self,
        engine: Engine,
        threads: Executor,
        woken: asyncio.Condition,
        over_limit: Callable[[str], None],
        writes: Mapping[str, Run] = MappingProxyType({}),
        insecure: bool = False,
        measures: Measures | None = None,
    ) -> None:
        self.engine = engine
        self.threads = threads
        self.woken = woken
        self.over_limit = over_limit
        self.insecure = insecure
        self.measures = measures or Measures()
        self.methods = {**{name: _reading(name, row) for name, row in READS.items()}, **writes}
        self.stopping = False
        self.calls = 0  # under way

    def services(self) -> dict[str, Callable[[grpc.aio.Server], None]]:
        """By full name: what adds the service to a server."""
        return {name: lambda server, name=name: self._add(server, name) for name in SERVICES}  # type: ignore[misc]

    def _add(self, server: grpc.aio.Server, name: str) -> None:
        handlers: dict[str, Any] = {}
        for method in SERVICES[name].methods:
            if method.server_streaming:
                handlers[method.name] = grpc.unary_stream_rpc_method_handler(self.watch, None, _serialize)
            elif name_of(method) in self.methods:
                kind = message_factory.GetMessageClass(method.input_type)
                run = self._unary(name_of(method), kind, self.methods[name_of(method)])
                handlers[method.name] = grpc.unary_unary_rpc_method_handler(run, None, _serialize)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])

    def _unary(self, name: str, kind: type[Message], run: Run) -> Callable[[bytes, Context], Any]:
        """Requests come as bytes: what is none is refused like all else, and is no traceback in the log."""

        async def handle(data: bytes, context: Context) -> Message:
            calls = callers.caller(context)

            def answer() -> Message:
                request = _read(kind, data)
                return run(self.engine, self._who(calls, request), request)

            with self._counted(), self.measures.call(name):
                message: Message = await self._guarded(context, answer)
            return message

        return handle

    def _who(self, calls: Caller, request: Any) -> Who:
        """What looks up the call's token. It does so with each use: who watches is looked up again and again."""
        requested = request.tenant_id if request.HasField("tenant_id") else None

        def look_up(db: Connection) -> Scope:
            callers.check_version(calls.auth)
            return narrowed(caller(db, calls.metadata, self.insecure), requested)

        return look_up

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1

    async def _guarded(self, context: Context, work: Callable[[], Any]) -> Any:
        """Runs `work` in a thread; a refusal ends the call with its status."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, work)
        except tuple(kind for kind, _, _ in REFUSALS) as error:
            if isinstance(error, OverLimit):
                self.over_limit(error.limit)
            code, says = next((code, says) for kind, code, says in REFUSALS if isinstance(error, kind))
            await context.abort(code, says or " ".join(str(error)[:REFUSAL].split("\n")[0].split()))

    async def watch(self, data: bytes, context: Context) -> AsyncIterator[events_pb2.EventsServiceWatchResponse]:
        """Each event behind the cursor (without one: from now on), as it is committed, until the caller hangs up."""
        calls = callers.caller(context)
        with self._counted():
            request = await self._guarded(context, lambda: _read(events_pb2.EventsServiceWatchRequest, data))
            async for response in self._followed(request, calls, context):
                yield response

    async def _followed(
        self, request: events_pb2.EventsServiceWatchRequest, calls: Caller, context: Context
    ) -> AsyncIterator[events_pb2.EventsServiceWatchResponse]:
        node_id = request.node_id if request.HasField("node_id") else None
        kind = request.type if request.HasField("type") else None
        who = self._who(calls, request)
        place = await self._guarded(context, lambda: self._first_place(who, request))
        while not self.stopping:
            after = place
            seen, rows = await self._guarded(context, lambda: self._page(who, after, node_id, kind))  # noqa: B023
            for row in rows:
                place = (row.xid, row.seq)
                yield events_pb2.EventsServiceWatchResponse(event=events.event(seen, row), cursor=events.cursor_of(row))
            if len(rows) < WATCH_PAGE:
                await self._sleep()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "this receiver stops: go on from the last cursor")

    def _first_place(self, who: Who, request: events_pb2.EventsServiceWatchRequest) -> queries.Place:
        with self.engine.connect() as db:
            seen = _watcher(db, who)
            if request.HasField("node_id"):
                queries.node(db, seen, request.node_id)  # raises NotFound
            return queries.place(request.cursor) if request.cursor else queries.event_horizon(db)

    def _page(self, who: Who, after: queries.Place, node_id: str | None, kind: str | None) -> tuple[Scope, Sequence[Row[Any]]]:
        with self.engine.connect() as db:
            seen = _watcher(db, who)
            return seen, queries.event_page(db, seen, after, WATCH_PAGE, node_id, kind)

    async def _sleep(self) -> None:
        async with self.woken:
            try:
                async with asyncio.timeout(POLL):
                    await self.woken.wait()
            except TimeoutError:
                return


def _reading(name: str, row: Read) -> Run:
    def run(engine: Engine, who: Who, request: Any) -> Message:
        with engine.connect() as db:
            seen = who(db)
            seen.require(row.permission, name)
            return row.answer(db, seen, request)

    return run


def _watcher(db: Connection, who: Who) -> Scope:
    seen = who(db)
    seen.require(READ, "events.watch")
    return seen


def _read(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Invalid(f"{len(data)} bytes are no {kind.DESCRIPTOR.name}") from error


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
