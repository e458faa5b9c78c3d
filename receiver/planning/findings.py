"""Findings: what an applied inventory says against a GPU (SPEC B4, "Findings"). One more is a row of FINDINGS.

A finding is as the inventory shows it: open while it is there, closed when the inventory shows that it is gone. An absence is no
evidence: a value that NVML did not tell, of a GPU that is lost or a VM's, leaves the finding as it is. What an operator closed
with `force` stays closed until the finding's values change, or it comes back after it was gone.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract import xids

from receiver.planning.policy import Policy
from receiver.planning.view import Draft, Facts, Health
from receiver.values import Payload

RETIRED_PAGES = 64  # how many pages a GPU before Ampere can retire (NVIDIA, Dynamic Page Retirement)
REPLACE = "replace"  # a remedy beside xids.json's: a person replaces the GPU, and no reset is started
PERSON = "inspect"
# NVML's recovery action as inventories word it, by NVML's number (which xids.json has them by).
RECOVERY = (
    "none", "gpu-reset", "node-reboot", "drain-p2p", "drain-and-reset", "recover-imex-domain", "bus-reset", "system-reboot",
)  # fmt: skip

GONE = "the inventory shows it no more"
OFF = "the pool's policy.quarantine leaves it out"

Look = Callable[[pb.Gpu], Payload | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """`look`: the finding's values in a GPU; empty: NVML says that there is none; None: NVML does not tell.

    `remedy`: by the values, a word of xids.json's actions, or REPLACE. `sticky`: it stays although it is not shown any more.
    """

    code: str
    look: Look
    remedy: Callable[[Payload], str]
    meaning: str
    sticky: bool = False
    in_force: Callable[[Policy], bool] = lambda policy: True


def _lost(gpu: pb.Gpu) -> Payload | None:
    if gpu.state == "lost":
        return {"busId": gpu.bus_id}
    return None if gpu.assigned else {}


def _reachable(look: Look) -> Look:
    """What is said of a lost or assigned GPU is remembered, and says nothing of now."""
    return lambda gpu: None if gpu.state == "lost" or gpu.assigned else look(gpu)


def _untold(gpu: pb.Gpu) -> Payload | None:
    """Of a value that is not there: the GPU has no such thing, unless some call failed."""
    return None if gpu.unreadable else {}


def _ecc_uncorrectable(gpu: pb.Gpu) -> Payload | None:
    if gpu.ecc.HasField("current") and not gpu.ecc.current:
        return {}
    counts = gpu.ecc.volatile
    told = {name: getattr(counts, name) for name in ("dram", "sram", "total") if counts.HasField(name)}
    if not told:
        return None if gpu.ecc.current else _untold(gpu)
    return {name: value for name, value in told.items() if value > 0}


def _row_remap_pending(gpu: pb.Gpu) -> Payload | None:
    if gpu.HasField("row_remap"):
        return {"rowRemap": True} if gpu.row_remap.pending else {}
    if gpu.retired_pages.HasField("pending"):
        return {"retiredPages": True} if gpu.retired_pages.pending else {}
    return _untold(gpu)


def _row_remap_failure(gpu: pb.Gpu) -> Payload | None:
    pages = gpu.retired_pages
    if gpu.HasField("row_remap") and gpu.row_remap.failure:
        return {"rowRemap": True}
    if pages.single_bit + pages.double_bit >= RETIRED_PAGES:
        return {"retiredPages": pages.single_bit + pages.double_bit}
    told = gpu.HasField("row_remap") or (pages.HasField("single_bit") and pages.HasField("double_bit"))
    return {} if told else _untold(gpu)


def _sram_threshold_exceeded(gpu: pb.Gpu) -> Payload | None:
    if gpu.ecc.HasField("sram_threshold_exceeded"):
        return {"sramThresholdExceeded": True} if gpu.ecc.sram_threshold_exceeded else {}
    return _untold(gpu)


def _recovery_action_required(gpu: pb.Gpu) -> Payload | None:
    if gpu.recovery_action:
        return {"recoveryAction": gpu.recovery_action} if gpu.recovery_action != RECOVERY[0] else {}
    return _untold(gpu)


def _by_recovery_action(values: Payload) -> str:
    """As xids.json says by NVML's number; what this version does not know is for a person."""
    word = values.get("recoveryAction")
    known = xids.recovery_action(RECOVERY.index(word)) if word in RECOVERY else None
    return known.action if known is not None else PERSON


FINDINGS: Mapping[str, Finding] = {
    row.code: row
    for row in (
        Finding("GpuLost", _lost, lambda values: "reboot-node", "NVML cannot reach the GPU any more"),
        Finding(
            "EccUncorrectable",
            _reachable(_ecc_uncorrectable),
            lambda values: PERSON,  # with RowRemapPending or a recovery action that one's, which is more: planning/remedies.py
            "uncorrectable memory errors since the driver was loaded",
        ),
        Finding(
            "RowRemapPending",
            _reachable(_row_remap_pending),
            lambda values: "reset-gpu",
            "rows or pages of its memory wait for a reset to be replaced",
            in_force=lambda policy: policy.row_remap_pending,
        ),
        Finding(
            "RowRemapFailure",
            _reachable(_row_remap_failure),
            lambda values: REPLACE,
            "no spare rows or pages are left for its memory: it must be replaced",
            sticky=True,
        ),
        Finding(
            "SramThresholdExceeded",
            _reachable(_sram_threshold_exceeded),
            lambda values: REPLACE,
            "errors in its SRAM are above NVIDIA's threshold: it must be replaced",
            sticky=True,
        ),
        Finding(
            "RecoveryActionRequired",
            _reachable(_recovery_action_required),
            _by_recovery_action,
            "the driver asks for a recovery action",
        ),
    )
}


def in_words(row: Health) -> str:
    """A finding for a person: what it means, and its values."""
    values = ", ".join(f"{name} {value}" for name, value in sorted(row.detail.items()) if value is not True)
    return FINDINGS[row.code].meaning + (f": {values}" if values else "")


def plan(facts: Facts, draft: Draft) -> None:
    """The findings of each GPU that the inventory lists, but those that are another node's. To run behind devices.plan."""
    section = (facts.sections or {}).get("gpus")
    if not isinstance(section, pb.GpusSection):
        return
    policy = facts.pool.policy if facts.pool is not None else Policy()
    for gpu in (*section.gpus, *_unlisted(section, draft)):
        if not gpu.uuid or gpu.uuid in facts.owners:
            continue
        for finding in FINDINGS.values():
            values = finding.look(gpu) if finding.in_force(policy) else {}
            if values is not None:
                _put(draft, gpu.uuid, finding, values, GONE if finding.in_force(policy) else OFF)


def _unlisted(section: pb.GpusSection, draft: Draft) -> Iterator[pb.Gpu]:
    """GPUs that no list has and PCI still shows: devices.plan has found them lost."""
    listed = {gpu.uuid for gpu in section.gpus}
    for device in draft.devices.values():
        if device.id not in listed and device.lost:
            yield pb.Gpu(uuid=device.id, bus_id=device.attributes.get("pciBusId"), state="lost")


def _put(draft: Draft, device_id: str, finding: Finding, values: Payload, gone: str) -> None:
    row = draft.health.get((device_id, "inventory", finding.code, ""))
    if row is None:
        if values:
            draft.put("health", Health(device_id, "inventory", finding.code, detail=values))
    elif values:
        if row.open or row.closed_reason in (GONE, OFF) or row.detail != values:
            draft.put("health", replace(row, detail=values, closed_reason=None))
    elif not (row.open and finding.sticky):
        draft.put("health", replace(row, closed_reason=gone))
