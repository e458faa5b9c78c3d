"""What differs between two inventories of one node (SPEC B2, "Diff"): for the events of an apply and for `inventory.diff`.

A section that is missing on either side, or has an error, yields no changes: an absence is not evidence. The same holds for
fields: what one side does not say is not compared. Rules run in the order of RULES, which is the order of their answers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast

from bettercompute.agent.v1 import inventory_pb2 as pb
from google.protobuf.message import Message

from receiver.values import Change, Payload

Sections = Mapping[str, Message]

CHANGE_TYPES = ("gpu.missing", "gpu.added", "mig.layout.changed", "disk.replaced", "driver.changed")


def diff(before: Sections, after: Sections) -> tuple[Change, ...]:
    """The changes between two inventories; each maps section names to decoded messages, and may hold only some."""
    return tuple(
        change
        for section, rule in RULES
        if section in before and section in after and not failed(before[section]) and not failed(after[section])
        for change in rule(before[section], after[section])
    )


def failed(section: Message) -> bool:
    """Whether a section says of itself that it could not be read (`gpus` with an `error`): it counts as missing."""
    return isinstance(section, pb.GpusSection) and section.HasField("error")


def failure(section: Message) -> str:
    """The error that a failed section names, in words."""
    error = cast(pb.GpusSection, section).error
    return f"{error.reason}: {error.message}" if error.message else error.reason


def gpus_missing(before: pb.GpusSection, after: pb.GpusSection) -> Iterator[Change]:
    """GPUs by UUID that are in no list any more, and whose place PCI does not show or another GPU has taken.

    A GPU whose PCI function is still there is not missing: it is lost or assigned, and bcd says which when it knows.
    """
    for gpu, on_pci in _not_listed_any_more(before, after):
        if not on_pci:
            yield Change("gpu.missing", before=_gpu(gpu), device_id=gpu.uuid)


def gpus_added(before: pb.GpusSection, after: pb.GpusSection) -> Iterator[Change]:
    """GPUs by UUID that were in no list before."""
    known = _by_uuid(before)
    for uuid, gpu in sorted(_by_uuid(after).items()):
        if uuid not in known:
            yield Change("gpu.added", after=_gpu(gpu), device_id=uuid)


def mig_layouts(before: pb.GpusSection, after: pb.GpusSection) -> Iterator[Change]:
    """GPUs whose MIG mode or sorted instances differ. What is remembered of a lost or assigned one is not compared."""
    old = _by_uuid(before)
    for uuid, gpu in sorted(_by_uuid(after).items()):
        was, now = _layout(old.get(uuid)), _layout(gpu)
        if was is not None and now is not None and was != now:
            yield Change("mig.layout.changed", before=was, after=now, device_id=uuid)


def disks_replaced(before: pb.DisksSection, after: pb.DisksSection) -> Iterator[Change]:
    """Kernel names under which another disk stands, the old one being nowhere: names that changed places are no change.

    A disk is told by its WWN and its serial, either of which firmware may leave out. One without both is never reported.
    """
    wwns, serials = ({key(disk) for disk in after.disks if key(disk)} for key in (_wwn, _serial))
    new = {disk.name: disk for disk in after.disks}
    for old in sorted(before.disks, key=lambda disk: disk.name):
        now = new.get(old.name)
        if now is None or _wwn(old) in wwns or _serial(old) in serials:
            continue
        if (_wwn(old) and _wwn(now)) or (_serial(old) and _serial(now)):
            yield Change("disk.replaced", before=_disk(old), after=_disk(now))


def drivers(before: pb.GpusSection, after: pb.GpusSection) -> Iterator[Change]:
    """The NVIDIA driver's version or CUDA's, where both sides say one."""
    was, now = _driver(before), _driver(after)
    if any(was[key] != now[key] for key in was.keys() & now.keys()):
        yield Change("driver.changed", before=was, after=now)


def unlisted(before: pb.GpusSection, after: pb.GpusSection) -> tuple[Payload, ...]:
    """GPUs that are in no list any more although PCI still shows them, and bcd did not say `lost`: it did not know them.

    They are to be remembered beside `after`: one that returns was not added, one that leaves PCI too is missing after all.
    """
    return tuple({"uuid": gpu.uuid, **_gpu(gpu)} for gpu, on_pci in _not_listed_any_more(before, after) if on_pci)


def remembering(section: pb.GpusSection, gpus: Iterable[Payload]) -> pb.GpusSection:
    """The section, with GPUs that `unlisted` gave in its list."""
    known = (
        pb.Gpu(uuid=g["uuid"], bus_id=g.get("busId"), name=g.get("name"), serial=g.get("serial"), index=g.get("index"))
        for g in gpus
    )
    whole = pb.GpusSection()
    whole.CopyFrom(section)
    whole.gpus.extend(known)
    return whole


# Section and rule. Each rule takes that section's message twice.
RULES: tuple[tuple[str, Callable[[Message, Message], Iterator[Change]]], ...] = cast(
    tuple[tuple[str, Callable[[Message, Message], Iterator[Change]]], ...],
    (("gpus", gpus_missing), ("gpus", gpus_added), ("gpus", mig_layouts), ("disks", disks_replaced), ("gpus", drivers)),
)
COMPARED = frozenset(section for section, _ in RULES)


def _not_listed_any_more(before: pb.GpusSection, after: pb.GpusSection) -> Iterator[tuple[pb.Gpu, bool]]:
    """Each with whether PCI still shows it: its function is there, and no other GPU is listed in its place."""
    there, taken = _by_uuid(after), {gpu.bus_id for gpu in after.gpus if gpu.HasField("bus_id")}
    free = {function.bus_id for function in after.pci_functions} - taken
    for uuid, gpu in sorted(_by_uuid(before).items()):
        if uuid not in there:
            yield gpu, gpu.bus_id in free


def _by_uuid(section: pb.GpusSection) -> dict[str, pb.Gpu]:
    return {gpu.uuid: gpu for gpu in section.gpus if gpu.uuid}


def _layout(gpu: pb.Gpu | None) -> Payload | None:
    if gpu is None or gpu.state == "lost" or gpu.assigned or not gpu.mig.HasField("current"):
        return None
    instances = sorted(gpu.mig.instances, key=lambda one: (one.placement.start, one.uuid))
    return {"mode": "enabled" if gpu.mig.current else "disabled", "instances": [_instance(one) for one in instances]}


def _instance(one: pb.MigInstance) -> Payload:
    placement = {"start": one.placement.start, "size": one.placement.size} if one.HasField("placement") else None
    return _present(uuid=one.uuid, profile=one.profile, placement=placement)


def _gpu(gpu: pb.Gpu) -> Payload:
    index = gpu.index if gpu.HasField("index") else None
    return _present(name=gpu.name, serial=gpu.serial, busId=gpu.bus_id, index=index)


def _disk(disk: pb.Disk) -> Payload:
    size = disk.bytes if disk.HasField("bytes") else None
    return _present(name=disk.name, model=disk.model, serial=disk.serial, wwn=disk.wwn, bytes=size)


def _driver(section: pb.GpusSection) -> Payload:
    driver = section.driver
    return _present(driver=driver.module_version or driver.library_version, cuda=driver.cuda_version)


def _present(**fields: object) -> Payload:
    return {name: value for name, value in fields.items() if value not in (None, "")}


def _wwn(disk: pb.Disk) -> str | None:
    """None also for an all-zero one (`eui.0000000000000000`), which unlike disks share."""
    return disk.wwn if disk.wwn.rsplit(".", 1)[-1].removeprefix("0x").strip("0") else None


def _serial(disk: pb.Disk) -> str | None:
    return disk.serial.strip() or None
