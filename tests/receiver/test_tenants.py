"""Another tenant's token gets nothing from any method, and changes nothing (SPEC B9): NOT_FOUND, or an empty list.

The questions are made from the methods' tables and their requests. A method that takes a key which is in neither THINGS nor PLAIN
fails, as does one whose own tenant would be told nothing here either: then nothing was proven of it.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import patch

import grpc
import psycopg
import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.client.methods import Method, answer, find, methods, parse
from receiver.operate.methods import WRITES
from receiver.read.api import READS
from tests.receiver.builders import gpu, host
from tests.receiver.live import Live, bearer, live, refused
from tests.receiver.operate.test_methods import NEW, fleet, joining, order

NOT_FOUND, DENIED = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED
DIGEST, SERIAL, HOSTNAME = "sha256:" + "ab" * 32, "1650012345", "machine-of-default"

# Keys that name something of a tenant.
NAMING = (
    "nodeId",
    "poolId",
    "deviceId",
    "commandId",
    "runId",
    "snapshotId",
    "from",
    "to",
    "toNode",
    "tokenId",
    "digest",
    "serial",
)
# Keys that name nothing of anybody's.
PLAIN = {
    *(
        "action",
        "attempt",
        "code",
        "condition",
        "cursor",
        "end",
        "escalated",
        "expiresIn",
        "force",
        "gpuModel",
        "keepCertificate",
    ),
    *("kind", "labels", "leaseId", "level", "limit", "mode", "name", "permissions", "policy", "reason", "remove", "selector"),
    *("sharing", "state", "status", "tenantId", "trust", "type", "until", "uses"),
}
# Left out of what is compared: what a receiver writes by itself.
VOLATILE = ("last_seen", "plan_rev", "inventory_rev")
OWN_TABLES = ("leases", "serving", "replan")


async def things_of_default(served: Live) -> dict[str, str]:
    """What each key may name, of tenant `default`; by method where a key names different kinds."""
    placed = await fleet(served)
    bodies = host(
        2,
        os=pb.OsSection(hostname=HOSTNAME),
        images=pb.ImagesSection(images=[pb.Image(digest=DIGEST, name="train", bytes=5)]),
        gpus=pb.GpusSection(gpus=[gpu(8, serial=SERIAL), gpu(9)]),
    )
    node = (await served.in_service(bodies)).node_id
    await served.api("nodes.move", nodeId=node, poolId=placed["<pool>"], reason="of that pool")
    snapshot = str((await served.api("inventory.get", nodeId=node))["snapshotId"])
    return {
        **placed,
        "nodeId": node,
        "toNode": node,
        "poolId": placed["<pool>"],
        "deviceId": gpu(8).uuid,
        "commandId": placed["<command>"],
        "runId": placed["<run>"],
        **dict.fromkeys(("snapshotId", "from", "to"), snapshot),
        "digest": DIGEST,
        "serial": SERIAL,
        "tokenId": placed["<token>"],
    }


def questions(method: Method, things: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A read with nothing named, with each of its keys that name something, and with each beside the node or the pool."""
    named = [key for key in method.keys if key in NAMING]
    yield {}
    for key in named:
        yield {key: things[key]}
        yield from ({first: things[first], key: things[key]} for first in ("nodeId", "poolId") if first in named and first != key)


def tables(served: Live) -> dict[str, str]:
    """All that the database has, but what receivers write by themselves."""
    with psycopg.connect(served.database, autocommit=True) as connection:
        names = [name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()]
        row = "(to_jsonb(t) - %s::text[])::text"
        query = f"SELECT coalesce(string_agg(r, E'\\n' ORDER BY r), '') FROM (SELECT {row} AS r FROM {{}} t) AS of_rows"
        return {
            name: str(connection.execute(query.format(name).encode(), [list(VOLATILE)]).fetchall()[0][0])
            for name in names
            if name not in OWN_TABLES
        }


def foreign(told: object, things: Mapping[str, str]) -> list[str]:
    """What of another tenant's is in an answer."""
    text = json.dumps(told) if isinstance(told, dict) else ""
    return [one for one in (*things.values(), HOSTNAME, '"default"') if one in text]


def rows_of_others(told: Mapping[str, Any]) -> list[Any]:
    """What an answer lists that is not said to be of the caller's tenant, `acme`."""
    return [row for rows in told.values() if isinstance(rows, list) for row in rows if row.get("tenantId") != "acme"]


@pytest.mark.parametrize("method", methods().values(), ids=methods())
def test_every_key_of_every_method_is_known_here(method: Method) -> None:
    unknown = method.keys.keys() - PLAIN - set(NAMING)
    assert not unknown, f"{method.name}: say in NAMING or PLAIN whether {', '.join(unknown)} names something of a tenant"


@live
@patch("receiver.service.joining", joining)
async def test_every_method_that_reads_shows_another_tenant_nothing(served: Live) -> None:
    things = await things_of_default(served)
    outside, inside = served.token_of("acme"), served.token_of("default")
    wrong: list[str] = []
    for name in READS:
        proven = False
        for keys in questions(find(name), things):
            served.token = inside
            shown = foreign(await told(served, name, keys), things)
            proven = proven or bool(shown)
            served.token = outside
            seen = await told(served, name, keys)
            if seen == grpc.StatusCode.INVALID_ARGUMENT and not shown:
                continue  # a question that is none
            if seen != NOT_FOUND and (not isinstance(seen, dict) or foreign(seen, things) or rows_of_others(seen)):
                wrong.append(f"{name} {keys}: {seen}, where its own tenant sees {shown}")
        wrong += [] if proven else [f"{name}: nothing was shown to its own tenant"]
    assert wrong == []


async def told(served: Live, name: str, keys: Mapping[str, str]) -> Any:
    """An answer, or the status of a refusal."""
    try:
        return await served.api(name, **keys)
    except grpc.aio.AioRpcError as error:
        return error.code()


@live
@patch("receiver.service.joining", joining)
async def test_every_method_that_writes_finds_nothing_of_another_tenant_and_changes_nothing(served: Live) -> None:
    things = await things_of_default(served)
    with served.calling("acme"):
        await asyncio.sleep(0.3)  # what the fleet still has to say
        before = tables(served)
        for name in WRITES:
            asked = order(name, things)
            naming = [{**asked, key: things[key]} for key in find(name).keys if key in NAMING and key not in asked]
            for keys in naming if name in NEW else [asked]:
                code, text = await refused(served.api(name, **keys))
                assert (name, keys, code) == (name, keys, NOT_FOUND), text
        assert tables(served) == before


@live
@patch("receiver.service.joining", joining)
async def test_no_method_takes_another_tenants_name(served: Live) -> None:
    things = await things_of_default(served)
    with served.calling("acme"):
        before = tables(served)
        for name, method in methods().items():
            assert "tenantId" in method.keys, name
            keys = order(name, things) if name in WRITES else {}
            for tenant in ("default", "*"):
                if method.streaming:
                    assert (await refused(followed(served, name, tenantId=tenant)))[0] == DENIED
                else:
                    assert (name, (await refused(served.api(name, **{**keys, "tenantId": tenant})))[0]) == (name, DENIED)
        assert tables(served) == before


async def followed(served: Live, name: str, **keys: str) -> dict[str, Any]:
    """The first answer of a stream."""
    method = find(name)
    request = parse(method, [f"{key}={value}" for key, value in keys.items()])
    async with grpc.aio.insecure_channel(served.receiver.config.listen_api) as channel:
        stub: Any = channel.unary_stream(method.path, lambda message: message.SerializeToString(), method.response.FromString)
        return answer(await asyncio.wait_for(stub(request, metadata=tuple(bearer(served.token))).read(), 1.0))


@live
async def test_every_stream_tells_another_tenant_nothing(served: Live) -> None:
    things = await things_of_default(served)
    streams = [name for name, method in methods().items() if method.streaming]
    assert streams == ["events.watch"], "another one needs its question here"
    with served.calling("default"):
        assert foreign(await followed(served, "events.watch", cursor="0.0"), things)
    with served.calling("acme"):
        with pytest.raises(TimeoutError):
            await followed(served, "events.watch", cursor="0.0")
        assert (await refused(followed(served, "events.watch", cursor="0.0", nodeId=things["nodeId"])))[0] == NOT_FOUND
