"""DOOR. NVML as plain values: the only importer of pynvml. Used in the worker child only; the daemon never holds NVML (A1).

Every fact is a named query, the same names in `nvml.json` of a recorded host and in the tests' stub library:

    {"init": null,                                     or {"error": "DRIVER_NOT_LOADED"} or {"hang": true}
     "system": {"driverVersion": "550.90.07", "cudaDriverVersion": 12040, ...},
     "devices": [{"uuid": "GPU-...", "eccMode": [1, 1], "fabric": {"error": "NOT_SUPPORTED"}, ...}]}   in index order

An answer is the value, `{"error": CODE}` with NVML's return name without `NVML_ERROR_`, or `{"hang": true}`. A query that a
device does not list is NOT_SUPPORTED. `{"handle": {"error": "GPU_IS_LOST"}}` is a GPU whose handle cannot be had. A value inside
a MIG instance or an NVLink may be `{"error": CODE}` too; where it is not supported it is left out.

Values come as the driver says them: `N/A`, blanks and all-ones included. What they mean is the collector's matter.
"""

from collections.abc import Callable
from typing import Any, Protocol

from agent.nvml_queries import ABSENT, RETURNS, ROWS, NvmlError

__all__ = ["COUNT", "DEVICE_QUERIES", "HANDLE", "INIT", "SYSTEM_QUERIES", "Nvml", "NvmlError", "PynvmlNvml", "function_of"]

INIT, COUNT, HANDLE = "nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"

# Query -> what the value is. Numbers that are NVML's own constants stay numbers here; the collector names them.
SYSTEM_QUERIES = {
    "driverVersion": "str",
    "nvmlVersion": "str",
    "cudaDriverVersion": "int, 12040 is 12.4",
    "confidentialCompute": "[ccFeature, devToolsMode] of nvmlSystemGetConfComputeState",
}
DEVICE_QUERIES = {
    "uuid": "str",
    "name": "str",
    "serial": "str",
    "boardPartNumber": "str",
    "minor": "int",
    "pci": '{"busId": "00000000:18:00.0", "deviceId": "2330", "subsystemId": "10de:16c1"}',
    "vbios": "str",
    "inforomImage": "str",
    "gspFirmware": "str",
    "memoryTotal": "int, bytes",
    "architecture": "int, NVML_DEVICE_ARCH_*",
    "computeCapability": "[major, minor]",
    "memoryNumaNode": "int, nvmlDeviceGetNumaNodeId",
    "eccMode": "[current, pending], 0 or 1",
    "eccVolatileTotal": "int, uncorrectable",
    "eccVolatileSram": "int",
    "eccVolatileDram": "int",
    "eccAggregateTotal": "int",
    "eccAggregateSram": "int",
    "eccAggregateDram": "int",
    "sramThresholdExceeded": "bool",
    "remappedRows": "[correctable, uncorrectable, pending, failure]",
    "retiredPagesSingleBit": "int, how many",
    "retiredPagesDoubleBit": "int, how many",
    "retiredPagesPending": "bool",
    "migMode": "[current, pending], 0 or 1",
    "migInstances": '[{"uuid", "name", "giId", "ciId", "memoryBytes", "start", "size"}]; name "NVIDIA A100-SXM4-40GB MIG 1g.5gb"',
    "maxPcieGeneration": "int",
    "maxPcieWidth": "int, lanes",
    "nvlinks": '[{"link": 0, "active": true, "remoteBusId": "00000000:05:00.0", "remoteType": 1}], NVML_NVLINK_DEVICE_TYPE_*',
    "fabric": '{"clusterUuid": "...", "cliqueId": 0, "state": 3, "status": 0}, NVML_GPU_FABRIC_STATE_*, nvmlReturn_t',
    "persistence": "int, 0 or 1",
    "computeMode": "int, NVML_COMPUTEMODE_*",
    "powerDefault": "int, mW",
    "powerLimits": "[min, max], mW",
    "powerConfigured": "int, mW",
    "virtualizationMode": "int, NVML_GPU_VIRTUALIZATION_MODE_*",
    "recoveryAction": "int, NVML_GPU_RECOVERY_ACTION_*",
    # Readings of the moment: asked by tasks (agent.collectors.TASKS), never part of a section.
    "currentPcieWidth": "int, lanes",
    "currentPcieGeneration": "int",
    "pcieReplayCounter": "int, packets sent again since the driver was loaded",
    "utilization": "[GPU, memory controller], percent of the last sample period",
    "temperature": "int, degrees Celsius",
    "powerUsage": "int, mW",
    "memoryUsed": "int, bytes",
    "processes": '[{"pid": 4711, "usedBytes": 4194304}], clients of compute and graphics, by pid; "usedBytes" where it is known',
}


class Nvml(Protocol):
    """An NVML that may be opened once: `open` raises NvmlError (and closes itself), then queries, then `close`."""

    def open(self) -> None:
        """nvmlInit. Raises NvmlError: LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH, NO_PERMISSION, ..."""

    def close(self) -> None:
        """nvmlShutdown; nothing when it is not open."""

    def count(self) -> int:
        """How many devices the driver lists. Raises NvmlError."""

    def system(self, query: str) -> object:
        """One of SYSTEM_QUERIES. Raises NvmlError."""

    def device(self, index: int, query: str) -> object:
        """One of DEVICE_QUERIES. Raises NvmlError, of the handle's call too."""


def function_of(query: str) -> str:
    """The NVML function that answers a query: what an error of that query names. Raises KeyError."""
    return ROWS[query].function


class PynvmlNvml:
    """NVML through pynvml. `library` is the path of a libnvidia-ml.so.1; empty: as the loader finds it.

    pynvml is imported by `open`, and looks every function up when it is called: one that this library or this pynvml does not
    have is FUNCTION_NOT_FOUND of that query. All of its errors leave here as NvmlError: its own class cannot be hashed, and
    NVMLLibraryMismatchError is not of it.
    """

    def __init__(self, library: str = "") -> None:
        self._library = library
        self._calls: _Calls | None = None
        self._handles: dict[int, Any] = {}

    def open(self) -> None:
        """nvmlInit, without flags."""
        if self._library:
            import ctypes

            try:  # pynvml then finds it by its soname, which is how the loader knows it now
                ctypes.CDLL(self._library)
            except OSError as error:
                raise NvmlError(INIT, "LIBRARY_NOT_FOUND") from error
        calls = _Calls()
        calls.ask(INIT, lambda call: call("nvmlInit"))
        self._calls = calls

    def close(self) -> None:
        """nvmlShutdown. Its failure changes nothing that was read: the process ends next."""
        calls, self._calls = self._calls, None
        self._handles.clear()
        if calls is not None:
            calls.attempt("nvmlShutdown")

    def count(self) -> int:
        """nvmlDeviceGetCount."""
        return int(self._open().ask(COUNT, lambda call: call("nvmlDeviceGetCount")))

    def system(self, query: str) -> object:
        """One of SYSTEM_QUERIES."""
        row = ROWS[query]
        return self._open().ask(row.function, lambda call: row.ask(call, None))

    def device(self, index: int, query: str) -> object:
        """One of DEVICE_QUERIES. The handle is asked for once."""
        row, calls = ROWS[query], self._open()
        if index not in self._handles:
            self._handles[index] = calls.ask(HANDLE, lambda call: call("nvmlDeviceGetHandleByIndex", index))
        return calls.ask(row.function, lambda call: row.ask(call, self._handles[index]))

    def _open(self) -> "_Calls":
        if self._calls is None:
            raise NvmlError(INIT, "UNINITIALIZED")
        return self._calls


class _Calls:
    """pynvml's functions by name, as they are wrapped: texts come as bytes, which a damaged InfoROM may fill with anything."""

    def __init__(self) -> None:
        import ctypes

        import pynvml

        self._pynvml: Any = pynvml
        self._ctypes: Any = ctypes

    def __call__(self, name: str, *args: object) -> Any:
        function = getattr(self._pynvml, name, None)
        if function is None:
            raise NvmlError(name, "FUNCTION_NOT_FOUND")
        try:
            return getattr(function, "__wrapped__", function)(*args)
        except self._pynvml.NVMLLibraryMismatchError:
            raise NvmlError(name, "LIB_RM_VERSION_MISMATCH") from None
        except self._pynvml.NVMLError as error:
            raise NvmlError(name, self.code(error.value)) from None

    def code(self, value: int) -> str:
        """The name of an nvmlReturn_t, `ERROR_1234` for one that is newer."""
        return RETURNS.get(value, f"ERROR_{value}")

    def ask(self, function: str, question: Callable[["_Calls"], Any]) -> Any:
        """The question's answer; an error of whatever calls it takes is one of `function`."""
        try:
            return question(self)
        except NvmlError as error:
            raise NvmlError(function, error.code) from None

    def attempt(self, name: str, *args: object) -> Any:
        """The call's value; None when it does not have one here, `{"error": CODE}` when it failed."""
        try:
            return self(name, *args)
        except NvmlError as error:
            return None if error.code in ABSENT else {"error": error.code}

    def struct(self, name: str) -> Any:
        """A new `c_NAME`."""
        return self("c_" + name)

    def pointer(self, struct: Any) -> Any:
        """A pointer to a struct."""
        return self._ctypes.byref(struct)

    def constant(self, name: str, otherwise: int) -> int:
        """One of pynvml's numbers."""
        return int(getattr(self._pynvml, name, otherwise))
