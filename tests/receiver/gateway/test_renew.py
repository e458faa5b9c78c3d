"""Renew over real TLS (SPEC B1): who asks is who the certificate says, and the old one stays good until it expires."""

from datetime import UTC, datetime, timedelta

import grpc
from bettercompute.agent.v1 import join_pb2 as pb
from bettercompute.agent.v1 import session_pb2_grpc

from receiver.authority import NodeAuthority, create_ca
from receiver.gateway import limits
from tests.receiver.builders import host
from tests.receiver.gateway.test_join import Code, counted
from tests.receiver.live import refused
from tests.receiver.tls import Secure, csr, new_key, secured

DAY = timedelta(days=1)


@secured
async def test_renewal_gives_a_certificate_for_a_new_key_and_the_old_one_stays_good(served: Secure) -> None:
    node = await served.join()
    renewed = await served.renew(node)
    assert renewed.node_id == node.node_id
    assert renewed.fingerprint != node.fingerprint
    assert renewed.server_ca == node.server_ca
    for one in (node, renewed):
        assert (await served.joined_daemon(one).connect()).node_id == node.node_id
    assert served.rows("SELECT issued_by FROM certificates WHERE fingerprint = %s", renewed.fingerprint) == [("renew",)]


@secured
async def test_renewal_is_of_the_node_of_the_certificate_whatever_else_is_said(served: Secure) -> None:
    one, other = await served.join(), await served.join()
    async with grpc.aio.secure_channel(served.receiver.config.listen_session, one.credentials) as channel:
        stub = session_pb2_grpc.AgentServiceStub(channel)
        request = pb.RenewRequest(csr=csr(new_key()))
        told = await stub.Renew(request, metadata=(("bc-node-id", other.node_id),))
    assert told.credentials.node_id == one.node_id


@secured
async def test_renewal_with_the_old_key_or_a_bad_request_is_refused(served: Secure) -> None:
    node = await served.join()
    code, says = await refused(served.renew(node, node.key))
    assert (code, "new one is needed" in says) == (Code.INVALID_ARGUMENT, True)
    async with grpc.aio.secure_channel(served.receiver.config.listen_session, node.credentials) as channel:
        stub = session_pb2_grpc.AgentServiceStub(channel)
        assert (await refused(stub.Renew(pb.RenewRequest(csr=b"x"))))[0] is Code.INVALID_ARGUMENT
    assert served.rows("SELECT count(*) FROM certificates") == [(1,)]


@secured
async def test_revoked_certificate_renews_nothing(served: Secure) -> None:
    node = await served.join()
    await served.join(served.join_token(node=node.node_id))
    code, says = await refused(served.renew(node))
    assert (code, "nodeId" in says) == (Code.UNAUTHENTICATED, True)


@secured
async def test_certificate_that_this_fleet_does_not_know_renews_nothing(served: Secure) -> None:
    """Signed by the CA of nodes, as one that was made with a stolen key: it is in no row."""
    node = await served.join()
    assert (await refused(served.renew(served.certificate(node.node_id))))[0] is Code.UNAUTHENTICATED


@secured
async def test_expired_certificate_and_another_cas_do_not_come_as_far_as_renewal(served: Secure) -> None:
    node = await served.join()
    key, pem = create_ca("somebody else", datetime.now(UTC))
    late = served.certificate(node.node_id, now=datetime.now(UTC) - 31 * DAY)
    for one in (late, served.certificate(node.node_id, NodeAuthority(pem, key))):
        assert (await refused(served.renew(one)))[0] is Code.UNAVAILABLE
    assert served.rows("SELECT count(*) FROM certificates") == [(1,)]


@secured
async def test_seventh_renewal_within_an_hour_is_refused_and_counted(served: Secure) -> None:
    node = await served.join()
    for _ in range(6):
        node = await served.renew(node)
    code, says = await refused(served.renew(node))
    assert (code, limits.RENEWALS.name in says) == (Code.RESOURCE_EXHAUSTED, True)
    assert counted(served)[limits.RENEWALS.name] == 1


@secured
async def test_one_renewal_with_a_certificate_at_a_time(served: Secure) -> None:
    node = await served.join()
    joins = served.receiver.joins
    assert joins is not None
    newer = await served.renew(node)
    joins.renewing.add(node.fingerprint)
    assert (await refused(served.renew(node)))[0] is Code.RESOURCE_EXHAUSTED
    await served.renew(newer)
    joins.renewing.clear()
    await served.renew(node)
    assert joins.renewing == set()


@secured
async def test_renewed_node_is_in_service_all_the_while(served: Secure) -> None:
    """The session that runs goes on: a renewal ends nothing."""
    node = await served.join()
    daemon = await served.in_service(host(), node_id=node.node_id, credentials=node.credentials)
    await served.renew(node)
    await daemon.report()
    assert served.rows("SELECT status, connected, epoch FROM nodes") == [("adopted", True, 1)]
