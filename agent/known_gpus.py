"""The GPUs that bcd remembers by bus id, over boots: a lost or assigned one keeps its identity (SPEC A1, A4). Pure.

This boot's inventories win; what an earlier boot showed stands while this boot has shown no other GPU there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bettercompute.agent.v1 import inventory_pb2 as pb


@dataclass(frozen=True, slots=True)
class Remembered:
    """A GPU as NVML last told it, and the boot in which it did."""

    boot_id: str
    gpu: pb.Gpu


Known = Mapping[str, Remembered]  # bus id -> GPU


def learn(known: Known, section: pb.GpusSection, boot_id: str) -> dict[str, Remembered]:
    """`known` and what a section of this boot shows. A section whose NVML did not answer still tells the PCI functions.

    A lost GPU is learnt where nothing is remembered: the next collection may not find out its identity any more.
    """
    told = {gpu.bus_id: gpu for gpu in section.gpus if gpu.bus_id and gpu.uuid}
    shown = {bus_id: gpu for bus_id, gpu in told.items() if gpu.state != "lost" and not gpu.assigned}
    uuids = {gpu.uuid for gpu in shown.values()}
    models = {f.bus_id: f.device_id for f in section.pci_functions}
    kept = {
        bus_id: remembered
        for bus_id, remembered in known.items()
        if remembered.gpu.uuid not in uuids  # it has moved, or is told anew below
        and not _another(remembered.gpu, models.get(bus_id))
    }
    lost = {bus_id: gpu for bus_id, gpu in told.items() if gpu.state == "lost" and not _holds(kept, bus_id, gpu)}
    return kept | {bus_id: Remembered(boot_id, gpu) for bus_id, gpu in (shown | lost).items()}


def _holds(known: Known, bus_id: str, gpu: pb.Gpu) -> bool:
    return bus_id in known and known[bus_id].gpu.uuid == gpu.uuid


def _another(gpu: pb.Gpu, device_id: str | None) -> bool:
    """Whether PCI shows another model where the GPU was."""
    return bool(device_id and gpu.device_id and device_id != gpu.device_id)


def gpus(known: Known, named: Mapping[str, str] | None = None) -> tuple[pb.Gpu, ...]:
    """The remembered GPUs, sorted by bus id: what the collector is handed.

    `named`: bus id -> UUID, as the kernel log of this boot says it of GPUs that no inventory of this boot has shown.
    """
    here = {bus_id: remembered.gpu for bus_id, remembered in known.items()}
    by_uuid = {gpu.uuid: gpu for gpu in here.values()}
    for bus_id, uuid in (named or {}).items():
        here[bus_id] = pb.Gpu(uuid=uuid)
        here[bus_id].MergeFrom(by_uuid.get(uuid, pb.Gpu()))
        here[bus_id].bus_id = bus_id
    return tuple(here[bus_id] for bus_id in sorted(here))
