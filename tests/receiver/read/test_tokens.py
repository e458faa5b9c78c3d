"""Who asks (SPEC B9): every call needs a token that opens something now; what it opens is its tenant's."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import grpc
import psycopg
import pytest
from bettercompute.control.v1 import events_pb2, events_pb2_grpc, nodes_pb2, nodes_pb2_grpc

from receiver.client.methods import methods
from receiver.ids import mint
from receiver.read.tokens import Unauthenticated, presented
from tests.receiver.live import Live, bearer, live, refused, serving
from tests.receiver.tls import secure

Test = Callable[[Live], Awaitable[None]]
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


def over_unix(test: Test) -> Callable[[str], None]:
    """Runs a test with a receiver that wants tokens, over its unix socket: there, too."""

    def run(database: str) -> None:
        async def main() -> None:
            async with serving(database) as served:
                served.receiver.api.insecure = False
                await test(served)

        asyncio.run(main())

    run.__doc__ = test.__doc__
    return run


async def nodes_list(served: Live, *metadata: tuple[str, str]) -> Any:
    async with grpc.aio.insecure_channel(served.receiver.config.listen_api) as channel:
        stub: Any = nodes_pb2_grpc.NodesServiceStub(channel)
        return await stub.List(nodes_pb2.NodesServiceListRequest(), metadata=metadata)


@over_unix
async def test_without_a_token_no_method_answers(served: Live) -> None:
    for name, method in methods().items():
        if not method.streaming:
            code, text = await refused(served.api(name))
            assert (name, code, "--token-file" in text) == (name, UNAUTHENTICATED, True)
    assert served.rows("SELECT count(*) FROM events") == [(0,)]
    assert (await watched(served))[0] == UNAUTHENTICATED


async def watched(served: Live, token: str = "") -> tuple[grpc.StatusCode, str]:
    """How a watch is refused."""
    async with grpc.aio.insecure_channel(served.receiver.config.listen_api) as channel:
        call: Any = events_pb2_grpc.EventsServiceStub(channel).Watch(
            events_pb2.EventsServiceWatchRequest(), metadata=tuple(bearer(token))
        )
        return await refused(asyncio.wait_for(call.read(), 20.0))


@over_unix
async def test_what_opens_nothing_is_told_and_never_repeated(served: Live) -> None:
    good, revoked = served.token_of("*"), served.token_of("*")
    expired, short = served.token_of("*", life=timedelta(0)), good[:-1]
    with psycopg.connect(served.database) as tx:
        tx.execute("UPDATE api_tokens SET revoked_at = now() WHERE id = %s", [revoked.partition(".")[0]])
    wrong = good[:-1] + ("A" if good[-1] != "A" else "B")
    unknown = f"{mint('tok')}.{good.partition('.')[2]}"
    for token, says in (
        (wrong, "with this secret"),
        (unknown, "with this secret"),
        (revoked, "was revoked at 20"),
        (expired, "expired at 20"),
        (short, "42 characters"),
        ("x" * 5000, "a token is tok_"),
        (f"{good}{good}", "characters"),
    ):
        code, text = await refused(nodes_list(served, ("authorization", f"Bearer {token}")))
        assert (code, says in text) == (UNAUTHENTICATED, True), text
        assert not token.partition(".")[2] or token.partition(".")[2] not in text
    assert (await nodes_list(served, ("authorization", f"bearer  {good} "))).nodes == []


@over_unix
async def test_a_header_that_is_none_is_refused(served: Live) -> None:
    good = served.token_of("*")
    for metadata, says in (
        ((("authorization", f"Basic {good}"),), "Bearer TOKEN"),
        ((("authorization", good),), "Bearer TOKEN"),
        ((("authorization", f"Bearer {good}"), ("authorization", f"Bearer {good}")), "2 authorization headers"),
    ):
        code, text = await refused(nodes_list(served, *metadata))
        assert (code, says in text, good in text) == (UNAUTHENTICATED, True, False)


def test_bytes_are_no_token() -> None:
    assert presented([("authorization", b"Bearer x")]) is None
    with pytest.raises(Unauthenticated):
        presented([("authorization", "")])


@over_unix
async def test_a_revoked_token_opens_nothing_from_the_next_call_on(served: Live) -> None:
    admin = served.token = served.token_of("*")
    made = await served.api("tokens.create", permissions="compute:nodes:read", name="alice")
    served.token = made["token"]
    assert (await served.api("nodes.list"))["nodes"] == []
    served.token = admin
    assert (await served.api("tokens.revoke", tokenId=made["facts"]["id"], reason="left"))["revokedAt"]
    served.token = made["token"]
    assert (await refused(served.api("nodes.list")))[0] == UNAUTHENTICATED


@over_unix
async def test_a_watcher_whose_token_is_revoked_is_sent_away(served: Live) -> None:
    token = served.token_of("*")
    watching = asyncio.ensure_future(watched(served, token))
    await asyncio.sleep(0.3)
    assert not watching.done()
    served.token = served.token_of("*")
    await served.api("tokens.revoke", tokenId=token.partition(".")[0], reason="left")
    code, text = await watching
    assert (code, "revoked" in text) == (UNAUTHENTICATED, True)


@over_unix
async def test_who_did_it_stands_in_the_audit_by_id_and_name(served: Live) -> None:
    served.token = served.token_of("*", name="alice")
    await served.api("pools.create", name="h100")
    by = served.rows("SELECT payload ->> 'by' FROM events WHERE type = 'api.write'")
    assert by == [(f"{served.token.partition('.')[0]} (alice)",)]


@live
async def test_an_insecure_receiver_takes_a_caller_without_a_token_for_its_operator(served: Live) -> None:
    await served.api("pools.create", name="h100")
    with served.calling("acme", "compute:nodes:read"):
        assert (await refused(served.api("pools.list")))[0] == grpc.StatusCode.PERMISSION_DENIED, "who has a token has no more"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await nodes_list(served, ("authorization", "Bearer nonsense"))
    assert error.value.code() == UNAUTHENTICATED


def test_over_tls_the_same(database: str) -> None:
    async def main() -> None:
        async with secure(database) as served:
            assert (await refused(served.api("nodes.list")))[0] == UNAUTHENTICATED
            with served.calling("acme"):
                assert (await served.api("nodes.list"))["nodes"] == []

    asyncio.run(main())


def test_a_call_over_a_lower_version_of_tls_is_refused_whatever_its_token(database: str) -> None:
    async def main() -> None:
        async with secure(database) as served:
            with served.calling("default"):
                assert await served.api("nodes.list") == {"nodes": [], "nextCursor": None}
                with patch("receiver.callers.VERSION", b"TLSv1.4"):
                    refusal = UNAUTHENTICATED, "TLS 1.3 is needed, not TLSv1.3"
                    assert await refused(served.api("nodes.list")) == refusal
                    assert await refused(served.api("pools.create", name="p", gpuModel="H100")) == refusal
            assert served.rows("SELECT count(*) FROM pools") == [(0,)]

    asyncio.run(main())
