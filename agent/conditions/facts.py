"""What the conditions are judged from, as values, and how it is read from the host.

Most of it is a look at a few small files. Two readings cost more: VPD (a slow read over PCI, once a boot) and the search for a
process (once, then its `comm` alone is looked at). Both are made only on a host where the answer matters.
"""

import contextlib
import re
from dataclasses import dataclass, field

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors import Files, gpu_pci
from agent.conditions.external import Kubernetes
from agent.conditions.reboot import Waiting
from agent.errors import Unreadable
from agent.host import Host
from agent.probe import History
from agent.sections import Failed
from agent.usage import FABRIC_MANAGER, fabric_manager

FABRIC_LOG = "/var/log/fabricmanager.log"
_DEVICES = "/sys/bus/pci/devices"
_LOG_TAIL = 256 << 10  # bytes
# `[May 21 2025 09:14:03] [INFO] [tid 2311] Fabric Manager version 570.133.20 is running with the following configuration options`
_LOG_VERSION = re.compile(rb"Fabric Manager version\W*(?:is\W+)?(\d+\.\d+(?:\.\d+)*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Manager:
    """The fabric manager, looked for only where GPUs need one and do not tell their fabric. `switches`: what it manages.

    `versions` are its package's and its log's: after an upgrade on disk that waits for a reboot, the one that runs is the log's.
    """

    switches: tuple[str, ...]
    pid: int | None = None
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it. `gpus` is None when the section is missing: `failed` says why, None: it was not collected yet."""

    uptime: float = 0.0
    gpus: pb.GpusSection | None = None
    failed: Failed | None = None
    manager: Manager | None = None
    history: History = field(default_factory=History)
    probes: bool = True  # the health probe is on
    waiting: Waiting = field(default_factory=Waiting)
    managed_by: tuple[str, ...] = ()  # what else manages this host, in words
    mps_error: str | None = None  # why the MPS control does not answer; empty: it does; None: MPS is not on
    kubernetes: Kubernetes | None = None  # None: not a Kubernetes worker

    @property
    def expects_nvml(self) -> bool:
        """Whether a GPU is there that should answer NVML."""
        return self.gpus is not None and any(gpu_pci.expects_nvml(function) for function in self.gpus.pci_functions)


class Fabric:
    """Looks for the fabric manager, and remembers of this boot what need not be read again."""

    def __init__(self) -> None:
        self._bridges: tuple[str, tuple[str, ...]] | None = None  # boot id, slots
        self._pid: int | None = None

    def manager(self, host: Host, boot_id: str, section: pb.GpusSection | None, package: str | None) -> Manager | None:
        """The manager; None where no one needs to ask. `package` is the version of its package, where there is one."""
        if section is None or section.HasField("error") or any(gpu.fabric.state for gpu in section.gpus):
            return None
        if not any(gpu_pci.is_gpu(function) for function in section.pci_functions):
            return None
        switches = tuple(f.bus_id for f in section.pci_functions if f.class_code.startswith("0680") and not gpu_pci.is_stub(f))
        switches = switches or self._with_bridges(host, boot_id)
        if not switches:
            return None
        self._pid = self._find(host)
        told = (package, log_version(_tail(host, FABRIC_LOG))) if self._pid else ()
        return Manager(switches, self._pid, tuple(sorted({version for version in told if version})))

    def _with_bridges(self, host: Host, boot_id: str) -> tuple[str, ...]:
        if self._bridges is None or self._bridges[0] != boot_id:
            self._bridges = (boot_id, bridges(host))
        return self._bridges[1]

    def _find(self, host: Host) -> int | None:
        if self._pid is not None and _comm(host, self._pid) == FABRIC_MANAGER:
            return self._pid
        return fabric_manager(host)


def bridges(host: Host) -> tuple[str, ...]:
    """The ConnectX functions that lead to NVSwitches, by slot: from B200 on these are no PCI functions of their own.

    Their VPD's vendor field says `MLX:...:MODL=CX7:SMDL=SW_MNG`. InfiniBand functions (class 0207) of vendor 15b3 are looked at.
    """
    files = Files(host)
    found = []
    for slot in files.names(_DEVICES):
        path = f"{_DEVICES}/{slot}"
        if files.value(f"{path}/vendor") != "0x15b3" or not (files.value(f"{path}/class") or "").startswith("0x0207"):
            continue
        if "vfio" not in (files.link(f"{path}/driver") or "") and b"SW_MNG" in (files.bytes(f"{path}/vpd", 64 << 10) or b""):
            found.append(slot)
    return tuple(found)


def log_version(log: bytes) -> str | None:
    """The version in the fabric manager's log: that of its last start."""
    found = _LOG_VERSION.findall(log)
    return found[-1].decode() if found else None


def _tail(host: Host, path: str) -> bytes:
    with contextlib.suppress(Unreadable):
        return host.read_at(path, max(0, host.stat(path).st_size - _LOG_TAIL), _LOG_TAIL)
    return b""


def _comm(host: Host, pid: int) -> str:
    with contextlib.suppress(Unreadable):
        return host.read(f"/proc/{pid}/comm").decode(errors="replace").strip()
    return ""
