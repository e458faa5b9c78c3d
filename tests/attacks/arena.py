"""Where the attacks happen: a receiver over TLS, a node that does its work, another tenant's, and what an attacker has.

@attack
async def test_...(arena):
    async with arena.unharmed():          # alive afterwards, and nothing written
        await arena.refused(CODE.UNAUTHENTICATED, ...)
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import psycopg
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.agent.v1 import session_pb2 as wire
from bettercompute.contract.sections import encode

from receiver.client.methods import find
from tests.attacks import untouched
from tests.attacks.world import ACME, CANARY, SECRET
from tests.fake_daemon import FakeDaemon, Over
from tests.receiver.builders import gpu, gpus
from tests.receiver.live import bearer
from tests.receiver.tls import Node, Secure, secure

CODE = grpc.StatusCode
REVOKED = wire.SESSION_END_REASON_REVOKED
BAD_MESSAGE = wire.SESSION_END_REASON_BAD_MESSAGE
ITS_OWN = ("nodes", "sessions")  # what a session writes, of its own node
QUIET = 0.15  # seconds without a change: what was under way is written


@dataclass
class Arena:
    """`victim`: a node of tenant canary that is connected and has reported GPU 900. `operator`: a token of the platform."""

    served: Secure
    victim: Node
    daemon: FakeDaemon
    operator: str

    @asynccontextmanager
    async def unharmed(self, *but: str) -> AsyncIterator[None]:
        """After the block the receiver serves, and nothing was written: but to these tables, and there nothing of the victim."""
        before = await untouched.settled(self.served.database, QUIET)
        yield
        after = await untouched.settled(self.served.database, QUIET)
        found = untouched.written(before, after)
        assert {table: rows for table, rows in found.items() if table not in but} == {}
        theirs = [row for rows in found.values() for row in rows if row.startswith("- ") and self.victim.node_id in row]
        assert theirs == [], "nothing of another node is changed"
        await self.alive()

    async def alive(self) -> None:
        """The victim's session goes on, who asks is answered, and a node may come."""
        await self.daemon.dealt_with()
        assert (await self.call(self.operator, "nodes.get", nodeId=self.victim.node_id))["hostname"] == SECRET
        async with self.node_daemon(self.attacker()) as daemon:
            await daemon.connect()

    def attacker(self) -> Node:
        """A node of tenant acme, which has joined."""
        return self.served.admit(self.served.join_token(ACME))

    def node_daemon(self, node: Node, **fields: Any) -> FakeDaemon:
        """Its daemon."""
        return FakeDaemon(
            self.served.receiver.config.listen_session, node_id=node.node_id, credentials=node.credentials, **fields
        )

    @asynccontextmanager
    async def connected(self, node: Node | None = None, **fields: Any) -> AsyncIterator[FakeDaemon]:
        """The session of an attacker's node (a new one)."""
        async with self.node_daemon(node or self.attacker(), **fields) as daemon:
            await daemon.connect()
            await daemon.dealt_with()
            yield daemon

    async def call(self, token: str, method: str, /, **keys: object) -> dict[str, Any]:
        """A call of the API with this token. Raises grpc.aio.AioRpcError."""
        before, self.served.token = self.served.token, token
        try:
            return await self.served.api(method, **keys)
        finally:
            self.served.token = before

    async def raw(self, method: str, request: bytes, metadata: Iterable[tuple[str, str | bytes]] = (), token: str = "") -> bytes:
        """A call of the API with these bytes."""
        assert self.served.trusted is not None
        async with grpc.aio.secure_channel(self.served.receiver.config.listen_api, self.served.trusted) as channel:
            made: Any = channel.unary_unary(find(method).path)
            answer: bytes = await made(request, metadata=[*bearer(token), *metadata], timeout=10)
            return answer

    async def sql(self, query: str, *arguments: object) -> None:
        """What an operator, or time, does behind the receiver's back."""
        with psycopg.connect(self.served.database, autocommit=True) as connection:
            connection.execute(query.encode(), arguments or None)


async def refusal(work: Awaitable[object]) -> tuple[grpc.StatusCode | None, int | None, str]:
    """How something was refused: the gRPC status, the reason of a SessionEnd, what is said. All None where it was not."""
    try:
        await asyncio.wait_for(work, 20)
    except Over as over:
        return over.code, over.end.reason if over.end else None, over.details or (over.end.detail if over.end else "")
    except grpc.aio.AioRpcError as error:
        return error.code(), None, error.details() or ""
    return None, None, ""


@asynccontextmanager
async def arena(database: str) -> AsyncIterator[Arena]:
    """An arena over a fresh database."""
    async with secure(database) as served:
        operator = served.token_of("*")
        victim = served.admit(served.join_token(CANARY))
        async with FakeDaemon(
            served.receiver.config.listen_session, node_id=victim.node_id, credentials=victim.credentials
        ) as daemon:
            await daemon.connect()
            bodies = {"gpus": encode(gpus(gpu(900))), "os": encode(pb.OsSection(hostname=SECRET))}
            assert (await daemon.offer(bodies)).status == wire.INVENTORY_STATUS_APPLIED
            yield Arena(served, victim, daemon, operator)


class Theatre:
    """One arena for the attacks of a file, and the loop that it runs in."""

    def __init__(self, database: str) -> None:
        self.runner = asyncio.Runner()
        self.entered = arena(database)
        self.arena = self.runner.run(self.entered.__aenter__())

    def close(self) -> None:
        """Stops the receiver."""
        self.runner.run(self.entered.__aexit__(None, None, None))
        self.runner.close()


def attack(test: Callable[[Arena], Coroutine[Any, Any, None]]) -> Callable[[Theatre], None]:
    """Runs an attack in the arena of its file."""

    def run(theatre: Theatre) -> None:
        theatre.runner.run(test(theatre.arena))

    run.__doc__ = test.__doc__
    return run
