"""Task `readings`: what NVML says of each GPU at this moment, for diagnoses and people. Never in a section (A1).

Argument `times`: how often a GPU is read whose link is narrower than it could be, `interval` seconds apart; one at full width is
read once. The answer is JSON, in NVML's order; what is absent for NVML is absent here, `failed` names functions that failed:

    [{"uuid": "GPU-...", "readings": [{"pcieWidth": 8, "pcieGeneration": 1, "utilization": 0, "temperatureC": 31,
                                       "powerMw": 71000, "memoryUsed": 1048576, "processes": [{"pid": 4711}]}, ...],
      "failed": ["nvmlDeviceGetPowerUsage"]}]
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from agent.collectors import Context, gpu_pci
from agent.collectors.gpu_facts import Device, Lost, number, number64, text


def run(ctx: Context, arguments: Mapping[str, Any]) -> bytes:
    """The readings; none where no GPU should answer NVML. Raises NvmlError when NVML does not answer."""
    if not any(gpu_pci.expects_nvml(function) for function in gpu_pci.functions(ctx.files)):
        return b"[]"
    ctx.nvml.open()
    try:
        devices = [_Gpu(Device(ctx.nvml, index)) for index in range(ctx.nvml.count())]
        for attempt in range(int(arguments.get("times", 1))):
            again = [gpu for gpu in devices if gpu.is_narrow] if attempt else devices
            if attempt and again:
                time.sleep(float(arguments.get("interval", 1.0)))
            for gpu in again:
                gpu.read()
    finally:
        ctx.nvml.close()
    return json.dumps([gpu.told() for gpu in devices]).encode()


class _Gpu:
    """One GPU under reading."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._readings: list[dict[str, object]] = []
        self._uuid, self._widest = self._ask("uuid", text), self._ask("maxPcieWidth", number)

    @property
    def is_narrow(self) -> bool:
        """Whether every reading so far shows fewer lanes than the GPU has."""
        widths = [reading.get("pcieWidth") for reading in self._readings]
        return bool(widths) and all(isinstance(w, int) and isinstance(self._widest, int) and w < self._widest for w in widths)

    def read(self) -> None:
        """One more reading."""
        reading = {name: self._ask(query, meaning) for name, (query, meaning) in _READINGS.items()}
        self._readings.append({name: value for name, value in reading.items() if value is not None})

    def told(self) -> dict[str, object]:
        """The GPU as it is in the answer."""
        return {"uuid": self._uuid, "readings": self._readings, "failed": sorted(self._device.failures)}

    def _ask(self, query: str, meaning: Callable[[object], object]) -> object:
        try:
            return meaning(self._device.ask(query))
        except Lost:
            return None


def _first(answer: object) -> object:
    return number(answer[0]) if isinstance(answer, (list, tuple)) and answer else None


def _processes(answer: object) -> object:
    return answer if isinstance(answer, list) else None


_READINGS: Mapping[str, tuple[str, Callable[[object], object]]] = {
    "pcieWidth": ("currentPcieWidth", lambda answer: number(answer) or None),
    "pcieGeneration": ("currentPcieGeneration", lambda answer: number(answer) or None),
    "utilization": ("utilization", _first),
    "temperatureC": ("temperature", number),
    "powerMw": ("powerUsage", number),
    "memoryUsed": ("memoryUsed", number64),
    "processes": ("processes", _processes),
}
