"""`gpu.reset`: resets a GPU with its reset group, and proves that it came back healthy. Payload: `{"deviceId": "GPU-..."}`.

The reset is `nvidia-smi --gpu-reset -i UUID,...`: NVML has no call for it outside of NVIDIA's own tools. It runs once a command,
in no loop and by no timer, with a time limit.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import reset
from agent.commands import busy, privileged
from agent.commands.order import Node, Order, Payload, text
from agent.errors import Failed, FieldError, Refused

SPACING = 600.0  # at most one reset of a GPU in this time, whoever asks
RESETTING = 300.0  # seconds for nvidia-smi
SERVICE = 60.0  # seconds for one start or stop
TRIES, PAUSE = 3, 5.0  # readings after the reset, and seconds between two: a GPU may need a moment
_log = logging.getLogger("bcd.commands")


async def run(order: Order, node: Node) -> Payload:
    """Answers the group, and each GPU's MIG layout before and after."""
    device = text(order.payload, "deviceId")
    gpus = await _before(node)
    target = next((gpu for gpu in gpus if gpu.uuid == device), None)
    if target is None:
        raise Failed("UnknownDevice", f"no GPU of this node is {device}")
    if target.virtualization_mode == "vgpu":
        raise Refused("not-supported", f"{device} is a virtual GPU: only its host can reset the real one")
    group = reset.group(gpus, target, reset.fabric_manager_runs(node.host))
    uuids = [gpu.uuid for gpu in group]
    async with node.quiet():
        await _refuse_if_busy(node, gpus, uuids, node.config.reset_pause)
        privileged.check(node, "nvidia_smi")
        async with _paused(order, node) as not_started:
            await _refuse_if_busy(node, gpus, uuids, ())
            order.begin(uuids, SPACING)
            ran = await privileged.reset(node, uuids, RESETTING)
    if ran.code != 0:
        raise Failed("ResetFailed", f"nvidia-smi ended with {ran.code}: {ran.said}", group=uuids)
    after, wrong = await _verify(node, group)
    answer = {"group": uuids, "migBefore": _layouts(group), "migAfter": _layouts(after)}
    if not_started:
        answer["servicesNotStarted"] = not_started
    if wrong:
        raise Failed("NotHealthyAfterReset", "; ".join(wrong), **answer)
    await node.repaired(uuids)
    return answer


async def tidy(facts: Mapping[str, Any], node: Node) -> None:
    """After a crash: services that a reset had stopped are started."""
    await _start(node, [str(name) for name in facts.get("paused", [])])


async def _before(node: Node) -> Sequence[pb.Gpu]:
    """The GPUs as they are now; as last collected when NVML does not answer, which may be why one is to be reset."""
    try:
        return await node.read_gpus()
    except FieldError:
        return node.gpus()


async def _refuse_if_busy(node: Node, gpus: Sequence[pb.Gpu], uuids: Sequence[str], ignore: Sequence[str]) -> None:
    found = await busy.users(node, gpus, ignore)
    busy.refuse("gpu-busy", [user for user in found if user.uses(uuids)])


# ---- services that stand still meanwhile


@contextlib.asynccontextmanager
async def _paused(order: Order, node: Node) -> AsyncIterator[list[str]]:
    """Stops the services of `reset.pause` that run, and starts them again whatever happens. Yields those that do not start."""
    running = [name for name in node.config.reset_pause if await _systemctl(node, "is-active", name) == 0]
    order.keep(paused=running)
    not_started: list[str] = []
    try:
        for name in running:
            if code := await _systemctl(node, "stop", name):
                raise Failed("ServiceNotStopped", f"systemctl stop {name} ended with {code}")
        yield not_started
    finally:
        not_started += await _start(node, running)


async def _start(node: Node, names: Sequence[str]) -> list[str]:
    """Starts services; those that do not start."""
    failed = []
    for name in names:
        try:
            started = await _systemctl(node, "start", name) == 0
        except FieldError:
            started = False
        if not started:
            _log.error("%s was stopped for a GPU reset and does not start again", name)
            failed.append(name)
    return failed


async def _systemctl(node: Node, verb: str, service: str) -> int:
    return (await privileged.systemctl(node, verb, service, SERVICE)).code


# ---- the proof


async def _verify(node: Node, group: Sequence[pb.Gpu]) -> tuple[Sequence[pb.Gpu], list[str]]:
    """The group in a new worker, and what is wrong with it."""
    after: Sequence[pb.Gpu] = ()
    wrong: list[str] = []
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(PAUSE)
        try:
            found = {gpu.uuid: gpu for gpu in await node.read_gpus()}
        except FieldError as error:
            wrong = [str(error)]
            continue
        after = [found[gpu.uuid] for gpu in group if gpu.uuid in found]
        wrong = [why for gpu in group for why in reset.differences(gpu, found.get(gpu.uuid))]
        if not wrong:
            break
    return after, wrong


def _layouts(gpus: Sequence[pb.Gpu]) -> dict[str, Any]:
    return {gpu.uuid: reset.mig_layout(gpu) for gpu in gpus}
