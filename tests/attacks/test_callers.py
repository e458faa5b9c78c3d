"""Attacks on the API: by who has no token, one that opens less, or another tenant's (SPEC B9, B11)."""

from datetime import timedelta
from typing import Any

import grpc
from bettercompute.contract.tokens import parse

from receiver.client.methods import find, methods
from receiver.values import ADMIN, PROVISION, READ
from tests.attacks.arena import CODE, Arena, attack, refusal
from tests.attacks.fields import SQL
from tests.attacks.world import ACME, CANARY, SECRET
from tests.receiver.tls import Node

ASK = "nodes.list"


def headers(arena: Arena) -> list[list[tuple[str, Any]]]:
    """Whatever may stand where a token should."""
    good = arena.operator
    token_id, _, secret = good.partition(".")
    wrong = secret[:-1] + ("A" if secret[-1] != "A" else "E")
    return [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", good)],
        [("authorization", f"Basic {good}")],
        [("authorization", f"Bearer {token_id}.{wrong}")],
        [("authorization", f"Bearer {token_id}.")],
        [("authorization", f"Bearer tok_01hf7yat000000000000000000.{secret}")],
        [("authorization", f"Bearer {good} {good}")],
        [("authorization", f"Bearer {good}"), ("authorization", f"Bearer {good}")],
        [("authorization", f"Bearer {arena.served.join_token('*')}")],
        [("authorization", "Bearer " + "x" * 6000)],
        [("authorization-bin", good.encode())],
        [("bc-node-id", arena.victim.node_id)],
        *([("authorization", f"Bearer {text}")] for text in SQL),
    ]


@attack
async def test_what_is_no_token(arena: Arena) -> None:
    tried = headers(arena)
    async with arena.unharmed():
        for metadata in tried:
            code, _, says = await refusal(arena.raw(ASK, b"", metadata))
            assert code is CODE.UNAUTHENTICATED, (metadata, says)
            assert parse(arena.operator).secret not in says
            assert "token" in says.lower() or "authorization" in says, "what to do"


@attack
async def test_every_method_without_a_token(arena: Arena) -> None:
    async with arena.unharmed():
        for name, method in methods().items():
            if not method.streaming:
                assert (await refusal(arena.raw(name, b"")))[0] is CODE.UNAUTHENTICATED, name


@attack
async def test_expired_and_revoked(arena: Arena) -> None:
    expired = arena.served.token_of("*", life=timedelta(seconds=-1))
    revoked = arena.served.token_of("*")
    assert (await arena.call(revoked, ASK))["nodes"]
    await arena.call(arena.operator, "tokens.revoke", tokenId=parse(revoked).id, reason="leaked")
    async with arena.unharmed():
        for token, why in ((expired, "expired"), (revoked, "revoked")):
            code, _, says = await refusal(arena.call(token, ASK))
            assert (code, why in says) == (CODE.UNAUTHENTICATED, True)


@attack
async def test_a_token_that_is_revoked_while_it_watches(arena: Arena) -> None:
    token = arena.served.token_of("*")
    method = find("events.watch")
    assert arena.served.trusted is not None
    async with grpc.aio.secure_channel(arena.served.receiver.config.listen_api, arena.served.trusted) as channel:
        watch: Any = channel.unary_stream(method.path)
        call = watch(b"", metadata=[("authorization", f"Bearer {token}")])
        await arena.call(arena.operator, "tokens.revoke", tokenId=parse(token).id, reason="leaked")

        async def heard() -> None:
            while await call.read() is not grpc.aio.EOF:
                pass

        assert (await refusal(heard()))[0] is CODE.UNAUTHENTICATED


@attack
async def test_a_nodes_certificate_opens_no_api(arena: Arena) -> None:
    node = arena.attacker()
    async with arena.unharmed(), grpc.aio.secure_channel(arena.served.receiver.config.listen_api, node.credentials) as channel:
        call: Any = channel.unary_unary(find(ASK).path)
        assert (await refusal(call(b"")))[0] is CODE.UNAUTHENTICATED


@attack
async def test_no_tls(arena: Arena) -> None:
    async with arena.unharmed(), grpc.aio.insecure_channel(arena.served.receiver.config.listen_api) as channel:
        call: Any = channel.unary_unary(find(ASK).path)
        assert (await refusal(call(b"", metadata=[("authorization", f"Bearer {arena.operator}")])))[0] is CODE.UNAVAILABLE


@attack
async def test_the_api_where_nodes_report_and_where_they_join(arena: Arena) -> None:
    node: Node = arena.attacker()
    config = arena.served.receiver.config
    async with arena.unharmed():
        for target in (config.listen_session, config.listen_join):
            async with grpc.aio.secure_channel(target, node.credentials) as channel:
                call: Any = channel.unary_unary(find(ASK).path)
                sent = call(b"", metadata=[("authorization", f"Bearer {arena.operator}")])
                assert (await refusal(sent))[0] is CODE.UNIMPLEMENTED


# ---- another tenant


ON_THE_VICTIM = {
    "nodes.get": {},
    "nodes.why": {},
    "inventory.get": {},
    "inventory.history": {},
    "inventory.diff": {},
    "acceptance.get": {},
    "events.list": {},
    "nodes.adopt": {"reason": "x"},
    "nodes.label": {"reason": "x", "labels": '{"a": "b"}'},
    "nodes.maintenance": {"reason": "x"},
    "nodes.retire": {"reason": "x"},
    "nodes.delete": {"reason": "x"},
    "nodes.reboot": {"reason": "x", "force": "true"},
    "nodes.diag": {"reason": "x"},
    "nodes.setTrust": {"trust": "platform", "reason": "x"},
    "nodes.resolveIdentity": {"action": "reject", "reason": "x"},
    "inventory.refresh": {"reason": "x"},
    "joinTokens.create": {"reason": "x"},
}


@attack
async def test_another_tenants_node(arena: Arena) -> None:
    """NOT_FOUND, as if it were not there: also for who may do everything in a tenant of its own."""
    token, nobody = arena.served.token_of(ACME, ADMIN), "node_01hf7yat000000000000000009"
    async with arena.unharmed():
        for method, keys in ON_THE_VICTIM.items():
            code, _, there = await refusal(arena.call(token, method, nodeId=arena.victim.node_id, **keys))
            assert code is CODE.NOT_FOUND, (method, there)
            code, _, says = await refusal(arena.call(token, method, nodeId=nobody, **keys))
            assert (code, says) == (CODE.NOT_FOUND, there.replace(arena.victim.node_id, nobody)), method


@attack
async def test_a_tenant_that_is_not_the_tokens(arena: Arena) -> None:
    token = arena.served.token_of(ACME, ADMIN)
    async with arena.unharmed():
        for tenant in (CANARY, "*", *SQL):
            for method, keys in ((ASK, {}), ("tokens.create", {"permissions": READ}), ("pools.create", {"name": "p"})):
                code, _, says = await refusal(arena.call(token, method, tenantId=tenant, **keys))
                assert code is CODE.PERMISSION_DENIED, (tenant, method, says)


@attack
async def test_lists_show_nothing_of_another_tenant(arena: Arena) -> None:
    token = arena.served.token_of(ACME, ADMIN)
    async with arena.unharmed():
        for name in methods():
            if name.endswith(".list") and name not in ("images.list", "acceptance.list"):
                answer = str(await arena.call(token, name))
                assert not any(one in answer for one in (arena.victim.node_id, SECRET, CANARY)), name


@attack
async def test_another_tenants_tokens(arena: Arena) -> None:
    token = arena.served.token_of(ACME, ADMIN)
    join = parse(arena.served.join_token(CANARY)).id
    async with arena.unharmed():
        for method, key in (("tokens.revoke", parse(arena.operator).id), ("joinTokens.revoke", join)):
            assert (await refusal(arena.call(token, method, tokenId=key, reason="x")))[0] is CODE.NOT_FOUND


# ---- permissions


MISSING = [(name, have) for name in sorted(methods()) for have in ((), (READ,), (PROVISION,)) if not methods()[name].streaming]


@attack
async def test_missing_permission(arena: Arena) -> None:
    """Each method with too little; what is needed is said. (That enough is enough, others test.)"""
    needs = {
        ADMIN: ("pools.", "tokens.", "joinTokens.", "nodes.setTrust"),
        READ: (".list", ".get", ".why", ".history", ".diff"),
    }
    tokens = {have: arena.served.token_of(ACME, *(have or ("none",))) for have in ((), (READ,), (PROVISION,))}
    node = arena.attacker()
    async with arena.unharmed():
        for name, have in MISSING:
            admin = name.startswith(needs[ADMIN])
            need = ADMIN if admin else READ if name.endswith(needs[READ]) else PROVISION
            if need in have:
                continue
            keys = {"nodeId": node.node_id, "reason": "x"}
            known = methods()[name].keys
            code, _, says = await refusal(arena.call(tokens[have], name, **{key: keys[key] for key in keys if key in known}))
            assert code is CODE.PERMISSION_DENIED, (name, have, says)
            assert need in says, (name, says)


@attack
async def test_a_token_makes_none_that_opens_more(arena: Arena) -> None:
    """Who administers acme administers acme."""
    token = arena.served.token_of(ACME, ADMIN)
    async with arena.unharmed():
        for keys in ({"tenantId": "*"}, {"tenantId": CANARY}):
            code = (await refusal(arena.call(token, "tokens.create", permissions=READ, reason="x", **keys)))[0]
            assert code is CODE.PERMISSION_DENIED
        code = (await refusal(arena.call(token, "tokens.create", permissions="compute:everything", reason="x")))[0]
        assert code is CODE.INVALID_ARGUMENT


# ---- bytes


@attack
async def test_bytes_that_are_no_request(arena: Arena) -> None:
    """From strangers too: the log has no traceback of it."""
    async with arena.unharmed():
        for body in (b"\xff" * 50, b"\x0a\xff\xff\xff\xff\x7f", b"\x0a\x02\xff\xfe", b"\0", b"x" * (9 << 20)):
            for token in (arena.operator, ""):
                code, _, says = await refusal(arena.raw(ASK, body, token=token))
                assert code is (CODE.RESOURCE_EXHAUSTED if len(body) > 1000 else CODE.INVALID_ARGUMENT), says


@attack
async def test_a_page_over_the_limit(arena: Arena) -> None:
    async with arena.unharmed():
        code, _, says = await refusal(arena.call(arena.operator, ASK, limit=1_001))
        assert code is CODE.INVALID_ARGUMENT
        assert "1,000" in says or "1000" in says
