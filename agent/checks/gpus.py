"""The checks of one GPU. Of a lost one nothing can be told; one that a VM has is the VM's matter."""

import functools
from collections.abc import Callable, Sequence

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.checks import node
from agent.checks.facts import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Facts, Outcome, Readings
from agent.nvml import function_of

RETIRED_PAGES = 64  # how many pages a GPU before Ampere can retire (NVIDIA, Dynamic Page Retirement)
_READINGS = 3  # of a link that is narrow in all of them

Check = Callable[[Facts, pb.Gpu], Outcome]


def _of_reachable(check: Check) -> Check:
    @functools.wraps(check)
    def judged(facts: Facts, gpu: pb.Gpu) -> Outcome:
        if gpu.state == "lost":
            return Outcome(UNKNOWN, "the GPU is lost: NVML cannot reach it any more")
        if gpu.assigned:
            return Outcome(NOT_APPLICABLE, "the GPU is assigned to a VM")
        return check(facts, gpu)

    return judged


@_of_reachable
def ecc_uncorrectable(facts: Facts, gpu: pb.Gpu) -> Outcome:
    """`ecc.uncorrectable`: no uncorrectable error in DRAM or SRAM since the driver was loaded. The board's life is shown only."""
    if not gpu.ecc.current:
        return _absent(gpu, ("eccMode",), "ECC is off" if gpu.ecc.HasField("current") else "the GPU has no ECC")
    counts = gpu.ecc.volatile
    told = {name: getattr(counts, name) for name in ("dram", "sram") if counts.HasField(name)}
    if len(told) < 2 and counts.HasField("total"):
        told["total"] = counts.total
    if not told:
        return Outcome(UNKNOWN, "the driver does not tell the uncorrectable errors")
    life = ", ".join(f"{name.upper()} {value}" for name in ("dram", "sram") if (value := getattr(gpu.ecc.aggregate, name)))
    now = ", ".join(f"{name.upper() if name != 'total' else name} {value}" for name, value in told.items())
    words = f"uncorrectable errors since the driver was loaded: {now}" + (f"; in the board's life: {life}" if life else "")
    return Outcome(FAIL if any(told.values()) else PASS, words)


@_of_reachable
def row_remap_pending(facts: Facts, gpu: pb.Gpu) -> Outcome:
    """`row-remap.pending`: no row (before Ampere: page) waits for a reset to be replaced."""
    if gpu.HasField("row_remap"):
        return Outcome(*(FAIL, "a row remap is pending") if gpu.row_remap.pending else (PASS, "no row remap is pending"))
    if gpu.retired_pages.HasField("pending"):
        pending = gpu.retired_pages.pending
        return Outcome(*(FAIL, "a page retirement is pending") if pending else (PASS, "no page retirement is pending"))
    return _absent(gpu, ("remappedRows", "retiredPagesPending"), "the GPU neither remaps rows nor retires pages")


@_of_reachable
def row_remap_failure(facts: Facts, gpu: pb.Gpu) -> Outcome:
    """`row-remap.failure`: spare rows are left, SRAM is below its error threshold, pages can still be retired."""
    pages = gpu.retired_pages
    retired = pages.single_bit + pages.double_bit
    remap = gpu.row_remap
    wrong = [
        words
        for is_so, words in (
            (remap.failure, "a row remap has failed: the GPU has no spare row for it"),
            (gpu.ecc.sram_threshold_exceeded, "the SRAM errors are above NVIDIA's threshold"),
            (retired >= RETIRED_PAGES, f"{retired} pages are retired, {RETIRED_PAGES} can be"),
        )
        if is_so
    ]
    if wrong:
        return Outcome(FAIL, "; ".join(wrong))
    if gpu.HasField("row_remap"):
        rows = f"{remap.correctable} for correctable, {remap.uncorrectable} for uncorrectable errors"
        return Outcome(PASS, f"rows remapped: {rows}")
    if pages.HasField("single_bit") or pages.HasField("double_bit"):
        return Outcome(PASS, f"{retired} of {RETIRED_PAGES} pages are retired")
    queries = ("remappedRows", "retiredPagesSingleBit", "retiredPagesDoubleBit")
    return _absent(gpu, queries, "the GPU neither remaps rows nor retires pages")


@_of_reachable
def pcie_link(facts: Facts, gpu: pb.Gpu) -> Outcome:
    """`pcie.link`: as wide as GPU and slot allow in one of three readings. Narrow in all, but idle: it may save power."""
    widest = gpu.pcie_max.width
    found = facts.readings.get(gpu.uuid, Readings())
    readings = [reading for reading in found.readings if reading.pcie_width]
    widths = [reading.pcie_width or 0 for reading in readings]
    if not widest:
        return _absent(gpu, ("maxPcieWidth",), "neither the GPU nor its slot tells a width")
    if not widths:
        failed = function_of("currentPcieWidth") in found.failed or not found.readings
        return Outcome(UNKNOWN if failed else NOT_APPLICABLE, "the width of the link now cannot be read")
    if max(widths) >= widest:
        return Outcome(PASS, f"x{max(widths)}")
    narrow = f"x{max(widths)} where the GPU and its slot have x{widest}"
    if len(widths) < _READINGS:
        return Outcome(UNKNOWN, f"{narrow}, read {_times(len(widths))}")
    if not any(reading.utilization for reading in readings):
        idle = "the GPU is idle" if all(r.utilization is not None for r in readings) else "whether the GPU is busy is not known"
        return Outcome(UNKNOWN, f"{narrow}, but {idle}: ask again under load")
    return Outcome(FAIL, f"{narrow} in {len(widths)} readings under load")


def xid_recent(facts: Facts, gpu: pb.Gpu) -> Outcome:
    """`xid.recent`: no XID of this boot whose policy is `node` or `device`, in a kernel log without holes."""
    return node.recent(facts, gpu.uuid)


def _absent(gpu: pb.Gpu, queries: Sequence[str], words: str) -> Outcome:
    """What NVML did not tell: not applicable where it has no such thing, unknown where the call failed."""
    named = {unreadable.path for unreadable in gpu.unreadable}
    if failed := sorted({function_of(query) for query in queries} & named):
        return Outcome(UNKNOWN, f"{', '.join(failed)} failed")
    return Outcome(NOT_APPLICABLE, words)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
