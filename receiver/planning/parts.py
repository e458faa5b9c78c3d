"""How many fields a protobuf message has on the wire, told before it is parsed: two bytes there can be hundreds in memory.

8 MiB of empty GPUs are four million objects and 1.8 GB. Whoever sends that is to be refused before it is unpacked.
"""

from functools import cache
from typing import Any

from google.protobuf.message import Message

Descriptor = Any  # of a message: protobuf's own types for it differ between its implementations

_FIXED = {1: 8, 5: 4}  # wire type -> bytes
_VARINT, _SIZED = 0, 2
_LONGEST = 70  # bits that the ten bytes of the longest number hold


def count(data: bytes, kind: type[Message], most: int) -> int:
    """Fields of a message and of all messages in it, as they come; counting ends above `most`, or where bytes are no message.

    >>> from bettercompute.agent.v1.inventory_pb2 import Gpu, GpusSection
    >>> count(GpusSection(gpus=[Gpu(uuid="GPU-1"), Gpu()]).SerializeToString(), GpusSection, 100)
    3
    """
    found = 0
    open_ones: list[tuple[int, int, Descriptor]] = [(0, len(data), kind.DESCRIPTOR)]
    try:
        while open_ones:
            at, end, message = open_ones.pop()
            inner = _messages(message)
            while at < end:
                found += 1
                if found > most:
                    return found
                key, at = _varint(data, at)
                if key & 7 == _VARINT:
                    _, at = _varint(data, at)
                elif key & 7 == _SIZED:
                    size, at = _varint(data, at)
                    if key >> 3 in inner:
                        open_ones.append((at, min(at + size, end), inner[key >> 3]))
                    at += size
                else:
                    at += _FIXED.get(key & 7, 0)  # groups, which nobody writes any more, have their fields counted
    except IndexError:  # it ends within a field, or a number does not end: the parser says what is wrong
        return found
    return found


@cache
def _messages(message: Descriptor) -> dict[int, Descriptor]:
    return {field.number: field.message_type for field in message.fields if field.message_type is not None}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends. Raises IndexError where none does."""
    value = 0
    for shift in range(0, _LONGEST, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise IndexError(at)
