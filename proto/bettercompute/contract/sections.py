"""The eight sections: their names, schema versions, message types, hashes and the digest (SPEC A3). Both sides use this.

One more section costs a message in inventory.proto, a field in NodeInventory of the control API, and a row here.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError, Message

from bettercompute.agent.v1 import inventory_pb2 as pb


@dataclass(frozen=True, slots=True)
class SectionType:
    """A section's name, the version of its schema, and its message."""

    name: str
    schema_version: int
    message: type[Message]


SECTIONS: Mapping[str, SectionType] = {
    row.name: row
    for row in (
        SectionType("system", 1, pb.SystemSection),
        SectionType("os", 1, pb.OsSection),
        SectionType("cpu", 1, pb.CpuSection),
        SectionType("memory", 1, pb.MemorySection),
        SectionType("gpus", 1, pb.GpusSection),
        SectionType("disks", 1, pb.DisksSection),
        SectionType("nics", 1, pb.NicsSection),
        SectionType("images", 1, pb.ImagesSection),
    )
}

ADVISORY = "advisory:"


def encode(message: Message) -> bytes:
    """A section's bytes. Deterministic because the messages hold no maps and their lists come sorted."""
    return message.SerializeToString(deterministic=True)


def decode(name: str, data: bytes) -> Message:
    """The message of section `name`. Raises KeyError for an unknown name and ValueError for bytes that do not parse."""
    message = SECTIONS[name].message()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"section {name}: {len(data)} bytes do not parse: {error}") from error
    return message


def section_hash(data: bytes) -> str:
    """Lower-case hexadecimal SHA-256 of a section's bytes."""
    return hashlib.sha256(data).hexdigest()


def digest(hashes: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """The inventory's digest: SHA-256 over `name:hash\\n` of each section present, in the order of names."""
    pairs = sorted(dict(hashes).items())
    return hashlib.sha256("".join(f"{name}:{value}\n" for name, value in pairs).encode()).hexdigest()


def same_digest(reported: str, applied: str | None) -> bool:
    """Whether a reported digest is the applied one, which may be stored as `advisory:<digest>`."""
    return applied is not None and reported == applied.removeprefix(ADVISORY)
