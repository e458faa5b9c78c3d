"""What answers each NVML query: rows of pynvml calls and what makes a plain value of their answers.

The calls come in through `Calls` (agent/nvml.py), so nothing here imports pynvml. pynvml's own source is the reference for
the signatures, NVIDIA's nvml.h for the structs and constants.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bettercompute.contract.bus_id import bus_id

from agent.errors import FieldError

# nvmlReturn_t of nvml.h.
RETURNS = {
    1: "UNINITIALIZED",
    2: "INVALID_ARGUMENT",
    3: "NOT_SUPPORTED",
    4: "NO_PERMISSION",
    5: "ALREADY_INITIALIZED",
    6: "NOT_FOUND",
    7: "INSUFFICIENT_SIZE",
    8: "INSUFFICIENT_POWER",
    9: "DRIVER_NOT_LOADED",
    10: "TIMEOUT",
    11: "IRQ_ISSUE",
    12: "LIBRARY_NOT_FOUND",
    13: "FUNCTION_NOT_FOUND",
    14: "CORRUPTED_INFOROM",
    15: "GPU_IS_LOST",
    16: "RESET_REQUIRED",
    17: "OPERATING_SYSTEM",
    18: "LIB_RM_VERSION_MISMATCH",
    19: "IN_USE",
    20: "MEMORY",
    21: "NO_DATA",
    22: "VGPU_ECC_NOT_SUPPORTED",
    23: "INSUFFICIENT_RESOURCES",
    24: "FREQ_NOT_SUPPORTED",
    25: "ARGUMENT_VERSION_MISMATCH",
    26: "DEPRECATED",
    27: "NOT_READY",
    28: "GPU_NOT_FOUND",
    29: "INVALID_STATE",
    30: "RESET_TYPE_NOT_SUPPORTED",
    999: "UNKNOWN",
}
# The values inside one NVLink and one MIG instance -> the function that says them.
LINK_FUNCTIONS = {
    "active": "nvmlDeviceGetNvLinkState",
    "remoteBusId": "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "remoteType": "nvmlDeviceGetNvLinkRemoteDeviceType",
}
MIG_FUNCTIONS = {
    "uuid": "nvmlDeviceGetUUID",
    "name": "nvmlDeviceGetName",
    "giId": "nvmlDeviceGetGpuInstanceId",
    "ciId": "nvmlDeviceGetComputeInstanceId",
    "memoryBytes": "nvmlDeviceGetAttributes_v2",
    "start": "nvmlGpuInstanceGetInfo",
    "size": "nvmlGpuInstanceGetInfo",
}
# Answers that say "this GPU, driver or library does not have it": absences, not failures.
ABSENT = frozenset(
    {
        "NOT_SUPPORTED",
        "NOT_FOUND",
        "FUNCTION_NOT_FOUND",  # the library is too old (or the function was removed)
        "ARGUMENT_VERSION_MISMATCH",  # of the struct: the driver is too old
        "INVALID_ARGUMENT",  # a counter or field that this driver does not know yet
        "DEPRECATED",
        "NO_DATA",
        "LIBRARY_NOT_FOUND",  # of a query: libcuda, for its version; of nvmlInit it never comes here
        "VGPU_ECC_NOT_SUPPORTED",
    }
)
_OTHER_STRUCT = frozenset({"FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "INVALID_ARGUMENT"})


class NvmlError(FieldError):
    """One NVML call that failed: `function` as NVML names it, `code` the return's name (`NOT_SUPPORTED`, `GPU_IS_LOST`)."""

    def __init__(self, function: str, code: str) -> None:
        super().__init__(f"{function}: {code}")
        self.function = function
        self.code = code


class Calls(Protocol):
    """pynvml's functions by name."""

    def __call__(self, name: str, *args: object) -> Any:
        """The call's value, texts as bytes. Raises NvmlError."""

    def attempt(self, name: str, *args: object) -> Any:
        """The call's value; None when it does not have one here, `{"error": CODE}` when it failed."""

    def struct(self, name: str) -> Any:
        """A new `c_NAME`. Raises NvmlError FUNCTION_NOT_FOUND where this pynvml does not have it."""

    def pointer(self, struct: Any) -> Any:
        """A pointer to a struct."""

    def constant(self, name: str, otherwise: int) -> int:
        """One of pynvml's numbers; `otherwise` where this pynvml does not have it."""

    def code(self, value: int) -> str:
        """The name of an nvmlReturn_t."""


def _text(call: Calls, name: str, *args: object) -> str:
    value = call(name, *args)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _memory(name: str) -> "_Row":
    def ask(call: Calls, handle: Any) -> int:
        try:
            info = call("nvmlDeviceGetMemoryInfo", handle, call.constant("nvmlMemory_v2", 0x02000028))
        except NvmlError as error:
            if error.code not in _OTHER_STRUCT:
                raise
            info = call("nvmlDeviceGetMemoryInfo", handle)
        return int(getattr(info, name))

    return _Row("nvmlDeviceGetMemoryInfo_v2", ask)


def _confidential_compute(call: Calls, _: Any) -> list[int]:
    state = call("nvmlSystemGetConfComputeState")
    return [state.ccFeature, state.devToolsMode]


def _pci(call: Calls, handle: Any) -> dict[str, str]:
    info = call("nvmlDeviceGetPciInfo", handle)
    device, subsystem = info.pciDeviceId, info.pciSubSystemId
    pci = {"busId": _bus_id(info), "deviceId": f"{device >> 16:04x}"}
    if subsystem:
        pci["subsystemId"] = f"{subsystem & 0xFFFF:04x}:{subsystem >> 16:04x}"
    return pci


def _bus_id(info: Any) -> str:
    # Not `info.busId`: pynvml's structs decode texts on the way out, strictly.
    text: str = object.__getattribute__(info, "busId").decode(errors="replace")
    return bus_id(text) or text


def _sram_threshold(call: Calls, handle: Any) -> bool:
    status = call.struct("nvmlEccSramErrorStatus_v1_t")
    call("nvmlDeviceGetSramEccErrorStatus", handle, call.pointer(status))
    return bool(status.bThresholdExceeded)


def _fabric(call: Calls, handle: Any) -> dict[str, object]:
    """Newest struct first; a driver that knows only an older one says so, or says that the argument is invalid."""
    tries = (
        ("nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV"),
        ("nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV"),
        ("nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"),
    )
    for struct, function in tries:
        try:
            info = call.struct(struct)
            call(function, handle, call.pointer(info))
        except NvmlError as error:
            if error.code not in _OTHER_STRUCT:
                raise
            continue
        digits = bytes(info.clusterUuid).hex()
        cluster = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        return {"clusterUuid": cluster, "cliqueId": info.cliqueId, "state": info.state, "status": info.status}
    raise NvmlError("nvmlDeviceGetGpuFabricInfoV", "FUNCTION_NOT_FOUND")


def _field(call: Calls, handle: Any, field_id: int) -> int:
    """One field value that is a whole number. The call succeeds where the field fails: each has its own return."""
    field = call("nvmlDeviceGetFieldValues", handle, [field_id])[0]
    if field.nvmlReturn:
        raise NvmlError("nvmlDeviceGetFieldValues", call.code(field.nvmlReturn))
    # nvmlValueType_t: double, unsigned int, unsigned long, unsigned long long, signed long long, signed int, unsigned short
    member = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[field.valueType]
    return int(getattr(field.value, member))


def _nvlinks(call: Calls, handle: Any) -> list[dict[str, object]]:
    """Links 0.. up to the first that the GPU does not have (INVALID_ARGUMENT); those that are not supported are left out."""
    links: list[dict[str, object]] = []
    for number in range(call.constant("NVML_NVLINK_MAX_LINKS", 18)):
        try:
            active: object = bool(call("nvmlDeviceGetNvLinkState", handle, number))
        except NvmlError as error:
            if error.code in ("INVALID_ARGUMENT", "FUNCTION_NOT_FOUND") or (error.code in ABSENT and number == 0):
                break
            if error.code in ABSENT:
                continue
            active = {"error": error.code}
        remote = call.attempt("nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
        link = {
            "link": number,
            "active": active,
            "remoteBusId": remote if remote is None or isinstance(remote, dict) else _bus_id(remote),
            "remoteType": call.attempt("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number),
        }
        links.append({key: value for key, value in link.items() if value is not None})
    return links


def _mig_instances(call: Calls, handle: Any) -> list[dict[str, object]]:
    """The MIG devices: slots up to the maximum, of which free ones are NOT_FOUND."""
    instances = []
    for slot in range(int(call("nvmlDeviceGetMaxMigDeviceCount", handle))):
        try:
            mig = call("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
        except NvmlError as error:
            if error.code not in ABSENT:
                raise
            continue
        instances.append(_mig_instance(call, handle, mig))
    return instances


def _mig_instance(call: Calls, handle: Any, mig: Any) -> dict[str, object]:
    gi = call.attempt("nvmlDeviceGetGpuInstanceId", mig)
    attributes = call.attempt("nvmlDeviceGetAttributes_v2", mig)
    info = call.attempt("nvmlDeviceGetGpuInstanceById", handle, gi) if isinstance(gi, int) else None
    if info is not None and not isinstance(info, dict):
        info = call.attempt("nvmlGpuInstanceGetInfo", info)

    def part(value: Any, read: Callable[[Any], object]) -> object:
        return value if value is None or isinstance(value, dict) else read(value)

    instance = {
        "uuid": _decoded(call.attempt("nvmlDeviceGetUUID", mig)),
        "name": _decoded(call.attempt("nvmlDeviceGetName", mig)),
        "giId": gi,
        "ciId": call.attempt("nvmlDeviceGetComputeInstanceId", mig),
        "memoryBytes": part(attributes, lambda a: a.memorySizeMB << 20),
        "start": part(info, lambda i: i.placement.start),
        "size": part(info, lambda i: i.placement.size),
    }
    return {key: value for key, value in instance.items() if value is not None}


_PROCESS_CALLS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")


def _processes(call: Calls, handle: Any) -> list[dict[str, int]]:
    """A process of both kinds is one; the larger of its two memories. A GPU that has one kind only answers for that one."""
    found: dict[int, int | None] = {}
    absent = []
    for name in _PROCESS_CALLS:
        try:
            listed = call(name, handle)
        except NvmlError as error:
            if error.code not in ABSENT:
                raise
            absent.append(error)
            continue
        for process in listed:
            used = process.usedGpuMemory
            found[process.pid] = max(found.get(process.pid) or 0, used or 0) or None
    if len(absent) == len(_PROCESS_CALLS):
        raise absent[0]
    return [{"pid": pid} | ({"usedBytes": used} if (used := found[pid]) else {}) for pid in sorted(found)]


def _utilization(call: Calls, handle: Any) -> list[int]:
    rates = call("nvmlDeviceGetUtilizationRates", handle)
    return [rates.gpu, rates.memory]


def _decoded(value: object) -> object:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


@dataclass(frozen=True, slots=True)
class _Row:
    """`function` is NVML's own name of the call (the first, where a query takes several)."""

    function: str
    ask: Callable[[Calls, Any], object]


def _texts(name: str) -> _Row:
    return _Row(name, lambda call, handle: _text(call, name, *(() if handle is None else (handle,))))


def _plain(name: str, *args: object) -> _Row:
    return _Row(name, lambda call, handle: call(name, *(() if handle is None else (handle,)), *args))


def _several(name: str) -> _Row:
    return _Row(name, lambda call, handle: list(call(name, handle)))


_UNCORRECTED, _VOLATILE, _AGGREGATE, _DRAM, _SRAM = 1, 0, 1, 2, 7
_SINGLE_BIT, _DOUBLE_BIT = 0, 1
_FI_RECOVERY_ACTION = 230
_TEMPERATURE_GPU = 0


def _ecc_total(counter: int) -> _Row:
    return _plain("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, counter)


def _ecc_of(counter: int, location: int) -> _Row:
    return _plain("nvmlDeviceGetMemoryErrorCounter", _UNCORRECTED, counter, location)


def _retired(cause: int) -> _Row:
    name = "nvmlDeviceGetRetiredPages"
    return _Row(name, lambda call, handle: len(call(name, handle, cause)))


ROWS: Mapping[str, _Row] = {
    "driverVersion": _texts("nvmlSystemGetDriverVersion"),
    "nvmlVersion": _texts("nvmlSystemGetNVMLVersion"),
    "cudaDriverVersion": _plain("nvmlSystemGetCudaDriverVersion_v2"),
    "confidentialCompute": _Row("nvmlSystemGetConfComputeState", _confidential_compute),
    "uuid": _texts("nvmlDeviceGetUUID"),
    "name": _texts("nvmlDeviceGetName"),
    "serial": _texts("nvmlDeviceGetSerial"),
    "boardPartNumber": _texts("nvmlDeviceGetBoardPartNumber"),
    "minor": _plain("nvmlDeviceGetMinorNumber"),
    "pci": _Row("nvmlDeviceGetPciInfo_v3", _pci),
    "vbios": _texts("nvmlDeviceGetVbiosVersion"),
    "inforomImage": _texts("nvmlDeviceGetInforomImageVersion"),
    "gspFirmware": _texts("nvmlDeviceGetGspFirmwareVersion"),
    "memoryTotal": _memory("total"),
    "architecture": _plain("nvmlDeviceGetArchitecture"),
    "computeCapability": _several("nvmlDeviceGetCudaComputeCapability"),
    "memoryNumaNode": _plain("nvmlDeviceGetNumaNodeId"),
    "eccMode": _several("nvmlDeviceGetEccMode"),
    "eccVolatileTotal": _ecc_total(_VOLATILE),
    "eccVolatileSram": _ecc_of(_VOLATILE, _SRAM),
    "eccVolatileDram": _ecc_of(_VOLATILE, _DRAM),
    "eccAggregateTotal": _ecc_total(_AGGREGATE),
    "eccAggregateSram": _ecc_of(_AGGREGATE, _SRAM),
    "eccAggregateDram": _ecc_of(_AGGREGATE, _DRAM),
    "sramThresholdExceeded": _Row("nvmlDeviceGetSramEccErrorStatus", _sram_threshold),
    "remappedRows": _several("nvmlDeviceGetRemappedRows"),
    "retiredPagesSingleBit": _retired(_SINGLE_BIT),
    "retiredPagesDoubleBit": _retired(_DOUBLE_BIT),
    "retiredPagesPending": _Row(
        "nvmlDeviceGetRetiredPagesPendingStatus", lambda c, h: bool(c("nvmlDeviceGetRetiredPagesPendingStatus", h))
    ),
    "migMode": _several("nvmlDeviceGetMigMode"),
    "migInstances": _Row("nvmlDeviceGetMigDeviceHandleByIndex", _mig_instances),
    "maxPcieGeneration": _plain("nvmlDeviceGetMaxPcieLinkGeneration"),
    "maxPcieWidth": _plain("nvmlDeviceGetMaxPcieLinkWidth"),
    "nvlinks": _Row("nvmlDeviceGetNvLinkState", _nvlinks),
    "fabric": _Row("nvmlDeviceGetGpuFabricInfoV", _fabric),
    "persistence": _plain("nvmlDeviceGetPersistenceMode"),
    "computeMode": _plain("nvmlDeviceGetComputeMode"),
    "powerDefault": _plain("nvmlDeviceGetPowerManagementDefaultLimit"),
    "powerLimits": _several("nvmlDeviceGetPowerManagementLimitConstraints"),
    "powerConfigured": _plain("nvmlDeviceGetPowerManagementLimit"),
    "virtualizationMode": _plain("nvmlDeviceGetVirtualizationMode"),
    "recoveryAction": _Row("nvmlDeviceGetFieldValues", lambda call, handle: _field(call, handle, _FI_RECOVERY_ACTION)),
    "currentPcieWidth": _plain("nvmlDeviceGetCurrPcieLinkWidth"),
    "currentPcieGeneration": _plain("nvmlDeviceGetCurrPcieLinkGeneration"),
    "pcieReplayCounter": _plain("nvmlDeviceGetPcieReplayCounter"),
    "utilization": _Row("nvmlDeviceGetUtilizationRates", _utilization),
    "temperature": _plain("nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
    "powerUsage": _plain("nvmlDeviceGetPowerUsage"),
    "memoryUsed": _memory("used"),
    "processes": _Row(_PROCESS_CALLS[0] + "_v3", _processes),
}
