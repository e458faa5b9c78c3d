"""SQL in every text of every request and every message: it is taken as text or refused by name, and never reaches SQL."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest
from bettercompute.agent.v1 import session_pb2 as wire
from bettercompute.contract.sections import SECTIONS, encode, section_hash
from google.protobuf.message import Message

from receiver.client.methods import Method, methods
from tests.attacks import untouched, world
from tests.attacks.fields import SQL, Place, name_of, places, put
from tests.fake_daemon import FakeDaemon, Over
from tests.receiver.builders import gpu, host
from tests.receiver.live import Live, live
from tests.repetitions import PROOF

CODE = grpc.StatusCode
REFUSED = {CODE.INVALID_ARGUMENT, CODE.NOT_FOUND, CODE.FAILED_PRECONDITION, CODE.PERMISSION_DENIED}
OURS = ("psycopg", "syntax error", "relation", "SELECT", "sqlalchemy", "Traceback")  # what a refusal must not say of the database
READS = (".get", ".list", ".why", ".history", ".diff", ".watch")


def attacks(found: Sequence[Place], seed: int) -> Iterator[tuple[Place, str]]:
    """Each place with each attack; in `make test` each place with one of them."""
    for number, place in enumerate(found):
        for text in SQL if PROOF else [SQL[(number + seed) % len(SQL)]]:
            yield place, text


async def call(served: Live, method: Method, request: Message) -> tuple[grpc.StatusCode, str, bytes]:
    """A method's status, what a refusal says, and what an answer holds."""
    async with grpc.aio.insecure_channel(served.receiver.config.listen_api) as channel:
        kind: Any = channel.unary_stream if method.streaming else channel.unary_unary
        asked = kind(method.path, lambda message: message.SerializeToString(), lambda data: data)(
            request, timeout=0.2 if method.streaming else 8
        )
        try:
            answer = b"".join([part async for part in asked]) if method.streaming else await asked
        except grpc.aio.AioRpcError as error:
            quiet = method.streaming and error.code() is CODE.DEADLINE_EXCEEDED
            return (CODE.OK if quiet else error.code()), "" if quiet else error.details() or "", b""
    return CODE.OK, "", answer


async def new_things(served: Live, number: int) -> dict[str, str]:
    """What requests name: two nodes with a GPU each, a pool, good words."""
    node, other = (world.node(served.database, world.ACME, number + more) for more in (0, 1))
    return {
        "node_id": node,
        "to_node": other,
        "pool_id": await world.pool(served, world.ACME, f"pool-{number}"),
        "device_id": gpu(number).uuid,
        "reason": "because",
        "tenant_id": world.ACME,
        "trust": "platform",
        "name": "a name",
    }


def asked(method: Method, **known: str) -> Any:
    """A request of the method that is right as far as these values go."""
    fields = method.request.DESCRIPTOR.fields_by_name
    return method.request(**{name: value for name, value in known.items() if name in fields})


@live
async def test_no_text_of_any_request_reaches_sql(served: Live) -> None:
    canary = world.node(served.database, world.CANARY, 999)
    canary_pool = await world.pool(served, world.CANARY, "canary-pool")
    known = await new_things(served, 0)
    for number, (name, method) in enumerate(methods().items(), 1):
        if not name.endswith(READS):
            known = await new_things(served, 2 * number)
        if name == "nodes.delete":
            await served.api("nodes.retire", nodeId=known["node_id"], reason="to be deleted")
        before = untouched.rows(served.database)
        refused: list[Message] = []
        for place, text in attacks(list(places(method.request.DESCRIPTOR)), number):
            where, began = (name, name_of(place), text), time.monotonic()
            request = put(asked(method, **known), place, text)
            code, says, answer = await call(served, method, request)
            assert code is CODE.OK or code in REFUSED, (*where, code, says)
            assert time.monotonic() - began < 5.0, (*where, "nothing sleeps")
            assert not any(word in says.replace(text, "") for word in OURS), (*where, says)
            seen = answer.decode(errors="replace")
            assert not any(one in seen for one in (canary, canary_pool, world.SECRET)), (*where, "shows another tenant")
            if code is not CODE.OK or name.endswith(READS):
                refused.append(request)
        written = untouched.written(before, untouched.rows(served.database))
        assert not any(world.is_of(world.CANARY, row) for rows in written.values() for row in rows), name
        if written:  # by a call that was a good one: now without those
            before = await untouched.settled(served.database, 0.1)
            for request in refused:
                await call(served, method, request)
            assert untouched.written(before, untouched.rows(served.database)) == {}, name
    assert (await served.api("nodes.get", nodeId=canary))["hostname"] == world.SECRET


@pytest.mark.parametrize("name", SECTIONS)
def test_no_text_of_a_section_reaches_sql(name: str, database: str) -> None:
    kind = SECTIONS[name].message

    @live
    async def run(served: Live) -> None:
        canary = world.node(served.database, world.CANARY, 999)
        before = untouched.rows(database)
        for number, text in enumerate(SQL if PROOF else SQL[:1]):
            section = kind.FromString(host(1)[name])
            for count, place in enumerate(places(kind.DESCRIPTOR)):
                put(section, place, f"{text} {count}")
            daemon = served.daemon()
            await daemon.connect()
            body = encode(section)
            assert (await daemon.offer({name: body})).status == wire.INVENTORY_STATUS_APPLIED, (name, text)
            stored = served.rows("SELECT body FROM sections WHERE hash = decode(%s, 'hex')", section_hash(body))
            assert stored == [(body,)], "as it came"
            await served.api("nodes.get", nodeId=daemon.node_id)
            await served.api("inventory.get", nodeId=daemon.node_id)
            await served.api("nodes.list", selector=f"gpu.present,cpu.model={number}")
        after = untouched.rows(database)
        assert {row for rows in before.values() for row in rows} <= {row for rows in after.values() for row in rows}
        assert (await served.api("nodes.get", nodeId=canary))["hostname"] == world.SECRET

    run(database)


def said(daemon: FakeDaemon) -> dict[str, Message]:
    """A good message of each kind, by its name in SessionRequest."""
    daemon.xid(79, gpu(0).uuid, gpu(0).bus_id)
    return {
        "hello": daemon.hello(wire.Driver(id="nvidia", version="550.54.15", kinds=["gpu"])),
        "status_report": daemon.status(),
        "inventory_offer": daemon.offer_of(host(1), {"images": "settling"}),
        "inventory_sections": wire.InventorySections(digest=daemon.digest, name="os", data=b"", last=True),
        "command_result": wire.CommandResult(id="cmd_1", status=wire.COMMAND_STATUS_SUCCEEDED, payload_json="{}"),
    }


async def say(daemon: FakeDaemon, kind: str, place: Place, text: str) -> grpc.StatusCode | None:
    """Says a message of this kind with the text in that place; how the stream ended, None when it goes on."""
    try:
        if kind == "hello":
            await daemon.open()
        else:
            await daemon.connect()
        message = wire.SessionRequest()
        getattr(message, kind).CopyFrom(said(daemon)[kind])
        await daemon.call.write(put(message, place, text))
        if kind == "hello":
            await daemon.receive()
        await daemon.dealt_with()
    except Over as over:
        refused = over.end is not None and over.end.reason == wire.SESSION_END_REASON_BAD_MESSAGE
        return CODE.INVALID_ARGUMENT if refused else over.code
    finally:
        await daemon.close()
    return None


@live
async def test_no_text_of_any_message_reaches_sql(served: Live) -> None:
    canary = world.node(served.database, world.CANARY, 999)
    theirs = {row for rows in untouched.rows(served.database).values() for row in rows}
    for place, text in attacks(list(places(wire.SessionRequest.DESCRIPTOR)), 0):
        code = await say(served.daemon(), place[0].name, place, text)
        assert code in (None, CODE.INVALID_ARGUMENT), (name_of(place), text)
        left = {row for rows in untouched.rows(served.database).values() for row in rows}
        assert theirs <= left, (name_of(place), text)
    assert (await served.api("nodes.get", nodeId=canary))["hostname"] == world.SECRET
