"""Whether an offer and the bytes sent for it are what they say (SPEC A3). A refusal names the section and the reason.

A section that this receiver does not know (of a newer bcd) is taken as it comes, checked by hash and size, and not interpreted;
so are fields that it does not know, whatever the schema version says.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import SECTIONS, decode, digest, section_hash
from google.protobuf.message import Message

from receiver.planning import parts
from receiver.planning.policy import GPUS
from receiver.values import SECTION_BYTES, SECTIONS_PER_OFFER, Offer

INSTANCES = 64  # of MIG of a GPU; none has as many
FIELDS = 1 << 17  # of a section, with all that is in it: the largest host of the field has some thousands
HARMLESS = 64 << 10  # bytes: what a shorter section unpacks to is little, whatever is in it
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an offer is refused; `section` is empty where it is none's fault alone."""

    section: str
    reason: str


def is_name(text: str) -> bool:
    """Whether a section can be called so: also one that this receiver does not know."""
    return _NAME.fullmatch(text) is not None


def check_offer(offer: Offer) -> Refusal | None:
    """What is wrong with an offer as such, or None."""
    if len(offer.sections) > SECTIONS_PER_OFFER:
        return Refusal("", f"{len(offer.sections)} sections; an offer has at most {SECTIONS_PER_OFFER}")
    times = Counter(one.name for one in offer.sections)
    for one in offer.sections:
        if not is_name(one.name):
            return Refusal(one.name[:64], "not a section's name: lower-case letters, digits and -, at most 32")
        if times[one.name] > 1:
            return Refusal(one.name, f"offered {times[one.name]} times")
        if not _HASH.fullmatch(one.hash):
            return Refusal(one.name, "its hash is not 64 lower-case hexadecimal digits")
        if one.size > SECTION_BYTES:
            return Refusal(one.name, _too_big(one.size))
    if digest(offer.hashes) != offer.digest:
        return Refusal("", "the digest is not that of the sections offered")
    return None


def check_bodies(offer: Offer, bodies: Mapping[str, bytes]) -> Refusal | dict[str, Message]:
    """The decoded messages of the bytes sent for an offer, by section; or what is wrong with the first bad one."""
    hashes, decoded = offer.hashes, {}
    for name, data in sorted(bodies.items()):
        if name not in hashes:
            return Refusal(name, "bytes were sent for a section that was not offered")
        if len(data) > SECTION_BYTES:
            return Refusal(name, _too_big(len(data)))
        if (found := section_hash(data)) != hashes[name]:
            return Refusal(name, f"its {len(data)} bytes have hash {found}, offered was {hashes[name]}")
        if name not in SECTIONS:
            continue
        if len(data) > HARMLESS and parts.count(data, SECTIONS[name].message, FIELDS) > FIELDS:
            return Refusal(name, f"it has more than {FIELDS} fields")
        try:
            decoded[name] = decode(name, data)
        except ValueError as error:
            return Refusal(name, str(error))
        if too_many := _too_many(decoded[name]):
            return Refusal(name, too_many)
    return decoded


def _too_many(section: Message) -> str:
    """Of what one node cannot have: a hostile one is not to fill the tables with a few messages."""
    if not isinstance(section, pb.GpusSection):
        return ""
    if len(section.gpus) > GPUS:
        return f"{len(section.gpus)} GPUs; a node has at most {GPUS}"
    most = max((len(gpu.mig.instances) for gpu in section.gpus), default=0)
    return f"{most} MIG instances of one GPU; it has at most {INSTANCES}" if most > INSTANCES else ""


def _too_big(size: int) -> str:
    return f"{size} bytes; a section has at most {SECTION_BYTES}"
