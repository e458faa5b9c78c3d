"""The GPUs of a node as devices (SPEC B2, "Devices and atoms", "Ownership", "A device that is missing").

A device is its GPU's UUID and belongs to the node that first reported it. What the last good `gpus` section says is judged, and
what the rows know beside it: a known GPU that no list has any more is still there while PCI shows its function and no other GPU
has taken that place. Whether a device is healthy is planning/health.py's, what can be booked of it planning/atoms.py's.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.events import event
from receiver.planning.attributes import attributes
from receiver.planning.view import ConditionRow, Device, Draft, Facts, History
from receiver.values import Payload

OUT = frozenset(("retired", "deleted"))  # statuses in which a node has no devices
DUPLICATE, OWNED = "DuplicateIdentity", "DeviceOwned"
# As NVML names GPUs and MIG instances (older drivers: MIG-GPU-.../0/1). Other names could be those of other atoms, or no text.
_DEVICE, _INSTANCE = re.compile(r"GPU-[!-9;-~]{1,128}"), re.compile(r"MIG-[!-9;-~]{1,128}")
_DRIVEN = ("", "nvidia")  # drivers of a function (none: it did not come) that NVML should list; others hold it for a VM


def plan(facts: Facts, draft: Draft) -> None:
    """The node's devices are those that it has; another node's are named by DuplicateIdentity and get no row here."""
    if draft.node.status in OUT:
        release_all(draft, f"the node is {draft.node.status}")
        return
    section = gpus_section(facts)
    if section is None:
        return
    seen = _seen(facts, section, draft.devices)
    for device_id in sorted(seen.keys() | draft.devices.keys()):
        before, now = draft.devices.get(device_id), seen.get(device_id)
        if now is not None:
            _tell(draft, before, now)
            draft.put("devices", now)
        elif before is not None and device_id in facts.booked_devices:
            _keep(draft, before)
        else:
            release(draft, device_id, "neither NVML nor PCI shows it")
    _disputes(draft, {name: facts.owners[name] for name in reported(section) & facts.owners.keys()})


def gpus_section(facts: Facts) -> pb.GpusSection | None:
    """The last good `gpus` section that was applied, or None before the first."""
    section = (facts.sections or {}).get("gpus")
    return section if isinstance(section, pb.GpusSection) else None


def reported(section: pb.GpusSection | None) -> set[str]:
    """The devices that a section lists."""
    return set() if section is None else {gpu.uuid for gpu in section.gpus if _DEVICE.fullmatch(gpu.uuid)}


def mig_instances(section: pb.GpusSection | None) -> set[str]:
    """The MIG instances that a section lists."""
    return set() if section is None else {one.uuid for gpu in section.gpus for one in gpu.mig.instances if is_instance(one)}


def is_instance(one: pb.MigInstance) -> bool:
    """Whether an instance has a name that is one."""
    return _INSTANCE.fullmatch(one.uuid) is not None


def release(draft: Draft, device_id: str, reason: str) -> None:
    """The node lets a device go: its row and atoms go, its history stays, and nodes that reported it too plan again."""
    device = draft.devices.pop(device_id)
    for key in [key for key, atom in draft.atoms.items() if atom.device_id == device_id]:
        del draft.atoms[key]
    draft.released.add(device_id)
    draft.history.append(History(device_id, device.serial, "released", {"reason": reason}))


def release_all(draft: Draft, reason: str) -> None:
    """The node lets all its devices go, and claims none. (Whoever retires a node has made sure that none is booked)"""
    for device_id in sorted(draft.devices):
        release(draft, device_id, reason)
    _disputes(draft, {})


def _seen(facts: Facts, section: pb.GpusSection, known: Mapping[str, Device]) -> dict[str, Device]:
    memory = (facts.sections or {}).get("memory")
    names = reported(section) - facts.owners.keys()
    listed = {gpu.uuid: gpu for gpu in section.gpus if gpu.uuid in names}
    seen = {
        uuid: _device(known.get(uuid), gpu, attributes(gpu, section, memory if isinstance(memory, pb.MemorySection) else None))
        for uuid, gpu in listed.items()
    }
    return seen | {device.id: device for device in _unlisted(section, known)}


def _device(before: Device | None, gpu: pb.Gpu, told: Payload) -> Device:
    """A listed GPU. While NVML cannot tell of it, what was known of it stays beside what is remembered in the section."""
    device = before or Device(gpu.uuid)
    out_of_reach = gpu.state == "lost" or gpu.assigned
    mode_told = gpu.mig.HasField("current") and gpu.mig.HasField("pending")
    return replace(
        device,
        serial=gpu.serial or device.serial,
        present=True,
        lost=gpu.state == "lost",
        assigned=gpu.assigned,
        partition_pending=gpu.mig.current != gpu.mig.pending if mode_told else device.partition_pending,
        attributes={**device.attributes, **told} if out_of_reach else told,
    )


def _unlisted(section: pb.GpusSection, known: Mapping[str, Device]) -> Iterator[Device]:
    """Known GPUs that are not listed although PCI shows their function, which no GPU of another name has: lost, or assigned.

    bcd says so itself of those that it remembers. An entry without a UUID is whichever GPU was known at its place.
    """
    listed = {gpu.uuid for gpu in section.gpus if gpu.uuid}
    taken = {gpu.bus_id for gpu in section.gpus if gpu.uuid}
    nameless = {gpu.bus_id: gpu for gpu in section.gpus if not gpu.uuid}
    functions = {function.bus_id: function for function in section.pci_functions if function.bus_id not in taken}
    for device in known.values():
        function = functions.get(device.attributes.get("pciBusId", ""))
        if device.id in listed or function is None:
            continue
        gpu = nameless.get(function.bus_id)
        assigned = gpu.assigned if gpu else function.driver not in _DRIVEN
        lost = gpu.state == "lost" if gpu else not assigned
        yield replace(device, present=True, lost=lost, assigned=assigned)


def _keep(draft: Draft, device: Device) -> None:
    """A missing device that is booked stays, unhealthy, until its bookings end."""
    if device.present:
        draft.history.append(History(device.id, device.serial, "missing", {"busId": device.attributes.get("pciBusId")}))
    draft.put("devices", replace(device, present=False, lost=False, assigned=False))


def _tell(draft: Draft, before: Device | None, now: Device) -> None:
    place = {"busId": now.attributes["pciBusId"]} if "pciBusId" in now.attributes else {}
    if before is None:
        draft.history.append(History(now.id, now.serial, "added", place))
    elif not before.present or (before.lost and not now.lost):
        draft.history.append(History(now.id, now.serial, "returned", place))
    if now.lost and not (before and before.lost):
        draft.history.append(History(now.id, now.serial, "lost", place))
        draft.events.append(event("node.gpu.lost", {"deviceId": now.id, **place}))


def _disputes(draft: Draft, owners: Mapping[str, str]) -> None:
    """DuplicateIdentity is true for each reported device that is another node's. Its rows that name no device are not ours."""
    for key, row in list(draft.conditions.items()):
        if row.type == DUPLICATE and row.device_id and row.device_id not in owners:
            draft.conditions[key] = replace(row, status="false", reason="", message="", no_schedule=False, evidence={})
    for device_id, other in sorted(owners.items()):
        before = draft.conditions.get((DUPLICATE, device_id), ConditionRow(DUPLICATE, device_id))
        message = f"GPU {device_id} is node {other}'s until that lets it go"
        evidence = {"deviceId": device_id, "otherNode": other}
        draft.put("conditions", replace(before, status="true", reason=OWNED, message=message, advisory=False, evidence=evidence))
