"""`tokens.*` and `joinTokens.*`: what is made, what of it is stored, what is told, and what ends it."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import grpc
import pytest
from bettercompute.contract.tokens import parse, parse_join
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from receiver.errors import Invalid
from receiver.ids import mint
from receiver.operate.tokens import LIFE, life
from receiver.values import ADMIN, PROVISION, READ
from tests.receiver.live import refused
from tests.receiver.tls import Secure, secure

NOT_FOUND, INVALID, DENIED = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
)


def as_platform(test: Callable[[Secure], Awaitable[None]]) -> Callable[[str], None]:
    """Runs a test with a receiver over TLS, as an administrator of all tenants."""

    def run(database: str) -> None:
        async def main() -> None:
            async with secure(database) as served:
                with served.calling("*"):
                    await test(served)

        asyncio.run(main())

    run.__doc__ = test.__doc__
    return run


async def node_of(served: Secure, tenant: str = "default") -> str:
    """A new node, which has joined."""
    return served.admit(served.join_token(tenant)).node_id


@as_platform
async def test_a_token_is_shown_once_and_stored_as_a_hash(served: Secure) -> None:
    made = await served.api("tokens.create", permissions=f"{PROVISION},{READ},{READ}", name="ci", expiresIn="90d")
    token, facts = parse(made["token"]), made["facts"]
    assert (facts["id"], facts["tenantId"], facts["permissions"], facts["name"]) == (token.id, "*", [READ, PROVISION], "ci")
    assert facts["createdBy"] == served.token.partition(".")[0]
    assert facts["revokedAt"] is None
    stored = served.rows("SELECT to_jsonb(t), expires_at - created_at FROM api_tokens t WHERE id = %s", token.id)[0]
    assert (stored[0]["hash"], stored[1]) == (token.hash, timedelta(days=90))
    listed = await served.api("tokens.list")
    assert [one["id"] for one in listed["tokens"]] == [token.id, served.token.partition(".")[0]], "newest first"
    told = str((listed, served.rows("SELECT to_jsonb(e) FROM events e"), stored))
    assert token.secret not in told
    assert token.hash not in str(listed)


@as_platform
async def test_a_token_is_of_the_tenant_named_or_the_callers(served: Secure) -> None:
    made = await served.api("tokens.create", permissions=ADMIN, tenantId="acme")
    assert made["facts"]["tenantId"] == "acme"
    with served.calling("acme"):
        own = await served.api("tokens.create", permissions=ADMIN)
        assert own["facts"]["tenantId"] == "acme"
        assert (await served.api("tokens.create", permissions=READ, tenantId="acme"))["facts"]["tenantId"] == "acme"
        for tenant in ("*", "default"):
            code, _ = await refused(served.api("tokens.create", permissions=READ, tenantId=tenant))
            assert code == DENIED
        assert {one["tenantId"] for one in (await served.api("tokens.list"))["tokens"]} == {"acme"}
    served.token, before = own["token"], served.token
    assert (await served.api("nodes.list"))["nodes"] == []
    assert (await refused(served.api("nodes.list", tenantId="default")))[0] == DENIED
    served.token = before
    assert {one["tenantId"] for one in (await served.api("tokens.list"))["tokens"]} == {"*", "acme"}
    assert {one["tenantId"] for one in (await served.api("tokens.list", tenantId="acme"))["tokens"]} == {"acme"}


@pytest.mark.parametrize("held", [(READ,), (READ, PROVISION)])
def test_who_does_not_administer_makes_no_tokens(database: str, held: tuple[str, ...]) -> None:
    async def main() -> None:
        async with secure(database) as served:
            with served.calling("*", *held):
                before = served.rows("SELECT count(*) FROM api_tokens")
                for method, keys in (
                    ("tokens.create", {"permissions": READ}),
                    ("tokens.revoke", {"tokenId": served.token.partition(".")[0], "reason": "x"}),
                    ("tokens.list", {}),
                    ("joinTokens.create", {}),
                    ("joinTokens.list", {}),
                    ("joinTokens.revoke", {"tokenId": mint("tok"), "reason": "x"}),
                ):
                    code, text = await refused(served.api(method, **keys))
                    assert (code, ADMIN in text) == (DENIED, True)
                assert served.rows("SELECT count(*) FROM api_tokens") == before

    asyncio.run(main())


@as_platform
async def test_what_a_token_cannot_be_names_the_key(served: Secure) -> None:
    for keys, says in (
        ({}, "permissions is needed"),
        ({"permissions": "compute:all"}, "'compute:all' is none of compute:nodes:read"),
        ({"permissions": READ, "expiresIn": "0s"}, "expiresIn '0s'"),
        ({"permissions": READ, "expiresIn": "1e9d"}, "expiresIn '1e9d'"),
        ({"permissions": READ, "expiresIn": "9" * 400}, "expiresIn '999"),
        ({"permissions": READ, "expiresIn": "9000h"}, "366 days"),
        ({"permissions": READ, "name": "x" * 64}, "at most 63"),
        ({"permissions": READ, "name": "a\nb"}, "a line"),
    ):
        code, text = await refused(served.api("tokens.create", **keys))
        assert (code, says in text) == (INVALID, True), text
    assert len((await served.api("tokens.list"))["tokens"]) == 1


@as_platform
async def test_a_revoked_token_keeps_when_it_was_revoked(served: Secure) -> None:
    made = (await served.api("tokens.create", permissions=READ))["facts"]["id"]
    first = (await served.api("tokens.revoke", tokenId=made, reason="leaked"))["revokedAt"]
    assert first
    assert (await served.api("tokens.revoke", tokenId=made, reason="again"))["revokedAt"] == first
    with served.calling("acme"):
        assert (await refused(served.api("tokens.revoke", tokenId=made, reason="not mine")))[0] == NOT_FOUND


@as_platform
async def test_lists_are_pages(served: Secure) -> None:
    made = [(await served.api("tokens.create", permissions=READ))["facts"]["id"] for _ in range(4)]
    joins = [(await served.api("joinTokens.create"))["facts"]["id"] for _ in range(3)]
    for method, wanted in (("tokens.list", [*made[::-1], served.token.partition(".")[0]]), ("joinTokens.list", joins[::-1])):
        found, cursor = [], ""
        while cursor is not None:
            page = await served.api(method, limit=2, cursor=cursor)
            assert len(page["tokens"]) <= 2
            found += [one["id"] for one in page["tokens"]]
            cursor = page["nextCursor"]
        assert found == wanted
        assert (await refused(served.api(method, cursor="node_1")))[0] == INVALID


# ---- tokens to join with


@as_platform
async def test_one_string_has_all_that_a_node_needs_to_join(served: Secure) -> None:
    made = await served.api("joinTokens.create", reason="rack 12")
    string, facts = parse_join(made["token"]), made["facts"]
    assert string.token.id == facts["id"]
    assert string.address == served.receiver.config.listen_join
    ca = x509.load_pem_x509_certificate((served.folder / "server-ca.pem").read_bytes())
    assert string.server_ca == (ca.public_bytes(Encoding.DER),)
    assert (facts["tenantId"], facts["kind"], facts["poolId"], facts["nodeId"]) == ("default", "host", None, None)
    assert (facts["uses"], facts["used"]) == (1, 0)
    node = await served.join(string.token.text)
    assert (await served.api("nodes.get", nodeId=node.node_id))["tenantId"] == "default"
    told = str((served.rows("SELECT to_jsonb(e) FROM events e"), await served.api("joinTokens.list")))
    assert string.token.secret not in told
    assert made["token"] not in told
    assert (await served.api("joinTokens.list"))["tokens"][0]["used"] == 1


@as_platform
async def test_every_ca_that_is_pinned_is_in_the_string(served: Secure) -> None:
    path = served.folder / "server-ca.pem"
    old = path.read_bytes()
    path.write_bytes(old + (served.folder / "node-ca.pem").read_bytes())
    assert len(parse_join((await served.api("joinTokens.create"))["token"]).server_ca) == 2
    path.write_bytes(b"")
    code, text = await refused(served.api("joinTokens.create"))
    assert (code, str(path) in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)


@as_platform
async def test_a_token_is_of_its_pools_tenant(served: Secure) -> None:
    pool = (await served.api("pools.create", name="h100", tenantId="acme"))["id"]
    made = await served.api("joinTokens.create", poolId=pool, kind="site-agent", uses=8, expiresIn="2h")
    facts = made["facts"]
    assert (facts["tenantId"], facts["poolId"], facts["kind"], facts["uses"]) == ("acme", pool, "site-agent", 8)
    assert served.rows("SELECT expires_at - created_at FROM join_tokens") == [(timedelta(hours=2),)]
    node = await served.join(parse_join(made["token"]).token.text)
    assert (await served.api("nodes.get", nodeId=node.node_id, tenantId="acme"))["poolId"] == pool


@as_platform
async def test_a_bound_token_is_of_its_node_and_used_once(served: Secure) -> None:
    node = await node_of(served, "acme")
    made = await served.api("joinTokens.create", nodeId=node)
    assert (made["facts"]["tenantId"], made["facts"]["nodeId"], made["facts"]["uses"]) == ("acme", node, 1)
    assert (await served.join(parse_join(made["token"]).token.text)).node_id == node
    for keys, says in (
        ({"nodeId": node, "uses": 2}, "used once"),
        ({"nodeId": node, "poolId": "pool_x"}, "poolId and nodeId"),
        ({"nodeId": node, "kind": "host"}, "kind and nodeId"),
        ({"kind": "cloud"}, "none of host, site-agent"),
        ({"uses": 10_001}, "10,000"),
        ({"expiresIn": "367d"}, "366 days"),
    ):
        code, text = await refused(served.api("joinTokens.create", **keys))
        assert (code, says in text) == (INVALID, True), text
    with served.calling("default"):
        assert (await refused(served.api("joinTokens.create", nodeId=node)))[0] == NOT_FOUND
    await served.api("nodes.retire", nodeId=node, reason="old")
    assert (await served.api("joinTokens.create", nodeId=node))["facts"]["nodeId"] == node, "it may come back"
    await served.api("nodes.delete", nodeId=node, reason="gone")
    code, text = await refused(served.api("joinTokens.create", nodeId=node))
    assert (code, "deleted" in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)


@as_platform
async def test_a_tenants_administrator_makes_tokens_for_its_own(served: Secure) -> None:
    pool = (await served.api("pools.create", name="h100"))["id"]
    with served.calling("acme"):
        assert (await served.api("joinTokens.create"))["facts"]["tenantId"] == "acme"
        assert (await refused(served.api("joinTokens.create", poolId=pool)))[0] == NOT_FOUND
        assert (await refused(served.api("joinTokens.create", tenantId="default")))[0] == DENIED
        assert [one["tenantId"] for one in (await served.api("joinTokens.list"))["tokens"]] == ["acme"]


@as_platform
async def test_with_a_revoked_token_nobody_joins(served: Secure) -> None:
    made = await served.api("joinTokens.create", uses=2)
    token = parse_join(made["token"]).token
    node = await served.join(token.text)
    assert (await served.api("joinTokens.revoke", tokenId=token.id, reason="leaked"))["revokedAt"]
    code, _ = await refused(served.join(token.text))
    assert code == grpc.StatusCode.UNAUTHENTICATED
    assert (await served.api("nodes.get", nodeId=node.node_id))["id"] == node.node_id, "who joined stays"
    assert (await refused(served.api("joinTokens.revoke", tokenId=served.token.partition(".")[0], reason="x")))[0] == NOT_FOUND


def test_where_nodes_join_is_what_is_advertised(database: str) -> None:
    async def main() -> None:
        async with secure(database, advertise_join="joins.example:7442") as served:
            with served.calling("*"):
                assert parse_join((await served.api("joinTokens.create"))["token"]).address == "joins.example:7442"

    asyncio.run(main())


def test_a_life_is_a_duration() -> None:
    assert life("", LIFE) == timedelta(days=1)
    for text in ("-1h", "1y", "NaN", "inf"):
        with pytest.raises(Invalid):
            life(text, LIFE)
