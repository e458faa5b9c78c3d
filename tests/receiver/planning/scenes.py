"""Scenes for the pure rules: a node with GPUs, planned and planned again."""

from collections.abc import Iterable
from dataclasses import replace

from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.planning import atoms, devices
from receiver.planning.policy import Policy
from receiver.planning.view import Atom, Booking, ConditionRow, Draft, Facts, Node, Pool
from tests.receiver.builders import NODE, gpu, gpus

SECTIONS = frozenset(("system", "os", "cpu", "memory", "gpus", "disks", "nics", "images"))


def pool(sharing: str = "exclusive", **policy: object) -> Pool:
    """A pool; `policy`: fields of Policy."""
    return Pool("pool_1", "a", sharing=sharing, policy=Policy(**policy))  # type: ignore[arg-type]


def reports(section: pb.GpusSection, **facts: object) -> Facts:
    """Facts of a node that reports this section; `facts`: further fields."""
    return Facts(NODE, sections={"gpus": section}, fresh=SECTIONS, **facts)  # type: ignore[arg-type]


def booked(*held: str, generation: int = 1) -> tuple[Booking, ...]:
    """Live bookings of `device/atom`, or of a device as a whole."""
    parts = [one.partition("/") for one in held]
    return tuple(Booking(f"b{number}", d, a or d, generation) for number, (d, _, a) in enumerate(parts))


def mig_gpu(number: int, *instances: pb.MigInstance, current: bool = True, pending: bool | None = None) -> pb.Gpu:
    """A GPU in MIG mode with these instances."""
    return gpu(
        number, mig=pb.Mig(capable=True, current=current, pending=current if pending is None else pending, instances=instances)
    )


def instance(name: str, profile: str = "1g.10gb", start: int = 0, size: int = 1) -> pb.MigInstance:
    """A MIG instance `MIG-<name>`."""
    return pb.MigInstance(uuid=f"MIG-{name}", profile=profile, placement=pb.MigPlacement(start=start, size=size))


def planned(facts: Facts, before: Draft | None = None, boot: str = "boot-1") -> Draft:
    """Devices and atoms as planned over the rows of `before`, which stay as they are."""
    draft = (before or Draft()).copy()
    draft.node = replace(draft.node, inventory_boot=boot)
    devices.plan(facts, draft)
    atoms.plan(facts, draft)
    return draft


def of_gpus(*numbers: int) -> pb.GpusSection:
    """A section that lists these GPUs of a host, in good health."""
    return gpus(*(gpu(number) for number in numbers))


def ids(rows: Iterable[Atom]) -> list[str]:
    """Ids of atoms, sorted."""
    return sorted(row.id for row in rows)


def raised(draft: Draft, kind: str) -> dict[str, ConditionRow]:
    """The rows of a type that are true, by device."""
    return {row.device_id: row for row in draft.conditions.values() if row.type == kind and row.status == "true"}


__all__ = ["NODE", "Draft", "Node", "gpu", "gpus"]
