"""The signs in a whole daemon: what reaches the report, and what starts a collection."""

import asyncio
import base64
import json
import os
import shutil
import signal
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.agent.v1 import session_pb2 as wire

from agent import probe, signs
from agent.commands.store import Record, Store
from agent.conditions import reboot
from agent.conditions.module import Module
from agent.config import Config
from agent.host import Host
from agent.hotplug import Hotplug
from agent.sections import Failed, Section
from agent.session.messages import CommandResult
from agent.signs import failed_resets
from tests.agent.session.fake_gateway import until
from tests.agent.test_hotplug import PAIRS, STORM_SECONDS, seqnum, storm
from tests.agent.test_service import GPU, Bench, Run, bench

__all__ = ["bench"]  # the fixture

PSI = "some avg10=1.50 avg60=0.87 avg300=0.25 total=91204112\n"


def reports(run: Run) -> list[wire.StatusReport]:
    received = [r for stream in run.gateway.streams for r in stream.received]
    return [r.status_report for r in received if r.WhichOneof("message") == "status_report"]


def statuses(report: wire.StatusReport) -> dict[str, int]:
    return {condition.type: condition.status for condition in report.conditions}


def test_the_report_has_pressure_and_conditions(bench: Bench) -> None:
    (bench.host / "root/proc/pressure").mkdir()
    for kind in ("cpu", "memory", "io"):
        (bench.host / f"root/proc/pressure/{kind}").write_text(PSI)

    async def test(run: Run) -> None:
        await run.applied()
        await until(lambda: "NvmlUnavailable" in statuses(reports(run)[-1]))
        last = reports(run)[-1]
        assert (last.pressure.cpu, last.pressure.io, last.pressure.steal) == (1.5, 1.5, 0.0)
        assert statuses(last)["NvmlUnavailable"] == wire.CONDITION_STATUS_FALSE

    bench.run(test)


def test_the_first_report_of_a_session_has_the_conditions(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not reported is untrue: a restart of bcd must not end a condition for a moment."""
    read = reboot.read

    def slow(host: Host, module: Module, failed: Collection[str]) -> reboot.Waiting:
        time.sleep(0.5)
        return read(host, module, failed)

    monkeypatch.setattr(reboot, "read", slow)
    (bench.host / "root/run").mkdir()
    (bench.host / "root/run/reboot-required").touch()

    async def test(run: Run) -> None:
        await run.applied()
        assert statuses(reports(run)[0])["RebootRequired"] == wire.CONDITION_STATUS_TRUE

    bench.run(test)
    bench.run(test)


def test_without_psi_the_report_has_no_pressure(bench: Bench) -> None:
    async def test(run: Run) -> None:
        await run.applied()
        assert not any(report.HasField("pressure") for report in reports(run))

    bench.run(test)


def test_a_driver_two_minutes_late_is_neither_condition_nor_lost_hardware(bench: Bench) -> None:
    """The first minutes of a boot: everything but `gpus` is offered, and nothing is said of NVML; then all of it, once."""
    late = pb.GpusSection(error=pb.NvmlFailure(reason="DriverNotLoaded", message="nvmlInit"), pci_functions=GPU.pci_functions)
    bench.facts(uptime=20.0)
    bench.collector.gpus = late

    async def test(run: Run) -> None:
        await run.applied()
        await until(lambda: "RebootRequired" in statuses(reports(run)[-1]))
        bench.facts(uptime=140.0)
        bench.collector.gpus = GPU
        await run.ask("refresh")
        await until(lambda: "NvmlUnavailable" in statuses(reports(run)[-1]))
        said = [(kind, status) for report in reports(run) for kind, status in statuses(report).items()]
        assert {status for kind, status in said if kind != "KernelLogUnavailable"} == {wire.CONDITION_STATUS_FALSE}
        assert [sorted(section.name for section in offer.missing) for offer in run.offers()] == [["gpus"], []]

    bench.run(test)


def probing(bench: Bench, monkeypatch: pytest.MonkeyPatch, *answers: Section | Failed) -> None:
    """The probe runs all the time and gives these answers, the last one for ever."""
    bench.config = replace(bench.config, probe_interval=0.02)
    monkeypatch.setattr(probe, "RETRY", 0.02)
    left = list(answers)

    async def run(names: list[str], known: object, limit: float) -> dict[str, Section | Failed]:
        assert (names, limit) == (["probe"], probe.LIMIT)
        return {"probe": left.pop(0) if len(left) > 1 else left[0]}

    monkeypatch.setattr(bench.collector, "run", run, raising=False)


def test_a_difference_that_the_probe_sees_collects_the_gpus(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    probing(bench, monkeypatch, Section("probe", json.dumps({"error": "DRIVER_NOT_LOADED"}).encode()))

    async def test(run: Run) -> None:
        await run.applied()
        await until(lambda: bench.collector.asked.count(("gpus",)) >= 2)
        assert (await run.ask("status"))["trigger"] == "probe"

    bench.run(test)


def test_two_probes_without_an_answer_are_said_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    probing(bench, monkeypatch, Failed("probe", "Hang", "no answer within 15 s"))
    settings: list[Config] = []
    bench.reload = settings.pop

    async def test(run: Run) -> None:
        await run.applied()
        await until(lambda: statuses(reports(run)[-1]).get("NvmlUnavailable") == wire.CONDITION_STATUS_TRUE)
        assert ("gpus",) not in bench.collector.asked, "a hang is no difference to collect over"
        told = {c.message for r in reports(run) for c in r.conditions if c.type == "NvmlUnavailable"}
        settings.append(replace(run.config, probe_interval=0.0))
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: statuses(reports(run)[-1]).get("NvmlUnavailable") == wire.CONDITION_STATUS_FALSE)
        assert told - {""} == {"2 health probes in a row or more had no answer"}, "one message, however often: it is written"

    bench.run(test)


def test_a_hang_ends_with_a_collection_that_read_the_gpus_when_probes_are_skipped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = Failed("probe", "Hang", "no answer within 15 s")
    probing(bench, monkeypatch, hang, hang, Section("probe", b'{"skipped": "GPU 1 has persistence off and no client"}'))

    async def test(run: Run) -> None:
        await run.applied()
        await until(lambda: statuses(reports(run)[-1]).get("NvmlUnavailable") == wire.CONDITION_STATUS_TRUE)
        await run.ask("refresh")
        await until(lambda: statuses(reports(run)[-1]).get("NvmlUnavailable") == wire.CONDITION_STATUS_FALSE)

    bench.run(test)


def test_bcd_status_tells_the_last_probe(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = base64.b64encode(pb.GpusSection(gpus=[pb.Gpu(uuid="GPU-1")]).SerializeToString()).decode()
    answer = {"gpus": gpus, "replays": {"GPU-1": 12}, "widths": {"GPU-1": 8}}
    probing(
        bench, monkeypatch, Section("probe", b'{"skipped": "GPU 1 is suspended"}'), Section("probe", json.dumps(answer).encode())
    )

    async def test(run: Run) -> None:
        devices: list[object] = []
        while not devices:
            told = (await run.ask("status"))["probe"]
            devices = told["devices"]
        assert told == {"skipped": None, "error": None, "devices": [{"deviceId": "GPU-1", "pcieReplays": 12, "pcieWidth": 8}]}

    bench.run(test)


@pytest.mark.skipif(shutil.which("ip") is None, reason="no ip(8) here")
def test_veth_pairs_sweep_no_nvml(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 pairs a second made and removed in the network namespace whose events the daemon hears."""
    before, seconds = seqnum(), min(STORM_SECONDS, 20)
    with storm(seconds) as (connect, process):

        async def test(run: Run) -> None:
            await run.applied()
            asked = len(bench.collector.asked)
            async with asyncio.timeout(25):
                while process.poll() is None and seqnum() - before < 8 * seconds * PAIRS:
                    await asyncio.sleep(0.1)
            assert seqnum() - before > seconds * PAIRS, "the storm was one"
            assert bench.collector.asked[asked:] in ([], [("nics",)])

        monkeypatch.setattr(signs, "Hotplug", lambda host, want, _, clock: Hotplug(host, want, connect, clock))
        bench.run(test)


def test_a_reset_that_failed_is_forgotten_when_a_later_one_did_not(tmp_path: Path) -> None:
    store = Store(tmp_path / "commands")

    def reset(number: int, status: str, *uuids: str, boot: str = "boot-1", kind: str = "gpu.reset") -> None:
        result = CommandResult(f"cmd_{number}", status) if status else None
        store.put(Record(f"cmd_{number}", kind, "{}", "", float(number), boot, float(number), uuids, {}, result))

    reset(1, "failed", "GPU-1", "GPU-2")
    reset(2, "succeeded", "GPU-2")
    reset(3, "failed", "GPU-3", boot="boot-0")
    reset(4, "failed", "GPU-4", kind="node.reboot")
    reset(5, "", "GPU-5")
    assert failed_resets(store, "boot-1") == {"GPU-1"}
