"""What `diag.nvml`, `bcd diag nvml` and `bcd doctor` judge a node's GPUs by (SPEC A7): rows of pure functions over facts.

Four results, not two: no permission, no answer and a log with holes are `unknown`, never a pass. One more check costs a function
(in gpus.py for one of each GPU), a row in NODE or GPU, and its test.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.checks import gpus, node
from agent.checks.facts import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Facts, Outcome

__all__ = [
    "FAIL", "GPU", "NODE", "NOT_APPLICABLE", "PASS", "TOLERATED", "UNKNOWN", "Diagnosis", "Facts", "Outcome", "Result", "run",
]  # fmt: skip

NODE: Mapping[str, Callable[[Facts], Outcome | None]] = {
    "nvml.init": node.nvml_init,
    "gpu.count": node.gpu_count,
    "xid.recent": node.xid_recent,
}
GPU: Mapping[str, Callable[[Facts, pb.Gpu], Outcome]] = {
    "ecc.uncorrectable": gpus.ecc_uncorrectable,
    "row-remap.pending": gpus.row_remap_pending,
    "row-remap.failure": gpus.row_remap_failure,
    "pcie.link": gpus.pcie_link,
    "xid.recent": gpus.xid_recent,
}
TOLERATED = ("pcie.link",)  # an unknown of these does not fail the diagnosis: a link may be narrow because nothing runs


@dataclass(frozen=True, slots=True)
class Result:
    """One check's outcome; of one GPU where `device_id` or `bus_id` is set."""

    check: str
    outcome: Outcome
    device_id: str = ""
    bus_id: str = ""

    @property
    def verdict(self) -> str:
        """`pass`, `fail`, `not-applicable` or `unknown`."""
        return self.outcome.verdict

    @property
    def passes(self) -> bool:
        """Whether the diagnosis may pass with it."""
        return self.verdict in (PASS, NOT_APPLICABLE) or (self.verdict == UNKNOWN and self.check in TOLERATED)

    def told(self) -> dict[str, Any]:
        """As JSON: `deviceId`, `busId` and `warning` where there is one."""
        told = {"check": self.check, "result": self.verdict, "reason": self.outcome.reason}
        more = {"deviceId": self.device_id, "busId": self.bus_id, "warning": self.outcome.warning}
        return told | {key: value for key, value in more.items() if value}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Every check, the node's first, then GPU by GPU in the order of their index."""

    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        """False on any fail, and on any unknown but those that are tolerated."""
        return all(result.passes for result in self.results)

    def told(self) -> dict[str, Any]:
        """The payload of a `diag.nvml` that succeeded, as JSON."""
        return {"passed": self.passed, "checks": [result.told() for result in self.results]}


def run(facts: Facts) -> Diagnosis:
    """Every check over the facts."""
    return Diagnosis((*_node(facts), *_gpus(facts)))


def _node(facts: Facts) -> Iterator[Result]:
    for name, check in NODE.items():
        if outcome := check(facts):
            yield Result(name, outcome)


def _gpus(facts: Facts) -> Iterator[Result]:
    for gpu in facts.listed:
        for name, check in GPU.items():
            yield Result(name, check(facts, gpu), gpu.uuid, gpu.bus_id)
