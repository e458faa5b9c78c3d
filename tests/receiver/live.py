"""A real receiver in this process: its gRPC on unix sockets, its database a fresh one."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import grpc
import psycopg
import pytest

from receiver.client.methods import answer, find, parse
from receiver.config import Config
from receiver.ids import mint
from receiver.operate import tokens
from receiver.service import Receiver
from receiver.store.tokens import add_api
from receiver.tls import open_identity
from receiver.values import ADMIN
from tests.fake_daemon import FakeDaemon, until


@dataclass
class Live:
    """A receiver that serves, and the daemons that a test has connected to it."""

    receiver: Receiver
    database: str
    daemons: list[FakeDaemon] = field(default_factory=list)
    token: str = ""  # whose calls `api` makes; empty: those of the operator of an insecure receiver
    trusted: grpc.ChannelCredentials | None = None  # whom `api` takes for the receiver; None: nothing is encrypted

    def daemon(self, **fields: Any) -> FakeDaemon:
        """A daemon that will be hung up at the end."""
        self.daemons.append(FakeDaemon(self.receiver.config.listen_session, **fields))
        return self.daemons[-1]

    async def in_service(self, bodies: Mapping[str, bytes], **fields: Any) -> FakeDaemon:
        """A daemon whose node has reported these sections and, being in no pool with checks, has been adopted."""
        daemon = self.daemon(**fields)
        await daemon.connect()
        await daemon.offer(bodies)
        await daemon.report()
        status = "SELECT status FROM nodes WHERE id = %s"
        await until("the node's adoption", lambda: self.rows(status, daemon.node_id) == [("adopted",)])
        return daemon

    async def api(self, name: str, /, **keys: object) -> dict[str, Any]:
        """What `better-compute api NAME key=value ... --format json` prints. Raises grpc.aio.AioRpcError."""
        return await ask(self.receiver.config.listen_api, name, self.token, self.trusted, **keys)

    def token_of(self, tenant: str, *permissions: str, life: timedelta = timedelta(hours=1), name: str = "") -> str:
        """A new token of the API: its text. Without permissions named: of an administrator."""
        made = tokens.new(mint)
        with psycopg.connect(self.database) as tx:
            add_api(tx, made, tenant, permissions or (ADMIN,), name, "test", life)
        return made.text

    @contextmanager
    def calling(self, tenant: str, *permissions: str) -> Iterator[None]:
        """Within the block `api` calls with a token of this tenant."""
        before, self.token = self.token, self.token_of(tenant, *permissions)
        try:
            yield
        finally:
            self.token = before

    def rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        """What the database has."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            return connection.execute(query.encode(), arguments or None).fetchall()


def bearer(token: str) -> list[tuple[str, str]]:
    """A token as the metadata of a call; none for an empty one."""
    return [("authorization", f"Bearer {token}")] if token else []


async def ask(
    target: str, name: str, token: str = "", trusted: grpc.ChannelCredentials | None = None, /, **keys: object
) -> dict[str, Any]:
    """What a receiver's API answers: `better-compute api NAME key=value ... --format json`. Raises grpc.aio.AioRpcError."""
    method = find(name)
    request = parse(method, [f"{key}={value}" for key, value in keys.items()])
    trusted = None if target.startswith("unix:") else trusted
    async with grpc.aio.secure_channel(target, trusted) if trusted else grpc.aio.insecure_channel(target) as channel:
        call: Any = channel.unary_unary(method.path, lambda message: message.SerializeToString(), method.response.FromString)
        return answer(await call(request, metadata=bearer(token)))


@asynccontextmanager
async def serving(database: str, **settings: Any) -> AsyncIterator[Live]:
    """A receiver over `database` for the length of the block; it drains at the end."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory:
        sockets = {"listen_session": f"unix:{directory}/s", "listen_api": f"unix:{directory}/a"}
        given = {"insecure": True, "database_connections": 3, "drain": 0.5, "metrics_listen": "", **sockets, **settings}
        config = Config(**given)
        receiver = Receiver(config, database, open_identity(config))
        live = Live(receiver, database)
        try:
            await receiver.start()
            yield live
        finally:
            for daemon in live.daemons:
                await daemon.close()
            await receiver.stop()


def live(test: Callable[[Live], Awaitable[None]]) -> Callable[[str], None]:
    """Runs an asynchronous test with a receiver over a fresh database."""

    def run(database: str) -> None:
        async def main() -> None:
            async with serving(database) as served:
                await test(served)

        asyncio.run(main())

    run.__doc__ = test.__doc__
    return run


async def refused(call: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    """How a call of the API was refused: the status, and what it says."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details() or ""
