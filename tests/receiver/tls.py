"""A real receiver over real TLS, with CAs of its own, and nodes that have joined it.

    async with secure(database) as served:
        node = await served.join()                       # Join over the wire, with a new token
        daemon = served.joined_daemon(node)              # a FakeDaemon with that node's certificate
        await daemon.connect()
        with served.calling("default"):                  # a token of the API
            await served.api("nodes.list")               # over TLS too

`admit()` is `join()` without the wire and its limit of 10 a minute. What is wrong with a certificate is for a test to make:
`served.certificate(...)` signs whatever is asked for.
"""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import psycopg
from bettercompute.agent.v1 import join_pb2, join_pb2_grpc, session_pb2_grpc
from bettercompute.contract.hardware_key import Identifiers
from bettercompute.contract.tokens import parse
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from receiver.apply import join
from receiver.authority import Issued, NodeAuthority, check_csr, create_ca, key_pem
from receiver.ids import mint
from receiver.operate import tokens
from receiver.store.tokens import add_join
from receiver.tls import Identity
from tests.fake_daemon import FakeDaemon
from tests.receiver.live import Live, serving

DAY = timedelta(days=1)


def new_key() -> ec.EllipticCurvePrivateKey:
    """A key as a node makes one."""
    return ec.generate_private_key(ec.SECP256R1())


def csr(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A certificate request in DER, as bcd makes it."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def write_cas(folder: Path, now: datetime | None = None) -> None:
    """Both CAs, as `bc-receiver init` leaves them."""
    for name in ("server", "node"):
        key, pem = create_ca(f"test {name}s {mint('run')}", now or datetime.now(UTC))
        (folder / f"{name}-ca.pem").write_bytes(pem)
        (folder / f"{name}-ca.key").touch(0o600)
        (folder / f"{name}-ca.key").write_bytes(key)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody has."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


@dataclass(frozen=True)
class Node:
    """What a node that has joined keeps."""

    node_id: str
    key: ec.EllipticCurvePrivateKey
    certificate: str  # PEM
    server_ca: str  # PEM
    not_after: datetime

    @property
    def fingerprint(self) -> str:
        """Lower-case hexadecimal SHA-256 of the certificate's DER."""
        return x509.load_pem_x509_certificate(self.certificate.encode()).fingerprint(hashes.SHA256()).hex()

    @property
    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel to where nodes report."""
        return grpc.ssl_channel_credentials(self.server_ca.encode(), key_pem(self.key), self.certificate.encode())


@dataclass
class Secure(Live):
    """A receiver that asks for certificates and tokens. `folder` has its CAs."""

    folder: Path = field(default_factory=Path)
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    @property
    def identity(self) -> Identity:
        """The receiver's own."""
        assert self.receiver.identity is not None
        return self.receiver.identity

    def join_token(
        self,
        tenant: str = "default",
        *,
        pool: str | None = None,
        node: str | None = None,
        uses: int = 1,
        kind: str = "host",
        life: timedelta = timedelta(hours=1),
    ) -> str:
        """A new token to join with, as it is sent: "tok_<ulid>.<secret>". `node`: bound to it."""
        made = tokens.new(mint)
        with psycopg.connect(self.database) as tx:
            add_join(tx, made, tenant, pool_id=pool, kind=kind, node_id=node, uses=uses, by="test", life=life)
        return made.text

    def stub(self) -> "join_pb2_grpc.JoinServiceAsyncStub":  # a class of the stubs alone
        """JoinService, of a channel that lives until the test ends."""
        assert self.trusted is not None
        channel = grpc.aio.secure_channel(self.receiver.config.listen_join, self.trusted)
        self.channels.append(channel)
        return join_pb2_grpc.JoinServiceStub(channel)

    async def join(self, token: str | None = None, key: ec.EllipticCurvePrivateKey | None = None, **claims: Any) -> Node:
        """Join over the wire; without a token with a new one. Raises grpc.aio.AioRpcError."""
        key = key or new_key()
        request = join_pb2.JoinRequest(
            token=self.join_token() if token is None else token,
            csr=csr(key),
            claims=join_pb2.Claims(**claims),
            daemon_version="0.1.0",
        )
        return _node(key, (await self.stub().Join(request)).credentials)

    async def renew(self, node: Node, key: ec.EllipticCurvePrivateKey | None = None) -> Node:
        """Renew over the wire, with the node's certificate. Raises grpc.aio.AioRpcError."""
        key = key or new_key()
        async with grpc.aio.secure_channel(self.receiver.config.listen_session, node.credentials) as channel:
            stub = session_pb2_grpc.AgentServiceStub(channel)
            return _node(key, (await stub.Renew(join_pb2.RenewRequest(csr=csr(key)))).credentials)

    def admit(self, token: str | None = None, claims: Identifiers | None = None) -> Node:
        """What `join` does in the database, without the wire and its limit."""
        key = new_key()
        secret = parse(token or self.join_token())
        with psycopg.connect(self.database) as tx:
            joined = join.join(tx, secret, claims or Identifiers(), self.signer(key), "0.1.0")
        return self.node(joined.node_id, key, joined.certificate)

    def signer(self, key: ec.EllipticCurvePrivateKey, life: timedelta = 30 * DAY) -> Callable[[str, datetime], Issued]:
        """Signs that key for a node, by the receiver's CA of nodes."""
        return lambda node_id, now: self.identity.nodes.sign(check_csr(csr(key)), node_id, now, life)

    def certificate(self, node_id: str, authority: NodeAuthority | None = None, now: datetime | None = None) -> Node:
        """A certificate of which the database knows nothing; of another CA, or another time, if given."""
        key = new_key()
        by = authority or self.identity.nodes
        return self.node(node_id, key, by.sign(key.public_key(), node_id, now or datetime.now(UTC), 30 * DAY))

    def node(self, node_id: str, key: ec.EllipticCurvePrivateKey, issued: Issued) -> Node:
        """A node with that certificate."""
        return Node(node_id, key, issued.pem, self.identity.server_ca, issued.not_after)

    def joined_daemon(self, node: Node, **fields: Any) -> FakeDaemon:
        """A daemon with a node's certificate, which will be hung up at the end."""
        return self.daemon(node_id=node.node_id, credentials=node.credentials, **fields)


def _node(key: ec.EllipticCurvePrivateKey, told: join_pb2.Credentials) -> Node:
    ends = told.not_after.ToDatetime(tzinfo=UTC)
    return Node(told.node_id, key, told.certificate, told.server_ca, ends)


@asynccontextmanager
async def secure(database: str, folder: Path | None = None, **settings: Any) -> AsyncIterator[Secure]:
    """A receiver over `database` and 127.0.0.1 with TLS. `folder`: CAs that are there already, as a second receiver has them."""
    with tempfile.TemporaryDirectory(prefix="bc-tls-") as made:
        if folder is None:
            folder = Path(made)
            write_cas(folder)
        names = ("listen_join", "listen_session", "listen_api")
        listens = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(3), strict=True)}
        given = {"insecure": False, "tls_dir": str(folder), **listens, **settings}
        async with serving(database, **given) as served:
            trusted = grpc.ssl_channel_credentials((folder / "server-ca.pem").read_bytes())
            found = Secure(served.receiver, database, served.daemons, trusted=trusted, folder=folder)
            try:
                yield found
            finally:
                for channel in found.channels:
                    await channel.close()


def secured(test: Callable[[Secure], Awaitable[None]]) -> Callable[[str], None]:
    """Runs an asynchronous test with a receiver over TLS and a fresh database."""

    def run(database: str) -> None:
        async def main() -> None:
            async with secure(database) as served:
                await test(served)

        asyncio.run(main())

    run.__doc__ = test.__doc__
    return run
