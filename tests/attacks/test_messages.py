"""Attacks by a node that has joined: what it says is over a limit, no message, or not about itself (SPEC A3, B2, B3, B11)."""

import asyncio
import random
import time
from typing import Any

import grpc
import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.agent.v1 import session_pb2 as wire
from bettercompute.contract.sections import SECTIONS, encode

from receiver.gateway import limits
from tests.attacks import untouched
from tests.attacks.arena import CODE, ITS_OWN, Arena, Theatre, attack
from tests.fake_daemon import FakeDaemon, spoken
from tests.receiver.builders import gpu, gpus
from tests.receiver.tls import Node
from tests.repetitions import PROOF

VICTIMS = gpu(900)
PATH = "/bettercompute.agent.v1.AgentService/Session"
HELLO, REPORT = 0x0A, 0x12  # tags of SessionRequest
DRIVERS, CONDITIONS = 0x3A, 0x32  # of what is in them


def varint(value: int) -> bytes:
    """As protobuf writes a number."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def filled(tag: int, inner: bytes, size: int) -> bytes:
    """`inner`, again and again, in a field of about `size` bytes."""
    body = inner * (size // len(inner))
    return bytes([tag]) + varint(len(body)) + body


async def write(arena: Arena, node: Node, *data: bytes, compression: grpc.Compression | None = None) -> Any:
    """A stream of the node that says Hello and then these bytes, to its end: for ended()."""
    target = arena.served.receiver.config.listen_session
    async with grpc.aio.secure_channel(target, node.credentials, compression=compression) as channel:
        session: Any = channel.stream_stream(PATH, response_deserializer=wire.SessionResponse.FromString)
        call: Any = session()
        hello = wire.Hello(protocol_version="0.3", boot_id="boot-1", instance_id="one")  # always one and the same machine
        await call.write(wire.SessionRequest(hello=hello).SerializeToString())
        for one in data:
            await call.write(one)
        last = None
        while (message := await call.read()) is not grpc.aio.EOF:
            last = message
        code = await call.code()
        return code, last.session_end.reason if last else None, await call.details()


async def ended(work: Any) -> tuple[grpc.StatusCode, str]:
    """How a stream of write() was ended."""
    try:
        code, _, says = await asyncio.wait_for(work, 20)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    except asyncio.InvalidStateError:  # the stream was over before all was said
        return CODE.CANCELLED, ""
    return code, says


# ---- too large


@attack
async def test_a_message_over_the_limit(arena: Arena) -> None:
    node = arena.attacker()
    async with arena.unharmed(*ITS_OWN):
        code, says = await ended(write(arena, node, filled(REPORT, b"\x1a\x0a" + b"x" * 10, 5 << 20)))
        assert code is CODE.RESOURCE_EXHAUSTED
        assert "bytes a message" in says


@attack
async def test_a_message_far_over_the_limit(arena: Arena) -> None:
    node = arena.attacker()
    async with arena.unharmed(*ITS_OWN):
        assert (await ended(write(arena, node, b"\0" * (40 << 20))))[0] in (CODE.RESOURCE_EXHAUSTED, CODE.CANCELLED)


@attack
async def test_a_message_that_unpacks_to_far_more(arena: Arena) -> None:
    """256 MiB of zeros are 256 KiB when compressed: they are not unpacked whole."""
    node = arena.attacker()
    async with arena.unharmed(*ITS_OWN):
        code, _ = await ended(write(arena, node, b"\0" * (256 << 20), compression=grpc.Compression.Gzip))
        assert code in (CODE.RESOURCE_EXHAUSTED, CODE.CANCELLED)


@pytest.mark.parametrize(("tags", "limit"), [((REPORT, CONDITIONS), limits.CONDITIONS), ((HELLO, DRIVERS), limits.DRIVERS)])
def test_a_message_of_two_million_parts(tags: tuple[int, int], limit: limits.Limit, theatre: Theatre) -> None:
    @attack
    async def run(arena: Arena) -> None:
        node, met = arena.attacker(), arena.served.receiver.registry.met
        async with arena.unharmed(*ITS_OWN):
            before = met[limit.name]
            code, says = await ended(write(arena, node, filled(tags[0], bytes([tags[1], 0]), 4_000_000)))
            assert code is CODE.INVALID_ARGUMENT
            assert limit.name in says
            assert met[limit.name] == before + 1, "counted"

    run(theatre)


@attack
async def test_an_offer_of_two_million_sections(arena: Arena) -> None:
    """It is refused as it is; and nobody else waits while it is looked at."""
    node = arena.attacker()
    async with arena.unharmed(*ITS_OWN), arena.connected(node) as daemon:
        offer = wire.InventoryOffer.FromString(b"\x12\0" * 2_000_000)
        sending = asyncio.create_task(daemon.send(inventory_offer=offer))
        began = time.monotonic()
        await arena.daemon.dealt_with()
        assert time.monotonic() - began < (1.0 if PROOF else 3.0)
        await sending
        result = (await daemon.receive()).inventory_result
        assert (result.status, "sections an offer" in result.reason) == (wire.INVENTORY_STATUS_REFUSED, True)


# ---- no message


@attack
async def test_noise(arena: Arena) -> None:
    node = arena.attacker()
    async with arena.unharmed(*ITS_OWN):
        chance = random.Random(5)
        for size in (1, 2, 40, 3000):
            code, _ = await ended(write(arena, node, b"\x0a\xff" + chance.randbytes(size)))
            assert code in (CODE.INVALID_ARGUMENT, CODE.OK)


@attack
async def test_malformed_protobuf(arena: Arena) -> None:
    """Good messages with bytes changed, cut, doubled and put together, for six seconds, or sixty under `make proof-identity`."""
    chance = random.Random(23)
    # INTERNAL is what grpcio calls a write of its own to a stream that has ended.
    known = {CODE.OK, CODE.INVALID_ARGUMENT, CODE.RESOURCE_EXHAUSTED, CODE.INTERNAL, CODE.CANCELLED}
    good = [one.SerializeToString() for one in said(FakeDaemon(""))]
    end, streams, met = time.monotonic() + (60 if PROOF else 6), 0, set()
    theirs = {row for rows in untouched.rows(arena.served.database).values() for row in rows if arena.victim.node_id in row}
    nodes = [arena.attacker() for _ in range(20)]
    daemons = [FakeDaemon("", node_id=node.node_id) for node in nodes]  # each of them one and the same machine
    while time.monotonic() < end:
        streams += 1
        data = [mutated(chance, good) for _ in range(chance.choice((1, 2, 8)))]
        hello = wire.SessionRequest(hello=daemons[streams % len(nodes)].hello()).SerializeToString()
        met.add(code := await heard(arena, nodes[streams % len(nodes)], [hello, *data]))
        assert code in known | {None}, (streams, code)
    assert streams > 50
    assert {CODE.INVALID_ARGUMENT, None} <= met, "some is refused by name, some put up with"
    left = {row for rows in untouched.rows(arena.served.database).values() for row in rows if arena.victim.node_id in row}
    assert theirs == left, "nothing of another node is changed"
    await arena.alive()


def said(daemon: FakeDaemon) -> list[wire.SessionRequest]:
    """A good message of each kind."""
    bodies = {"os": encode(pb.OsSection(hostname="gpu-1")), "gpus": encode(gpus(gpu(7)))}
    daemon.xid(79, str(gpu(7).uuid), str(gpu(7).bus_id))
    return [
        wire.SessionRequest(hello=daemon.hello(wire.Driver(id="kvm", version="1", kinds=["vm"]))),
        wire.SessionRequest(inventory_offer=daemon.offer_of(bodies, {"images": "settling"})),
        wire.SessionRequest(
            inventory_sections=wire.InventorySections(digest=daemon.digest, name="os", data=bodies["os"], last=True)
        ),
        wire.SessionRequest(
            inventory_sections=wire.InventorySections(digest=daemon.digest, name="gpus", data=bodies["gpus"], last=True)
        ),
        wire.SessionRequest(status_report=daemon.status()),
        wire.SessionRequest(
            command_result=wire.CommandResult(id="cmd_1", status=wire.COMMAND_STATUS_FAILED, payload_json='{"a": [1, 2.5, null]}')
        ),
    ]


def mutated(chance: random.Random, good: list[bytes]) -> bytes:
    """A message as whoever looks for a hole would send it."""
    data = bytearray(chance.choice(good))
    for _ in range(chance.choice((0, 1, 1, 2, 8))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[at : at + chance.randrange(1, 20)]
            case 2:
                data[at:at] = data[at : at + chance.randrange(1, 40)] * chance.randrange(1, 30)
            case 3:
                data[at:at] = varint(chance.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)))
            case 4:
                data[at:at] = chance.choice(good)
    return bytes(data)


async def heard(arena: Arena, node: Node, data: list[bytes]) -> grpc.StatusCode | None:
    """A stream of this node that says these; how it ended, None when it did not."""
    async with grpc.aio.secure_channel(arena.served.receiver.config.listen_session, node.credentials) as channel:
        session: Any = channel.stream_stream(PATH, response_deserializer=wire.SessionResponse.FromString)
        return await spoken(session(), data)


# ---- section bombs


def bombs(descriptor: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every list in a section's message: the fields that lead to it."""
    found: list[tuple[Any, ...]] = []
    for field in descriptor.fields:
        if field.is_repeated:
            found.append((*before, field))
        if field.message_type is not None and len(before) < 3:
            found += bombs(field.message_type, (*before, field))
    return found


def bomb(path: tuple[Any, ...], size: int) -> bytes:
    """A section with nothing in it but one list, as many empty elements as `size` bytes hold."""
    last = path[-1]
    empty = bytes([0]) if last.message_type is not None or last.type in (9, 12) else bytes([1, 1])
    one = varint(last.number << 3 | 2) + empty
    body = one * ((size - 100) // len(one))
    for field in reversed(path[:-1]):
        body = varint(field.number << 3 | 2) + varint(len(body)) + body
    return body


BOMBS = [(name, path) for name, kind in SECTIONS.items() for path in bombs(kind.message.DESCRIPTOR)]


@pytest.mark.parametrize(("name", "path"), BOMBS if PROOF else BOMBS[::8], ids=lambda x: x if isinstance(x, str) else x[-1].name)
def test_section_bomb(name: str, path: tuple[Any, ...], theatre: Theatre) -> None:
    """8 MiB that would be millions of objects: refused by name, and not unpacked."""

    @attack
    async def run(arena: Arena) -> None:
        node = arena.attacker()
        async with arena.unharmed(*ITS_OWN), arena.connected(node) as daemon:
            result = await daemon.offer({name: bomb(path, limits.SECTION_BYTES.most)})
            assert (result.status, result.section) == (wire.INVENTORY_STATUS_REFUSED, name)
            assert "fields" in result.reason
            await daemon.dealt_with()

    run(theatre)


@attack
async def test_a_section_over_the_limit(arena: Arena) -> None:
    node = arena.attacker()
    async with arena.unharmed(*ITS_OWN), arena.connected(node) as daemon:
        for size in (limits.SECTION_BYTES.most + 1, 1 << 62):
            offer = daemon.offer_of({"os": b"x"}, {})
            offer.sections[0].size = size
            await daemon.send(inventory_offer=offer)
            result = (await daemon.receive()).inventory_result
            assert (result.status, result.section) == (wire.INVENTORY_STATUS_REFUSED, "os")
            assert "bytes a section" in result.reason


@attack
async def test_a_section_that_does_not_parse(arena: Arena) -> None:
    node = arena.attacker()
    async with arena.unharmed(*ITS_OWN), arena.connected(node) as daemon:
        for body in (b"\xff" * 999, b"\x0a\x80", b"\x12" * 100_000):
            result = await daemon.offer({"gpus": body})
            assert (result.status, result.section) == (wire.INVENTORY_STATUS_REFUSED, "gpus")
