"""What holds for every method that changes something: permission, tenant, audit, retries (SPEC B9)."""

import asyncio
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import grpc
import psycopg
import pytest
from psycopg.errors import SerializationFailure

from receiver.apply import command, nodes, repairs
from receiver.client.methods import find, methods
from receiver.config import Config
from receiver.gateway import limits
from receiver.ids import mint
from receiver.operate import tokens
from receiver.operate.call import Joining
from receiver.operate.methods import WRITES
from receiver.read.api import READS
from receiver.read.tokens import Scope
from receiver.store.tokens import add_join
from receiver.values import ADMIN, PROVISION, READ
from tests.fake_daemon import until
from tests.receiver.builders import gpu, host
from tests.receiver.live import Live, live, refused, serving

ORDERS: dict[str, dict[str, str]] = {
    "nodes.adopt": {},
    "nodes.retire": {},
    "nodes.delete": {},
    "nodes.move": {"poolId": ""},
    "nodes.label": {"labels": "rack=r12"},
    "nodes.resolveIdentity": {"action": "keep"},
    "nodes.setTrust": {"trust": "platform"},
    "devices.clear": {"deviceId": gpu(0).uuid},
    "devices.transfer": {"deviceId": gpu(0).uuid, "toNode": "<node>"},
    "nodes.diag": {},
    "devices.reset": {"deviceId": gpu(0).uuid},
    "nodes.reboot": {},
    "remediation.cancel": {"runId": "<run>"},
    "nodes.maintenance": {},
    "inventory.refresh": {"nodeId": "<node>"},
    "commands.cancel": {"commandId": "<command>"},
    "pools.create": {"name": "other"},
    "pools.set": {"poolId": "<pool>", "mode": "observe"},
    "pools.confirmHygiene": {"poolId": "<pool>", "condition": "NotReporting"},
    "pools.maintenance": {"poolId": "<pool>"},
    "pools.resumeRemediation": {"poolId": "<pool>"},
    "pools.delete": {"poolId": "<pool>"},
    "tokens.create": {"permissions": READ, "name": "ci"},
    "tokens.revoke": {"tokenId": "<token>"},
    "joinTokens.create": {},
    "joinTokens.revoke": {"tokenId": "<join token>"},
}
# What a healthy node in service, or a pool whose repairs go on, refuses.
LATER = {
    *("nodes.delete", "nodes.resolveIdentity", "devices.transfer"),
    *("pools.resumeRemediation", "pools.confirmHygiene"),
}
NEW = {"pools.create", "tokens.create", "joinTokens.create"}  # of nothing that is there
OPERATORS = (limits.PAGE, limits.REASON, limits.LABEL_VALUE, limits.LABELS, limits.TOKEN_DAYS, limits.TOKEN_USES)
Things = dict[str, str]  # what ORDERS names, by its placeholder
SUBJECTS = ("commandId", "runId", "deviceId", "nodeId", "poolId", "tokenId")


def joining(_: Config) -> Joining:
    """Where nodes join an insecure receiver, which would else create no token for it."""
    return Joining("joins:7442", (b"DER",))


def order(name: str, things: Things) -> dict[str, str]:
    """The keys of a call of this method."""
    keys = {key: things.get(value, value) for key, value in ORDERS[name].items()}
    return {**({"nodeId": things["<node>"]} if name.startswith("nodes.") else {}), **keys, "reason": "why not"}


async def fleet(served: Live) -> Things:
    """A node in service, a command and a repair of one that has gone, and a pool without nodes."""
    daemon = await served.in_service(host(1))
    pool = await served.api("pools.create", name="h100")
    away = served.daemon()
    await away.connect()
    await away.close()
    gone = "SELECT connected FROM nodes WHERE id = %s"
    await until("the end of its session", lambda: served.rows(gone, away.node_id) == [(False,)])
    with psycopg.connect(served.database) as tx:
        one = command.queue(tx, away.node_id, "diag.nvml", {}, "key")
        run = repairs.reboot(tx, away.node_id, "alice", "it hangs")
        join = tokens.new(mint)
        add_join(tx, join, "default", pool_id=None, kind="host", node_id=None, uses=1, by="alice", life=timedelta(hours=1))
    token = served.token_of("default").partition(".")[0]
    things = {"<node>": daemon.node_id, "<pool>": str(pool["id"]), "<command>": one, "<run>": run}
    return {**things, "<token>": token, "<join token>": join.id}


def test_every_method_reads_or_writes() -> None:
    unary = {name for name, method in methods().items() if not method.streaming}
    assert READS.keys() | WRITES.keys() == unary
    assert not READS.keys() & WRITES.keys()
    assert ORDERS.keys() == WRITES.keys(), "each is tested below"
    assert all("reason" in find(name).keys for name in WRITES)


def test_permissions_are_those_of_the_table() -> None:
    admin = {name for name, row in WRITES.items() if row.permission == ADMIN}
    administered = ("pools.", "tokens.", "joinTokens.")
    assert admin == {"nodes.setTrust", *(name for name in WRITES if name.startswith(administered))}
    assert {row.permission for name, row in WRITES.items() if name not in admin} == {PROVISION}
    assert {name for name, row in READS.items() if row.permission != READ} == {
        *("pools.get", "pools.list", "tokens.list", "joinTokens.list")
    }


@live
async def test_a_token_without_the_permission_changes_nothing(served: Live) -> None:
    things = await fleet(served)
    for held, allowed in (((READ,), ()), ((READ, PROVISION), (PROVISION,))):
        with served.calling("*", *held):
            for name, row in WRITES.items():
                if row.permission not in allowed:
                    code, text = await refused(served.api(name, **order(name, things)))
                    assert (code, row.permission in text, name in text) == (grpc.StatusCode.PERMISSION_DENIED, True, True)
    with served.calling("*", "compute:nothing"):
        assert (await refused(served.api("nodes.list")))[0] == grpc.StatusCode.PERMISSION_DENIED
    assert served.rows("SELECT count(*) FROM events WHERE type = 'api.write'") == [(1,)], "the pool of this test"


@live
async def test_what_is_another_tenants_is_not_found_by_any_method(served: Live) -> None:
    things = await fleet(served)
    with served.calling("acme"):
        for name in WRITES.keys() - NEW:
            code, _ = await refused(served.api(name, **order(name, things)))
            assert (name, code) == (name, grpc.StatusCode.NOT_FOUND)
        for name in ("nodes.get", "nodes.why"):
            assert (await refused(served.api(name, nodeId=things["<node>"])))[0] == grpc.StatusCode.NOT_FOUND
        for name in ("devices.get", "devices.history", "nodes.why"):
            assert (await refused(served.api(name, deviceId=gpu(0).uuid)))[0] == grpc.StatusCode.NOT_FOUND
        assert (await refused(served.api("images.list", poolId=things["<pool>"])))[0] == grpc.StatusCode.NOT_FOUND
        assert (await served.api("pools.create", name="h100"))["tenantId"] == "acme"
        assert [one["tenantId"] for one in (await served.api("pools.list"))["pools"]] == ["acme"]
        assert (await served.api("atoms.list"))["atoms"] == []


@live
async def test_what_does_not_exist_is_not_found_and_named(served: Live) -> None:
    kinds = {"node": "node", "pool": "pool", "command": "cmd", "run": "run", "token": "tok", "join token": "tok"}
    things = {f"<{kind}>": mint(prefix) for kind, prefix in kinds.items()}
    for name in WRITES.keys() - NEW:
        code, text = await refused(served.api(name, **order(name, things)))
        subject = next(key for key in SUBJECTS if key in order(name, things))
        assert (name, code, order(name, things)[subject] in text) == (name, grpc.StatusCode.NOT_FOUND, True)
        code, text = await refused(served.api(name, **{**order(name, things), subject: ""}))
        assert (name, code, text) == (name, grpc.StatusCode.INVALID_ARGUMENT, f"{subject} is needed")


@live
@patch("receiver.service.joining", joining)
async def test_every_write_is_audited_and_a_refused_one_leaves_nothing(served: Live) -> None:
    things = await fleet(served)
    for name in ORDERS:
        keys = order(name, things)
        before = served.rows("SELECT count(*) FROM events")
        if name in LATER:
            await refused(served.api(name, **keys))
            assert served.rows("SELECT count(*) FROM events") == before
            continue
        if name != "nodes.retire":
            await served.api(name, **keys)
            assert last_write(served) == (name, "operator", "why not")
    await served.api("nodes.retire", **order("nodes.retire", things))
    assert last_write(served)[0] == "nodes.retire"
    await served.api("nodes.delete", **order("nodes.delete", things))
    written = (await served.api("events.list", type="api.write", nodeId=things["<node>"]))["events"]
    assert {one["tenantId"] for one in written} == {"default"}
    assert written[-1]["payload"]["request"] == {"nodeId": things["<node>"]}


def last_write(served: Live) -> tuple[Any, ...]:
    payload = "payload ->> 'method', payload ->> 'by', payload ->> 'reason'"
    return served.rows(f"SELECT {payload} FROM events WHERE type = 'api.write' ORDER BY seq DESC LIMIT 1")[0]


@live
async def test_an_order_that_loses_a_race_is_given_again(served: Live) -> None:
    node = (await fleet(served))["<node>"]
    given, left = nodes.maintenance, [SerializationFailure("raced"), SerializationFailure("raced")]

    def racing(*arguments: Any, **keys: Any) -> Any:
        if left:
            raise left.pop()
        return given(*arguments, **keys)

    with patch("receiver.apply.nodes.maintenance", racing):
        assert (await served.api("nodes.maintenance", nodeId=node, reason="a fan"))["status"] == "maintenance"
        left.extend([SerializationFailure("raced")] * 9)
        code, text = await refused(served.api("nodes.maintenance", nodeId=node, reason="a fan"))
    assert (code, "try again" in text) == (grpc.StatusCode.ABORTED, True)
    assert served.rows("SELECT count(*) FROM events WHERE payload ->> 'method' = 'nodes.maintenance'") == [(1,)]


@live
@patch("receiver.service.joining", joining)
async def test_what_is_over_a_limit_is_counted_under_its_name(served: Live) -> None:
    node = (await fleet(served))["<node>"]
    many = ",".join(f"k{number}=v" for number in range(257))
    for name, keys in (
        ("nodes.list", {"limit": "1001"}),
        ("nodes.retire", {"nodeId": node, "reason": "x" * 2049}),
        ("nodes.label", {"nodeId": node, "labels": f"rack={'x' * 64}", "reason": "racked"}),
        ("nodes.label", {"nodeId": node, "labels": many, "reason": "racked"}),
        ("tokens.create", {"permissions": READ, "expiresIn": "367d"}),
        ("joinTokens.create", {"uses": "10001"}),
    ):
        assert (await refused(served.api(name, **keys)))[0] == grpc.StatusCode.INVALID_ARGUMENT
    met = served.receiver.registry.met
    assert met == dict.fromkeys((one.name for one in OPERATORS), 1)


def test_new_pools_are_of_the_receivers_tenant_where_the_caller_has_all(database: str) -> None:
    async def main() -> None:
        async with serving(database, tenant="acme") as served:
            assert (await served.api("pools.create", name="h100"))["tenantId"] == "acme"

    asyncio.run(main())


@pytest.mark.parametrize("name", sorted(WRITES))
def test_a_narrowed_platform_token_keeps_what_it_may(name: str) -> None:
    Scope("acme", (ADMIN,), platform=True).require(WRITES[name].permission, name)
