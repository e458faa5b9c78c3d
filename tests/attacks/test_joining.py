"""Attacks on Join: by who has no token, one that is good no more, or claims to be what it is not (SPEC B1)."""

import asyncio
import contextlib
import itertools
import logging
from datetime import timedelta
from typing import Any

import grpc
import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.agent.v1 import join_pb2, session_pb2, session_pb2_grpc
from bettercompute.contract.sections import encode
from bettercompute.contract.tokens import parse
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from receiver import log
from receiver.gateway import join
from receiver.store.tokens import revoke_join
from tests.attacks import untouched
from tests.attacks.arena import CODE, Arena, attack, refusal
from tests.attacks.fields import SQL
from tests.attacks.world import ACME, CANARY
from tests.receiver.builders import gpu, gpus
from tests.receiver.tls import csr, new_key

GPU = gpu(900).uuid  # the victim's
ADDRESSES = itertools.count()


@pytest.fixture(autouse=True)
def each_from_another_address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for who tests just that, the limit of an address is not met by the attacks together."""
    if request.node.name != "test_joins_without_end":
        monkeypatch.setattr(join, "address", lambda caller: f"caller {next(ADDRESSES)}")


async def sent(arena: Arena, token: str, request: bytes | None = None, **more: Any) -> join_pb2.JoinResponse:
    """Join with this token, and a good key unless another request is given."""
    given = csr(new_key()) if request is None else request
    return await arena.served.stub().Join(join_pb2.JoinRequest(token=token, csr=given, **more), timeout=10)


def altered(token: str) -> str:
    return token[:-1] + ("A" if token[-1] != "A" else "B")


# ---- tokens


@attack
async def test_no_token_and_what_is_none(arena: Arena) -> None:
    good = arena.served.join_token(ACME)
    async with arena.unharmed():
        for token in ("", "tok_", good.partition(".")[0], altered(good), good.upper(), good + "A", "\0", "x" * 60_000, *SQL):
            assert (await refusal(sent(arena, token)))[0] is CODE.UNAUTHENTICATED, token[:80]


@attack
async def test_another_tokens_secret(arena: Arena) -> None:
    one, other = (parse(arena.served.join_token(tenant)) for tenant in (ACME, CANARY))
    async with arena.unharmed():
        code, _, says = await refusal(sent(arena, f"{other.id}.{one.secret}"))
        assert code is CODE.UNAUTHENTICATED
        assert (await refusal(sent(arena, "tok_01hf7yat000000000000000000." + one.secret)))[2] == says, "nor which ids there are"


@attack
async def test_a_token_of_the_api(arena: Arena) -> None:
    async with arena.unharmed():
        assert (await refusal(sent(arena, arena.operator)))[0] is CODE.UNAUTHENTICATED


@attack
async def test_replayed(arena: Arena) -> None:
    token = arena.served.join_token(ACME)
    await arena.served.join(token)
    async with arena.unharmed():
        code, _, says = await refusal(sent(arena, token))
        assert code is CODE.UNAUTHENTICATED
        assert "used up" in says
        assert parse(token).secret not in says


@attack
async def test_replayed_at_once_by_many(arena: Arena) -> None:
    """One use admits one, however many come with it in the same moment."""
    token = arena.served.join_token(ACME)
    met = await asyncio.gather(*(refusal(sent(arena, token)) for _ in range(12)))
    assert sorted(str(code) for code, _, _ in met) == ["None", *["StatusCode.UNAUTHENTICATED"] * 11]
    assert arena.served.rows("SELECT count(*) FROM certificates WHERE issued_by = %s", parse(token).id) == [(1,)]


@attack
async def test_expired_and_revoked(arena: Arena) -> None:
    expired = arena.served.join_token(ACME, life=timedelta(seconds=-1))
    revoked = arena.served.join_token(ACME, uses=9)
    with arena_tx(arena) as tx:
        revoke_join(tx, parse(revoked).id)
    async with arena.unharmed():
        for token, why in ((expired, "expired"), (revoked, "revoked")):
            code, _, says = await refusal(sent(arena, token))
            assert code is CODE.UNAUTHENTICATED
            assert why in says


def arena_tx(arena: Arena) -> Any:
    return arena.served.receiver.pool.connection()


@attack
async def test_a_bound_token_that_was_used(arena: Arena) -> None:
    """Whoever finds it in a shell's history gets nothing, and the node stays."""
    node = arena.attacker()
    token = arena.served.join_token(ACME, node=node.node_id)
    node = await arena.served.join(token)
    async with arena.connected(node), arena.unharmed():
        assert (await refusal(sent(arena, token)))[0] is CODE.UNAUTHENTICATED


@attack
async def test_a_token_bound_to_a_node_of_another_tenant(arena: Arena) -> None:
    token = arena.served.join_token(ACME, node=arena.victim.node_id)  # as no method makes one
    async with arena.unharmed():
        assert (await refusal(sent(arena, token)))[0] is CODE.FAILED_PRECONDITION


@attack
async def test_a_token_bound_to_a_node_that_is_deleted(arena: Arena) -> None:
    node = arena.attacker()
    token = arena.served.join_token(ACME, node=node.node_id)
    for method in ("nodes.retire", "nodes.delete"):
        await arena.call(arena.operator, method, nodeId=node.node_id, reason="out")
    async with arena.unharmed():
        assert (await refusal(sent(arena, token)))[0] is CODE.FAILED_PRECONDITION


@attack
async def test_a_pool_that_is_gone(arena: Arena) -> None:
    pool = (await arena.call(arena.operator, "pools.create", name="gone", tenantId=ACME))["id"]
    token = arena.served.join_token(ACME, pool=pool)
    await arena.call(arena.operator, "pools.delete", poolId=pool)
    async with arena.unharmed():
        assert (await refusal(sent(arena, token)))[0] is CODE.FAILED_PRECONDITION


@attack
async def test_joins_without_end(arena: Arena) -> None:
    token = arena.served.join_token(ACME)
    async with arena.unharmed():
        codes = [(await refusal(sent(arena, altered(token))))[0] for _ in range(12)]
        assert codes == [CODE.UNAUTHENTICATED] * 10 + [CODE.RESOURCE_EXHAUSTED] * 2
        assert (await refusal(sent(arena, token)))[0] is CODE.RESOURCE_EXHAUSTED, "a good one too: nobody guesses on"
    assert arena.served.receiver.registry.met["joins a minute and address"] == 3


# ---- keys


def request_of(key: Any, *names: str, signed_by: Any = None) -> bytes:
    """A certificate request for these names."""
    wanted = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name) for name in names])
    built = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    made = (built.add_extension(wanted, critical=True) if names else built).sign(signed_by or key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.DER)


def another_ones_key() -> bytes:
    """A request for a key that whoever asks has not: the signature is another key's."""
    honest, other = request_of(new_key()), request_of(new_key())
    key = (
        x509.load_der_x509_csr(honest)
        .public_key()
        .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    own = (
        x509.load_der_x509_csr(other)
        .public_key()
        .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return other.replace(own, key)


REQUESTS: dict[str, bytes] = {
    "none": b"",
    "noise": bytes(range(256)) * 4,
    "endless": b"\x30\x80" * 1000,
    "cut short": request_of(new_key())[:-10],
    "another one's key": another_ones_key(),
    "another curve": request_of(ec.generate_private_key(ec.SECP384R1())),
    "RSA": request_of(rsa.generate_private_key(65537, 2048)),
    "too large": request_of(new_key(), *(f"bc://node/{number:0>200}" for number in range(25))),
}


@attack
async def test_what_is_no_request_for_a_key_of_ones_own(arena: Arena) -> None:
    token = arena.served.join_token(ACME)
    async with arena.unharmed():
        for what, request in REQUESTS.items():
            code, _, says = await refusal(sent(arena, token, request))
            assert code is CODE.INVALID_ARGUMENT, (what, says)
    await arena.served.join(token)  # its use is not lost


@attack
async def test_a_request_that_names_another_node(arena: Arena) -> None:
    """Nothing of it is used but the key."""
    key = new_key()
    wanted = request_of(key, f"bc://node/{arena.victim.node_id}")
    got = (await sent(arena, arena.served.join_token(ACME), wanted)).credentials
    assert got.node_id != arena.victim.node_id
    issued = x509.load_pem_x509_certificate(got.certificate.encode())
    names = issued.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.UniformResourceIdentifier(f"bc://node/{got.node_id}")]


@attack
async def test_the_same_key_again(arena: Arena) -> None:
    """Two nodes with one key are two nodes: who one is says the certificate."""
    key = new_key()
    one, other = [await arena.served.join(arena.served.join_token(ACME), key) for _ in range(2)]
    assert one.node_id != other.node_id
    assert one.fingerprint != other.fingerprint


# ---- claims


def of_victim(rows: untouched.Rows, node_id: str) -> set[str]:
    return {row for table in rows.values() for row in table if node_id in row}


MACHINE: dict[str, Any] = {
    "product_uuid": "4c4c4544-0051-3510-8057-b7c04f4e5932",
    "serial": "S512345X3900001",
    "macs": ["b8:3f:d2:00:00:01"],
}


def reported() -> dict[str, bytes]:
    """What bcd of that machine reports."""
    port = pb.Nic(name="ens3f0", kind="ethernet", bus_id="0000:18:00.0", permanent_mac=MACHINE["macs"][0])
    return {
        "system": encode(pb.SystemSection(product_uuid=MACHINE["product_uuid"], serial=MACHINE["serial"])),
        "nics": encode(pb.NicsSection(nics=[port])),
        "gpus": encode(gpus(gpu(777))),
    }


@attack
async def test_an_unbound_token_with_a_known_machines_claims(arena: Arena) -> None:
    """It makes a new node, which is not believed to be that machine; the known one keeps all it has."""
    known = await arena.served.join(arena.served.join_token(CANARY), **MACHINE, gpu_uuids=[gpu(777).uuid])
    async with arena.connected(known) as daemon:
        await daemon.offer(reported())
        before = await untouched.settled(arena.served.database, 0.5)
        taken = await arena.served.join(arena.served.join_token(ACME), **MACHINE, gpu_uuids=[gpu(777).uuid])
        after = await untouched.settled(arena.served.database, 0.5)
        assert taken.node_id != known.node_id
        for node in (known, arena.victim):
            assert of_victim(before, node.node_id) <= of_victim(after, node.node_id), "nothing of it is changed"
        told = arena.served.rows("SELECT type, reason, status FROM conditions WHERE node_id = %s", taken.node_id)
        assert ("DuplicateIdentity", "HardwareKey", "true") in told
        async with arena.unharmed():
            await daemon.dealt_with()


@attack
async def test_another_nodes_gpus_at_join(arena: Arena) -> None:
    before = await untouched.settled(arena.served.database, 0.2)
    await arena.served.join(arena.served.join_token(ACME), gpu_uuids=[GPU])
    after = await untouched.settled(arena.served.database, 0.2)
    assert before["devices"] == after["devices"], "claims move nothing"
    assert before["atoms"] == after["atoms"]
    assert of_victim(before, arena.victim.node_id) <= of_victim(after, arena.victim.node_id)


@attack
async def test_claims_that_are_too_many_or_too_long(arena: Arena) -> None:
    token, many, long = arena.served.join_token(ACME), ["x"] * 10_000, "x" * 1000
    async with arena.unharmed():
        for claims in ({"macs": many}, {"gpu_uuids": many}, {"serial": long}, {"product_uuid": long}, {"macs": [long]}):
            code, _, says = await refusal(sent(arena, token, claims=join_pb2.Claims(**claims)))
            assert code in (CODE.INVALID_ARGUMENT, CODE.RESOURCE_EXHAUSTED), (claims.keys(), says)
            assert len(says) < 1000
        assert (await refusal(sent(arena, token, daemon_version=long)))[0] is CODE.INVALID_ARGUMENT


@attack
async def test_sql_in_every_text_of_a_join(arena: Arena) -> None:
    """It is what the machine is called, and no more."""
    theirs = of_victim(untouched.rows(arena.served.database), arena.victim.node_id)
    for text in SQL:
        claims = join_pb2.Claims(hostname=text, product_uuid=text, serial=text, macs=[text], gpu_uuids=[text])
        await sent(arena, arena.served.join_token(ACME), claims=claims, daemon_version=text)
    assert theirs <= of_victim(untouched.rows(arena.served.database), arena.victim.node_id)
    await arena.alive()


@attack
async def test_text_that_postgres_has_not(arena: Arena) -> None:
    """Zero bytes are dropped or refused, and are nothing of ours."""
    claims = join_pb2.Claims(hostname="a\0b", serial="\0", gpu_uuids=["GPU-\0"])
    code, _, says = await refusal(sent(arena, arena.served.join_token(ACME), claims=claims, daemon_version="0\0"))
    assert code in (None, CODE.INVALID_ARGUMENT), says
    await arena.alive()


# ---- methods that are not there


@attack
async def test_a_session_where_nodes_join(arena: Arena) -> None:
    """That listener asks for no certificate: it serves nothing else."""
    assert arena.served.trusted is not None
    target = arena.served.receiver.config.listen_join
    async with arena.unharmed(), grpc.aio.secure_channel(target, arena.served.trusted) as channel:
        stub = session_pb2_grpc.AgentServiceStub(channel)
        call = stub.Session(metadata=(("bc-node-id", arena.victim.node_id),))
        with contextlib.suppress(grpc.aio.AioRpcError):  # it may have been refused before this goes out
            await call.write(session_pb2.SessionRequest(hello=session_pb2.Hello(protocol_version="0.3")))
        assert await call.code() is CODE.UNIMPLEMENTED
        assert (await refusal(stub.Renew(join_pb2.RenewRequest())))[0] is CODE.UNIMPLEMENTED


@attack
async def test_bytes_that_are_no_join(arena: Arena) -> None:
    assert arena.served.trusted is not None
    target = arena.served.receiver.config.listen_join
    async with arena.unharmed(), grpc.aio.secure_channel(target, arena.served.trusted) as channel:
        raw: Any = channel.unary_unary("/bettercompute.agent.v1.JoinService/Join")
        for body in (b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a" * 50, b"\0", b"x" * (9 << 20)):
            code = (await refusal(raw(body)))[0]
            assert code in (CODE.INVALID_ARGUMENT, CODE.RESOURCE_EXHAUSTED, CODE.UNAUTHENTICATED)


class Ear(logging.Handler):
    """Hears what gRPC logs."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


@attack
async def test_bytes_that_are_no_question_about_health(arena: Arena) -> None:
    """Any stranger may ask for it; what is no question fills no log."""
    ear, logger = Ear(), logging.getLogger("grpc._cython.cygrpc")
    logger.addHandler(ear)
    logger.addFilter(log._is_ours)  # as log.setup() does
    try:
        assert arena.served.trusted is not None
        target = arena.served.receiver.config.listen_join
        async with arena.unharmed(), grpc.aio.secure_channel(target, arena.served.trusted) as channel:
            raw: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert (await refusal(raw(b"\xff" * 20)))[0] not in (None, CODE.OK)
        assert ear.heard == []
    finally:
        logger.removeFilter(log._is_ours)
        logger.removeHandler(ear)
