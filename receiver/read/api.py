"""The API's gRPC side: one row a method, one runner for all. A refusal is a gRPC status whose text names the key or the thing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any

import grpc
from bettercompute.control.v1 import events_pb2, inventory_pb2, nodes_pb2
from google.protobuf import message_factory
from google.protobuf.message import Message
from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DataError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from receiver.errors import Invalid, NotFound, OverLimit
from receiver.read import answers, queries
from receiver.read.tokens import Forbidden, Scope, scope

Answer = Callable[[Connection, Scope, Any], Message]
Context = grpc.aio.ServicerContext[Any, Any]

SERVICES = {
    service.full_name: service
    for file in (inventory_pb2, nodes_pb2, events_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
}
HANDLERS: Mapping[str, Answer] = {
    "bettercompute.control.v1.InventoryService.Get": answers.inventory_get,
    "bettercompute.control.v1.InventoryService.History": answers.inventory_history,
    "bettercompute.control.v1.InventoryService.Diff": answers.inventory_diff,
    "bettercompute.control.v1.NodesService.List": answers.nodes_list,
    "bettercompute.control.v1.NodesService.Get": answers.nodes_get,
    "bettercompute.control.v1.EventsService.List": answers.events_list,
}
REFUSALS: Mapping[type[Exception], grpc.StatusCode] = {
    NotFound: grpc.StatusCode.NOT_FOUND,
    Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    DataError: grpc.StatusCode.INVALID_ARGUMENT,  # a zero byte in a text
    OperationalError: grpc.StatusCode.UNAVAILABLE,
    InterfaceError: grpc.StatusCode.UNAVAILABLE,
    PoolTimeout: grpc.StatusCode.UNAVAILABLE,
}
EVENTS_CHANNEL = "bc_events"  # notified by the trigger of table events
WATCH_PAGE = 500
POLL = 1.0  # seconds: NOTIFY wakes a watcher, and this is how late it may be without


class Api:
    """The services of bettercompute.control.v1. `woken` is notified when events were committed; `over_page` counts."""

    def __init__(self, engine: Engine, threads: Executor, woken: asyncio.Condition, over_page: Callable[[], None]) -> None:
        self.engine = engine
        self.threads = threads
        self.woken = woken
        self.over_page = over_page
        self.stopping = False
        self.calls = 0  # under way

    def services(self) -> dict[str, Callable[[grpc.aio.Server], None]]:
        """By full name: what adds the service to a server."""
        return {name: lambda server, name=name: self._add(server, name) for name in SERVICES}  # type: ignore[misc]

    def _add(self, server: grpc.aio.Server, name: str) -> None:
        handlers = {}
        for method in SERVICES[name].methods:
            if not (method.server_streaming or method.full_name in HANDLERS):
                continue  # gRPC answers UNIMPLEMENTED
            reads = message_factory.GetMessageClass(method.input_type).FromString
            if method.server_streaming:
                handlers[method.name] = grpc.unary_stream_rpc_method_handler(self.watch, reads, _serialize)
            else:
                handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                    self._unary(HANDLERS[method.full_name]), reads, _serialize
                )
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])

    def _unary(self, answer: Answer) -> Callable[[Any, Context], Any]:
        async def handle(request: Any, context: Context) -> Message:
            with self._counted():
                message: Message = await self._guarded(context, lambda db: answer(db, _scope(request), request))
            return message

        return handle

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1

    async def _guarded(self, context: Context, work: Callable[[Connection], Any]) -> Any:
        """Runs `work` in a thread; a refusal ends the call with its status."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, self._within, work)
        except tuple(REFUSALS) as error:
            code = next(code for kind, code in REFUSALS.items() if isinstance(error, kind))
            if isinstance(error, OverLimit):
                self.over_page()
            ours = code == grpc.StatusCode.UNAVAILABLE
            await context.abort(code, "the database does not answer" if ours else " ".join(str(error).split("\n")[0].split()))

    def _within(self, work: Callable[[Connection], Any]) -> Any:
        with self.engine.connect() as db:
            return work(db)

    async def watch(
        self, request: events_pb2.EventsServiceWatchRequest, context: Context
    ) -> AsyncIterator[events_pb2.EventsServiceWatchResponse]:
        """Each event behind the cursor (without one: from now on), as it is committed, until the caller hangs up."""
        with self._counted():
            async for response in self._followed(request, context):
                yield response

    async def _followed(
        self, request: events_pb2.EventsServiceWatchRequest, context: Context
    ) -> AsyncIterator[events_pb2.EventsServiceWatchResponse]:
        node_id = request.node_id if request.HasField("node_id") else None
        kind = request.type if request.HasField("type") else None
        place = await self._guarded(context, lambda db: self._first_place(db, request))
        while not self.stopping:
            after = place
            rows = await self._guarded(
                context,
                lambda db: queries.event_page(db, _scope(request), after, WATCH_PAGE, node_id, kind),  # noqa: B023
            )
            for row in rows:
                place = (row.xid, row.seq)
                yield events_pb2.EventsServiceWatchResponse(event=answers.event(row), cursor=answers.cursor_of(row))
            if len(rows) < WATCH_PAGE:
                await self._sleep()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "this receiver stops: go on from the last cursor")

    @staticmethod
    def _first_place(db: Connection, request: events_pb2.EventsServiceWatchRequest) -> queries.Place:
        if request.HasField("node_id"):
            queries.node(db, _scope(request), request.node_id)  # raises NotFound
        return queries.place(request.cursor) if request.cursor else queries.event_horizon(db)

    async def _sleep(self) -> None:
        async with self.woken:
            try:
                await asyncio.wait_for(self.woken.wait(), POLL)
            except TimeoutError:
                return


def _scope(request: Any) -> Scope:
    return scope(request.tenant_id if request.HasField("tenant_id") else None)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
