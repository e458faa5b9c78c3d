"""The receivers' side of joining, for tests of bcd: two CAs, and a server of Join and Renew that answers as a test wants."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
from bettercompute.agent.v1 import join_pb2 as pb
from bettercompute.contract.tokens import JoinString, make
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from agent.identity import Certificate, Identity
from receiver.authority import Issued, NodeAuthority, ServerAuthority, check_csr, create_ca, key_pem

NODE, OTHER = "node_01hz7pj0w80000000000000000", "node_01jz7pj0w80000000000000000"
TOKEN = make("tok_01hz7pj0w80000000000000000", bytes(range(32)))
LIFE = timedelta(days=30)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


@dataclass
class FakeFleet:
    """A fleet's CAs. `joins` and `renewals`: the requests that came; `answer` may change what is said to them, or raise."""

    servers: ServerAuthority = field(default_factory=lambda: ServerAuthority(*reversed(create_ca("servers", _now()))))
    nodes: NodeAuthority = field(default_factory=lambda: NodeAuthority(*reversed(create_ca("nodes", _now()))))
    node_id: str = NODE
    session: str = "gw.example:7443"
    joins: list[pb.JoinRequest] = field(default_factory=list)
    renewals: list[pb.RenewRequest] = field(default_factory=list)
    answer: Callable[[pb.Credentials, Any], None] = lambda credentials, context: None

    def token(self, address: str) -> str:
        """The one string with which nodes join."""
        return JoinString(TOKEN, address, tuple(c.public_bytes(Encoding.DER) for c in self.servers.trusted)).text

    def credentials(
        self, *names: str, now: datetime | None = None, life: timedelta = LIFE, client: bool = False
    ) -> grpc.ServerCredentials:
        """A receiver's certificate for these names; `client`: nodes' certificates are asked for."""
        key, issued = self.servers.mint(names or ("localhost", "127.0.0.1"), now or _now(), life)
        return grpc.ssl_server_credentials(
            [(key, issued.pem.encode())], self.nodes.ca_pem if client else None, require_client_auth=client
        )

    def identity(
        self,
        server: str,
        node_id: str = NODE,
        *,
        now: datetime | None = None,
        life: timedelta = LIFE,
        by: NodeAuthority | None = None,
    ) -> Identity:
        """What a node keeps that has joined."""
        key = ec.generate_private_key(ec.SECP256R1())
        issued = (by or self.nodes).sign(key.public_key(), node_id, now or _now(), life)
        start, end = issued.not_before.timestamp(), issued.not_after.timestamp()
        ca = self.servers.ca_pem.decode()
        return Identity(node_id, Certificate(server, issued.pem, key_pem(key).decode(), ca, start, end))

    @contextmanager
    def serving(self, credentials: grpc.ServerCredentials | None, address: str = "127.0.0.1:0") -> Iterator[str]:
        """Join and Renew at an address; None: without TLS."""
        server = grpc.server(ThreadPoolExecutor(2))
        for service, method, request, answer in (
            ("JoinService", "Join", pb.JoinRequest, self._join),
            ("AgentService", "Renew", pb.RenewRequest, self._renew),
        ):
            handler = grpc.unary_unary_rpc_method_handler(
                answer, request_deserializer=request.FromString, response_serializer=_bytes
            )
            full = f"bettercompute.agent.v1.{service}"
            server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(full, {method: handler})])
        port = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        server.start()
        try:
            yield address if address.startswith("unix:") else f"127.0.0.1:{port}"
        finally:
            server.stop(0).wait()

    def _join(self, request: pb.JoinRequest, context: Any) -> pb.JoinResponse:
        self.joins.append(request)
        return pb.JoinResponse(credentials=self._given(request.csr, context))

    def _renew(self, request: pb.RenewRequest, context: Any) -> pb.RenewResponse:
        self.renewals.append(request)
        return pb.RenewResponse(credentials=self._given(request.csr, context))

    def _given(self, csr: bytes, context: Any) -> pb.Credentials:
        issued: Issued = self.nodes.sign(check_csr(csr), self.node_id, _now(), LIFE)
        given = pb.Credentials(node_id=self.node_id, certificate=issued.pem, session=self.session)
        given.server_ca = self.servers.ca_pem.decode()
        given.not_before.FromDatetime(issued.not_before)
        given.not_after.FromDatetime(issued.not_after)
        self.answer(given, context)
        return given


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def is_pair(joined: Certificate) -> bool:
    """Whether key and certificate belong together."""
    from receiver.authority import load_key

    certificate = x509.load_pem_x509_certificate(joined.certificate.encode())
    return certificate.public_key() == load_key(joined.key.encode()).public_key()
