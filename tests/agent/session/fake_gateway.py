"""A gateway that does what a test's script says, over a real gRPC server on a unix socket, perhaps with TLS (fake_fleet.py)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from bettercompute.agent.v1 import session_pb2 as pb
from google.protobuf.duration_pb2 import Duration

SESSION = "bettercompute.agent.v1.AgentService"
PATIENCE = 10.0  # seconds that a script waits for bcd's next message


@dataclass
class Stream:
    """One session as the gateway sees it. `received`: all of bcd's messages so far."""

    context: Any
    received: list[pb.SessionRequest] = field(default_factory=list)

    peer: dict[str, Any] = field(default_factory=dict)  # what TLS tells; asked at the start, since gRPC crashes when it is over

    def __post_init__(self) -> None:
        self.peer = dict(self.context.auth_context())

    @property
    def node_id(self) -> str:
        """Who calls: by the certificate, else by the metadata."""
        if uri := self.peer.get("peer_uri"):
            return str(uri[0].decode().removeprefix("bc://node/"))
        return str(dict(self.context.invocation_metadata()).get("bc-node-id"))

    async def next(self, kind: str = "") -> Any:
        """bcd's next message of a kind (others are remembered and passed over); AssertionError when the stream ends first."""
        while True:
            request = await asyncio.wait_for(self.context.read(), PATIENCE)
            assert isinstance(request, pb.SessionRequest), f"the stream ended before a {kind}"
            self.received.append(request)
            if not kind or request.WhichOneof("message") == kind:
                return getattr(request, request.WhichOneof("message") or "")

    async def say(self, **message: Any) -> None:
        """Sends one message: `welcome=...`."""
        await self.context.write(pb.SessionResponse(**message).SerializeToString())

    async def raw(self, data: bytes) -> None:
        """Sends bytes that need not be a message."""
        await self.context.write(data)

    async def welcome(self, epoch: int = 1, applied: str = "", interval: float = 30.0, chunk_bytes: int = 0) -> Any:
        """Takes Hello and welcomes; the Hello."""
        hello = await self.next("hello")
        duration = Duration(seconds=int(interval), nanos=int(interval % 1 * 1e9))
        limits = pb.Limits(chunk_bytes=chunk_bytes)
        await self.say(
            welcome=pb.Welcome(node_id="n", epoch=epoch, status_interval=duration, applied_digest=applied, limits=limits)
        )
        return hello

    async def stay(self) -> None:
        """Reads until bcd ends the stream."""
        while isinstance(request := await self.context.read(), pb.SessionRequest):
            self.received.append(request)

    def kinds(self) -> list[str]:
        """The kinds of what was received, in order."""
        return [request.WhichOneof("message") or "" for request in self.received]


Script = Callable[[Stream], Awaitable[None]]


class FakeGateway:
    """Serves `scripts`, one a session in order; the last one again and again. What a script raises, `check` raises."""

    def __init__(self, path: Path, *scripts: Script, credentials: grpc.ServerCredentials | None = None) -> None:
        self.target = f"unix:{path}"
        self.streams: list[Stream] = []
        self._scripts = scripts
        self._credentials = credentials
        self._errors: list[BaseException] = []
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> "FakeGateway":
        self._server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(
            self._session, request_deserializer=pb.SessionRequest.FromString, response_serializer=bytes
        )
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SESSION, {"Session": handler})])
        if self._credentials is None:
            self._server.add_insecure_port(self.target)
        else:
            self._server.add_secure_port(self.target, self._credentials)
        await self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        await self._server.stop(0)

    async def _session(self, _: object, context: Any) -> None:
        stream = Stream(context)
        self.streams.append(stream)
        script = self._scripts[min(len(self.streams), len(self._scripts)) - 1]
        try:
            await script(stream)
        except (AssertionError, TimeoutError) as error:
            self._errors.append(error)
            raise

    def check(self) -> None:
        """Raises what went wrong in a script."""
        if self._errors:
            raise self._errors[0]


async def until(true: Callable[[], object], patience: float = PATIENCE) -> None:
    """Waits for something to become true."""
    async with asyncio.timeout(patience):
        while not true():
            await asyncio.sleep(0.005)
