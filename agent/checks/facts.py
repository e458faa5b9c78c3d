"""What the checks judge, as values: the `gpus` section, the readings of the moment, the fault ledger, what is expected."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.faults import Ledger
from agent.sections import Failed

PASS, FAIL, NOT_APPLICABLE, UNKNOWN = "pass", "fail", "not-applicable", "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict and why, in one sentence. `warning`: it passes, and a person should look."""

    verdict: str
    reason: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """A GPU at one moment, as NVML says it; absent is None. `processes` are the pids that use it."""

    pcie_width: int | None = None
    pcie_generation: int | None = None
    utilization: int | None = None  # percent
    temperature_c: int | None = None
    power_mw: int | None = None
    memory_used: int | None = None  # bytes
    processes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Readings:
    """All readings of one GPU, the first one first, and the NVML functions that failed for it."""

    readings: tuple[Reading, ...] = ()
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the node. `gpus` is None when the section could not be collected (`failure`).

    `readings` is by UUID. `ledger` is None when nothing is known of this boot's kernel log. `log_error`: why the log was not read
    to its end; empty when it was.
    """

    gpus: pb.GpusSection | None = None
    failure: Failed | None = None
    readings: Mapping[str, Readings] = field(default_factory=dict)
    expected: int | None = None
    ledger: Ledger | None = None
    log_error: str = ""

    @property
    def answers(self) -> bool:
        """Whether NVML told the GPUs."""
        return self.gpus is not None and not self.gpus.HasField("error")

    @property
    def listed(self) -> tuple[pb.Gpu, ...]:
        """The GPUs that the section holds, in the order of NVML's index, the lost and assigned ones last."""
        found = list(self.gpus.gpus) if self.gpus else []
        return tuple(sorted(found, key=lambda gpu: (gpu.index if gpu.HasField("index") else 1 << 30, gpu.bus_id)))


def readings(answer: bytes) -> dict[str, Readings]:
    """The answer of the worker's task `readings` (agent/collectors/readings.py), by UUID."""
    return {
        gpu["uuid"]: Readings(tuple(_reading(r) for r in gpu["readings"]), tuple(gpu["failed"]))
        for gpu in json.loads(answer)
        if gpu["uuid"]
    }


def _reading(told: Mapping[str, object]) -> Reading:
    """One of its readings.

    >>> _reading({"pcieWidth": 8, "processes": [{"pid": 4711, "usedBytes": 1024}]})
    Reading(pcie_width=8, pcie_generation=None, utilization=None, temperature_c=None, power_mw=None, memory_used=None,
            processes=(4711,))
    """
    values = {name: told.get(key) for name, key in _KEYS.items()}
    clients = told.get("processes")
    return Reading(
        **{name: value for name, value in values.items() if isinstance(value, int)},
        processes=tuple(process["pid"] for process in clients) if isinstance(clients, list) else None,
    )


_KEYS = {
    "pcie_width": "pcieWidth",
    "pcie_generation": "pcieGeneration",
    "utilization": "utilization",
    "temperature_c": "temperatureC",
    "power_mw": "powerMw",
    "memory_used": "memoryUsed",
}
