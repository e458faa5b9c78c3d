"""DOOR. NVML as plain values: the only importer of pynvml. Used in the worker child only; the daemon never holds NVML (A1).

Every fact is a named query, the same names in `nvml.json` of a recorded host and in the tests' stub library:

    {"init": null,                                     or {"error": "DRIVER_NOT_LOADED"} or {"hang": true}
     "system": {"driverVersion": "550.90.07", "cudaDriverVersion": 12040, ...},
     "devices": [{"uuid": "GPU-...", "eccMode": [1, 1], "fabric": {"error": "NOT_SUPPORTED"}, ...}]}   in index order

An answer is the value, `{"error": CODE}` with NVML's return name without `NVML_ERROR_`, or `{"hang": true}`. A query that a
device does not list is NOT_SUPPORTED. `{"handle": {"error": "GPU_IS_LOST"}}` is a GPU whose handle cannot be had.
"""

from typing import Protocol

from agent.errors import FieldError

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
}


class NvmlError(FieldError):
    """One NVML call that failed: `function` as NVML names it, `code` the return's name (`NOT_SUPPORTED`, `GPU_IS_LOST`)."""

    def __init__(self, function: str, code: str) -> None:
        super().__init__(f"{function}: {code}")
        self.function = function
        self.code = code


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
