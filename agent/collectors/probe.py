"""Task `probe`: the little of NVML that tells whether a GPU is still as the last collection found it (SPEC A6).

The answer is JSON, one of

    {"skipped": "GPU 00000000:18:00.0 is suspended"}            asking would wake a GPU that sleeps
    {"error": "DRIVER_NOT_LOADED"}                              NVML does not answer; `{"gpus": ""}` where none should
    {"gpus": "<base64 of a GpusSection>", "replays": {"GPU-...": 12}, "widths": {"GPU-...": 16}}

The section holds the GPUs that answer, each with its UUID and what agent.collectors.gpu_facts.probe reads of it.
"""

import base64
import json
from collections.abc import Mapping

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.bus_id import sysfs_bus_id

from agent.collectors import Context, clients, gpu_pci
from agent.collectors.gpu_facts import Device, Lost, number, probe, text
from agent.nvml import NvmlError


def run(ctx: Context, arguments: Mapping[str, object]) -> bytes:
    """The probe's answer. Takes no arguments."""
    functions = [function for function in gpu_pci.functions(ctx.files) if gpu_pci.expects_nvml(function)]
    if sleeper := _sleeper(ctx, functions):
        return json.dumps({"skipped": sleeper}).encode()
    if not functions:
        return b'{"gpus": ""}'
    try:
        ctx.nvml.open()
        try:
            answer: dict[str, object] = _ask(ctx)
        finally:
            ctx.nvml.close()
    except NvmlError as error:
        answer = {"error": error.code}
    return json.dumps(answer).encode()


def _ask(ctx: Context) -> dict[str, object]:
    section = pb.GpusSection()
    replays: dict[str, int] = {}
    widths: dict[str, int] = {}
    for index in range(ctx.nvml.count()):
        device = Device(ctx.nvml, index)
        try:
            gpu = pb.Gpu(uuid=text(device.ask("uuid")))
            probe(device, gpu)
            counters = [number(device.ask(query)) for query in ("pcieReplayCounter", "currentPcieWidth")]
        except Lost:
            continue
        if gpu.uuid:
            section.gpus.append(gpu)
            for told, value in zip((replays, widths), counters, strict=True):
                if value is not None:
                    told[gpu.uuid] = value
    return {"gpus": base64.b64encode(section.SerializeToString()).decode(), "replays": replays, "widths": widths}


def _sleeper(ctx: Context, functions: list[pb.PciFunction]) -> str | None:
    """Why asking would wake a GPU: NVML opens them all, so one that sleeps is enough. None: it would not.

    `power/runtime_status` of a function in D3 is `suspended`. A GPU without persistence is shut down when its last client closes
    it; one that NVML did not tell of persistence is not known to sleep.
    """
    for function in functions:
        path = f"/sys/bus/pci/devices/{sysfs_bus_id(function.bus_id)}/power/runtime_status"
        if ctx.files.value(path) == "suspended":
            return f"GPU {function.bus_id} is suspended"
    present = {function.bus_id for function in functions}
    idle = {g.minor: g.bus_id for g in ctx.known if g.bus_id in present and g.HasField("persistence") and not g.persistence}
    if not idle:
        return None
    for minor, _ in clients.clients(ctx.host):
        idle.pop(minor, None)
        if not idle:
            return None
    return f"GPU {min(idle.values())} has persistence off and no client"
