"""What a GPU reset concerns, and whether a GPU came back from one (SPEC A7). Pure, but for the look for the fabric manager."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.host import Host
from agent.usage import fabric_manager

_BEFORE_AMPERE = ("kepler", "maxwell", "pascal", "volta", "turing")


def group(gpus: Sequence[pb.Gpu], target: pb.Gpu, fabric_manager: bool) -> tuple[pb.Gpu, ...]:
    """The GPUs that are reset with `target`, sorted by UUID: itself, or every NVLink peer (of a peer, and so on).

    Peers go along where links cannot be trained one GPU at a time: before Ampere, and with Ampere on NVSwitches that no fabric
    manager looks after. A GPU that does not tell its architecture is taken for one of those.
    """
    together = target.architecture in (*_BEFORE_AMPERE, "") or (
        target.architecture == "ampere" and _on_switch(target) and not fabric_manager
    )
    found = {target.uuid: target}
    todo = [target] if together else []
    while todo:
        for peer in _peers(todo.pop(), gpus):
            if peer.uuid not in found:
                found[peer.uuid] = peer
                todo.append(peer)
    return tuple(found[uuid] for uuid in sorted(found))


def _peers(gpu: pb.Gpu, gpus: Iterable[pb.Gpu]) -> Iterator[pb.Gpu]:
    """GPUs at the other end of a link, and those behind the same switches; links that are down count too."""
    buses = {link.peer_bus_id for link in gpu.nvlinks if link.peer_type != "switch"} - {""}
    for other in gpus:
        if other.bus_id in buses or (_on_switch(gpu) and _on_switch(other)):
            yield other


def _on_switch(gpu: pb.Gpu) -> bool:
    return any(link.peer_type == "switch" for link in gpu.nvlinks)


def fabric_manager_runs(host: Host) -> bool:
    """Whether a process `nv-fabricmanager` is there, from /proc/PID/comm."""
    return fabric_manager(host) is not None


def differences(before: pb.Gpu, after: pb.Gpu | None) -> list[str]:
    """Why a GPU is not healthy after its reset; nothing when it is. Of a `before` that was lost, less is known."""
    if after is None or after.state != "ok":
        return [f"{before.uuid} is not there after the reset" if after is None else f"{before.uuid} is {after.state}"]
    wrong = []
    if before.HasField("vram_bytes") and after.vram_bytes != before.vram_bytes:
        wrong.append(f"has {after.vram_bytes} bytes of memory, before {before.vram_bytes}")
    # A reset puts a pending ECC mode into force.
    expected = before.ecc.pending if before.ecc.HasField("pending") else before.ecc.current
    if before.ecc.HasField("current") and (not after.ecc.HasField("current") or after.ecc.current != expected):
        wrong.append(f"ECC is {_on(after.ecc.current)}, expected {_on(expected)}")
    if after.ecc.sram_threshold_exceeded:
        wrong.append("too many uncorrectable errors in SRAM")
    if after.row_remap.pending or after.retired_pages.pending:
        wrong.append("a row remap or page retirement is still pending")
    if after.row_remap.failure:
        wrong.append("row remapping has failed")
    if after.recovery_action not in ("", "none"):
        wrong.append(f"the driver asks for {after.recovery_action}")
    return [f"{before.uuid}: {why}" for why in wrong]


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def mig_layout(gpu: pb.Gpu) -> list[dict[str, Any]]:
    """A GPU's MIG instances for an answer; none where MIG is off."""
    return [
        {
            "uuid": instance.uuid,
            "profile": instance.profile,
            "gpuInstanceId": instance.gpu_instance_id,
            "computeInstanceId": instance.compute_instance_id,
            "start": instance.placement.start,
            "size": instance.placement.size,
        }
        for instance in gpu.mig.instances
    ]
