"""Sessions over TLS (SPEC B1, B2): the node is its certificate, and a stream ends once that is good no more; on one receiver, and
on two over one Postgres."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any
from unittest.mock import patch

import grpc
import pytest
from bettercompute.agent.v1 import session_pb2 as wire

from receiver.apply import session
from receiver.gateway import heartbeat
from tests.fake_daemon import FakeDaemon, Over, until
from tests.receiver.builders import OTHER, host
from tests.receiver.live import Live, live, refused
from tests.receiver.tls import Node, Secure, secure, secured

SUPERSEDED, REVOKED = wire.SESSION_END_REASON_SUPERSEDED, wire.SESSION_END_REASON_REVOKED
DRAINING = wire.SESSION_END_REASON_DRAINING


def receivers(test: Callable[[Secure, Secure], Awaitable[None]]) -> Callable[[str, int], None]:
    """Runs a test with the same receiver twice, and with two over one database."""

    @pytest.mark.parametrize("number", [1, 2])
    def run(database: str, number: int) -> None:
        async def main() -> None:
            async with AsyncExitStack() as stack:
                one = await stack.enter_async_context(secure(database))
                two = one if number == 1 else await stack.enter_async_context(secure(database, one.folder))
                with one.calling("*"), two.calling("*"):
                    await test(one, two)

        asyncio.run(main())

    run.__doc__ = test.__doc__
    return run


async def listen(daemon: FakeDaemon) -> None:
    """Reads what comes, until it raises Over."""
    async with asyncio.timeout(20):
        while True:
            await daemon.receive()


async def ending(daemon: FakeDaemon) -> wire.SessionEnd:
    """How the gateway ends a stream, whatever comes before; it is hung up then."""
    with pytest.raises(Over) as over:
        await listen(daemon)
    await daemon.close()
    assert over.value.end is not None, over.value
    return over.value.end


async def turned_away(daemon: FakeDaemon) -> wire.SessionEnd:
    """How a Hello is refused."""
    with pytest.raises(Over) as over:
        await daemon.connect()
    await daemon.close()
    assert over.value.end is not None, over.value
    return over.value.end


def at(served: Secure, node: Node, **fields: Any) -> FakeDaemon:
    return served.joined_daemon(node, **fields)


def security(served: Live) -> list[str]:
    rows = served.rows("SELECT type FROM events WHERE starts_with(type, 'security.') ORDER BY seq")
    return [row[0].removeprefix("security.node.") for row in rows]


# -- who it is


@secured
async def test_the_node_is_the_one_of_the_certificate_and_not_the_one_of_the_metadata(served: Secure) -> None:
    node = served.admit()
    daemon = at(served, node)
    await daemon.open((("bc-node-id", OTHER),))
    await daemon.send(hello=daemon.hello())
    assert (await daemon.receive()).welcome.node_id == node.node_id
    assert served.rows("SELECT node_id, certificate FROM sessions") == [(node.node_id, node.fingerprint)]
    assert served.rows("SELECT id, connected FROM nodes") == [(node.node_id, True)]
    ends = served.rows("SELECT certificate_until FROM nodes")[0][0]
    assert ends == node.not_after


@secured
async def test_a_certificate_of_our_own_that_was_never_issued_begins_nothing(served: Secure) -> None:
    node = served.admit()
    for name in (node.node_id, OTHER):
        end = await turned_away(at(served, served.certificate(name)))
        assert (end.reason, "has to join" in end.detail) == (REVOKED, True)
    assert served.rows("SELECT count(*) FROM sessions") == [(0,)]
    assert served.rows("SELECT count(*) FROM nodes") == [(1,)]


@secured
async def test_who_has_no_certificate_has_no_stream(served: Secure) -> None:
    nobody = served.daemon(node_id=served.admit().node_id, credentials=served.trusted)
    await nobody.open()
    with pytest.raises(Over) as over:
        await listen(nobody)
    assert over.value.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED)
    assert served.receiver.registry.streams == {}


@secured
async def test_where_the_version_of_tls_is_told_and_is_lower_the_stream_is_refused(served: Secure) -> None:
    daemon = at(served, served.admit())
    await daemon.open()
    with patch("receiver.callers.VERSION", b"TLSv1.4"), pytest.raises(Over) as over:
        await listen(daemon)
    assert (over.value.code, over.value.details) == (grpc.StatusCode.UNAUTHENTICATED, "TLS 1.3 is needed, not TLSv1.3")


# -- what ends a running stream


@receivers
async def test_the_end_of_a_lease_ends_the_stream_as_revoked_and_a_bound_token_brings_it_back(one: Secure, two: Secure) -> None:
    node = one.admit()
    daemon = at(one, node)
    await daemon.connect()
    trust = {"nodeId": node.node_id, "leaseId": "lease-1", "reason": "a lease"}
    await two.api("nodes.setTrust", trust="tenant-controlled", **trust)
    assert (await daemon.offer(host())).status == wire.INVENTORY_STATUS_ADVISORY
    await two.api("nodes.setTrust", trust="platform", **trust)
    end = await ending(daemon)
    assert (end.reason, "joinTokens.create" in end.detail) == (REVOKED, True)
    for served in (one, two):
        assert (await turned_away(at(served, node, epoch=1))).reason == REVOKED
    again = await two.join(two.join_token(node=node.node_id))
    assert again.node_id == node.node_id
    back = at(one, again, epoch=1)
    await back.connect()
    assert (await back.offer(host())).status == wire.INVENTORY_STATUS_APPLIED
    assert security(one) == []


@secured
async def test_who_has_an_old_key_of_a_node_takes_no_place_of_who_has_its_new_one(served: Secure) -> None:
    old = served.admit()
    new = served.admit(served.join_token(node=old.node_id))
    silent = [at(served, old) for _ in range(2)]
    for one in silent:
        await one.open()
    await until("both streams", lambda: len(served.receiver.registry.greeting) == 2)
    third = at(served, old)
    await third.open()
    with pytest.raises(Over) as over:
        await listen(third)
    assert "streams a node" in over.value.details
    await at(served, new).connect()


@secured
async def test_who_was_told_that_its_certificate_is_good_no_more_costs_the_others_nothing(served: Secure) -> None:
    """No look into the database, and none of the sessions that may begin in a second."""
    old = served.admit()
    new = served.admit(served.join_token(node=old.node_id))
    told = await turned_away(at(served, old))
    assert told.reason == REVOKED
    with patch("receiver.gateway.jobs.session.hello") as asked:
        for _ in range(5):
            assert await turned_away(at(served, old)) == told
        assert not asked.called
    await at(served, new).connect()
    with patch("receiver.gateway.registry.BARRED_SECONDS", 0.0):
        assert (await turned_away(at(served, served.certificate(old.node_id)))).reason == REVOKED
    served.receiver.registry.forget()
    assert len(served.receiver.registry.barred) == 1, "what is over is forgotten"


@receivers
async def test_with_keep_certificate_the_node_begins_its_next_session_with_the_one_it_has(one: Secure, two: Secure) -> None:
    node = one.admit()
    daemon = at(one, node)
    await daemon.connect()
    trust = {"nodeId": node.node_id, "leaseId": "lease-1", "reason": "a lease"}
    await two.api("nodes.setTrust", trust="tenant-controlled", **trust)
    await two.api("nodes.setTrust", trust="platform", keepCertificate="true", **trust)
    assert (await ending(daemon)).reason == DRAINING
    assert (await at(two, node, epoch=1).connect()).epoch == 2
    code, said = await refused(two.api("nodes.setTrust", trust="tenant-controlled", keepCertificate="true", **trust))
    assert (code, "keepCertificate" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@receivers
async def test_retiring_a_node_ends_its_stream_as_revoked_and_it_has_no_other(one: Secure, two: Secure) -> None:
    node = one.admit()
    daemon = at(one, node)
    await daemon.connect()
    await two.api("nodes.retire", nodeId=node.node_id, reason="sold")
    assert (await ending(daemon)).reason == REVOKED
    assert (await turned_away(at(two, node, epoch=1))).reason == REVOKED
    with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
        await one.renew(node)
    await two.api("nodes.delete", nodeId=node.node_id, reason="sold")
    assert (await turned_away(at(one, node, epoch=1))).reason == REVOKED
    assert one.rows("SELECT revoked_reason FROM certificates") == [("retired",)]


@receivers
async def test_a_join_with_a_bound_token_ends_the_session_of_the_old_key(one: Secure, two: Secure) -> None:
    node = one.admit()
    old = at(one, node)
    await old.connect()
    new = await two.join(two.join_token(node=node.node_id))
    assert (await ending(old)).reason == REVOKED
    assert (await at(two, new).connect()).node_id == node.node_id


@pytest.mark.parametrize(
    ("change", "word"), [("revoked_at = now(), revoked_reason = 'stolen'", "revoked"), ("not_after = now()", "has expired")]
)
def test_a_stream_ends_soon_whose_certificate_expires_or_is_revoked_without_a_notification(
    database: str, change: str, word: str
) -> None:
    @secured
    async def run(served: Secure) -> None:
        daemon, other = at(served, served.admit()), at(served, served.admit())
        await daemon.connect()
        await other.connect()
        served.rows(f"UPDATE certificates SET {change} WHERE node_id = %s RETURNING 1", daemon.node_id)
        end = await ending(daemon)
        assert (end.reason, word in end.detail) == (REVOKED, True)
        await other.dealt_with()

    with patch.object(heartbeat, "EVERY", 0.05):
        run(database)


@secured
async def test_a_renewed_certificate_takes_the_session_over_and_the_old_one_still_could(served: Secure) -> None:
    node = served.admit()
    daemon = at(served, node)
    await daemon.connect()
    renewed = await served.renew(node)
    daemon.credentials = renewed.credentials
    await daemon.close()
    assert (await daemon.connect()).epoch == 2
    daemon.credentials = node.credentials
    await daemon.close()
    assert (await daemon.connect()).epoch == 3
    kept = served.rows("SELECT certificate FROM sessions ORDER BY epoch")
    assert [row[0] for row in kept] == [node.fingerprint, renewed.fingerprint, node.fingerprint]
    assert security(served) == []


# -- one identity in two places


@receivers
async def test_two_copies_of_a_node_are_told_of_and_after_the_fourth_alternation_neither_is_believed(
    one: Secure, two: Secure
) -> None:
    node = one.admit()
    machine = at(one, node, boot_id="machine")
    await machine.connect()
    copy = at(two, node, boot_id="copy", epoch=machine.epoch)
    turns = [(copy, machine), (machine, copy)]
    for number in range(4):
        comes, goes = turns[number % 2]
        await comes.connect()
        assert (await ending(goes)).reason == SUPERSEDED
    assert security(one) == ["duplicate-session"] * 3
    assert (await turned_away(copy)).reason == REVOKED
    assert (await ending(machine)).reason == REVOKED
    assert security(one) == ["duplicate-session"] * 4 + ["quarantined"]
    for each in (machine, copy):
        assert (await turned_away(each)).reason == REVOKED
    assert len(one.rows("SELECT 1 FROM sessions WHERE ended_at IS NOT NULL")) == 6
    shown = await two.api("nodes.get", nodeId=node.node_id)
    (row,) = [each for each in shown["conditions"] if each["type"] == "DuplicateIdentity"]
    assert (row["status"], row["reason"], row["noSchedule"]) == ("true", "DuplicateSession", True)
    assert "DuplicateIdentity" in {each["type"] for each in shown["noScheduleReasons"]}

    again = await one.join(one.join_token(node=node.node_id))
    machine.credentials = again.credentials
    assert (await machine.connect()).node_id == node.node_id
    assert (await turned_away(copy)).reason == REVOKED
    await machine.dealt_with()
    assert security(one) == ["duplicate-session"] * 4 + ["quarantined"]
    assert one.rows("SELECT status, no_schedule FROM conditions WHERE type = 'DuplicateIdentity'") == [("false", False)]
    assert one.rows("SELECT no_schedule_reasons FROM nodes WHERE id = %s", node.node_id) == [([],)]


@receivers
async def test_a_daemon_that_comes_back_a_hundred_times_wherever_it_is_led_is_never_a_duplicate(one: Secure, two: Secure) -> None:
    node = one.admit()
    daemon = at(one, node)
    for number in range(100):
        daemon.target = (one, two)[number % 2].receiver.config.listen_session
        await daemon.connect()
        await daemon.close()
    assert (daemon.epoch, security(one)) == (100, [])


@secured
async def test_a_run_of_bcd_that_could_not_keep_its_epoch_is_known_by_the_run_after_it(served: Secure) -> None:
    node = served.admit()
    killed = at(served, node, boot_id="b")
    await killed.connect()
    await killed.close()
    for before, told in ((killed.hello().instance_id, []), ("another", ["duplicate-session"])):
        daemon = at(served, node, boot_id="b")
        await daemon.open()
        hello = daemon.hello()
        hello.previous_instance_id = before
        await daemon.send(hello=hello)
        await daemon.receive()
        assert security(served) == told


# -- a session that nobody has


@live
async def test_a_session_is_ended_whose_peer_hung_up_while_its_epoch_was_committed(served: Live) -> None:
    hello, begun = session.hello, []

    def slowly(*arguments: Any) -> Any:
        begun.append(arguments)
        time.sleep(0.5)
        return hello(*arguments)

    daemon = served.daemon()
    with patch.object(session, "hello", slowly):
        await daemon.open()
        await daemon.send(hello=daemon.hello())
        await until("its Hello", lambda: begun)
        await daemon.close()
        await until("its end", lambda: served.rows("SELECT end_reason FROM sessions") == [("lost",)])
    assert served.rows("SELECT connected, epoch FROM nodes") == [(False, 1)]
