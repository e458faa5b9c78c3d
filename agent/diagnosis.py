"""Diagnoses this node's GPUs (SPEC A7): asks the worker, and hands what it says to the checks. For `diag.nvml`, `bcd diag nvml`
and doctor."""

from collections.abc import Mapping, Sequence

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import checks
from agent.checks.facts import Facts, Readings, readings
from agent.collection import Collector
from agent.errors import FieldError
from agent.faults import Places
from agent.kernel_log import Look
from agent.sections import Failed, Section

LIMIT = 120.0  # seconds, of diag.nvml
TIMES, INTERVAL = 3, 1.0  # of the readings of a link that is narrow: over 2 s


class DiagnosisFailed(FieldError):
    """The diagnosis could not run. `reason` is one PascalCase word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"diagnosing the GPUs: {reason}: {message}")
        self.reason = reason


async def diagnose(
    collector: Collector,
    log: Look,
    *,
    known: Sequence[pb.Gpu] = (),
    expected: int | None = None,
    limit: float = LIMIT,
    interval: float = INTERVAL,
) -> checks.Diagnosis:
    """Every check. `log` is the daemon's ledger of this boot (`Look(ledger)`) or what agent.kernel_log.look found; `known` as for
    a collection; `expected` is `expect.gpuCount`. Raises DiagnosisFailed when our own part could not run; all else is a verdict.
    """
    asked = await collector.run(["gpus", "readings"], known, {"times": TIMES, "interval": interval}, limit)
    found = facts(asked, log, known, expected)
    if found.failure and found.failure.reason == "Bug":
        raise DiagnosisFailed("Bug", found.failure.message)
    return checks.run(found)


def facts(asked: Mapping[str, Section | Failed], log: Look, known: Sequence[pb.Gpu] = (), expected: int | None = None) -> Facts:
    """The worker's answers to `gpus` and `readings`, and the kernel log's, as what the checks judge."""
    section, now = asked["gpus"], asked["readings"]
    gpus = pb.GpusSection.FromString(section.data) if isinstance(section, Section) else None
    return Facts(
        gpus=gpus,
        failure=section if isinstance(section, Failed) else None,
        readings=readings(now.data) if isinstance(now, Section) else _unread(gpus, now),
        expected=expected,
        ledger=log.ledger.learn(places(gpus, known)) if log.ledger else None,
        log_error=log.error,
    )


def places(section: pb.GpusSection | None, known: Sequence[pb.Gpu]) -> Places:
    """Which GPU is where, as the ledger asks it: those that NVML shows now, and those remembered."""
    shown = {gpu.bus_id: gpu.uuid for gpu in (section.gpus if section else ()) if gpu.uuid and gpu.bus_id}
    return Places(shown, {gpu.bus_id: gpu.uuid for gpu in known}, inventory=True)


def _unread(section: pb.GpusSection | None, failed: Failed) -> dict[str, Readings]:
    """No GPU has readings: the task failed as a whole."""
    return {gpu.uuid: Readings(failed=(failed.message,)) for gpu in (section.gpus if section else ())}
