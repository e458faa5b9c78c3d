"""The listeners of a receiver over TLS: who gets in where, health, and a certificate that changes under running streams."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.fake_daemon import Over
from tests.receiver.tls import Secure, secured


async def health(target: str, credentials: grpc.ChannelCredentials) -> int:
    async with grpc.aio.secure_channel(target, credentials) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        status: int = answer.status
        return status


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
    daemon = served.daemon(credentials=served.trusted)
    with pytest.raises(Over) as over:
        await daemon.connect()
    assert over.value.code == grpc.StatusCode.UNAVAILABLE
    plain = served.daemon()
    with pytest.raises(Over):
        await plain.connect()
    assert served.rows("SELECT count(*) FROM nodes") == [(0,)]
