"""What would end an obstacle (planning/why.py), in words that say what to type or to wait for. One more type of condition
costs a row of CONDITIONS."""

from collections.abc import Mapping

from receiver.planning.condition_types import condition_type
from receiver.planning.findings import FINDINGS, REPLACE
from receiver.planning.remedies import action_of
from receiver.planning.verdicts import is_switch
from receiver.planning.view import ConditionRow, Health, Run

REPORTED = "; bcd looks again by itself, and reports that it is over"
UNKNOWN = "its writer, a receiver of another version, says that it is over"
BOOKING, BOOKINGS = "its booking ends", "their bookings end"
FROZEN = "the node's own reports say so again: it was so when its lease began"
OUT: Mapping[str, str] = {
    "retired": "a join with a token that is bound to it",
    "deleted": "nothing: only its tombstone is left",
}

# Type of a condition (but XIDs: of_condition) -> what ends it, and so what to do. {adopt}, {move}, {reboot}, {resolve}: what to
# type; {other}: the other node.
CONDITIONS: Mapping[str, str] = {
    "GpuModelUnknown": (
        "a receiver whose models table knows the name (better-compute gpu-name): a newer version, or a newer table in "
        "its setting models; the node is then planned again"
    ),
    "GpuModelMismatch": "a pool of its model: {move}; or another gpuModel of this one: pools.set",
    "GpuLost": "an inventory that shows the GPU again: reboot the node ({reboot}); have the GPU looked at if it is lost again",
    "GpuMissing": (
        "the GPUs are there again: the message names them; or what is there now is taken as complete: "
        "{adopt}, or pools.set expect.gpuCount"
    ),
    "GpuCountMismatch": (
        "the number is the pool's: {move}, or pools.set expect.gpuCount; where GPUs are missing, GpuMissing says which"
    ),
    "SharingMismatch": (
        "MIG mode is off: nvidia-smi -mig 0 on the node; or a pool that shares by MIG: {move}, or pools.set sharing"
    ),
    "MigLayoutMismatch": "the GPU has instances of the pool's mig.layout: nvidia-mig-manager or nvidia-smi mig on the node",
    "NvLinkDegraded": (
        "the links are up again: reset the GPUs, or look at the NVSwitch; or {adopt} takes what is there as the new baseline"
    ),
    "IbLinkDown": (
        "the ports are there again: look at the adapter and its driver; or {adopt} takes what is there as the new baseline"
    ),
    "FabricManagerDown": "nvidia-fabricmanager runs on the node, of the driver's version" + REPORTED,
    "MPSDown": "the MPS control daemon answers on the node: start nvidia-cuda-mps-control -d" + REPORTED,
    "RebootRequired": "a reboot, when it suits: {reboot}",
    "HostManagedExternally": "that component is gone, or its marker file; until then, upgrade the driver through it",
    "ForeignGpuExposure": "the exposure that the message names is taken away" + REPORTED,
    "PodResourcesUnavailable": (
        "the kubelet's pod-resources socket answers: see that the kubelet runs, and bcd's setting kubernetes.socket" + REPORTED
    ),
    "KubernetesReleaseStuck": "Kubernetes lets go of the GPU that the message names: end the pods that have it" + REPORTED,
    "KubernetesReleasesUnreadable": (
        "the releases can be read again: see the component that wrote this into conditions.d/ on the node" + REPORTED
    ),
    "KubernetesReleased": "it is given back to Kubernetes; nothing is wrong",
    "KubernetesTaintsDrift": "the taints that the message names are set again: see who changes them" + REPORTED,
    "NvmlUnavailable": "NVML answers (`bcd doctor` on the node says why it does not)" + REPORTED,
    "KernelLogUnavailable": (
        "bcd can read /dev/kmsg: it needs CAP_SYSLOG, or kernel.dmesg_restrict=0 (`bcd doctor` on the node says what is "
        "in the way)" + REPORTED
    ),
    "PcieReplayHigh": (
        "fewer than 1,000 replays an hour: reseat the GPU, its riser and cables; if that does not help, replace them" + REPORTED
    ),
    "CpuPressure": "cpu pressure stays below half of pressure.raise: move work off the node",
    "MemoryPressure": "memory pressure stays below half of pressure.raise: move work off the node",
    "IoPressure": "io pressure stays below half of pressure.raise: move work off the node",
    "CpuSteal": "steal stays below half of pressure.raise: the hypervisor beneath is overcommitted",
    "ClockSkew": (
        "the clocks agree: see that NTP runs on the node, and on the receivers (`bcd doctor` on the node shows the difference)"
    ),
    "DaemonOutdated": "a newer bcd runs on the node: install the package of the receivers' version",
    "ProtocolUnsupported": (
        "a bcd that speaks this receiver's protocol runs on the node: install the package of the receivers' version"
    ),
    "CertificateExpiring": "bcd renews its certificate (`bcd status` on the node says why it does not)",
    "InventoryStale": "bcd collects again: `bcd refresh` on the node says why it does not",
    "NotReporting": "status reports come again: is the machine up, and bcd on it connected (`bcd status`)?",
    "AcceptanceFailed": "{adopt} begins another attempt",
    "DuplicateIdentity": "{other} lets go of it, or {resolve}",
}
# Type and reason, where that reason ends otherwise. {join}: what to type.
_BY_REASON: Mapping[tuple[str, str], str] = {
    ("DuplicateIdentity", "DuplicateSession"): "a join with a token that is bound to the node ({join}), or {resolve}"
}
# By its reason: what can be decided of a DuplicateIdentity (apply/identity.py).
_DECISIONS: Mapping[str, str] = {"HardwareKey": "keep|reject|distinct"}

# What a device is in -> by whom, what that means, what ends it.
OF_DEVICE: Mapping[str, tuple[str, str, str]] = {
    "missing": (
        "inventory",
        "neither NVML nor PCI shows it; it is kept for its bookings",
        "it is there again, or its bookings end",
    ),
    "lost": ("inventory", "NVML cannot reach it", "an inventory that shows it again: reboot the node"),
    "assigned": ("inventory", "it is bound to a virtual machine's driver", "it is bound to the nvidia driver again"),
    "partitionPending": ("inventory", "its MIG mode is to change", "a reset of the GPU or a reboot, in which the mode changes"),
    "draining": ("remediation", "a repair waits for its bookings to end, or runs", "the repair ends"),
}
# An atom's reason that is not its device's -> what that means.
OF_ATOM: Mapping[str, str] = {
    "MigInstanceGone": "its MIG instance is not there any more",
    "Retiring": "it is not planned any more, and stays for its booking",
    "BookedOtherwise": "the GPU is still booked in the way it was shared before",
}
_ACTIONS: Mapping[str, str] = {
    "none": "",
    "restart-app": "restart the application",
    "inspect": "have it looked at",
    "drain-and-reset": "drain the node and reset its GPUs",
    "reset-gpu": "reset the GPU",
    "reboot-node": "reboot the node",
    REPLACE: "replace the GPU",
}


def command(method: str, **keys: str) -> str:
    """What to type.

    >>> command("nodes.adopt", nodeId="node_1", reason="...")
    'better-compute api nodes.adopt nodeId=node_1 reason=...'
    """
    return " ".join(["better-compute api", method, *(f"{key}={value}" for key, value in keys.items())])


def of_run(run_id: str) -> str:
    """What ends a repair."""
    cancel = command("remediation.cancel", runId=run_id, reason="...")
    return f"the repair ends ({command('remediation.get', runId=run_id)}); or {cancel}"


def of_repair(run: Run) -> str:
    """What ends a fault that a repair is for: its success."""
    state = f"{run.state}: {run.reason}" if run.reason else run.state
    return f"the {run.kind} that is {state}; {command('remediation.get', runId=run.id)}"


def adopt(node_id: str) -> str:
    """Another attempt at acceptance."""
    return command("nodes.adopt", nodeId=node_id, reason="...")


def of_condition(node_id: str, row: ConditionRow) -> str:
    """What ends a condition."""
    if condition_type(row.type).writer == "xid":
        switch = {"nodeId": node_id} if is_switch(row.type) else {}
        cleared = command("devices.clear", deviceId=row.device_id, **switch, reason="...")
        return _repaired(str(row.evidence.get("action", "none")), cleared)
    text = _BY_REASON.get((row.type, row.reason)) or CONDITIONS.get(row.type, UNKNOWN)
    return text.format(
        join=command("joinTokens.create", nodeId=node_id, reason="..."),
        adopt=adopt(node_id),
        reboot=command("nodes.reboot", nodeId=node_id, reason="..."),
        move=command("nodes.move", nodeId=node_id, poolId="...", reason="..."),
        resolve=_resolve(node_id, row),
        other=row.evidence.get("otherNode") or "the other node",
    )


def _resolve(node_id: str, row: ConditionRow) -> str:
    action = _DECISIONS.get(row.reason, "keep|reject")
    resolved = command("nodes.resolveIdentity", nodeId=node_id, action=action, reason="...")
    moved = command("devices.transfer", deviceId=row.device_id, toNode=node_id, reason="...")
    return f"{moved}, or {resolved}" if row.reason == "DeviceOwned" else resolved


def of_health(row: Health) -> str:
    """What closes a fault or finding."""
    clear = command("devices.clear", deviceId=row.device_id, reason="...")
    if row.source == "xid":
        return _repaired(action_of(row), clear)
    closes = "no inventory of this GPU closes it" if FINDINGS[row.code].sticky else "it closes when no inventory shows it"
    return f"{_ACTIONS[action_of(row)]}; {closes} (or {clear} force=true)"


def _repaired(action: str, cleared: str) -> str:
    words = _ACTIONS.get(action, action)
    return f"{words}, then {cleared}" if words else cleared
