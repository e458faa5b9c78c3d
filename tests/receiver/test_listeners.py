"""The listeners of a receiver over TLS: who gets in where, health, and certificates that change under running streams."""

import asyncio
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from bettercompute.agent.v1 import session_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from receiver.authority import NodeAuthority, certificates, create_ca
from receiver.config import Config
from receiver.gateway import server
from receiver.gateway.server import Server
from receiver.service import Receiver
from receiver.tls import Identity
from tests.fake_daemon import FakeDaemon, Over, until
from tests.receiver.live import ask, refused
from tests.receiver.tls import Secure, free_ports, secure, secured, write_cas

EMPTY: dict[str, object] = {"nodes": [], "nextCursor": None}
ADOPTED = "SELECT status FROM nodes WHERE id = %s"


async def health(target: str, credentials: grpc.ChannelCredentials, service: str = "") -> int:
    async with grpc.aio.secure_channel(target, credentials) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
        status: int = answer.status
        return status


def handshake(target: str, pinned: Path, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> tuple[str, str | None]:
    """A client of another library: the serial number that it is shown, and the version of TLS. Raises OSError."""
    context = ssl.create_default_context(cafile=pinned)
    context.maximum_version = newest
    host, _, port = target.rpartition(":")
    with socket.create_connection((host, int(port)), 5) as plain, context.wrap_socket(plain, server_hostname=host) as wrapped:
        shown = wrapped.getpeercert()
        assert shown is not None
        return str(shown["serialNumber"]), wrapped.version()


async def alive(daemon: FakeDaemon) -> None:
    """The stream still answers."""
    await daemon.send(inventory_offer=pb.InventoryOffer(digest="of nothing"))
    while not (await daemon.receive()).HasField("inventory_result"):
        pass


@secured
async def test_a_node_joins_reports_and_is_read(served: Secure) -> None:
    node = await served.join()
    daemon = served.joined_daemon(node)
    await daemon.connect()
    with served.calling("default"):
        listed = await served.api("nodes.list")
    assert [one["id"] for one in listed["nodes"]] == [node.node_id]


@secured
async def test_who_has_no_certificate_gets_no_session(served: Secure) -> None:
    for credentials in (served.trusted, None):
        daemon = served.daemon(credentials=credentials)
        with pytest.raises(Over) as over:
            await daemon.connect()
        assert over.value.code == grpc.StatusCode.UNAVAILABLE
    assert served.rows("SELECT count(*) FROM nodes") == [(0,)]


@secured
async def test_the_api_wants_tls_and_a_token(served: Secure) -> None:
    target = served.receiver.config.listen_api
    code, says = await refused(ask(target, "nodes.list", "", served.trusted))
    assert (code, "token" in says) == (grpc.StatusCode.UNAUTHENTICATED, True)
    token = served.token_of("default")
    assert (await refused(ask(target, "nodes.list", token)))[0] == grpc.StatusCode.UNAVAILABLE
    assert await ask(target, "nodes.list", token, served.trusted) == EMPTY


def test_the_api_on_a_unix_socket_wants_a_token_too_and_has_reflection(database: str, tmp_path: Path) -> None:
    async def main() -> None:
        target = f"unix:{tmp_path}/a"
        async with secure(database, listen_api=target) as served:
            assert (await refused(ask(target, "nodes.list")))[0] == grpc.StatusCode.UNAUTHENTICATED
            assert await ask(target, "nodes.list", served.token_of("default")) == EMPTY
            async with grpc.aio.insecure_channel(target) as channel:
                stub = reflection_pb2_grpc.ServerReflectionStub(channel)
                call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
                assert (await call.read()).list_services_response.service

    asyncio.run(main())


@secured
async def test_health_is_said_where_no_certificate_is_needed(served: Secure) -> None:
    config, trusted = served.receiver.config, served.trusted
    assert trusted is not None
    serving = health_pb2.HealthCheckResponse.SERVING
    assert await health(config.listen_join, trusted) == serving
    assert await health(config.listen_join, trusted, "bettercompute.agent.v1.JoinService") == serving
    assert await health(config.listen_api, trusted) == serving
    with pytest.raises(grpc.aio.AioRpcError):
        await health(config.listen_session, trusted)
    assert await health(config.listen_session, served.admit().credentials) == serving
    for one in served.receiver.servers:
        await one.stop_serving()
    assert await health(config.listen_join, trusted) == health_pb2.HealthCheckResponse.NOT_SERVING


@secured
async def test_no_listener_serves_what_another_does(served: Secure) -> None:
    """Where anybody may connect there is Join alone; where nodes report, nothing of the API."""
    node, config = served.admit(), served.receiver.config
    assert served.trusted is not None
    for target, credentials in ((config.listen_join, served.trusted), (config.listen_session, node.credentials)):
        code, _ = await refused(ask(target, "nodes.list", served.token_of("*"), credentials))
        assert code == grpc.StatusCode.UNIMPLEMENTED
    stray = served.joined_daemon(node)
    stray.target = config.listen_join
    with pytest.raises(Over) as over:
        await stray.connect()
    assert over.value.code == grpc.StatusCode.UNIMPLEMENTED


@secured
async def test_tls_1_3_is_spoken(served: Secure) -> None:
    pinned = served.folder / "server-ca.pem"
    for target in (served.receiver.config.listen_join, served.receiver.config.listen_api):
        _, version = await asyncio.to_thread(handshake, target, pinned)
        assert version == "TLSv1.3"


@secured
async def test_a_renewed_certificate_is_shown_to_the_next_and_nobody_is_sent_away(served: Secure) -> None:
    daemon = served.joined_daemon(served.admit())
    await daemon.connect()
    target, pinned = served.receiver.config.listen_join, served.folder / "server-ca.pem"
    before, _ = await asyncio.to_thread(handshake, target, pinned)
    assert (await asyncio.to_thread(handshake, target, pinned))[0] == before
    pinned.write_bytes(pinned.read_bytes() + create_ca("receivers, next", datetime.now(UTC))[1])
    assert await asyncio.to_thread(served.identity.refresh)
    after, _ = await asyncio.to_thread(handshake, target, pinned)
    assert after != before
    await alive(daemon)
    assert len(certificates((await served.join()).server_ca.encode())) == 2  # who joins now pins the next one too


@secured
async def test_sighup_has_files_that_changed_taken_at_once(served: Secure) -> None:
    pinned = served.folder / "server-ca.pem"
    pinned.write_bytes(pinned.read_bytes() + create_ca("receivers, next", datetime.now(UTC))[1])
    served.receiver.read_again()
    await until("the second CA", lambda: len(certificates(served.identity.server_ca.encode())) == 2, 5.0)


@secured
async def test_the_ca_of_nodes_is_replaced_in_two_steps(served: Secure) -> None:
    """First both are believed and the new one signs; then the old one is no more, and who was signed by it is out."""
    old = served.admit()
    key, pem = create_ca("nodes, new", datetime.now(UTC))
    both = (served.folder / "node-ca.pem").read_bytes() + pem
    (served.folder / "node-ca.pem").write_bytes(both)
    (served.folder / "node-ca.key").write_bytes(key)
    assert await asyncio.to_thread(served.identity.refresh)
    new = await served.join()
    (authority,), (certificate,) = certificates(pem), certificates(new.certificate.encode())
    certificate.verify_directly_issued_by(authority)
    for node in (old, new):
        await served.joined_daemon(node).connect()
    (served.folder / "node-ca.pem").write_bytes(pem)
    assert await asyncio.to_thread(served.identity.refresh)
    await served.joined_daemon(new).connect()
    with pytest.raises(Over) as over:
        await served.joined_daemon(old).connect()
    assert over.value.code == grpc.StatusCode.UNAVAILABLE


@secured
async def test_a_certificate_of_another_ca_gets_no_session(served: Secure) -> None:
    node = served.admit()
    key, pem = create_ca("nodes", datetime.now(UTC))
    stranger = served.certificate(node.node_id, NodeAuthority(pem, key))
    with pytest.raises(Over) as over:
        await served.joined_daemon(stranger).connect()
    assert over.value.code == grpc.StatusCode.UNAVAILABLE


def test_several_receivers_share_the_cas_and_have_a_certificate_each(database: str) -> None:
    async def main() -> None:
        async with secure(database) as one, secure(database, one.folder) as two:
            pinned = one.folder / "server-ca.pem"
            shown = [await asyncio.to_thread(handshake, it.receiver.config.listen_join, pinned) for it in (one, two)]
            assert shown[0] != shown[1]
            daemon = two.joined_daemon(await one.join())
            await daemon.connect()
            await daemon.report()
            await until("the report", lambda: two.rows(ADOPTED, daemon.node_id))

    asyncio.run(main())


def test_a_peer_that_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert server.OPTIONS["grpc.server_handshake_timeout_ms"] <= 10_000
    monkeypatch.setitem(server.OPTIONS, "grpc.server_handshake_timeout_ms", 200)

    async def main() -> None:
        write_cas(tmp_path)
        (port,) = free_ports(1)
        listener = Server(f"127.0.0.1:{port}", Identity(Config(tls_dir=str(tmp_path))).credentials(of_nodes=True))
        await listener.start()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(5):
                assert await reader.read() == b""
            writer.close()
        finally:
            await listener.stop(0)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["listen_join", "listen_session", "listen_api"])
def test_a_peer_that_asks_for_nothing_is_sent_away_and_a_stream_is_not(
    name: str, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    assert server.OPTIONS["grpc.max_connection_idle_ms"] <= 120_000
    monkeypatch.setitem(server.OPTIONS, "grpc.max_connection_idle_ms", 1000)

    async def main() -> None:
        async with secure(database) as served:
            node = served.admit()
            daemon = served.joined_daemon(node)
            await daemon.connect()
            at = getattr(served.receiver.config, name)
            async with grpc.aio.secure_channel(at, node.credentials, [("grpc.use_local_subchannel_pool", 1)]) as channel:
                await channel.channel_ready()
                async with asyncio.timeout(10):
                    await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
            await alive(daemon)

    asyncio.run(main())


def test_a_receiver_without_certificates_is_insecure_or_is_not_at_all(database: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="or is insecure"):
        Receiver(Config(listen_session=f"unix:{tmp_path}/s"), database, None)


@secured
async def test_a_key_that_is_spoilt_under_a_running_receiver_costs_nobody(served: Secure) -> None:
    (served.folder / "node-ca.key").write_bytes(b"")
    assert not await asyncio.to_thread(served.identity.refresh)
    await served.joined_daemon(await served.join()).connect()
