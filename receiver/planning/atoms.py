"""What can be booked of a node's devices (SPEC B2, "Devices and atoms"): whole GPUs, MIG instances, slots.

An atom's key is (id, generation). Whole GPUs and slots have generation 1 for ever; a MIG instance's rises when one of the same
UUID comes back with another profile, placement or boot. An atom that is not planned any more stays while its booking lives:
`retiring` where that was ordered, else with the reason GONE, which is a fault. `hindrance` says why an atom is not bookable.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.planning.devices import gpus_section, is_instance
from receiver.planning.view import Atom, ConditionRow, Device, Draft, Facts, Generation, set_conditions
from receiver.values import Json

MISMATCH = "MigLayoutMismatch"
GONE = "MigInstanceGone"  # of a booked atom whose instance went without an order: MIG layouts do not survive reboots
SLOTS = {"timeslice": 4, "mps": 10}  # of a GPU where the policy does not say
Kind = Literal["whole", "slot", "mig"]


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance. `placement`: `{"start": slice, "size": slices}`."""

    id: str
    profile: str | None = None
    placement: Json = None


@dataclass(frozen=True, slots=True)
class Layout:
    """A GPU's MIG instances; None: it is not in MIG mode. `told`: the section says so, else it is what was known last."""

    instances: tuple[Instance, ...] | None
    told: bool


def plan(facts: Facts, draft: Draft) -> None:
    """The atoms of the node's devices. To run behind devices.plan, with the node's `inventory_boot` set."""
    section = gpus_section(facts)
    if section is None:
        return
    listed = {gpu.uuid: gpu for gpu in section.gpus if gpu.uuid}
    mismatches, atoms = [], _by_device(draft)
    for device in draft.devices.values():
        if not device.present:  # and booked: it keeps its atoms as they are
            mine = atoms.get(device.id, ())
            _reconcile(facts, draft, device, mine, [atom for atom in mine if not _kept(atom)], lost_layout=False)
    for device in _there(draft):
        mine = atoms.get(device.id, ())
        layout = _layout(device, mine, listed.get(device.id))
        message = _mismatch(facts, layout) if layout.told else _stored_mismatch(draft, device.id)
        if message is not None:
            mismatches.append(ConditionRow(MISMATCH, device.id, reason=MISMATCH, message=message))
        _reconcile(facts, draft, device, mine, _wanted(facts, draft, device, layout), message is not None)
    set_conditions(draft, [MISMATCH], mismatches)


def settle(facts: Facts, before: Draft, draft: Draft) -> None:
    """Runs behind every writer: the inventory may be known to be that of another boot without being planned."""
    if draft.node.inventory_boot != before.node.inventory_boot:
        reborn(facts, draft)


def reborn(facts: Facts, draft: Draft) -> None:
    """MIG instances that are there in another boot than their atoms' are others, though the inventory is the same."""
    atoms = _by_device(draft)
    for device in _there(draft):
        mine = atoms.get(device.id, ())
        known = _known(device, mine)
        if known and not device.lost and not device.assigned:
            wanted = _wanted(facts, draft, device, Layout(known, told=True))
            _reconcile(facts, draft, device, mine, wanted, _stored_mismatch(draft, device.id) is not None)


def hindrance(facts: Facts, draft: Draft, atom: Atom, device: Device) -> str | None:
    """Why an atom is not bookable, the faults of its device aside, as its `reason`; None: nothing is in the way."""
    return next((reason for reason, holds in _HINDRANCES if holds(facts, draft, atom, device)), None)


def kind_of(atom_id: str, device_id: str) -> Kind:
    """What an atom of a device is.

    >>> kind_of("GPU-1::3", "GPU-1")
    'slot'
    """
    if atom_id == device_id:
        return "whole"
    return "slot" if atom_id.startswith(f"{device_id}::") else "mig"


def _booked_otherwise(facts: Facts, atom: Atom) -> bool:
    """A GPU that is still booked as a whole is not to be shared, nor the other way round."""
    kind = kind_of(atom.id, atom.device_id)
    return any(kind_of(one.atom_id, one.device_id) != kind for one in facts.bookings if one.device_id == atom.device_id)


# The first that holds is told.
_HINDRANCES: tuple[tuple[str, Callable[[Facts, Draft, Atom, Device], bool]], ...] = (
    (GONE, lambda facts, draft, atom, device: atom.reason == GONE),
    ("Retiring", lambda facts, draft, atom, device: atom.retiring),
    ("Missing", lambda facts, draft, atom, device: not device.present),
    ("Lost", lambda facts, draft, atom, device: device.lost),
    ("Assigned", lambda facts, draft, atom, device: device.assigned),
    ("PartitionPending", lambda facts, draft, atom, device: device.partition_pending),
    ("Draining", lambda facts, draft, atom, device: device.draining),
    (MISMATCH, lambda facts, draft, atom, device: _stored_mismatch(draft, device.id) is not None),
    ("BookedOtherwise", lambda facts, draft, atom, device: _booked_otherwise(facts, atom)),
)


def _there(draft: Draft) -> list[Device]:
    return [draft.devices[device_id] for device_id in sorted(draft.devices) if draft.devices[device_id].present]


def _kept(atom: Atom) -> bool:
    """Whether it stays for its booking only."""
    return atom.retiring or atom.reason == GONE


def _by_device(draft: Draft) -> Mapping[str, Sequence[Atom]]:
    found: dict[str, list[Atom]] = {}
    for atom in draft.atoms.values():
        found.setdefault(atom.device_id, []).append(atom)
    return found


def _layout(device: Device, mine: Sequence[Atom], gpu: pb.Gpu | None) -> Layout:
    """What the section says of a GPU that NVML reaches; of another one, what its atoms say."""
    known = _known(device, mine)
    reached = gpu is not None and not device.lost and not device.assigned
    if gpu is None or not reached or (known and not gpu.mig.HasField("current")):
        return Layout(known or None, told=False)
    return Layout(tuple(_listed(gpu)) if gpu.mig.current else None, told=True)


def _listed(gpu: pb.Gpu) -> Iterator[Instance]:
    """Of several that have one name, the first: an atom is one instance."""
    for one in {one.uuid: one for one in reversed(gpu.mig.instances)}.values():
        if is_instance(one):
            placement = {"start": one.placement.start, "size": one.placement.size} if one.HasField("placement") else None
            yield Instance(one.uuid, one.profile or None, placement)


def _known(device: Device, mine: Sequence[Atom]) -> tuple[Instance, ...]:
    """The instances that the device's atoms are of, without those that are only kept for a booking."""
    return tuple(
        Instance(atom.id, atom.profile, atom.placement)
        for atom in sorted(mine, key=lambda atom: atom.key)
        if kind_of(atom.id, device.id) == "mig" and not _kept(atom)
    )


def _stored_mismatch(draft: Draft, device_id: str) -> str | None:
    row = draft.conditions.get((MISMATCH, device_id))
    return row.message if row is not None and row.status == "true" else None


def _mismatch(facts: Facts, layout: Layout) -> str | None:
    """In a mig pool: what is wrong with a GPU's layout, for a person."""
    if facts.pool is None or facts.pool.sharing != "mig":
        return None
    if layout.instances is None:
        return "the pool shares by MIG, and the GPU is not in MIG mode"
    wanted, found = facts.pool.policy.mig_layout, sorted({one.profile or "unknown" for one in layout.instances})
    if not found:
        return "the GPU is in MIG mode and has no instances"
    if wanted and not set(wanted) & set(found):
        return f"of the pool's layout {', '.join(sorted(set(wanted)))} it has none: its instances are {', '.join(found)}"
    return None


def _wanted(facts: Facts, draft: Draft, device: Device, layout: Layout) -> list[Atom]:
    if layout.instances is not None:
        taken = facts.owners.keys() | {atom.id for atom in draft.atoms.values() if atom.device_id != device.id}
        return [_mig_atom(draft, device, one, layout.told) for one in layout.instances if one.id not in taken]
    return [Atom(atom_id, 1, device.id) for atom_id in _plain(facts, device)]


def _plain(facts: Facts, device: Device) -> Iterable[str]:
    """Ids of the atoms of a GPU that is not in MIG mode: by how the pool shares."""
    sharing = facts.pool.sharing if facts.pool is not None else "exclusive"
    if sharing == "mig":
        return ()
    if sharing not in SLOTS:
        return (device.id,)
    replicas = (facts.pool.policy.replicas if facts.pool is not None else None) or SLOTS[sharing]
    return (f"{device.id}::{number}" for number in range(replicas))


def _mig_atom(draft: Draft, device: Device, instance: Instance, told: bool) -> Atom:
    """The instance's atom, and its generation noted. (Before the first boot that is known, none has come back.)"""
    last = draft.generations.get(instance.id)
    boot = draft.node.inventory_boot or ""
    now = Generation(instance.id, 1, device.id, instance.profile, instance.placement, boot)
    if last is not None:
        same = (last.device_id, last.profile, last.placement) == (now.device_id, now.profile, now.placement)
        another_boot = told and last.boot_id and boot and last.boot_id != boot
        number = last.generation if same and not another_boot else last.generation + 1
        now = replace(now, generation=number, boot_id=boot if told and boot else last.boot_id)
    draft.put("generations", now)
    return Atom(instance.id, now.generation, device.id, instance.profile, instance.placement)


def _reconcile(
    facts: Facts, draft: Draft, device: Device, mine: Sequence[Atom], wanted: Iterable[Atom], lost_layout: bool
) -> None:
    """The device's atoms, which are `mine`, become the wanted ones, and others stay as long as they are booked."""
    now = {atom.key: atom for atom in wanted}
    ids, booked = {atom.id for atom in now.values()}, facts.booked_atoms
    for atom in mine:
        if atom.key in now:
            continue
        if atom.key not in booked:
            del draft.atoms[atom.key]
            continue
        lost = lost_layout and not atom.retiring and kind_of(atom.id, device.id) == "mig" and atom.id not in ids
        gone = lost or atom.reason == GONE
        draft.put("atoms", replace(atom, retiring=not gone, reason=GONE if gone else atom.reason))
    for key, atom in now.items():
        before = draft.atoms.get(key, atom)
        draft.put("atoms", replace(before, retiring=False, reason=None if before.reason == GONE else before.reason))
