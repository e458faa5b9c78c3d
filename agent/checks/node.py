"""The checks of the node as a whole: whether NVML answers, how many GPUs there are, and XIDs that are no listed GPU's."""

from dataclasses import replace

from agent import faults
from agent.checks.facts import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Facts, Outcome
from agent.collectors.gpu_pci import expects_nvml

_NO_ANSWER = ("Hang", "WorkerDied")  # the driver's doing; other failures of the section say nothing of NVML


def nvml_init(facts: Facts) -> Outcome:
    """`nvml.init`: NVML starts and lists its devices."""
    if facts.gpus is None:
        failed = facts.failure
        reason = f"{failed.reason}: {failed.message}" if failed else "the GPUs were not collected"
        return Outcome(FAIL if failed and failed.reason in _NO_ANSWER else UNKNOWN, reason)
    if facts.gpus.HasField("error"):
        return Outcome(FAIL, f"{facts.gpus.error.reason}: {facts.gpus.error.message}")
    if not any(expects_nvml(function) for function in facts.gpus.pci_functions):
        return Outcome(NOT_APPLICABLE, "no NVIDIA GPU is there that should answer NVML")
    return Outcome(PASS, f"NVML {facts.gpus.driver.nvml_version or 'of unknown version'} answers")


def gpu_count(facts: Facts) -> Outcome:
    """`gpu.count`: as many GPUs as expected; without an expectation, as many as PCI shows bound to the driver.

    A GPU that is assigned to a VM is there; a lost one is not.
    """
    if facts.gpus is None or not facts.answers:
        return Outcome(UNKNOWN, "NVML does not answer")
    counted = [gpu for gpu in facts.listed if gpu.state != "lost"]
    lost = [gpu for gpu in facts.listed if gpu.state == "lost"]
    note = f"; lost: {', '.join(_name(gpu.uuid, gpu.bus_id) for gpu in lost)}" if lost else ""
    if facts.expected is not None:
        return Outcome(
            PASS if len(counted) == facts.expected else FAIL, f"{_gpus(len(counted))}, {facts.expected} expected{note}"
        )
    answering = {gpu.bus_id for gpu in counted if not gpu.assigned}
    silent = [f.bus_id for f in facts.gpus.pci_functions if expects_nvml(f) and f.bus_id not in answering]
    if silent:
        return Outcome(FAIL, f"no answer from the GPU at {', '.join(silent)}, which PCI shows{note}")
    if not counted:
        return Outcome(NOT_APPLICABLE, "no GPU, and no number of GPUs expected")
    return Outcome(PASS, f"{_gpus(len(counted))}, all that PCI shows; no number expected")


def xid_recent(facts: Facts) -> Outcome | None:
    """`xid.recent` of what is no listed GPU's: XIDs of unknown bus ids, SXids of switches. None: the GPUs' say it all."""
    if facts.ledger is None:
        return recent(facts) if not facts.listed else None
    mine = {gpu.uuid for gpu in facts.listed}
    others = {key: fault for key, fault in facts.ledger.faults.items() if fault.device_id not in mine or not fault.device_id}
    if not others and facts.listed:
        return None
    return recent(replace(facts, ledger=replace(facts.ledger, faults=others)))


def recent(facts: Facts, device_id: str | None = None) -> Outcome:
    """The ledger's verdict on one GPU, or (None) on all that it holds, as an outcome that names the faults it rests on."""
    if facts.ledger is None:
        return Outcome(UNKNOWN, facts.log_error or "the kernel log was not read")
    found = faults.xid_recent(facts.ledger, device_id)
    with_bus_id = device_id is None
    words = [words_of(fault, with_bus_id) for fault in (found.failing or (*found.warnings, *found.noted))]
    if found.verdict == FAIL:
        return Outcome(FAIL, "; ".join(words))
    listed = f"seen: {'; '.join(words)}" if words else ""
    if gap := facts.log_error or (found.reason if found.verdict == UNKNOWN else ""):
        return Outcome(UNKNOWN, "; ".join(part for part in (gap, listed) if part))
    return Outcome(PASS, listed or "no XID in this boot", warning=bool(found.warnings))


def words_of(fault: faults.Fault, with_bus_id: bool = False) -> str:
    """`Xid 79 (GPU has fallen off the bus), 3 times, at 00000000:C1:00.0`."""
    times = "once" if fault.count == 1 else f"{fault.count} times"
    place = f", at {fault.bus_id}" if with_bus_id else ""
    return f"{fault.kind} {fault.code} ({fault.policy.name or 'a number no table knows'}), {times}{place}"


def _name(uuid: str, bus_id: str) -> str:
    return f"{uuid} at {bus_id}" if uuid else f"the one at {bus_id}"


def _gpus(count: int) -> str:
    return f"{count} GPU" + "s" * (count != 1)
