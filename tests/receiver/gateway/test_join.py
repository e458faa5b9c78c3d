"""Join and Renew over real TLS (SPEC B1): what is answered, with which status it is refused, what of it is counted."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import psycopg
import pytest
from bettercompute.agent.v1 import join_pb2 as pb
from bettercompute.agent.v1 import session_pb2, session_pb2_grpc
from bettercompute.contract import tokens
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from receiver.authority import NodeAuthority, create_ca
from receiver.gateway import limits
from receiver.gateway.join import Addresses, address
from receiver.ids import mint
from receiver.store.database import Connection
from tests.fake_daemon import Over, until
from tests.receiver.live import refused
from tests.receiver.tls import Node, Secure, csr, new_key, secure, secured

Code = grpc.StatusCode
DAY = timedelta(days=1)


async def asked(served: Secure, request: pb.JoinRequest | bytes) -> tuple[Code, str]:
    """How a Join was refused."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    assert served.trusted is not None
    async with grpc.aio.secure_channel(served.receiver.config.listen_join, served.trusted) as channel:
        call: Any = channel.unary_unary("/bettercompute.agent.v1.JoinService/Join")
        return await refused(call(data))


def counted(served: Secure) -> dict[str, int]:
    return dict(served.receiver.registry.met)


def nodes(served: Secure) -> int:
    return int(served.rows("SELECT count(*) FROM nodes")[0][0])


def without_limit(served: Secure) -> None:
    """As if each call came from another machine."""
    joins = served.receiver.joins
    assert joins is not None
    joins.addresses = Addresses(limits.Limit("joins", 1000, "RESOURCE_EXHAUSTED", 60.0, 1000))


# -- Join


@secured
async def test_join_gives_all_that_a_node_needs_to_report(served: Secure) -> None:
    token = served.join_token("acme")
    request = pb.JoinRequest(token=token, csr=csr(key := new_key()), claims=pb.Claims(hostname="gpu-1"), daemon_version="0.1.0")
    told = (await served.stub().Join(request)).credentials
    certificate = x509.load_pem_x509_certificate(told.certificate.encode())
    assert certificate.public_key() == key.public_key()
    assert told.session == served.receiver.config.listen_session
    assert told.server_ca == (served.folder / "server-ca.pem").read_text()
    assert told.not_before.ToDatetime(UTC) == certificate.not_valid_before_utc
    assert told.not_after.ToDatetime(UTC) == certificate.not_valid_after_utc
    rows = served.rows("SELECT fingerprint, node_id, tenant_id, not_before, not_after, issued_by FROM certificates")
    fingerprint, token_id = certificate.fingerprint(hashes.SHA256()).hex(), token.partition(".")[0]
    life = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    assert rows == [(fingerprint, told.node_id, "acme", *life, token_id)]
    node = Node(told.node_id, key, told.certificate, told.server_ca, life[1])
    assert (await served.joined_daemon(node).connect()).node_id == told.node_id


@secured
async def test_every_word_of_the_certificate_is_the_receivers_own(served: Secure) -> None:
    """What the request says beside its key is not used (SPEC B1): its name, its names, its uses."""
    key = new_key()
    wish = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bc-receiver")]))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"bc://node/{mint('node')}")]), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )
    before = datetime.now(UTC).replace(microsecond=0)
    told = (await served.stub().Join(pb.JoinRequest(token=served.join_token(), csr=wish))).credentials
    made = x509.load_pem_x509_certificate(told.certificate.encode())
    san = made.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert (list(made.subject), san.critical) == ([], True)
    assert [one.value for one in san.value] == [f"bc://node/{told.node_id}"]
    assert list(made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert isinstance(public := made.public_key(), ec.EllipticCurvePublicKey)
    assert public.curve.name == "secp256r1"
    assert timedelta() <= made.not_valid_before_utc + timedelta(hours=1) - before < timedelta(minutes=1), "one hour ago"
    assert timedelta() <= made.not_valid_after_utc - 30 * DAY - before < timedelta(minutes=1)
    made.verify_directly_issued_by(x509.load_pem_x509_certificate((served.folder / "node-ca.pem").read_bytes()))


def test_what_nodes_are_told_is_what_is_advertised_and_lives_as_long_as_is_set(database: str) -> None:
    async def main() -> None:
        told: dict[str, Any] = {"advertise_session": "a.example:7443,b.example:7443", "tls_node_life": 3600.0}
        async with secure(database, **told) as served:
            answer = (await served.stub().Join(pb.JoinRequest(token=served.join_token(), csr=csr(new_key())))).credentials
            assert answer.session == "a.example:7443,b.example:7443"
            assert answer.not_after.ToDatetime() - answer.not_before.ToDatetime() == timedelta(hours=2)

    asyncio.run(main())


@secured
async def test_listener_of_join_serves_no_sessions_and_asks_for_no_certificate(served: Secure) -> None:
    node = await served.join()
    async with grpc.aio.secure_channel(served.receiver.config.listen_join, node.credentials) as channel:
        stub = session_pb2_grpc.AgentServiceStub(channel)
        assert (await refused(stub.Renew(pb.RenewRequest(csr=csr(new_key())))))[0] is Code.UNIMPLEMENTED
        call = stub.Session(iter(()))
        assert (await refused(call.read()))[0] is Code.UNIMPLEMENTED


@secured
async def test_listener_of_sessions_serves_no_join(served: Secure) -> None:
    node = await served.join()
    async with grpc.aio.secure_channel(served.receiver.config.listen_session, node.credentials) as channel:
        call: Any = channel.unary_unary("/bettercompute.agent.v1.JoinService/Join")
        assert (await refused(call(b"")))[0] is Code.UNIMPLEMENTED


@secured
async def test_token_that_admits_nobody_is_unauthenticated_and_its_secret_is_told_to_nobody(
    served: Secure,
) -> None:
    without_limit(served)
    used = served.join_token()
    node = await served.join(used)
    expired, revoked, good = served.join_token(life=timedelta(seconds=-1)), served.join_token(), served.join_token()
    with_tx = "UPDATE join_tokens SET revoked_at = bc_clock() WHERE id = %s RETURNING 1"
    assert served.rows(with_tx, revoked.partition(".")[0]) == [(1,)]
    wrong = tokens.make(good.partition(".")[0], bytes(32)).text
    for token, word in {
        used: "used up",
        expired: "expired",
        revoked: "revoked",
        wrong: "no such join token",
        tokens.make(mint("tok"), bytes(32)).text: "no such join token",
        "tok_01hf7yat000000000000000000.short": "43",
        "": "tok_",
    }.items():
        code, says = await refused(served.join(token))
        assert (code, word in says) == (Code.UNAUTHENTICATED, True), (token, says)
        assert not token or token.partition(".")[2] not in says
    assert nodes(served) == 1
    assert (await served.join(good)).node_id != node.node_id, "a wrong secret uses nothing up"


@secured
async def test_nothing_logs_a_secret_and_who_joined_is_logged(served: Secure) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(str(vars(record)))  # type: ignore[method-assign]
    logging.getLogger("receiver").addHandler(handler)
    logging.getLogger("receiver").setLevel(logging.INFO)
    try:
        token = served.join_token()
        node = await served.join(token, hostname="gpu-1\x1b[2J")
        await refused(served.join(token))
    finally:
        logging.getLogger("receiver").removeHandler(handler)
    said = "\n".join(lines)
    assert "node joined" in said
    assert node.node_id in said
    assert "gpu-1?[2J" in said
    assert "used up" in said
    assert token.partition(".")[2] not in said


def odd_requests() -> dict[str, tuple[bytes, str]]:
    """Certificate requests that are refused, and what is said."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    other = builder.sign(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256())
    small = builder.sign(rsa.generate_private_key(65537, 2048), hashes.SHA256())
    good = csr(new_key())
    return {
        "empty": (b"", "PKCS #10"),
        "no DER": (b"-----BEGIN CERTIFICATE REQUEST-----", "PKCS #10"),
        "cut short": (good[:-9], "PKCS #10"),
        "another curve": (other.public_bytes(serialization.Encoding.DER), "P-256"),
        "RSA": (small.public_bytes(serialization.Encoding.DER), "P-256"),
        "not its own": (good[:-4] + bytes(byte ^ 1 for byte in good[-4:]), "signed by its own key"),
        "too big": (good + bytes(8192), "4096"),
    }


@secured
async def test_bad_certificate_request_is_refused_by_what_is_wrong_and_uses_no_token(served: Secure) -> None:
    token = served.join_token()
    for name, (request, says) in odd_requests().items():
        code, detail = await asked(served, pb.JoinRequest(token=token, csr=request))
        assert (code, says in detail) == (Code.INVALID_ARGUMENT, True), (name, detail)
    assert served.rows("SELECT used FROM join_tokens") == [(0,)]


@secured
async def test_hostile_requests_are_refused_by_name(served: Secure) -> None:
    without_limit(served)
    token, key = served.join_token(uses=9), csr(new_key())

    def claiming(**claims: Any) -> pb.JoinRequest:
        return pb.JoinRequest(token=token, csr=key, claims=pb.Claims(**claims))

    for request, code, says in (
        (b"\xff\xff\xff", Code.INVALID_ARGUMENT, "JoinRequest"),
        (claiming(macs=["b8:3f:d2:00:00:01"] * 257), Code.INVALID_ARGUMENT, "257, at most 256"),
        (claiming(gpu_uuids=["GPU-1"] * 257), Code.INVALID_ARGUMENT, "257, at most 256"),
        (claiming(serial="S" * 257), Code.INVALID_ARGUMENT, "bytes a name, version or id: 257"),
        (claiming(gpu_uuids=["G" * 257]), Code.INVALID_ARGUMENT, "bytes a name, version or id: 257"),
        (claiming(hostname="h" * (64 << 10)), Code.RESOURCE_EXHAUSTED, "bytes a join or renewal"),
    ):
        assert (await asked(served, request))[0] is code
        assert says in (await asked(served, request))[1]
    assert counted(served)["MAC addresses, or GPUs, of a claim"] == 4
    assert served.rows("SELECT used FROM join_tokens") == [(0,)]


@secured
async def test_claims_with_nuls_and_sql_are_values(served: Secure) -> None:
    claims: dict[str, Any] = {
        "product_uuid": "\0",
        "serial": "'; DROP TABLE nodes; --\0",
        "gpu_uuids": ["GPU-\0"],
        "macs": ["b8:3f:d2:00:00:01"],
    }
    node = await served.join(**claims)
    rows = served.rows("SELECT identifiers FROM hardware_keys WHERE node_id = %s", node.node_id)
    assert rows[0][0]["gpu"] == ["GPU-\ufffd"]


@secured
async def test_bound_token_ends_the_stream_of_the_old_key_at_once(served: Secure) -> None:
    node = await served.join()
    daemon = served.joined_daemon(node)
    await daemon.connect()
    again = await served.join(served.join_token(node=node.node_id))
    assert again.node_id == node.node_id
    with pytest.raises(Over) as over:
        await daemon.receive()
    assert over.value.end is not None
    assert over.value.end.reason == session_pb2.SESSION_END_REASON_REVOKED
    assert (await served.joined_daemon(again).connect()).node_id == node.node_id


@secured
async def test_state_that_does_not_allow_it_is_a_failed_precondition(served: Secure) -> None:
    code, says = await refused(served.join(served.join_token(pool="pool_gone")))
    assert (code, "pool_gone" in says, nodes(served)) == (Code.FAILED_PRECONDITION, True, 0)


@secured
async def test_ca_of_nodes_that_has_expired_is_told_and_uses_no_token(served: Secure) -> None:
    key, pem = create_ca("old", datetime.now(UTC) - 3651 * DAY)
    served.identity.material = replace(served.identity.material, nodes=NodeAuthority(pem, key))
    code, says = await refused(served.join())
    assert (code, "expired" in says, nodes(served)) == (Code.FAILED_PRECONDITION, True, 0)
    assert served.rows("SELECT used FROM join_tokens") == [(0,)]


@secured
async def test_database_that_does_not_answer_is_unavailable(served: Secure) -> None:
    def away(_: Callable[[Connection], object]) -> Awaitable[object]:
        raise psycopg.OperationalError("the server closed the connection")

    token = served.join_token()
    jobs = served.receiver.jobs
    before, jobs.transaction = jobs.transaction, away  # type: ignore[method-assign, assignment]
    assert (await refused(served.join(token)))[0] is Code.UNAVAILABLE
    jobs.transaction = before  # type: ignore[method-assign]
    await served.join(token)


# -- how often


@secured
async def test_eleventh_join_within_a_minute_from_an_address_is_refused_and_counted(served: Secure) -> None:
    token = served.join_token(uses=20)
    for _ in range(5):
        await served.join(token)
        await refused(served.join("tok_wrong.secret"))
    code, says = await refused(served.join(token))
    assert (code, "joins a minute and address: at most 10" in says) == (Code.RESOURCE_EXHAUSTED, True)
    assert (counted(served)[limits.JOINS.name], nodes(served)) == (1, 5), "refused ones count as well"


def test_addresses_have_a_limit_each_which_is_over_in_time() -> None:
    known = Addresses()
    assert [known.take("a", 0.0) for _ in range(10)] == [0.0] * 10
    assert known.take("a", 0.0) == pytest.approx(6.0)
    assert known.take("b", 0.0) == 0.0
    assert known.take("a", 6.1) == 0.0
    assert known.take("a", 6.1) > 0


def test_addresses_that_ask_no_more_are_forgotten_and_never_too_many_remembered() -> None:
    known = Addresses(most=100)
    for number in range(1000):
        known.take(str(number), 1.0)
    assert len(known.buckets) == 100
    for _ in range(11):
        known.take("999", 2.0)
    assert known.take("999", 2.0) > 0, "who is remembered is held to it"
    known.take("new", 100.0)
    assert list(known.buckets) == ["new"]


@pytest.mark.parametrize(
    ("peer", "whose"),
    [
        ("ipv4:192.0.2.7:50312", "192.0.2.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:50312", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2::9]:1", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:3::9]:1", "2001:db8:1:3::/64"),
        ("ipv6:[::ffff:192.0.2.7]:50312", "192.0.2.7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "fe80::/64"),
        ("unix:", "unix"),
        ("", ""),
    ],
)
def test_limit_is_of_the_address_and_of_the_64_of_an_ipv6_one(peer: str, whose: str) -> None:
    assert address(peer) == whose


@secured
async def test_joins_that_wait_are_bounded(served: Secure) -> None:
    joins = served.receiver.joins
    assert joins is not None
    joins.joining = limits.JOINING.most
    code, says = await refused(served.join())
    assert (code, limits.JOINING.name in says) == (Code.RESOURCE_EXHAUSTED, True)
    joins.joining = 0
    await served.join()
    assert joins.joining == 0


@secured
async def test_join_whose_peer_hangs_up_is_held_until_it_has_ended(served: Secure) -> None:
    """Else who asks and hangs up, again and again, would have any number of transactions wait."""
    joins, jobs, gate = served.receiver.joins, served.receiver.jobs, asyncio.Event()
    assert joins is not None
    transaction = jobs.transaction

    async def slow(do: Callable[[Connection], Any]) -> Any:
        await gate.wait()
        return await transaction(do)

    jobs.transaction = slow  # type: ignore[method-assign]
    call = asyncio.ensure_future(served.join())
    await until("the join", lambda: joins.joining == 1)
    call.cancel()
    await asyncio.sleep(0.2)
    assert joins.joining == 1
    gate.set()
    await until("the end of the join", lambda: joins.joining == 0)
    assert nodes(served) == 1


@secured
async def test_lower_version_of_tls_is_refused(served: Secure) -> None:
    joins = served.receiver.joins
    assert joins is not None

    class Peer:
        def peer(self) -> str:
            return "ipv4:192.0.2.7:1"

        def invocation_metadata(self) -> None:
            return None

        def auth_context(self) -> dict[str, list[bytes]]:
            return {"ssl_tls_version": [b"TLSv1.2"]}

        async def abort(self, code: Code, says: str) -> None:
            raise PermissionError(code.name, says)

    request = pb.JoinRequest(token=served.join_token(), csr=csr(new_key())).SerializeToString()
    with pytest.raises(PermissionError) as error:
        await joins.join(request, Peer())  # type: ignore[arg-type]
    assert error.value.args == ("UNAUTHENTICATED", "TLS 1.3 is needed, not TLSv1.2")


@secured
async def test_node_that_has_joined_and_reported_nothing_is_shown_and_can_be_ordered_about(served: Secure) -> None:
    node = (await served.join(hostname="gpu-1", serial="S512345X3900001")).node_id
    with served.calling("default"):
        shown = await served.api("nodes.get", nodeId=node)
        assert (shown["id"], shown["status"], shown["kind"]) == (node, "adopting", "host")
        assert [one["id"] for one in (await served.api("nodes.list"))["nodes"]] == [node]
        why = await served.api("nodes.why", nodeId=node)
        assert why["bookable"] is False
        for name in ("commands.list", "remediation.list", "atoms.list", "events.list"):
            await served.api(name, nodeId=node)
        await served.api("nodes.label", nodeId=node, labels='{"rack": "r7"}', reason="test")
        await served.api("nodes.maintenance", nodeId=node, reason="test")
        await served.api("nodes.adopt", nodeId=node, reason="test")
        assert (await served.api("nodes.retire", nodeId=node, reason="test"))["status"] == "retired"
        assert (await served.api("nodes.delete", nodeId=node, reason="test"))["status"] == "deleted"
