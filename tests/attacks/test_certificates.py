"""Attacks on the listener of sessions by who has no certificate, a wrong one, or one that is good no more (SPEC B1)."""

from datetime import UTC, datetime, timedelta

import grpc
import pytest
from bettercompute.agent.v1 import join_pb2, session_pb2_grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from receiver.authority import NODE_URI, NodeAuthority, create_ca, key_pem
from receiver.ids import mint
from tests.attacks.arena import CODE, REVOKED, Arena, attack, refusal
from tests.fake_daemon import FakeDaemon
from tests.receiver.tls import Node, new_key

DAY = timedelta(days=1)


def stranger(name: str) -> NodeAuthority:
    """A CA of nodes that this receiver does not know."""
    key, pem = create_ca(name, datetime.now(UTC))
    return NodeAuthority(pem, key)


def forged(arena: Arena, key: ec.EllipticCurvePrivateKey, *names: str, use: x509.ObjectIdentifier) -> grpc.ChannelCredentials:
    """A certificate by the CA of nodes itself, as an operator's own tools might make one: not one of the receiver's words."""
    ca, now = arena.served.identity.nodes, datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(ca.ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name) for name in names]), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .sign(ca.key, hashes.SHA256())
    )
    return shown(arena, key_pem(key), built.public_bytes(serialization.Encoding.PEM))


def shown(arena: Arena, key: bytes, chain: bytes) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(arena.served.identity.server_ca.encode(), key, chain)


async def met(arena: Arena, credentials: grpc.ChannelCredentials | None) -> tuple[grpc.StatusCode | None, int | None, str]:
    """How a Hello with these credentials is refused."""
    async with FakeDaemon(arena.served.receiver.config.listen_session, credentials=credentials) as daemon:
        return await refusal(daemon.connect())


# ---- no handshake: TLS refuses


@attack
async def test_no_certificate(arena: Arena) -> None:
    async with arena.unharmed():
        assert (await met(arena, arena.served.trusted))[0] is CODE.UNAVAILABLE


@attack
async def test_no_tls(arena: Arena) -> None:
    async with arena.unharmed():
        assert (await met(arena, None))[0] is CODE.UNAVAILABLE


@attack
async def test_another_cas(arena: Arena) -> None:
    async with arena.unharmed():
        node = arena.served.certificate(arena.victim.node_id, stranger("another fleet's"))
        assert (await met(arena, node.credentials))[0] is CODE.UNAVAILABLE


@attack
async def test_another_cas_that_has_the_same_name(arena: Arena) -> None:
    async with arena.unharmed():
        name = arena.served.identity.nodes.ca.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value
        node = arena.served.certificate(arena.victim.node_id, stranger(str(name)))
        assert (await met(arena, node.credentials))[0] is CODE.UNAVAILABLE


@attack
async def test_one_that_a_nodes_certificate_signed(arena: Arena) -> None:
    """A node is no CA."""
    async with arena.unharmed():
        key = new_key()
        under = NodeAuthority.__new__(NodeAuthority)
        under.key, under.ca = arena.victim.key, x509.load_pem_x509_certificate(arena.victim.certificate.encode())
        issued = under.sign(key.public_key(), arena.victim.node_id, datetime.now(UTC), DAY)
        chain = issued.pem.encode() + arena.victim.certificate.encode()
        assert (await met(arena, shown(arena, key_pem(key), chain)))[0] is CODE.UNAVAILABLE


@attack
async def test_expired(arena: Arena) -> None:
    async with arena.unharmed():
        node = arena.served.certificate(arena.victim.node_id, now=datetime.now(UTC) - 31 * DAY)
        assert (await met(arena, node.credentials))[0] is CODE.UNAVAILABLE


@attack
async def test_not_yet_good(arena: Arena) -> None:
    async with arena.unharmed():
        node = arena.served.certificate(arena.victim.node_id, now=datetime.now(UTC) + DAY)
        assert (await met(arena, node.credentials))[0] is CODE.UNAVAILABLE


@attack
async def test_a_receivers_certificate_used_as_a_nodes(arena: Arena) -> None:
    async with arena.unharmed():
        own = arena.served.identity.material
        assert (await met(arena, shown(arena, own.key, own.chain)))[0] is CODE.UNAVAILABLE


@attack
async def test_a_certificate_without_its_key(arena: Arena) -> None:
    """What everybody may see of a node."""
    async with arena.unharmed():
        assert (await met(arena, shown(arena, key_pem(new_key()), arena.victim.certificate.encode())))[0] is CODE.UNAVAILABLE


# ---- a node's certificate used as a server's


@pytest.mark.parametrize("pinned", ["server-ca.pem", "node-ca.pem"])
def test_a_nodes_certificate_used_as_a_servers(pinned: str, theatre: object) -> None:
    """A node that would stand in for the receiver: who pins the CA of receivers, and even who pins that of nodes, hangs up."""

    @attack
    async def run(arena: Arena) -> None:
        node = arena.attacker()
        server = grpc.aio.server()
        port = server.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials([(key_pem(node.key), node.certificate.encode())])
        )
        await server.start()
        try:
            async with arena.unharmed():
                believed = (arena.served.folder / pinned).read_bytes()
                victim = grpc.ssl_channel_credentials(believed, key_pem(arena.victim.key), arena.victim.certificate.encode())
                async with FakeDaemon(f"127.0.0.1:{port}", credentials=victim) as daemon:
                    assert (await refusal(daemon.connect()))[0] is CODE.UNAVAILABLE
        finally:
            await server.stop(0)

    run(theatre)  # type: ignore[arg-type]


# ---- a handshake, and no session


@attack
async def test_one_that_the_database_does_not_know(arena: Arena) -> None:
    """By the CA of nodes itself: its key is stolen, or a restored backup knows nothing of it."""
    async with arena.unharmed():
        node = arena.served.certificate(arena.victim.node_id)
        _, reason, says = await met(arena, node.credentials)
        assert reason == REVOKED
        assert "has to join" in says


@attack
async def test_another_nodes_that_the_database_knows(arena: Arena) -> None:
    """A row of one node does not make another node's certificate good."""
    node, other = arena.served.certificate(arena.victim.node_id), arena.attacker()
    await arena.sql("UPDATE certificates SET fingerprint = %s WHERE node_id = %s", node.fingerprint, other.node_id)
    async with arena.unharmed():
        assert (await met(arena, node.credentials))[1] == REVOKED


NAMES = (
    (),
    ("bc://node/",),
    ("bc://node/node_1",),
    ("bc://node/{victim}", "bc://node/{other}"),
    ("bc://node/{victim}/../{other}",),
    ("bc://node/{victim}?",),
    ("BC://NODE/{victim}",),
    ("https://node/{victim}",),
    ("bc://node/{victim}\0.evil",),
)


@attack
async def test_names_that_are_no_nodes(arena: Arena) -> None:
    async with arena.unharmed():
        for names in NAMES:
            said = [name.format(victim=arena.victim.node_id, other=mint("node")) for name in names]
            credentials = forged(arena, new_key(), *said, use=ExtendedKeyUsageOID.CLIENT_AUTH)
            assert (await met(arena, credentials))[0] is CODE.UNAUTHENTICATED, names


@attack
async def test_one_for_servers_by_the_ca_of_nodes(arena: Arena) -> None:
    async with arena.unharmed():
        credentials = forged(arena, new_key(), NODE_URI + arena.victim.node_id, use=ExtendedKeyUsageOID.SERVER_AUTH)
        assert (await met(arena, credentials))[0] is CODE.UNAVAILABLE


@attack
async def test_revoked(arena: Arena) -> None:
    node = arena.attacker()
    await arena.sql("UPDATE certificates SET revoked_at = now(), revoked_reason = 'test' WHERE node_id = %s", node.node_id)
    async with arena.unharmed():
        assert (await met(arena, node.credentials))[1] == REVOKED


@attack
async def test_expired_by_the_clock_of_the_fleet(arena: Arena) -> None:
    node = arena.attacker()
    await arena.sql("UPDATE certificates SET not_after = now() WHERE node_id = %s", node.node_id)
    async with arena.unharmed():
        assert (await met(arena, node.credentials))[1] == REVOKED


@attack
async def test_of_a_node_that_is_retired_and_of_one_that_is_deleted(arena: Arena) -> None:
    node = arena.attacker()
    for method in ("nodes.retire", "nodes.delete"):
        await arena.call(arena.operator, method, nodeId=node.node_id, reason="out")
        async with arena.unharmed():
            assert (await met(arena, node.credentials))[1] == REVOKED


# ---- a session, and its end


async def ends_revoked(daemon: FakeDaemon) -> None:
    """The stream ends, told so, within the time that a revocation takes."""

    async def heard() -> None:
        while True:
            await daemon.receive()

    assert (await refusal(heard()))[1] == REVOKED


@attack
async def test_revoked_while_the_stream_runs(arena: Arena) -> None:
    node = arena.attacker()
    async with arena.connected(node) as daemon:
        await arena.call(arena.operator, "nodes.retire", nodeId=node.node_id, reason="stolen")
        await ends_revoked(daemon)
        async with arena.unharmed():
            assert (await met(arena, node.credentials))[1] == REVOKED


@attack
async def test_revoked_while_the_stream_runs_and_nobody_was_notified(arena: Arena) -> None:
    node = arena.attacker()
    async with arena.connected(node) as daemon:
        await arena.sql("UPDATE certificates SET revoked_at = now(), revoked_reason = 'x' WHERE node_id = %s", node.node_id)
        await ends_revoked(daemon)


@attack
async def test_expired_while_the_stream_runs(arena: Arena) -> None:
    node = arena.attacker()
    async with arena.connected(node) as daemon:
        await arena.sql("UPDATE certificates SET not_after = now() WHERE node_id = %s", node.node_id)
        await ends_revoked(daemon)


@attack
async def test_a_leases_key_used_after_it_ended(arena: Arena) -> None:
    """A tenant had root, and kept what it found: the key opens nothing, neither a session nor a new certificate."""
    node = arena.attacker()
    on = {"nodeId": node.node_id, "reason": "lease"}
    await arena.call(arena.operator, "nodes.setTrust", trust="tenant-controlled", leaseId="lease-1", **on)
    async with arena.connected(node) as daemon:
        await arena.call(arena.operator, "nodes.setTrust", trust="platform", **on)
        await ends_revoked(daemon)
    async with arena.unharmed():
        assert (await met(arena, node.credentials))[1] == REVOKED
        assert (await refusal(arena.served.renew(node)))[0] is CODE.UNAUTHENTICATED


@attack
async def test_another_nodes_id_in_metadata(arena: Arena) -> None:
    """Who one is says the certificate, and nothing else."""
    node = arena.attacker()
    async with arena.unharmed("sessions", "nodes"), arena.node_daemon(node) as daemon:
        await daemon.open((("bc-node-id", arena.victim.node_id),))
        await daemon.send(hello=daemon.hello())
        assert (await daemon.receive()).welcome.node_id == node.node_id


# ---- Renew


async def renewed(arena: Arena, node: Node, csr: bytes) -> None:
    async with grpc.aio.secure_channel(arena.served.receiver.config.listen_session, node.credentials) as channel:
        await session_pb2_grpc.AgentServiceStub(channel).Renew(join_pb2.RenewRequest(csr=csr), timeout=5)


@attack
async def test_a_renewal_with_what_is_good_no_more(arena: Arena) -> None:
    node = arena.attacker()
    await arena.sql("UPDATE certificates SET revoked_at = now(), revoked_reason = 'x' WHERE node_id = %s", node.node_id)
    async with arena.unharmed():
        assert (await refusal(arena.served.renew(node)))[0] is CODE.UNAUTHENTICATED
        unknown = arena.served.certificate(arena.victim.node_id)
        assert (await refusal(arena.served.renew(unknown)))[0] is CODE.UNAUTHENTICATED


@attack
async def test_a_renewal_with_what_is_no_request(arena: Arena) -> None:
    node = arena.attacker()
    async with arena.unharmed():
        for csr in (b"", b"\0", b"\x30\x80", b"\xff" * 4096, b"\x30" * 70_000):
            code, _, says = await refusal(renewed(arena, node, csr))
            assert code in (CODE.INVALID_ARGUMENT, CODE.RESOURCE_EXHAUSTED), says


@attack
async def test_renewals_without_end(arena: Arena) -> None:
    """The seventh of an hour, whichever certificate it comes with."""
    node = arena.attacker()
    for _ in range(6):
        node = await arena.served.renew(node)
    async with arena.unharmed():
        code, _, says = await refusal(arena.served.renew(node))
        assert code is CODE.RESOURCE_EXHAUSTED
        assert "renewals an hour and node" in says
