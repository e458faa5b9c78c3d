"""Labels of a node (SPEC B2, "Labels", and B1, driver labels).

Source `inventory`: what its sections say, exactly; source `system`: the drivers that its Hello advertises. A key that either
tells is not an operator's, also when an operator wrote it first: a selector must be able to believe it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.arm_cores import core
from google.protobuf.message import Message

from receiver.planning.attributes import attributes, driver_version, fabric, gib
from receiver.planning.view import Draft, Facts, Label
from receiver.values import Driver, Json, Payload

Sections = Mapping[str, Message]

CHARACTERS = 63  # of a value (SPEC B11): a longer one is left out, for a shortened one would be another's
SYSTEM_PREFIX = "bc.dev/"
MIXED = "mixed"
KINDS = 32  # of a driver

_MARKS = re.compile(r"\((?:R|TM)\)|[®™]", re.IGNORECASE)
_OUTSIDE = re.compile(r"[^A-Za-z0-9._]+")
_DRIVER_ID = re.compile(r"[a-z0-9._-]+")
_KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")


def plan(facts: Facts, draft: Draft) -> None:
    """The node's labels of source `inventory` are those that its sections make. To run behind devices.plan."""
    planned = {one.id: one.attributes for one in draft.devices.values() if one.present and not one.lost and not one.assigned}
    wanted = inventory_labels(facts.sections or {}, planned)
    for key, label in list(draft.labels.items()):
        if label.source == "inventory" and key not in wanted:
            del draft.labels[key]
    for key, value in wanted.items():
        draft.put("labels", Label(key, value, "inventory"))


def inventory_labels(sections: Sections, planned: Mapping[str, Payload] = MappingProxyType({})) -> dict[str, str]:
    """Key to value. A section that never came, or does not tell a thing, makes no label of it.

    `planned`: the attributes that these sections make of GPUs, by UUID, as far as somebody has made them already.
    """
    told: dict[str, Any] = dict(sections)
    if "gpus" in sections:
        section, memory = cast(pb.GpusSection, sections["gpus"]), cast("pb.MemorySection | None", sections.get("memory"))
        told["gpus"] = _Gpus(section, tuple(planned.get(gpu.uuid) or attributes(gpu, section, memory) for gpu in section.gpus))
    made = {key: _text(tells(told[name])) for name, rows in LABELS.items() if name in told for key, tells in rows.items()}
    return {key: text for key, text in made.items() if text and len(text) <= CHARACTERS}


def driver_labels(drivers: Iterable[Driver]) -> dict[str, str]:
    """What a Hello's drivers are labelled as: id to version, and a label a kind of work that they take.

    >>> driver_labels([Driver("libvirt-kvm", "10.0.0", ("vm",))])
    {'bc.dev/driver.libvirt-kvm': '10.0.0', 'bc.dev/driver-kind.libvirt-kvm.vm': '1'}
    """
    made: dict[str, str] = {}
    for driver in drivers:
        key = f"{SYSTEM_PREFIX}driver.{driver.id}"
        if key in made or not _DRIVER_ID.fullmatch(driver.id):
            continue
        made[key] = driver.version[:CHARACTERS] or "unknown"
        kinds = sorted({kind for kind in driver.kinds if _KIND.fullmatch(kind)})
        made |= {f"{SYSTEM_PREFIX}driver-kind.{driver.id}.{kind}": "1" for kind in kinds[:KINDS]}
    return made


def model_words(name: str) -> str:
    """A processor's name as a label's value, never shortened: memory snapshots restore only where it is equal.

    >>> model_words("AMD EPYC 9654 96-Core Processor"), model_words("Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz")
    ('AMD-EPYC-9654-96-Core-Processor', 'Intel-Xeon-CPU-E5-2690-v4-2.60GHz')
    """
    return _OUTSIDE.sub("-", _MARKS.sub("", name)).strip("-")


def _text(value: Json) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _told(message: Message, name: str) -> Json:
    return getattr(message, name) if message.HasField(name) else None


# ---- gpus


@dataclass(frozen=True, slots=True)
class _Gpus:
    """The section, and the attributes of each GPU in it."""

    section: pb.GpusSection
    attributes: tuple[Payload, ...]


def _count(gpus: _Gpus) -> int:
    """GPUs listed, and GPU functions on PCI at whose place none is: another driver has them, or they did not come up."""
    listed = {gpu.bus_id for gpu in gpus.section.gpus}
    functions = (one for one in gpus.section.pci_functions if one.class_code.startswith("03") and not one.virtual_function)
    return len(gpus.section.gpus) + sum(1 for one in functions if one.bus_id not in listed)


def _one_of(values: Iterable[Json]) -> Json:
    """What the GPUs that tell it agree on."""
    told = {_text(value) for value in values} - {""}
    return MIXED if len(told) > 1 else next(iter(told), None)


def _attribute(name: str) -> Callable[[_Gpus], Json]:
    return lambda gpus: _one_of(one.get(name) for one in gpus.attributes)


def _fabric_domain(gpus: _Gpus) -> Json:
    """Of all GPUs or of none: a fabric that is up in part is no place for a job that needs it."""
    domains = [fabric(gpu) for gpu in gpus.section.gpus]
    return _one_of(f"{one[0]}.{one[1]}" for one in domains if one) if all(domains) else None


# ---- cpu


def _cpu_model(section: pb.CpuSection) -> str:
    """On ARM what the MIDR says, else what the section has (there the firmware's name)."""
    known = core(section.midr)
    return model_words((known and known.model) or section.model)


# One more label costs a row: the section it comes from, its key, and how the section tells it.
LABELS: Mapping[str, Mapping[str, Callable[..., Json]]] = {
    "gpus": {
        "gpu.present": lambda gpus: _count(gpus) > 0,
        "gpu.count": _count,
        "gpu.product": _attribute("gpuProduct"),
        "gpu.model": _attribute("gpuModel"),
        "gpu.vramGiB": _attribute("vramGiB"),
        "cuda.driver.major": lambda gpus: gpus.section.driver.cuda_version.partition(".")[0],
        "nvidia.driver.version": lambda gpus: driver_version(gpus.section),
        "mig.capable": _attribute("migCapable"),
        "fabric.domain": _fabric_domain,
    },
    "cpu": {
        "cpu.vendor": lambda cpu: cpu.vendor,
        "cpu.model": _cpu_model,
        "cpu.sockets": lambda cpu: _told(cpu, "sockets"),
        "cpu.cores": lambda cpu: _told(cpu, "cores"),
        "cpu.threads": lambda cpu: _told(cpu, "threads"),
        "numa.nodes": lambda cpu: len(cpu.numa_nodes) or None,
    },
    "memory": {"memory.GiB": lambda memory: gib(memory.total_bytes)},
    "os": {
        "cpu.arch": lambda os: os.architecture,
        "os.distro": lambda os: os.distro_id,
        "os.kernel": lambda os: os.kernel_release,
        "kvm.available": lambda os: os.kvm.available if os.HasField("kvm") else None,
    },
}
