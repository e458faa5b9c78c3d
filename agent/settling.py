"""The first minutes of a boot (SPEC A2): while driver and fabric come up, `gpus` is left out rather than told wrong. Pure.

Settling is over when the section is whole or the boot is older than `settle`; then it is reported as it is. So GPUs that are
lost or missing later are never taken for settling ones.
"""

from dataclasses import replace

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors.gpu_pci import is_gpu
from agent.sections import Collected, Failed, nvml_error

RETRY = 15.0  # seconds
REASON = "settling"


def judge(collected: Collected, uptime: float, settle: float) -> Collected:
    """The collection as it may be reported `uptime` seconds after boot."""
    why = unsettled(collected) if uptime < settle else None
    if why is None:
        return collected
    sections = tuple(s for s in collected.sections if s.name != "gpus")
    failed = (*(f for f in collected.failed if f.name != "gpus"), Failed("gpus", REASON, why))
    return replace(collected, sections=sections, failed=tuple(sorted(failed, key=lambda f: f.name)))


def retry_delay(collected: Collected, uptime: float, settle: float) -> float | None:
    """Seconds until `gpus` is tried again, the last time when settling ends; None when it is not settling."""
    if not any(f.name == "gpus" and f.reason == REASON for f in collected.failed):
        return None
    return max(0.1, min(RETRY, settle - uptime))


def unsettled(collected: Collected) -> str | None:
    """Why the GPUs of a collection are not settled; None when they are, or were not collected."""
    for failed in collected.failed:
        if failed.name == "gpus" and failed.reason == "Hang":
            return f"NVML does not answer: {failed.message}"
    for section in collected.sections:
        if section.name == "gpus":
            return _unsettled(pb.GpusSection.FromString(section.data))
    return None


def _unsettled(section: pb.GpusSection) -> str | None:
    if error := nvml_error(section):
        return error
    for gpu in section.gpus:
        if gpu.fabric.state == "in-progress":
            return f"the fabric of {gpu.bus_id} is in progress"
    bound = sum(1 for f in section.pci_functions if f.driver == "nvidia" and is_gpu(f))
    answering = sum(1 for gpu in section.gpus if gpu.state != "lost" and not gpu.assigned)
    return f"{answering} of {bound} GPUs that are bound to nvidia answer" if answering < bound else None
