"""Anything that a peer may send: a stream ends by name or goes on, and nobody else notices."""

import asyncio
import random
from typing import Any

import grpc
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.agent.v1 import session_pb2 as wire
from bettercompute.contract.sections import encode
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.fake_daemon import FakeDaemon, spoken
from tests.receiver.live import Live, serving
from tests.repetitions import times

PATH = "/bettercompute.agent.v1.AgentService/Session"
INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (0, 99),
}
WORDS = ["", "gpus", "os", "0.3", "ab" * 32]
TEXTS = [
    "",
    "gpus",
    "os",
    "a\0b",
    "\0",
    "0.3",
    "9" * 5000 + ".1",
    "é" * 300,
    "x" * 70_000,
    "ab" * 32,
    "node_1",
    "\u202e\n",
    "../..",
]


def scalar(field: Any, chance: random.Random, wild: float) -> Any:
    """A value of a field's type, with probability `wild` an extreme one."""
    if field.cpp_type in INTEGERS:
        low, high = INTEGERS[field.cpp_type]
        if chance.random() > wild:
            return chance.randint(0, 5)
        return chance.choice([low, high, 0, 1, chance.randint(low, high)])
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        text = chance.choice(TEXTS if chance.random() < wild else WORDS)
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    return chance.choice([float("nan"), float("inf"), -0.0, 1e300])


def fill(message: Message, chance: random.Random, wild: float, depth: int = 0) -> Message:
    """Sets about half of the fields, repeated ones up to 40 times."""
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.5 or depth > 3:
            continue
        count = chance.choice([0, 1, 3, 40 if chance.random() < wild else 2]) if field.is_repeated else 1
        for _ in range(count):
            if field.message_type is not None:
                inner = getattr(message, field.name)
                part = fill(inner.add() if field.is_repeated else inner, chance, wild, depth + 1)
                if not field.is_repeated:
                    part.SetInParent()
            elif field.is_repeated:
                getattr(message, field.name).append(scalar(field, chance, wild))
            else:
                setattr(message, field.name, scalar(field, chance, wild))
    return message


def sent(chance: random.Random, daemon: FakeDaemon) -> bytes:
    """A message as it may come: filled at random, half of one, or noise."""
    request = wire.SessionRequest()
    name = chance.choice([field.name for field in request.DESCRIPTOR.fields])
    wild = chance.choice([0.0, 0.02, 0.5])
    fill(getattr(request, name), chance, wild).SetInParent()
    if name == "inventory_sections" and chance.random() < 0.8:
        request.inventory_sections.digest = daemon.digest
    data = request.SerializeToString()
    kind = chance.random()
    return (
        chance.randbytes(chance.randint(0, 200)) if kind < 0.1 else data[: chance.randint(0, len(data))] if kind < 0.2 else data
    )


async def speak(served: Live, seed: int) -> grpc.StatusCode | None:
    """One stream that says up to nine such messages, mostly after a Hello; how it ended, None when it did not."""
    chance = random.Random(seed)
    daemon = FakeDaemon("")  # for the words, not for the stream
    first = [wire.SessionRequest(hello=daemon.hello())] if chance.random() < 0.8 else []
    if chance.random() < 0.5:
        first.append(wire.SessionRequest(inventory_offer=daemon.offer_of({"os": b"\xff", "gpus": b"", "disks": b"x" * 99}, {})))
    async with grpc.aio.insecure_channel(served.receiver.config.listen_session) as channel:
        session: Any = channel.stream_stream(PATH, response_deserializer=wire.SessionResponse.FromString)
        said = [*(message.SerializeToString() for message in first), *(sent(chance, daemon) for _ in range(8))]
        return await spoken(session(metadata=(("bc-node-id", daemon.node_id),)), said)


def test_whatever_a_stream_says_it_ends_by_name_or_goes_on(database: str) -> None:
    async def main() -> None:
        async with serving(database) as served:
            codes = [await speak(served, seed) for seed in range(times(2000))]
            # A handler that failed would be UNKNOWN; INTERNAL is what grpcio calls a write of its own to a stream that has ended.
            names = ("OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "INTERNAL")
            known = {None, *(grpc.StatusCode[name] for name in names)}
            assert {seed: code for seed, code in enumerate(codes) if code not in known} == {}
            assert None in codes, "some of it is to be put up with"
            good = served.daemon()
            await good.connect()
            assert (await good.offer({"os": encode(pb.OsSection(hostname="gpu-1"))})).status == wire.INVENTORY_STATUS_APPLIED
            assert (await served.api("nodes.get", nodeId=good.node_id))["hostname"] == "gpu-1"
            cursor: str | None = ""
            while cursor is not None:
                cursor = (await served.api("nodes.list", limit=1000, cursor=cursor))["nextCursor"]
            assert (await served.api("events.list", limit=1000))["events"]
            assert len(served.receiver.registry.streams) == 1

    asyncio.run(main())
