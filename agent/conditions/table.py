"""The conditions of SPEC A6 as rows. Pure: facts in, verdicts out; no verdict means that the condition does not apply here.

A condition says nothing before there is something to say: while the first minutes of a boot settle, and before the first
collection, those that are judged by GPUs are not sent.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.conditions import reboot
from agent.conditions.facts import Facts
from agent.probe import HANGS, risen
from agent.settling import REASON as SETTLING

TRUE, FALSE, UNKNOWN = "true", "false", "unknown"
FABRIC_PATIENCE = 300.0  # seconds after boot in which a fabric may still come up
REPLAYS = 1000  # an hour
_COMING = ("not-started", "in-progress")
_NO_ANSWER = {"Hang": "Hang", "WorkerDied": "Error"}  # a child's end that is the driver's doing


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a condition is now. `reason` is one PascalCase word, `message` for a person."""

    status: str
    reason: str = ""
    message: str = ""
    device_id: str = ""


Verdicts = Iterator[Verdict]


def fabric_manager_down(facts: Facts) -> Verdicts:
    """By the fabric that the GPUs tell; where none does and switches are there, by the process and its version."""
    section = facts.gpus
    if _is_early(facts):
        return
    if section is None or section.HasField("error"):
        yield Verdict(UNKNOWN, "NvmlUnavailable", "NVML does not answer, and only it can tell the fabric")
        return
    telling = [gpu for gpu in section.gpus if gpu.fabric.state]
    if not telling:
        yield from _by_process(facts, section)
        return
    down = {gpu.uuid: gpu.fabric for gpu in telling if _is_down(gpu.fabric)}
    strange = [f"{gpu.uuid} is {gpu.fabric.state}" for gpu in telling if gpu.fabric.state not in (*_COMING, "completed")]
    coming = all(fabric.state in _COMING for fabric in down.values())
    if down and (facts.uptime >= FABRIC_PATIENCE or not coming):
        told = "; ".join(f"{uuid} is {' with '.join(filter(None, (f.state, f.status)))}" for uuid, f in sorted(down.items()))
        yield Verdict(TRUE, "FabricNotUp" if coming else "FabricFailed", f"fabric of {told}")
    elif not down:
        yield Verdict(UNKNOWN, "FabricStateUnknown", f"fabric of {'; '.join(strange)}") if strange else Verdict(FALSE)


def _is_down(fabric: pb.Fabric) -> bool:
    return fabric.state in _COMING or (fabric.state == "completed" and fabric.status not in ("", "success"))


def _by_process(facts: Facts, section: pb.GpusSection) -> Verdicts:
    manager, driver = facts.manager, section.driver.module_version
    if manager is None:
        return
    where = f"{len(manager.switches)} NVSwitch functions are there and no GPU tells its fabric"
    if manager.pid is None:
        if facts.uptime >= FABRIC_PATIENCE:
            yield Verdict(TRUE, "NotRunning", f"{where}; no nv-fabricmanager runs: start nvidia-fabricmanager")
    elif manager.versions and driver and driver not in manager.versions:
        told = " and ".join(manager.versions)
        yield Verdict(TRUE, "VersionMismatch", f"{where}; nv-fabricmanager is {told}, the driver is {driver}")
    else:
        yield Verdict(FALSE)


def nvml_unavailable(facts: Facts) -> Verdicts:
    """By the last collection, and by probes that had no answer since."""
    if _is_early(facts):
        return
    if facts.failed is not None:
        reason = _NO_ANSWER.get(facts.failed.reason)
        told = facts.failed.message
        yield Verdict(TRUE, reason, told) if reason else Verdict(UNKNOWN, facts.failed.reason, told)
    elif facts.gpus is not None and facts.gpus.HasField("error"):
        yield Verdict(TRUE, facts.gpus.error.reason, facts.gpus.error.message)
    elif facts.expects_nvml:
        hung = Verdict(TRUE, "Hang", f"{HANGS} health probes in a row or more had no answer")
        yield hung if facts.history.is_hung and facts.probes else Verdict(FALSE)


def pcie_replay_high(facts: Facts) -> Verdicts:
    """One of each GPU that counts replays, from the first probe on."""
    history = facts.history
    if not facts.probes or history.last is None:
        return
    for uuid, samples in sorted(history.replays.items()):
        rise = risen(samples)
        if history.last.error:
            yield Verdict(UNKNOWN, "NvmlUnavailable", f"the last probe failed: {history.last.error}", uuid)
        elif rise is None:
            yield Verdict(UNKNOWN, "FirstProbe", "only two probes tell how fast the counter rises", uuid)
        else:
            # No figure: it is another with each probe, and a message that changes is written. `bcd status` has the counters.
            told = f"PCIe replays rise by more than {REPLAYS} an hour: a bad link, slot or riser"
            yield Verdict(TRUE, "Replays", told, uuid) if rise > REPLAYS else Verdict(FALSE, device_id=uuid)


def reboot_required(facts: Facts) -> Verdicts:
    """The first code is the reason; all of them are in the message."""
    codes = reboot.codes(facts.waiting, facts.gpus)
    if not codes:
        yield Verdict(FALSE)
        return
    yield Verdict(TRUE, next(iter(codes)), "; ".join(f"{code}: {words}" for code, words in codes.items()))


def host_managed_externally(facts: Facts) -> Verdicts:
    """By what is there."""
    yield Verdict(TRUE, "Managed", "; ".join(facts.managed_by)) if facts.managed_by else Verdict(FALSE)


def mps_down(facts: Facts) -> Verdicts:
    """Where MPS is on."""
    if facts.mps_error is not None:
        yield Verdict(TRUE, "NoAnswer", facts.mps_error) if facts.mps_error else Verdict(FALSE)


def pod_resources_unavailable(facts: Facts) -> Verdicts:
    """On a Kubernetes worker."""
    if facts.kubernetes is not None:
        said = facts.kubernetes.socket_error
        yield Verdict(TRUE, "NoAnswer", said) if said else Verdict(FALSE)


def foreign_gpu_exposure(facts: Facts) -> Verdicts:
    """On a Kubernetes worker. Cannot tell is true: a hold booked there might not be isolated."""
    if facts.kubernetes is None:
        return
    paths, doubts = facts.kubernetes.paths, facts.kubernetes.doubts
    words = [*paths, *(f"cannot rule it out: {doubt}" for doubt in doubts)]
    reason = "OtherPath" if paths else "CannotTell"
    yield Verdict(TRUE, reason, "; ".join(words)) if words else Verdict(FALSE)


def _is_early(facts: Facts) -> bool:
    """Nothing is known of the GPUs yet, and that is all right."""
    return facts.gpus is None and (facts.failed is None or facts.failed.reason == SETTLING)


TABLE: Mapping[str, Callable[[Facts], Verdicts]] = {
    "FabricManagerDown": fabric_manager_down,
    "ForeignGpuExposure": foreign_gpu_exposure,
    "HostManagedExternally": host_managed_externally,
    "MPSDown": mps_down,
    "NvmlUnavailable": nvml_unavailable,
    "PcieReplayHigh": pcie_replay_high,
    "PodResourcesUnavailable": pod_resources_unavailable,
    "RebootRequired": reboot_required,
}


def judge(facts: Facts) -> tuple[tuple[str, Verdict], ...]:
    """Every condition that applies, by type."""
    return tuple((kind, verdict) for kind, rule in TABLE.items() for verdict in rule(facts))
