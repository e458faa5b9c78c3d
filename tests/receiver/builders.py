"""Offers and sections for the receiver's tests: a small H100 host, and what may differ in another collection of it."""

from collections.abc import Mapping

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import digest, encode, section_hash
from google.protobuf.message import Message

from receiver.apply.inventory import apply_inventory
from receiver.apply.session import hello
from receiver.store.database import Connection
from receiver.values import HelloFacts, InventoryOutcome, Missing, Offer, SectionRef

NODE, OTHER = "node_01hf7yat000000000000000001", "node_01hf7yat000000000000000002"
FACTS = HelloFacts("0.3", "0.1.0", "boot-1", "instance-1")


def gpu(number: int, **fields: object) -> pb.Gpu:
    """GPU `number` of a host, in good health."""
    place = {"bus_id": f"00000000:{0x18 + number:02X}:00.0", "index": number, "state": "ok"}
    return pb.Gpu(**{"uuid": f"GPU-{number:08d}", "name": "NVIDIA H100 80GB HBM3", "serial": f"16500{number}", **place, **fields})  # type: ignore[arg-type]


def gpus(*listed: pb.Gpu, driver: str = "550.54.15", cuda: str = "12.4", error: str = "", on_pci: int = -1) -> pb.GpusSection:
    """A gpus section. `on_pci`: so many of the GPU functions are on PCI; by default those of the GPUs listed."""
    shown = [one.bus_id for one in listed] if on_pci < 0 else [gpu(number).bus_id for number in range(on_pci)]
    return pb.GpusSection(
        driver=pb.NvidiaDriver(module_version=driver or None, cuda_version=cuda or None),
        gpus=listed,
        pci_functions=[pb.PciFunction(bus_id=one, device_id="2330", class_code="030200", driver="nvidia") for one in shown],
        error=pb.NvmlFailure(reason=error, message="NVML: driver/library version mismatch") if error else None,
    )


def disk(name: str, serial: str | None = None, wwn: str | None = None) -> pb.Disk:
    """A disk with the identity that is given."""
    return pb.Disk(name=name, model="SAMSUNG MZQL27T6HBLA-00B7C", serial=serial, wwn=wwn, bytes=7681501126656, transport="nvme")


def disks(*listed: pb.Disk) -> pb.DisksSection:
    """A disks section."""
    return pb.DisksSection(disks=listed)


def host(count: int = 2, **replaced: Message | None) -> dict[str, bytes]:
    """The bytes of eight sections; `replaced` ones are others, or missing where None."""
    messages: dict[str, Message | None] = {
        "system": pb.SystemSection(manufacturer="Supermicro", product="SYS-821GE-TNHR", serial="S512345X3900001"),
        "os": pb.OsSection(distro_id="ubuntu", distro_version="22.04", kernel_release="5.15.0-105-generic"),
        "cpu": pb.CpuSection(vendor="GenuineIntel", model="Intel(R) Xeon(R) Platinum 8480C", sockets=2, cores=112, threads=224),
        "memory": pb.MemorySection(total_bytes=2199023255552, total_source="dimms"),
        "gpus": gpus(*(gpu(number) for number in range(count))),
        "disks": disks(disk("nvme0n1", "S6CKNE0W100001"), disk("nvme1n1", "S6CKNE0W100002")),
        "nics": pb.NicsSection(nics=[pb.Nic(name="ens3f0", permanent_mac="b8:3f:d2:00:00:01", kind="ethernet")]),
        "images": pb.ImagesSection(),
    }
    return {name: encode(section) for name, section in sorted({**messages, **replaced}.items()) if section is not None}


def offer(bodies: Mapping[str, bytes], **missing: str) -> Offer:
    """The offer of these bytes; `missing` sections with their errors."""
    sections = tuple(SectionRef(name, 1, section_hash(data), len(data)) for name, data in bodies.items())
    return Offer(
        digest({one.name: one.hash for one in sections}),
        sections,
        tuple(Missing(*one) for one in sorted(missing.items())),
        boot_id="boot-1",
    )


def join(tx: Connection, node: str = NODE, tenant: str = "default") -> int:
    """A node's first session; its epoch."""
    return hello(tx, node, HelloFacts("0.3", "0.1.0", "boot-1", "instance-1", tenant_id=tenant)).epoch


def apply(tx: Connection, bodies: Mapping[str, bytes], node: str = NODE, **missing: str) -> InventoryOutcome:
    """Applies these bytes, all of them sent."""
    return apply_inventory(tx, node, offer(bodies, **missing), bodies)


def told(tx: Connection, prefix: str = "node.") -> list[str]:
    """Types of the events that were written, in order, but what follows from joining and from the host's GPUs being others."""
    others = ["node.joined", "node.hardware.changed", "node.status", "node.adopted"]
    rows = tx.execute("SELECT type FROM events WHERE starts_with(type, %s) AND type <> ALL(%s) ORDER BY seq", [prefix, others])
    return [row[0] for row in rows]


def count(tx: Connection, table: str) -> int:
    """Rows of a table."""
    row = tx.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert row is not None
    return int(row[0])
