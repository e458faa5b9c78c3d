"""What becomes of the stream of a node whose word is not believed any more: a lease has ended, or it is retired (SPEC B0, B2)."""

import asyncio

import psycopg
import pytest
from bettercompute.agent.v1 import session_pb2 as wire

from receiver.apply import nodes, trust
from receiver.gateway.registry import Registry
from tests.fake_daemon import FakeDaemon, Over
from tests.receiver.builders import host
from tests.receiver.live import Live, live, serving


def act(served: Live, what: str, node_id: str) -> None:
    """As another receiver's API does it: all that this one hears is the notification."""
    with psycopg.connect(served.database) as tx:
        if order := {"retire": nodes.retire, "delete": nodes.delete}.get(what):
            order(tx, node_id)
        else:
            trust.set_trust(tx, node_id, what, "lease-1")


async def over(daemon: FakeDaemon) -> Over:
    """How the stream ends, whatever comes before."""
    try:
        async with asyncio.timeout(20):
            while True:
                await daemon.receive()
    except Over as end:
        return end


async def ending(daemon: FakeDaemon) -> wire.SessionEnd:
    end = (await over(daemon)).end
    assert end is not None
    return end


@live
async def test_the_stream_ends_with_the_lease_and_the_next_session_is_the_platform_s(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    act(served, "tenant-controlled", daemon.node_id)
    assert (await daemon.offer(host())).status == wire.INVENTORY_STATUS_ADVISORY
    act(served, "platform", daemon.node_id)
    end = await ending(daemon)
    assert (end.reason, end.retry_after.ToTimedelta().total_seconds() <= 1) == (wire.SESSION_END_REASON_DRAINING, True)
    again = served.daemon(node_id=daemon.node_id, epoch=1)
    assert (await again.connect()).applied_digest == ""
    assert (await again.offer(host())).status == wire.INVENTORY_STATUS_APPLIED
    assert served.rows("SELECT count(*) FROM events WHERE type = 'security.node.duplicate-session'") == [(0,)]


@live
async def test_the_stream_of_a_retired_node_ends(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    act(served, "retire", daemon.node_id)
    assert (await ending(daemon)).reason == wire.SESSION_END_REASON_DRAINING


@live
async def test_a_node_that_is_retired_or_deleted_is_refused_at_hello_for_as_long_as_it_is(served: Live) -> None:
    node = (await served.in_service(host())).node_id
    for order in ("retire", "delete"):
        act(served, order, node)
        back = served.daemon(node_id=node, epoch=1)
        with pytest.raises(Over) as refused:
            await back.connect()
        end = refused.value.end
        assert end is not None
        assert (end.reason, node in end.detail) == (wire.SESSION_END_REASON_REVOKED, True)
    assert served.rows("SELECT status, epoch FROM nodes") == [("deleted", 1)]
    assert served.rows("SELECT count(*) FROM sessions") == [(1,)]
    assert served.receiver.registry.streams.get(node, set()) == set()


def test_a_notification_that_was_missed_is_made_up_for(database: str) -> None:
    async def main() -> None:
        async with serving(database) as one:
            daemon = one.daemon()
            await daemon.connect()
            one.rows("UPDATE nodes SET trust_epoch = trust_epoch + 1 RETURNING 1")
            await one.receiver.jobs.look_up_epochs()
            assert (await ending(daemon)).reason == wire.SESSION_END_REASON_DRAINING

    asyncio.run(main())


def test_a_late_notification_does_not_end_the_session_that_came_after() -> None:
    async def main() -> None:
        registry = Registry(lambda: 0.0, lambda: 0.5)
        stream = registry.admit("node")
        registry.begun(stream, 7, 0)
        registry.disbelieved("node", 6, "draining")
        registry.disbelieved("other", 9, "draining")
        assert stream.leave is None
        registry.disbelieved("node", 7, "draining")
        assert stream.leave

    asyncio.run(main())
