"""The readings of the moment: the same through pynvml as through a recording, repeated for a narrow link, none of a lost GPU."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent.collection import Collector
from agent.collectors import Options
from agent.sections import Failed
from tests.nvml_stub import BEYOND, Stub, stub
from tests.nvml_stub.sample import UUIDS, full, record

NOW = {
    "pcieWidth": 16,
    "pcieGeneration": 5,
    "utilization": 37,
    "temperatureC": 41,
    "powerMw": 312400,
    "memoryUsed": 4194304,
    "processes": [{"pid": 4711, "usedBytes": 4194304}, {"pid": 4712}],
}


def ask(host: Path, driver: Stub | None = None, limit: float = 10, **arguments: object) -> Any:
    collector = Collector(host, Options(), str(driver.library) if driver else "", limit)
    outcome = asyncio.run(collector.run(["readings"], arguments=arguments))["readings"]
    return outcome if isinstance(outcome, Failed) else json.loads(outcome.data)


def changed(**answers: object) -> dict[str, Any]:
    """FULL with other answers of its first GPU."""
    nvml = full()
    nvml["devices"][0].update(answers)
    return nvml


def test_reads_each_gpu_once_at_full_width(tmp_path: Path) -> None:
    told = ask(record(tmp_path / "host", full()), times=3, interval=60)
    assert told == [{"uuid": uuid, "readings": [NOW], "failed": []} for uuid in UUIDS]


def test_asks_the_driver_for_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = stub(tmp_path, full())
    monkeypatch.setenv("NVML_STUB_LOG", str(driver.log))
    host = record(tmp_path / "host", full())
    assert ask(host, driver) == ask(host)
    assert set(BEYOND) <= set(driver.called())
    assert driver.called()[-1] == "nvmlShutdown"


def test_reads_a_narrow_link_again_and_only_that(tmp_path: Path) -> None:
    told = ask(record(tmp_path / "host", changed(currentPcieWidth=8)), times=3, interval=0.01)
    assert [[reading["pcieWidth"] for reading in gpu["readings"]] for gpu in told] == [[8, 8, 8], [16]]


@pytest.mark.parametrize("real", [False, True])
def test_what_is_absent_is_left_out_and_what_failed_is_named(tmp_path: Path, real: bool) -> None:
    nvml = changed(
        utilization={"error": "NOT_SUPPORTED"},
        powerUsage={"error": "NO_PERMISSION"},
        temperature={"error": "UNKNOWN"},
        processes={"error": "NOT_SUPPORTED"},
    )
    told = ask(record(tmp_path / "host", nvml), stub(tmp_path, nvml) if real else None)[0]
    assert told["failed"] == ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature"]
    assert set(told["readings"][0]) == {"pcieWidth", "pcieGeneration", "memoryUsed"}


@pytest.mark.parametrize("real", [False, True])
def test_a_lost_gpu_has_empty_readings_and_hides_no_other(tmp_path: Path, real: bool) -> None:
    nvml = full()
    nvml["devices"][0] = {"handle": {"error": "GPU_IS_LOST"}}
    lost, other = ask(record(tmp_path / "host", nvml), stub(tmp_path, nvml) if real else None, times=3)
    assert (lost["uuid"], lost["readings"]) == (None, [{}])
    assert other["readings"] == [NOW]


def test_graphics_alone_is_enough_for_the_processes(tmp_path: Path) -> None:
    nvml = changed(processes={"error": "NOT_SUPPORTED"})
    extra = b"nvmlDeviceGetGraphicsRunningProcesses_v3/0\t0\t812\t4096\t813\t-\n"
    told = ask(record(tmp_path / "host", nvml), stub(tmp_path, nvml, extra=extra))[0]
    assert told["readings"][0]["processes"] == [{"pid": 812, "usedBytes": 4096}, {"pid": 813}]


def test_a_process_of_both_kinds_is_one(tmp_path: Path) -> None:
    extra = b"nvmlDeviceGetGraphicsRunningProcesses_v3/0\t0\t4711\t8192\t9\t-\n"
    told = ask(record(tmp_path / "host", full()), stub(tmp_path, full(), extra=extra))[0]
    assert [process["pid"] for process in told["readings"][0]["processes"]] == [9, 4711, 4712]


def test_without_an_nvidia_gpu_nvml_is_not_opened(tmp_path: Path) -> None:
    assert ask(record(tmp_path / "host", {"init": {"hang": True}}, driver="vfio-pci"), limit=5) == []


def test_nvml_that_does_not_start_is_the_failure(tmp_path: Path) -> None:
    failed = ask(record(tmp_path / "host", {"init": {"error": "DRIVER_NOT_LOADED"}}))
    assert (failed.name, failed.message) == ("readings", "nvmlInitWithFlags: DRIVER_NOT_LOADED")


def test_a_driver_that_hangs_is_not_asked_again_behind_it(tmp_path: Path) -> None:
    host = record(tmp_path / "host", changed(uuid={"hang": True}))
    outcome = asyncio.run(Collector(host, Options(), "", 0.7).run(["os", "gpus", "readings"]))
    assert isinstance(outcome["gpus"], Failed)
    assert outcome["gpus"].reason == "Hang"
    assert outcome["readings"] == Failed("readings", "Hang", "not tried: gpus hangs in the driver")
    assert not isinstance(outcome["os"], Failed)


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"named telemetry; there are system, .* readings"):
        asyncio.run(Collector(tmp_path, Options(), "", 5).run(["telemetry"]))
