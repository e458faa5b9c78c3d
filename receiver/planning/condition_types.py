"""Every condition that a node can have (SPEC B3), in one place: its type, who writes it, when it is NoSchedule, what it means.

One more condition is a row here, and in its one writer. How a NoSchedule rule is decided: receiver/planning/reasons.py.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# Who sets it. `status`: the node's own reports, which may set no other; `xid`: the rules of SPEC B4 over what they count;
# `other`: a receiver of another version on the same database.
Writer = Literal["status", "inventory", "xid", "pressure", "clock", "hygiene", "acceptance", "identity", "other"]
# `as written`: as its writer has said in the row.
NoSchedule = Literal["yes", "no", "in mps pools", "in vps-host pools", "policy.links", "policy.onGpuMissing", "as written"]


@dataclass(frozen=True, slots=True)
class ConditionType:
    """A type: its one writer, when placement avoids the node while it is true, and what it means, for a person.

    `per`: whose it is: the node's as a whole, a GPU's (`deviceId`), or an NVSwitch's (`busId`).
    """

    type: str
    writer: Writer
    no_schedule: NoSchedule
    meaning: str
    per: Literal["node", "gpu", "switch"] = "node"


_ROWS = (
    ConditionType("GpuModelUnknown", "inventory", "yes", "the models table does not know a GPU: model `other`", "gpu"),
    ConditionType("GpuModelMismatch", "inventory", "yes", "a GPU is of another model than the pool's", "gpu"),
    ConditionType("GpuLost", "inventory", "yes", "NVML cannot reach a GPU that PCI still shows", "gpu"),
    ConditionType("GpuMissing", "inventory", "policy.onGpuMissing", "fewer GPUs are there than the node is to have"),
    ConditionType("GpuCountMismatch", "inventory", "no", "the number of GPUs is not the pool's expect.gpuCount"),
    ConditionType("SharingMismatch", "inventory", "no", "a GPU is in MIG mode in a pool that shares in another way", "gpu"),
    ConditionType("MigLayoutMismatch", "inventory", "no", "a GPU of a mig pool has none of its layout, or no MIG mode", "gpu"),
    ConditionType("NvLinkDegraded", "inventory", "policy.links", "fewer NVLinks of a GPU are up than at its acceptance", "gpu"),
    ConditionType("IbLinkDown", "inventory", "policy.links", "an InfiniBand port that passed acceptance is not there"),
    ConditionType(
        "FabricManagerDown", "status", "yes", "the NVLink fabric is not up: GPUs behind NVSwitches cannot work together"
    ),
    ConditionType("MPSDown", "status", "in mps pools", "the MPS control daemon does not answer"),
    ConditionType("RebootRequired", "status", "no", "something takes effect with the next boot only; the message says what"),
    ConditionType("HostManagedExternally", "status", "no", "another component owns the driver or the host's configuration"),
    ConditionType("ForeignGpuExposure", "status", "yes", "GPUs can be reached past the component that hands them out"),
    ConditionType("PodResourcesUnavailable", "status", "yes", "the kubelet does not say which pods hold GPUs"),
    ConditionType("KubernetesReleaseStuck", "status", "yes", "a GPU that Kubernetes was asked to release is still held"),
    ConditionType("KubernetesReleasesUnreadable", "status", "yes", "it cannot be told which GPUs Kubernetes has released"),
    ConditionType("KubernetesReleased", "status", "no", "the node is released from Kubernetes"),
    ConditionType("KubernetesTaintsDrift", "status", "no", "the node's Kubernetes taints are not those it should have"),
    ConditionType("NvmlUnavailable", "status", "yes", "the NVIDIA driver is there and NVML does not answer"),
    ConditionType("KernelLogUnavailable", "status", "no", "bcd cannot follow the kernel log: XIDs may go unseen"),
    ConditionType("PcieReplayHigh", "status", "no", "a GPU's PCIe link replays more than it should", "gpu"),
    ConditionType("CpuPressure", "pressure", "in vps-host pools", "work waits for CPUs"),
    ConditionType("MemoryPressure", "pressure", "in vps-host pools", "work waits for memory"),
    ConditionType("IoPressure", "pressure", "in vps-host pools", "work waits for disks"),
    ConditionType("CpuSteal", "pressure", "in vps-host pools", "the hypervisor beneath takes CPU time away"),
    ConditionType("ClockSkew", "clock", "no", "the node's clock differs from the receiver's by more than 5 s"),
    ConditionType("DaemonOutdated", "hygiene", "yes", "bcd is older than the oldest version that is supported"),
    ConditionType("ProtocolUnsupported", "hygiene", "yes", "bcd speaks another protocol than this receiver"),
    ConditionType("CertificateExpiring", "hygiene", "yes", "the node's certificate ends soon, and was not renewed"),
    ConditionType("InventoryStale", "hygiene", "yes", "the last collection is too long ago"),
    ConditionType("NotReporting", "hygiene", "yes", "no status report comes any more"),
    ConditionType("AcceptanceFailed", "acceptance", "yes", "the node did not pass its checks"),
    ConditionType("DuplicateIdentity", "identity", "yes", "another node has this machine's hardware key, GPU or certificate"),
)
XID = ConditionType("Xid<n>", "xid", "as written", "the driver reported this XID of a GPU", "gpu")
SXID = ConditionType("SXid<n>", "xid", "as written", "the driver reported this SXid of an NVSwitch", "switch")

NODE_CONDITION_TYPES: Mapping[str, ConditionType] = {row.type: row for row in (*_ROWS, XID, SXID)}
DAEMON_NODE_CONDITIONS: Mapping[str, ConditionType] = {row.type: row for row in _ROWS if row.writer == "status"}
XID_TYPE = re.compile(r"(S?)Xid(0|[1-9][0-9]{0,9})")


def condition_type(name: str) -> ConditionType:
    """The row of a type as conditions have it. One that is in no row is left as it is: while receivers are being upgraded, a
    newer one writes what this one does not know.

    >>> condition_type("Xid79").type
    'Xid<n>'
    """
    match = XID_TYPE.fullmatch(name)
    if match is not None:
        return SXID if match[1] else XID
    return NODE_CONDITION_TYPES.get(name) or ConditionType(name, "other", "as written", "this receiver does not know it")


def types_of(writer: Writer) -> frozenset[str]:
    """The types that a writer sets (`xid` has patterns)."""
    return frozenset(row.type for row in NODE_CONDITION_TYPES.values() if row.writer == writer)
