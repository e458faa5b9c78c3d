"""What a message unpacks to is counted before it is."""

import random
import time

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from google.protobuf.message import Message

from receiver.planning.parts import count

GPU = pb.Gpu(uuid="GPU-1", index=3, mig=pb.Mig(instances=[pb.MigInstance(uuid="MIG-1"), pb.MigInstance()]))


@pytest.mark.parametrize(
    ("section", "fields"),
    [
        (pb.GpusSection(), 0),
        (pb.GpusSection(gpus=[pb.Gpu()] * 5), 5),
        (pb.GpusSection(gpus=[GPU]), 1 + 3 + 2 + 1),  # the GPU; its uuid, index and mig; two instances; the uuid of one
        (pb.OsSection(unreadable=[pb.Unreadable(), pb.Unreadable()], hostname="gpu-1"), 3),
        (pb.ImagesSection(images=[pb.Image(digest="a", bytes=1 << 60)] * 9), 27),
    ],
)
def test_counts_the_fields_of_a_message_and_of_all_in_it(section: Message, fields: int) -> None:
    assert count(section.SerializeToString(), type(section), 100) == fields


def test_stops_above_the_most_however_long_the_message_is() -> None:
    began = time.monotonic()
    for body in (b"\x12\0" * (4 << 20), b"\xff" * (8 << 20), b"\x13" * (8 << 20), b"\0" * (8 << 20)):
        assert count(body, pb.GpusSection, 1000) <= 1001
    assert time.monotonic() - began < 1.0


def test_whatever_the_bytes_are_it_comes_to_an_end() -> None:
    chance = random.Random(7)
    good = pb.GpusSection(gpus=[GPU] * 9).SerializeToString()
    for _ in range(500):
        noise = chance.randbytes(chance.randint(0, 300))
        assert count(noise, pb.GpusSection, 1000) <= len(noise)
        cut = good[: chance.randint(0, len(good))]
        assert count(cut, pb.GpusSection, 1000) <= len(good)
