"""What the nodes of a played fleet have: one recorded host, with identities of its own for each node."""

from collections.abc import Mapping

from bettercompute.agent.v1 import inventory_pb2
from bettercompute.agent.v1 import session_pb2 as pb
from bettercompute.contract.sections import SECTIONS, decode, digest, encode, section_hash
from google.protobuf.timestamp_pb2 import Timestamp

from agent.collectors import collect
from agent.recorded import open_host, open_nvml
from tests.hosts_catalog import HOSTS

HOST = "h100-sxm-8"
COLLECTED = Timestamp(seconds=1_760_000_000)


def recorded() -> dict[str, bytes]:
    """The sections of the recorded host."""
    host, nvml = open_host(HOSTS[HOST]), open_nvml(HOSTS[HOST])
    return {name: encode(collect(name, host, nvml)) for name in SECTIONS}


def own(first: Mapping[str, bytes], number: int, revision: int = 0) -> dict[str, bytes]:
    """The same machine with identities of its own; its first disk is another one in each revision."""
    gpus, system, nics, disks = (decode(name, first[name]) for name in ("gpus", "system", "nics", "disks"))
    assert isinstance(gpus, inventory_pb2.GpusSection)
    assert isinstance(system, inventory_pb2.SystemSection)
    assert isinstance(nics, inventory_pb2.NicsSection)
    assert isinstance(disks, inventory_pb2.DisksSection)
    for gpu in gpus.gpus:
        gpu.uuid = f"GPU-{number:08x}{gpu.uuid[12:]}"
        gpu.serial = f"{gpu.serial}{number:08d}"
    system.serial, system.product_uuid = f"S{number:08d}", f"{number:08x}-0000-1000-8000-3cecef000001"
    for place, nic in enumerate(nics.nics):
        nic.permanent_mac = f"b8:3f:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}:{place:02x}"
    if revision:
        disks.disks[0].serial, disks.disks[0].wwn = f"{disks.disks[0].serial}{number:08d}{revision:02d}", ""
    return {**first, "gpus": encode(gpus), "system": encode(system), "nics": encode(nics), "disks": encode(disks)}


def offer(number: int, bodies: Mapping[str, bytes]) -> pb.InventoryOffer:
    """The offer of these sections by a node of this number."""
    hashes = {name: section_hash(data) for name, data in bodies.items()}
    sections = [
        pb.SectionOffer(name=name, schema_version=SECTIONS[name].schema_version, hash=hashes[name], size=len(bodies[name]))
        for name in sorted(bodies)
    ]
    return pb.InventoryOffer(digest=digest(hashes), sections=sections, boot_id=f"boot {number}", trigger="boot")
