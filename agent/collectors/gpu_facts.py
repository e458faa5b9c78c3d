"""One GPU's NVML answers as its message: a row a fact. What is absent for NVML is absent here (A1).

Both real and recorded answers come through here, so every oddity is judged in one place: `N/A`, all-ones, damaged texts,
answers of another type. A failure that is no absence (no permission, unknown, timeout) goes by the function's name into the
GPU's `unreadable`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.bus_id import bus_id

from agent.errors import FieldError
from agent.nvml import Nvml, NvmlError, function_of
from agent.nvml_queries import ABSENT, LINK_FUNCTIONS, MIG_FUNCTIONS, RETURNS

LOST = frozenset({"GPU_IS_LOST", "RESET_REQUIRED"})
AMPERE, HOPPER = 7, 9
# Read at the beginning and again at the end of a collection: two answers that differ fail the section.
IDENTITY = ("uuid", "bus_id", "serial", "name", "board_part_number", "device_id", "subsystem_id")

_NO_TEXT = frozenset(
    {"", "n/a", "[n/a]", "not available", "not supported", "[not supported]", "unknown error", "[unknown error]"}
)
_ARCHITECTURES = {
    2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper",
    10: "blackwell", 13: "rubin",
}  # fmt: skip
_COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
_VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host-vgpu", 4: "host-vsga"}
_RECOVERY = {
    0: "none", 1: "gpu-reset", 2: "node-reboot", 3: "drain-p2p", 4: "drain-and-reset",
    5: "recover-imex-domain", 6: "bus-reset", 7: "system-reboot",
}  # fmt: skip
_PEERS = {0: "gpu", 1: "ibm-npu", 2: "switch"}
_FABRIC_STATES = {1: "not-started", 2: "in-progress", 3: "completed"}  # 0 is not supported
_COMPLETED = 3


class Lost(FieldError):
    """NVML cannot reach this GPU any more: a call of its says so, or its UUID cannot be had."""


@dataclass
class Device:
    """The answers of one GPU, with the functions that failed for it."""

    nvml: Nvml
    index: int
    failures: set[str] = field(default_factory=set)

    def ask(self, query: str) -> object:
        """The answer; None when it is absent or failed (then remembered). Raises Lost."""
        try:
            return self.nvml.device(self.index, query)
        except NvmlError as error:
            self._judge(error.function, error.code)
            return None

    def part(self, answer: Mapping[str, object], key: str, functions: Mapping[str, str]) -> object:
        """A value inside an answer, which may be `{"error": CODE}` itself. Raises Lost."""
        value = answer.get(key)
        if isinstance(value, dict) and "error" in value:
            self._judge(functions[key], str(value["error"]))
            return None
        return value

    def _judge(self, function: str, code: str) -> None:
        if code not in ABSENT:
            self.failures.add(function)
        if code in LOST:
            raise Lost(f"{function}: {code}")


# ---------------------------------------------------------------- what an answer means: the value, or None


def text(answer: object) -> str | None:
    """A text up to its NUL, without blanks at its ends. Words for "none" and bytes that were no text are None."""
    if not isinstance(answer, str):
        return None
    value = answer.split("\0")[0].encode(errors="replace").decode().strip()
    return None if value.strip("\ufffd").lower() in _NO_TEXT else value


def number(answer: object, bits: int = 32) -> int | None:
    """An unsigned number of fewer than `bits` bits; negative, all-ones and other types are None."""
    if isinstance(answer, bool) or not isinstance(answer, int):
        return None
    return answer if 0 <= answer < (1 << bits) - 1 else None


def number64(answer: object) -> int | None:
    """A counter or size of 64 bits."""
    return number(answer, 64)


def node(answer: object) -> int | None:
    """A NUMA node: -1 is none."""
    return number(answer, 31)


def flag(answer: object) -> bool | None:
    """0 or 1."""
    return bool(answer) if answer in (0, 1) and isinstance(answer, int) else None


def word(words: Mapping[int, str]) -> Callable[[object], str | None]:
    """One of NVML's constants as a word; `unknown-7` for a newer one."""

    def read(answer: object) -> str | None:
        value = number(answer)
        return None if value is None else words.get(value, f"unknown-{value}")

    return read


def cuda_version(answer: object) -> str | None:
    """12040 is "12.4"."""
    value = number(answer)
    return f"{value // 1000}.{value % 1000 // 10}" if value else None


@dataclass(frozen=True, slots=True)
class Fact:
    """A query whose answer is one value, or a list of as many as there are `fields` (paths within Gpu)."""

    query: str
    fields: tuple[str, ...]
    read: Callable[[object], object]


FACTS = (
    Fact("minor", ("minor",), number),
    Fact("vbios", ("vbios",), text),
    Fact("inforomImage", ("inforom_image",), text),
    Fact("gspFirmware", ("gsp_firmware",), text),
    Fact("memoryTotal", ("vram_bytes",), lambda answer: number64(answer) or None),
    Fact("memoryNumaNode", ("memory_numa_node",), node),
    Fact("eccMode", ("ecc.current", "ecc.pending"), flag),
    Fact("eccVolatileTotal", ("ecc.volatile.total",), number64),
    Fact("eccVolatileSram", ("ecc.volatile.sram",), number64),
    Fact("eccVolatileDram", ("ecc.volatile.dram",), number64),
    Fact("eccAggregateTotal", ("ecc.aggregate.total",), number64),
    Fact("eccAggregateSram", ("ecc.aggregate.sram",), number64),
    Fact("eccAggregateDram", ("ecc.aggregate.dram",), number64),
    Fact("sramThresholdExceeded", ("ecc.sram_threshold_exceeded",), flag),
    Fact("retiredPagesSingleBit", ("retired_pages.single_bit",), number),
    Fact("retiredPagesDoubleBit", ("retired_pages.double_bit",), number),
    Fact("retiredPagesPending", ("retired_pages.pending",), flag),
    Fact("maxPcieGeneration", ("pcie_max.generation",), lambda answer: number(answer) or None),
    Fact("persistence", ("persistence",), flag),
    Fact("computeMode", ("compute_mode",), word(_COMPUTE_MODES)),
    Fact("powerDefault", ("power.default_mw",), number),
    Fact("powerLimits", ("power.min_mw", "power.max_mw"), number),
    Fact("powerConfigured", ("power.configured_mw",), number),
    Fact("virtualizationMode", ("virtualization_mode",), word(_VIRTUALIZATION)),
    Fact("recoveryAction", ("recovery_action",), word(_RECOVERY)),
)


_PROBED = frozenset(
    {
        "eccMode",  # says whether row remapping is there
        "eccVolatileTotal", "eccVolatileSram", "eccVolatileDram", "sramThresholdExceeded",
        "retiredPagesPending", "recoveryAction",
    }
)  # fmt: skip


def identify(device: Device, gpu: pb.Gpu) -> None:
    """The fields IDENTITY, into `gpu`. Raises Lost, also when the UUID is there and cannot be read."""
    _put(gpu, "uuid", text(device.ask("uuid")))
    pci = device.ask("pci")
    if isinstance(pci, dict):
        _put(gpu, "bus_id", bus_id(text(pci.get("busId")) or ""))
        _put(gpu, "device_id", text(pci.get("deviceId")))
        _put(gpu, "subsystem_id", text(pci.get("subsystemId")))
    if not gpu.uuid and function_of("uuid") in device.failures:
        raise Lost(f"{function_of('uuid')} failed")
    for query, name in (("name", "name"), ("serial", "serial"), ("boardPartNumber", "board_part_number")):
        _put(gpu, name, text(device.ask(query)))


def describe(device: Device, gpu: pb.Gpu, confidential_compute: str | None) -> None:
    """Everything else that NVML knows of the GPU, into `gpu`. Raises Lost."""
    _facts(device, gpu, FACTS)
    answer = device.ask("architecture")
    generation = number(answer) or 0
    _put(gpu, "architecture", word(_ARCHITECTURES)(answer))
    _capability(gpu, device.ask("computeCapability"))
    _row_remap(gpu, device, generation)
    _mig(gpu, device)
    _nvlinks(gpu, device)
    _fabric(gpu, device.ask("fabric"))
    if confidential_compute is not None and generation >= HOPPER:
        gpu.confidential_compute = confidential_compute


def probe(device: Device, gpu: pb.Gpu) -> None:
    """Of `describe` only what a fault moves (A6): the volatile ECC counts, remap and recovery flags, the fabric. Raises Lost."""
    _facts(device, gpu, (fact for fact in FACTS if fact.query in _PROBED))
    _row_remap(gpu, device, number(device.ask("architecture")) or 0)
    _fabric(gpu, device.ask("fabric"))


def _facts(device: Device, gpu: pb.Gpu, facts: Iterable[Fact]) -> None:
    for fact in facts:
        answer = device.ask(fact.query)
        values = answer if isinstance(answer, (list, tuple)) else [answer]
        if len(values) == len(fact.fields):
            for path, value in zip(fact.fields, values, strict=True):
                _put(gpu, path, fact.read(value))


def _put(message: object, path: str, value: object) -> None:
    *parents, name = path.split(".")
    if value is not None:
        for parent in parents:
            message = getattr(message, parent)
        setattr(message, name, value)


def _capability(gpu: pb.Gpu, answer: object) -> None:
    numbers = [number(n) for n in answer] if isinstance(answer, (list, tuple)) else []
    if len(numbers) == 2 and None not in numbers and any(numbers):
        gpu.compute_capability = f"{numbers[0]}.{numbers[1]}"


def _row_remap(gpu: pb.Gpu, device: Device, generation: int) -> None:
    if not gpu.ecc.HasField("current") or generation < AMPERE:  # the call succeeds on cards without the feature, with zeros
        return
    answer = device.ask("remappedRows")
    if not isinstance(answer, (list, tuple)) or len(answer) != 4:
        return
    correctable, uncorrectable = number(answer[0]), number(answer[1])
    pending, failure = flag(answer[2]), flag(answer[3])
    if correctable is not None and uncorrectable is not None and pending is not None and failure is not None:
        remap = pb.RowRemap(correctable=correctable, uncorrectable=uncorrectable, pending=pending, failure=failure)
        gpu.row_remap.CopyFrom(remap)


def _mig(gpu: pb.Gpu, device: Device) -> None:
    """A GPU that has no MIG says NOT_SUPPORTED, which is `capable: false`; one that does not tell has no `mig` at all."""
    try:
        answer = device.nvml.device(device.index, "migMode")
    except NvmlError as error:
        if error.code == "NOT_SUPPORTED":
            gpu.mig.capable = False
            gpu.mig.SetInParent()
            return
        answer = device.ask("migMode")
    modes = [flag(mode) for mode in answer] if isinstance(answer, (list, tuple)) else []
    if len(modes) != 2:
        return
    gpu.mig.capable = True
    _put(gpu, "mig.current", modes[0])
    _put(gpu, "mig.pending", modes[1])
    if modes[0]:
        answers = device.ask("migInstances")
        found = [_mig_instance(device, a) for a in answers if isinstance(a, dict)] if isinstance(answers, list) else []
        gpu.mig.instances.extend(sorted((i for i in found if i.uuid), key=lambda i: i.uuid))


def _mig_instance(device: Device, answer: Mapping[str, object]) -> pb.MigInstance:
    """The profile is the end of the name: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`, `... MIG 1c.3g.20gb`."""
    parts = {key: device.part(answer, key, MIG_FUNCTIONS) for key in MIG_FUNCTIONS}
    instance = pb.MigInstance(uuid=text(parts["uuid"]) or "")
    _, separator, profile = (text(parts["name"]) or "").rpartition(" MIG ")
    _put(instance, "profile", profile if separator else None)
    _put(instance, "gpu_instance_id", number(parts["giId"]))
    _put(instance, "compute_instance_id", number(parts["ciId"]))
    _put(instance, "memory_bytes", number64(parts["memoryBytes"]) or None)
    start, size = number(parts["start"]), number(parts["size"])
    if start is not None and size:
        instance.placement.start, instance.placement.size = start, size
    return instance


def _nvlinks(gpu: pb.Gpu, device: Device) -> None:
    """A link whose state cannot be read is left out: it is neither up nor down."""
    answers = device.ask("nvlinks")
    for answer in answers if isinstance(answers, list) else []:
        if isinstance(answer, dict) and (link := number(answer.get("link"))) is not None:
            active = flag(device.part(answer, "active", LINK_FUNCTIONS))
            if active is None:
                continue
            message = pb.NvLink(link=link, active=active)
            _put(message, "peer_bus_id", bus_id(text(device.part(answer, "remoteBusId", LINK_FUNCTIONS)) or ""))
            kind = number(device.part(answer, "remoteType", LINK_FUNCTIONS))
            _put(message, "peer_type", None if kind is None else _PEERS.get(kind))
            gpu.nvlinks.append(message)
    gpu.nvlinks.sort(key=lambda link: link.link)


def _fabric(gpu: pb.Gpu, answer: object) -> None:
    """Cluster and clique are zeros where there is no fabric beyond the host: then both are absent, as nvidia-smi's N/A."""
    if not isinstance(answer, dict) or not (state := number(answer.get("state"))):
        return
    gpu.fabric.state = _FABRIC_STATES.get(state, f"unknown-{state}")
    if state != _COMPLETED:
        return
    cluster = text(answer.get("clusterUuid")) or ""
    if cluster.strip("0-"):
        gpu.fabric.cluster_uuid = cluster
        _put(gpu, "fabric.clique_id", number(answer.get("cliqueId")))
    status = number(answer.get("status"))
    if status is not None:
        gpu.fabric.status = RETURNS.get(status, f"ERROR_{status}") if status else "success"
