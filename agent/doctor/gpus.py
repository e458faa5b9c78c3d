"""Doctor's lines of the driver and of each GPU, from the checks that `diag.nvml` runs."""

from collections.abc import Iterator, Mapping

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import checks, faults
from agent.checks.facts import Reading
from agent.doctor.found import Found
from agent.doctor.line import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WARNING, Line
from agent.render import size_words

# Action of an XID -> what to do; the heaviest first.
ACTIONS: Mapping[str, str] = {
    "reboot-node": "reboot the node when nothing uses it; if the XID comes back, have the GPU looked at",
    "drain-and-reset": "let work on the GPU end, then reset it",
    "reset-gpu": "reset the GPU when nothing uses it",
    "inspect": "look at the kernel log around it, and at NVIDIA's XID catalog",
    "restart-app": "nothing: the program must be started again",
    "none": "nothing",
}
_REPLACE = "take the GPU out of use and have it replaced"
_ECC = "reset the GPU when nothing uses it; if errors come back, have it replaced"
_LOST = "see the kernel log; a GPU that fell off the bus needs a reboot"
_MIG = "reset the GPU when nothing uses it, or reboot"
_ROOT = "run doctor as root"
_LOAD = "see the kernel log for XIDs and hung tasks"
_TODOS = (_REPLACE, *ACTIONS.values(), _LOST, _ECC, _MIG, _ROOT, _LOAD)  # a GPU's line says the first of these that is asked for
# What a check that fails is to doctor: its verdict, and what to do. `xid.recent` says for itself what to do.
_FAILURES: Mapping[str, tuple[str, str]] = {
    "ecc.uncorrectable": (FAIL, _ECC),
    "row-remap.pending": (WARNING, ACTIONS["reset-gpu"]),
    "row-remap.failure": (FAIL, _REPLACE),
}
_DRIVER = {
    "Hang": "see the kernel log for XIDs and hung tasks; a reboot ends a driver that hangs",
    "WorkerDied": "see the kernel log for a crash of the driver or of its library",
}
_SEVERITY = (PASS, NOT_APPLICABLE, UNKNOWN, WARNING, FAIL)


def driver(found: Found) -> Iterator[Line]:
    """Versions of module and library, and whether NVML answers.

    To do: the line names the cause; reload the module or reboot where versions differ.
    """
    outcome = checks.NODE["nvml.init"](found.facts)
    assert outcome is not None
    section = found.section(pb.GpusSection) or pb.GpusSection()
    told = section.driver
    if outcome.verdict == checks.NOT_APPLICABLE:
        yield Line("driver", NOT_APPLICABLE, outcome.reason)
        return
    if outcome.verdict != checks.PASS:
        failed = found.failed.get("gpus")
        reason, _, todo = outcome.reason.partition("; ")
        what = "NVML does not answer" if outcome.verdict == FAIL else "the GPUs could not be read"
        yield Line("driver", outcome.verdict, f"{what}: {reason}", _DRIVER.get(failed.reason, "") if failed else todo)
        return
    flavour = f", {told.flavour} kernel module" if told.flavour else ""
    differs = told.module_version and told.library_version and told.module_version != told.library_version
    versions = (
        f"NVIDIA {told.module_version or told.library_version}{flavour}, NVML {told.nvml_version}, CUDA {told.cuda_version}"
    )
    if differs:
        text = f"the kernel module is {told.module_version}, the library {told.library_version}"
        yield Line("driver", WARNING, text, "reload the module, or reboot")
    else:
        yield Line("driver", PASS, versions)


def each(found: Found) -> Iterator[Line]:
    """One line a GPU, and one for those that do not answer.

    To do: what the line says: reset, reboot or replace the GPU.
    """
    for gpu in found.facts.listed:
        yield _line(found, gpu)
    count = checks.NODE["gpu.count"](found.facts)
    lost = any(gpu.state == "lost" for gpu in found.facts.listed)
    if count is not None and count.verdict == FAIL and not lost:
        yield Line("gpu", FAIL, count.reason, _LOST)


def _line(found: Found, gpu: pb.Gpu) -> Line:
    reading = _reading(found, gpu)
    load = _load(gpu, reading)
    name = " ".join(part for part in (gpu.name or "GPU", gpu.uuid, gpu.bus_id) if part)
    told = {"index": gpu.index if gpu.HasField("index") else None, "name": gpu.name, "uuid": gpu.uuid, "busId": gpu.bus_id}
    values = {**told, **_values(gpu, reading)}
    verdict, reasons, todos = _judge(found, gpu)
    told_of_it = "; ".join([*reasons, *([", ".join(load)] if load else [])])
    text = f"{name}: {told_of_it}" if told_of_it else name
    facts = {key: value for key, value in values.items() if value not in (None, "")}
    return Line("gpu", verdict, text, min(todos, key=_TODOS.index, default=""), facts)


def _judge(found: Found, gpu: pb.Gpu) -> tuple[str, list[str], list[str]]:
    """Verdict, reasons and what to do: the worst of what the checks say, and what MIG waits for."""
    if gpu.state == "lost":
        xid = _xids(found, gpu)
        reason = ["lost: NVML cannot reach it, PCI still shows it", *(words for words, _ in xid)]
        return FAIL, reason, [todo for _, todo in xid] or [_LOST]
    if gpu.assigned:
        return NOT_APPLICABLE, ["assigned to a VM"], []
    said: list[tuple[str, str, str]] = []
    for name, (verdict, todo) in _FAILURES.items():
        outcome = checks.GPU[name](found.facts, gpu)
        if outcome.verdict == FAIL:
            said.append((verdict, outcome.reason, todo))
        elif outcome.verdict == UNKNOWN:
            said.append((UNKNOWN, f"{name} is not known: {outcome.reason}", _ROOT))
    said += [(FAIL, words, todo) for words, todo in _xids(found, gpu)]
    if gpu.mig.capable and gpu.mig.current != gpu.mig.pending:
        mode = "on" if gpu.mig.pending else "off"
        said.append((WARNING, f"MIG turns {mode} at the next reset", _MIG))
    if failed := found.failed.get("readings"):
        said.append((UNKNOWN, f"its load is not known: {failed.reason}: {failed.message}", _LOAD))
    worst = max((verdict for verdict, _, _ in said), key=_SEVERITY.index, default=PASS)
    return worst, [reason for _, reason, _ in said], [todo for _, _, todo in said]


def _xids(found: Found, gpu: pb.Gpu) -> list[tuple[str, str]]:
    """The XIDs that `xid.recent` fails on, in words, and what to do about each."""
    ledger = found.facts.ledger
    if ledger is None:
        return []
    failing = faults.xid_recent(ledger, gpu.uuid).failing
    return [(checks.node.words_of(fault), ACTIONS[fault.policy.action]) for fault in failing]


def _reading(found: Found, gpu: pb.Gpu) -> Reading:
    readings = found.facts.readings.get(gpu.uuid)
    return readings.readings[0] if readings and readings.readings else Reading()


def _load(gpu: pb.Gpu, now: Reading) -> list[str]:
    """`3 % busy, 4 MiB of 80 GiB, 27 C, 70 W`, as far as it is known."""
    memory = None
    if now.memory_used is not None:
        memory = size_words(now.memory_used) + (f" of {size_words(gpu.vram_bytes)}" if gpu.vram_bytes else "")
    narrow = now.pcie_width and gpu.pcie_max.width and now.pcie_width < gpu.pcie_max.width
    parts = (
        None if now.utilization is None else f"{now.utilization} % busy",
        memory,
        None if now.temperature_c is None else f"{now.temperature_c} °C",
        None if now.power_mw is None else f"{now.power_mw / 1000:.0f} W",
        f"PCIe x{now.pcie_width} of x{gpu.pcie_max.width} now" if narrow else None,
    )
    return [part for part in parts if part]


def _values(gpu: pb.Gpu, now: Reading) -> dict[str, object]:
    return {
        "utilization": now.utilization,
        "memoryUsed": now.memory_used,
        "memoryTotal": gpu.vram_bytes or None,
        "temperatureC": now.temperature_c,
        "powerMw": now.power_mw,
        "processes": None if now.processes is None else list(now.processes),
    }
