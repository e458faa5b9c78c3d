"""Conditions that an inventory raises and ends (SPEC B3): a row of RULES each. Runs behind the rules of devices.

Sections are the last good ones: one that is missing or errored says nothing, so what it said before stands. A GPU is judged by
the device row that the node has of it; of one that another node owns there is none (DuplicateIdentity says so).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast

from bettercompute.agent.v1 import inventory_pb2 as pb
from google.protobuf.message import Message

from receiver.planning.devices import OUT
from receiver.planning.view import ConditionRow, Device, Draft, Facts, set_conditions
from receiver.values import Payload

T = TypeVar("T")
Rows = Iterator[ConditionRow]
_SITE_AGENT = "site-agent"  # a node without GPUs of its own


def plan(facts: Facts, draft: Draft) -> None:
    """The conditions of RULES are what these find in the sections; those of a section that never came stay as they are.

    A node that is out has no devices that could be too few, or not as they should be.
    """
    if draft.node.status in OUT:
        set_conditions(draft, RULES, ())
        return
    for kind, (section, rule) in RULES.items():
        if section in (facts.sections or {}):
            set_conditions(draft, (kind,), rule(kind, facts, draft))


def baseline(sections: Mapping[str, Message]) -> Payload:
    """What a node has when it passes acceptance: its GPUs, how many NVLinks of each are up, its InfiniBand ports by GUID.

    The shape is that of Node.baseline: `{"gpus": [uuid], "links": {uuid: count}, "ports": {guid: name}}`.
    """
    gpus = cast(pb.GpusSection, sections.get("gpus", pb.GpusSection()))
    nics = cast(pb.NicsSection, sections.get("nics", pb.NicsSection()))
    up = {gpu.uuid: sum(link.active for link in gpu.nvlinks) for gpu in gpus.gpus if gpu.uuid}
    return {"gpus": sorted(up), "links": {uuid: links for uuid, links in sorted(up.items()) if links}, "ports": _ports(nics)}


# ---- rules of the gpus section


def _model_unknown(kind: str, facts: Facts, draft: Draft) -> Rows:
    """The models table does not know it. An upgrade of the table plans the node again."""
    for one in _present(draft):
        if one.attributes.get("gpuModel") == "other":
            told = f"the models table does not know {one.attributes.get('gpuProduct') or 'it'}"
            yield _of(kind, one, "NotInTable", told)


def _model_mismatch(kind: str, facts: Facts, draft: Draft) -> Rows:
    wanted = facts.pool.gpu_model if facts.pool is not None else None
    for one in _present(draft):
        model = one.attributes.get("gpuModel")
        if wanted and model and model != wanted:
            yield _of(kind, one, "OtherModel", f"it is {model}, the pool is of {wanted}")


def _lost(kind: str, facts: Facts, draft: Draft) -> Rows:
    for one in _present(draft):
        if one.lost:
            yield _of(kind, one, "Lost", "NVML cannot reach it, and PCI still shows it")


def _missing(kind: str, facts: Facts, draft: Draft) -> Rows:
    """Fewer than the pool expects; where it expects no number, fewer than at the last passed acceptance."""
    passed = (draft.node.baseline or {}).get("gpus")
    wanted, there = _expected(facts), _there(facts, draft)
    if wanted is None:
        wanted = len(passed or ())
    if len(there) < wanted:
        named = sorted({*(passed or ()), *(one.id for one in draft.devices.values() if not one.present)} - there.keys())
        told = f"found {len(there)} GPUs, expected {wanted}"
        yield ConditionRow(kind, reason="Missing", message=f"{told}; not there: {', '.join(named)}" if named else told)


def _count_mismatch(kind: str, facts: Facts, draft: Draft) -> Rows:
    wanted, found = _expected(facts), len(_there(facts, draft))
    if wanted is not None and found != wanted:
        reason = "Fewer" if found < wanted else "More"
        yield ConditionRow(kind, reason=reason, message=f"found {found} GPUs, expected {wanted}")


def _sharing_mismatch(kind: str, facts: Facts, draft: Draft) -> Rows:
    """In MIG mode a GPU has an atom an instance, whatever the pool says."""
    sharing = facts.pool.sharing if facts.pool is not None else "mig"
    for one, gpu in _listed(facts, draft):
        if gpu.mig.current and sharing != "mig":
            yield _of(kind, one, "MigMode", f"it is in MIG mode, the pool's sharing is {sharing}: it has an atom an instance")


def _nvlink_degraded(kind: str, facts: Facts, draft: Draft) -> Rows:
    """A GPU whose links nothing tells (lost, assigned, not supported, the query failed) keeps what was said of it."""
    passed = (draft.node.baseline or {}).get("links") or {}
    for one, gpu in _listed(facts, draft):
        stored = draft.conditions.get((kind, one.id))
        up = sum(link.active for link in gpu.nvlinks)
        if one.lost or one.assigned or not gpu.nvlinks:
            yield from filter(None, (stored,))
        elif up < passed.get(one.id, 0):
            down = ", ".join(str(link.link) for link in gpu.nvlinks if not link.active)
            told = f"{up} NVLinks are up, {passed[one.id]} were at acceptance"
            yield _of(kind, one, "LinksDown", f"{told}; down: {down}" if down else told)


# ---- rules of the nics section


def _ib_link_down(kind: str, facts: Facts, draft: Draft) -> Rows:
    """By presence: whether a link is up moves, and is in no inventory."""
    section = _section(facts, "nics", pb.NicsSection)
    if any("infiniband" in one.path for one in section.unreadable):
        yield from filter(None, (draft.conditions.get((kind, "")),))
        return
    there = _ports(section)
    passed = (draft.node.baseline or {}).get("ports") or {}
    gone = sorted(f"{name} ({guid})" for guid, name in passed.items() if guid not in there)
    if gone:
        yield ConditionRow(kind, reason="PortsGone", message=f"InfiniBand ports that are not there: {', '.join(gone)}")


Rule = Callable[[str, Facts, Draft], Rows]
# Type -> the section that it is judged by, and its rule, which gives the rows that are true.
RULES: Mapping[str, tuple[str, Rule]] = {
    "GpuModelUnknown": ("gpus", _model_unknown),
    "GpuModelMismatch": ("gpus", _model_mismatch),
    "GpuLost": ("gpus", _lost),
    "GpuMissing": ("gpus", _missing),
    "GpuCountMismatch": ("gpus", _count_mismatch),
    "SharingMismatch": ("gpus", _sharing_mismatch),
    "NvLinkDegraded": ("gpus", _nvlink_degraded),
    "IbLinkDown": ("nics", _ib_link_down),
}


def _of(kind: str, device: Device, reason: str, message: str) -> ConditionRow:
    return ConditionRow(kind, device.id, str(device.attributes.get("pciBusId") or ""), reason=reason, message=message)


def _present(draft: Draft) -> list[Device]:
    return [one for _, one in sorted(draft.devices.items()) if one.present]


def _listed(facts: Facts, draft: Draft) -> Iterator[tuple[Device, pb.Gpu]]:
    """The node's devices that the section lists, by UUID."""
    for gpu in _section(facts, "gpus", pb.GpusSection).gpus:
        if gpu.uuid in draft.devices:
            yield draft.devices[gpu.uuid], gpu


def _there(facts: Facts, draft: Draft) -> Mapping[str, object]:
    """GPUs that are in the machine, whoever owns their rows: all that are listed, and devices that are kept as present.

    One without a UUID is the device that is known at its place, if one is.
    """
    known = {one.attributes.get("pciBusId"): one.id for one in _present(draft)}
    listed = {gpu.uuid or known.get(gpu.bus_id, gpu.bus_id): gpu for gpu in _section(facts, "gpus", pb.GpusSection).gpus}
    return {**listed, **{one.id: one for one in _present(draft)}}


def _expected(facts: Facts) -> int | None:
    return facts.pool.policy.expect_gpu_count if facts.pool is not None and facts.kind != _SITE_AGENT else None


def _ports(section: pb.NicsSection) -> dict[str, str]:
    """InfiniBand ports: GUID to `mlx5_0/1`, by which people know them. (Kernel names can move from boot to boot.)"""
    return {
        port.guid: f"{hca.name}/{port.number}"
        for hca in section.hcas
        for port in hca.ports
        if port.guid and port.link_layer == "InfiniBand"
    }


def _section(facts: Facts, name: str, kind: type[T]) -> T:
    section = (facts.sections or {})[name]
    assert isinstance(section, kind)
    return section
