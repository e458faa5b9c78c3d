"""Join and Renew (SPEC B1): a node's key becomes a certificate. What admits it is decided in receiver/apply/join.py.

joins = Joins(jobs, authority, life, session_addresses, server_ca)
server_of_listen_join.add_services({JOIN_SERVICE: joins.add_to})
joins.add_renewals_to(server_of_listen_session.grpc)    # beside Session; before it starts
"""

import asyncio
import ipaddress
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

import grpc
from bettercompute.agent.v1 import join_pb2 as pb
from bettercompute.agent.v1 import session_pb2
from bettercompute.contract.hardware_key import Identifiers, claimed
from bettercompute.contract.tokens import BadToken, parse
from google.protobuf.message import DecodeError, Message

from receiver.apply import join as apply
from receiver.authority import BadCertificate, BadCsr, Issued, NodeAuthority, PublicKey, certificates, check_csr
from receiver.callers import Auth, Caller, NoIdentity, caller, check_version
from receiver.errors import Refused
from receiver.gateway import limits
from receiver.gateway.identity import peer
from receiver.gateway.jobs import Jobs
from receiver.gateway.limits import Bucket, Limit, OverLimit, check
from receiver.store.database import NO_ANSWER, Connection

JOIN_SERVICE = pb.DESCRIPTOR.services_by_name["JoinService"].full_name
AGENT_SERVICE = session_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
TURNS = 2  # joins, and renewals, in the database at once: streams want it too
MOST_ADDRESSES = 1 << 16  # that are remembered. Who has more of them than that is not held up by a limit of addresses
STATUSES: Mapping[type[Exception], grpc.StatusCode] = {
    NoIdentity: grpc.StatusCode.UNAUTHENTICATED,
    BadToken: grpc.StatusCode.UNAUTHENTICATED,
    apply.NotAdmitted: grpc.StatusCode.UNAUTHENTICATED,
    BadCsr: grpc.StatusCode.INVALID_ARGUMENT,
    DecodeError: grpc.StatusCode.INVALID_ARGUMENT,
    Refused: grpc.StatusCode.FAILED_PRECONDITION,
    BadCertificate: grpc.StatusCode.FAILED_PRECONDITION,
    **dict.fromkeys(NO_ANSWER, grpc.StatusCode.UNAVAILABLE),
}

LOG = logging.getLogger("receiver.gateway")
Context = grpc.aio.ServicerContext[Any, Any]
Work = Callable[[bytes, Caller], Awaitable[pb.Credentials]]
M = TypeVar("M", bound=Message)
T = TypeVar("T")


class Certifying(Protocol):
    """Who signs nodes, and what they are to pin (PEM), as it is now: both may change without a restart."""

    @property
    def nodes(self) -> NodeAuthority: ...
    @property
    def server_ca(self) -> str: ...


class Joins:
    """Both methods. `life`: of a certificate; `session`: where nodes are told to report, several with commas between."""

    def __init__(self, jobs: Jobs, identity: Certifying, life: timedelta, session: str) -> None:
        self.jobs = jobs
        self.identity = identity
        self.life = life
        self.session = session
        self.addresses = Addresses()
        self.joining, self.renewing = 0, set[str]()
        self.turns = asyncio.Semaphore(TURNS), asyncio.Semaphore(TURNS)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serves JoinService."""
        _add(server, JOIN_SERVICE, "Join", self.join)

    def add_renewals_to(self, server: grpc.aio.Server) -> None:
        """Serves AgentService.Renew, where peers come with their certificates."""
        _add(server, AGENT_SERVICE, "Renew", self.renew)

    async def join(self, data: bytes, context: Context) -> pb.JoinResponse:
        """JoinService.Join."""
        return pb.JoinResponse(credentials=await self._answered("join", context, self._join, data))

    async def renew(self, data: bytes, context: Context) -> pb.RenewResponse:
        """AgentService.Renew."""
        return pb.RenewResponse(credentials=await self._answered("renewal", context, self._renew, data))

    async def _answered(self, what: str, context: Context, work: Work, data: bytes) -> pb.Credentials:
        """The answer, or the gRPC status that says why there is none."""
        who = caller(context)
        try:
            credentials = await work(data, who)
            self.jobs.registry.joins[what, "OK"] += 1
            return credentials
        except OverLimit as error:
            code, says = grpc.StatusCode[error.limit.code], str(error)
            self.jobs.registry.met[error.limit.name] += 1
        except tuple(STATUSES) as error:
            code = next(code for kind, code in STATUSES.items() if isinstance(error, kind))
            says = " ".join(str(error).split())
        self.jobs.registry.joins[what, code.name] += 1
        LOG.warning(f"{what} refused", extra={"address": address(who.address), "status": code.name, "reason": says})
        await context.abort(code, says)
        raise AssertionError("abort raises")

    async def _join(self, data: bytes, who: Caller) -> pb.Credentials:
        whose = address(who.address)
        if self.addresses.take(whose, self.jobs.registry.now()):
            raise OverLimit(limits.JOINS)
        check_version(who.auth)
        request = _decoded(pb.JoinRequest(), data)
        token, told, sign = parse(request.token), _claimed(request), self._signer(check_csr(request.csr))
        joined = await self._joined(lambda tx: apply.join(tx, token, told, sign, request.daemon_version))
        facts = {"node": joined.node_id, "token": token.id, "address": whose, "hostname": _printable(request.claims.hostname)}
        LOG.info("node joined" if joined.created else "node joined again", extra=facts)
        return self._credentials(joined.node_id, joined.certificate)

    async def _joined(self, do: Callable[[Connection], apply.Joined[Issued]]) -> apply.Joined[Issued]:
        """Does it when its turn comes; not where too many wait for theirs."""
        check(limits.JOINING, self.joining + 1)
        self.joining += 1

        async def work() -> apply.Joined[Issued]:
            try:
                async with self.turns[0]:
                    return await self.jobs.transaction(do)
            finally:
                self.joining -= 1

        return await _to_its_end(work())

    async def _renew(self, data: bytes, who: Caller) -> pb.Credentials:
        node = peer(who.metadata, who.auth, insecure=False)
        node_id, fingerprint = node.node_id, str(node.certificate)
        key = check_csr(_decoded(pb.RenewRequest(), data).csr)
        if key == _key_of(who.auth):
            raise BadCsr("the key is that of the certificate which is to be renewed: a new one is needed")
        sign, most = self._signer(key), limits.RENEWALS.most
        issued = await self._renewed(fingerprint, lambda tx: apply.renew(tx, node_id, fingerprint, sign, most))
        LOG.info("certificate renewed", extra={"node": node_id, "until": issued.not_after.isoformat()})
        return self._credentials(node_id, issued)

    async def _renewed(self, fingerprint: str, do: Callable[[Connection], Issued]) -> Issued:
        """The same, one of a certificate at a time: whoever has a node's old key holds up nobody who has its new one."""
        if fingerprint in self.renewing:
            raise OverLimit(limits.RENEWING)
        self.renewing.add(fingerprint)

        async def work() -> Issued:
            try:
                async with self.turns[1]:
                    return await self.jobs.transaction(do)
            except apply.TooOften as error:
                raise OverLimit(limits.RENEWALS) from error
            finally:
                self.renewing.discard(fingerprint)

        return await _to_its_end(work())

    def _signer(self, key: PublicKey) -> apply.Sign[Issued]:
        def sign(node_id: str, now: datetime) -> Issued:
            return self.identity.nodes.sign(key, node_id, now, self.life)

        return sign

    def _credentials(self, node_id: str, issued: Issued) -> pb.Credentials:
        told = pb.Credentials(node_id=node_id, certificate=issued.pem, server_ca=self.identity.server_ca, session=self.session)
        told.not_before.FromDatetime(issued.not_before)
        told.not_after.FromDatetime(issued.not_after)
        return told


class Addresses:
    """How often each address has asked to join. Who has asked for long no more is forgotten."""

    def __init__(self, limit: Limit = limits.JOINS, most: int = MOST_ADDRESSES) -> None:
        self.limit = limit
        self.most = most
        self.buckets: OrderedDict[str, Bucket] = OrderedDict()  # who asked last is last

    def take(self, caller: str, now: float) -> float:
        """0.0 when it may; else after how many seconds."""
        bucket = self.buckets.setdefault(caller, Bucket(self.limit))
        self.buckets.move_to_end(caller)
        while (oldest := next(iter(self.buckets))) != caller:
            if len(self.buckets) <= self.most and not self.buckets[oldest].full(now):
                break
            del self.buckets[oldest]
        return bucket.take(now)


def address(peer_of_call: str) -> str:
    """Whose peer this is, for a limit: an IPv4 address, or the /64 of an IPv6 one, of which one machine has all.

    >>> address("ipv4:192.0.2.7:50312"), address("ipv6:%5B2001:db8::1%5D:50312"), address("ipv6:[::ffff:192.0.2.7]:50312")
    ('192.0.2.7', '2001:db8::/64', '192.0.2.7')
    """
    family, _, rest = unquote(peer_of_call).partition(":")
    try:
        found = ipaddress.ip_address(rest.rpartition(":")[0].strip("[]"))
    except ValueError:
        return family
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), 64), strict=False))


def _add(server: grpc.aio.Server, service: str, name: str, method: Callable[[bytes, Context], Awaitable[Message]]) -> None:
    """Requests come as bytes: it is said by name what is wrong with them. (A service may have several of these handlers.)"""
    handler: Any = grpc.unary_unary_rpc_method_handler(method, response_serializer=lambda answer: answer.SerializeToString())
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {name: handler})])


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What is held for a call is held until its transaction has ended, also where the peer hangs up before."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is seen, whoever is there to hear it
    return await asyncio.shield(task)


def _decoded(request: M, data: bytes) -> M:
    check(limits.JOIN_BYTES, len(data))
    try:
        request.ParseFromString(data)
    except DecodeError as error:
        raise DecodeError(f"the request is no {request.DESCRIPTOR.name}") from error
    return request


def _claimed(request: pb.JoinRequest) -> Identifiers:
    claims = request.claims
    for listed in (claims.macs, claims.gpu_uuids):
        check(limits.CLAIMS, len(listed))
    words = (request.daemon_version, claims.product_uuid, claims.serial, *claims.macs, *claims.gpu_uuids)
    for word in words:
        check(limits.WORD, len(word.encode()))
    return claimed(claims.product_uuid, claims.serial, claims.macs, claims.gpu_uuids)


def _key_of(auth: Auth) -> object:
    """The key of the certificate that the peer came with."""
    return certificates(next(iter(auth["x509_pem_cert"])))[0].public_key()


def _printable(claim: str) -> str:
    """A host name as a log may have it."""
    return "".join(one if one.isprintable() else "?" for one in claim[:64])
