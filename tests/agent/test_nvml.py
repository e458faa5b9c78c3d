"""The real pynvml path, against the stub library: same bytes as recorded answers, each failure by its name, nothing left open."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collection import Collected, Collector
from agent.collectors import Options
from agent.nvml import DEVICE_QUERIES, SYSTEM_QUERIES, function_of
from agent.nvml_queries import RETURNS, ROWS
from tests.hosts_catalog import HOSTS
from tests.nvml_stub import FUNCTIONS, HANGABLE, OLDER, Stub, stub
from tests.nvml_stub.sample import UUIDS, full, record


def gpus(host: Path, library: str = "", driver: Stub | None = None, limit: float = 10) -> Collected:
    collector = Collector(host, Options(), str(driver.library) if driver else library, limit)
    return asyncio.run(collector.collect(["gpus"]))


def section(host: Path, driver: Stub) -> pb.GpusSection:
    collected = gpus(host, driver=driver)
    assert not collected.failed, collected.failed
    return pb.GpusSection.FromString(collected.sections[0].data)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return record(tmp_path / "host", full())


def use(monkeypatch: pytest.MonkeyPatch, driver: Stub) -> Stub:
    """The stub's environment for the child processes of this test."""
    for key, value in driver.env.items():
        monkeypatch.setenv(key, value)
    return driver


def test_every_query_has_a_row_and_a_function() -> None:
    assert set(ROWS) == set(SYSTEM_QUERIES) | set(DEVICE_QUERIES)
    assert {function_of(query) for query in ROWS} <= set(FUNCTIONS)


def test_the_names_of_returns_are_pynvmls() -> None:
    import pynvml

    prefix = "NVML_ERROR_"
    theirs = {getattr(pynvml, name): name.removeprefix(prefix) for name in dir(pynvml) if name.startswith(prefix)}
    assert theirs.items() <= RETURNS.items()


# -- the same bytes through pynvml as through a recording


def test_pynvml_gives_the_same_bytes_as_the_recording(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = use(monkeypatch, stub(tmp_path, full()))
    assert gpus(host).sections == gpus(host, driver=driver).sections
    called = driver.called()
    assert set(HANGABLE) == set(called)
    assert (called[0], called[-1]) == ("nvmlInitWithFlags", "nvmlShutdown")


RECORDED = [name for name, folder in HOSTS.items() if (folder / "nvml.json").exists()]


@pytest.mark.parametrize("name", RECORDED)
def test_pynvml_gives_the_same_bytes_for_each_recorded_host(name: str, tmp_path: Path) -> None:
    driver = stub(tmp_path, json.loads((HOSTS[name] / "nvml.json").read_text()))
    recorded, real = gpus(HOSTS[name]), gpus(HOSTS[name], driver=driver)
    assert recorded.sections == real.sections
    assert recorded.failed == real.failed == ()


@pytest.mark.parametrize(
    "change",
    [
        {"handle": {"error": "GPU_IS_LOST"}},
        {"uuid": {"error": "GPU_IS_LOST"}},
        {"eccMode": {"error": "NO_PERMISSION"}, "pci": {"error": "UNKNOWN"}},
        {"serial": "N/A", "minor": 2**32 - 1, "memoryNumaNode": {"error": "FUNCTION_NOT_FOUND"}},
        {"nvlinks": {"error": "TIMEOUT"}, "fabric": {"error": "UNKNOWN"}, "recoveryAction": {"error": "NO_PERMISSION"}},
        {"nvlinks": [{"link": 0, "active": {"error": "UNKNOWN"}}, {"link": 3, "active": True}]},
        {"migInstances": {"error": "NO_PERMISSION"}},
        {"architecture": 6, "remappedRows": [0, 0, 0, 0], "eccMode": {"error": "NOT_SUPPORTED"}},
    ],
)
def test_pynvml_fails_as_the_recording_does(tmp_path: Path, change: dict[str, Any]) -> None:
    nvml = full()
    nvml["devices"][1].update(change)
    host = record(tmp_path / "host", nvml)
    assert gpus(host).sections == gpus(host, driver=stub(tmp_path, nvml)).sections


# -- named outcomes


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("DRIVER_NOT_LOADED", "DriverNotLoaded"),
        ("LIB_RM_VERSION_MISMATCH", "VersionMismatch"),
        ("NO_PERMISSION", "NoPermission"),
        ("GPU_IS_LOST", "GpuLost"),
        ("UNKNOWN", "Error"),
    ],
)
def test_names_why_nvml_does_not_start(host: Path, tmp_path: Path, code: str, reason: str) -> None:
    error = section(host, stub(tmp_path, {"init": {"error": code}})).error
    assert (error.reason, error.message.split(";")[0]) == (reason, f"nvmlInitWithFlags: {code}")


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_a_library_that_is_missing_or_damaged_is_library_not_found(host: Path, tmp_path: Path, content: bytes | None) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    if content is not None:
        library.write_bytes(content)
    collected = gpus(host, library=str(library))
    assert pb.GpusSection.FromString(collected.sections[0].data).error.reason == "LibraryNotFound"


def test_one_lost_gpu_does_not_hide_the_other(host: Path, tmp_path: Path) -> None:
    nvml = full()
    nvml["devices"][0] = {"handle": {"error": "GPU_IS_LOST"}}
    collector = Collector(host, Options(), str(stub(tmp_path, nvml).library), 10)
    known = pb.Gpu(uuid=UUIDS[0], bus_id="00000000:18:00.0", serial="1650323000000")
    collected = asyncio.run(collector.collect(["gpus"], [known]))
    gpu, other = pb.GpusSection.FromString(collected.sections[0].data).gpus
    assert (gpu.uuid, gpu.state, gpu.serial) == (UUIDS[0], "lost", "1650323000000")
    assert (other.uuid, other.state) == (UUIDS[1], "ok")


def test_a_library_without_newer_functions_leaves_their_fields_out(host: Path, tmp_path: Path) -> None:
    newer = [
        "nvmlDeviceGetGspFirmwareVersion", "nvmlDeviceGetNumaNodeId", "nvmlSystemGetConfComputeState", "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
    ]  # fmt: skip
    message = section(host, stub(tmp_path, full(), omit=newer))
    gpu = message.gpus[0]
    absent = ("gsp_firmware", "memory_numa_node", "confidential_compute", "recovery_action")
    assert [name for name in absent if getattr(gpu, name)] == []
    assert not gpu.ecc.HasField("sram_threshold_exceeded")
    assert not gpu.nvlinks[0].HasField("peer_type")
    assert gpu.nvlinks[0].peer_bus_id == "00000000:05:00.0"
    assert not gpu.unreadable
    assert not message.unreadable
    # These two have an older form, which is asked instead.
    assert gpu.vram_bytes == 85520809984
    assert gpu.fabric.clique_id == 7


def test_an_older_driver_is_asked_with_structs_that_it_knows(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = use(monkeypatch, stub(tmp_path, full(), extra=b"newestFabricStruct\t0\t2\n"))
    assert section(host, driver).gpus[0].fabric.clique_id == 7
    assert driver.called().count("nvmlDeviceGetGpuFabricInfoV") == 4  # of two GPUs, the newest struct and the one before


def test_the_oldest_forms_are_called_where_the_newer_ones_are_missing(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = ["nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMemoryInfo_v2"]
    driver = use(monkeypatch, stub(tmp_path, full(), omit=newer))
    section(host, driver)
    assert set(OLDER) <= set(driver.called())


def test_a_damaged_text_is_replaced_and_one_of_all_ones_is_absent(host: Path, tmp_path: Path) -> None:
    extra = b"nvmlDeviceGetSerial/0\t0\t\xff\xff\xff\xff\nnvmlDeviceGetBoardPartNumber/0\t0\t692-\xfe-000\n"
    extra += b"nvmlDeviceGetNvLinkRemotePciInfo_v2/0/0\t0\t\xff\xfe\n"
    gpu = section(host, stub(tmp_path, full(), extra=extra)).gpus[0]
    assert not gpu.HasField("serial")
    assert gpu.board_part_number == "692-\ufffd-000"
    assert gpu.nvlinks[0] == pb.NvLink(link=0, active=True, peer_type="switch")


def test_an_error_that_this_pynvml_does_not_know_is_a_failure(host: Path, tmp_path: Path) -> None:
    gpu = section(host, stub(tmp_path, full(), extra=b"nvmlDeviceGetEccMode/0\t4711\n")).gpus[0]
    assert [u.path for u in gpu.unreadable] == ["nvmlDeviceGetEccMode"]


def test_nvml_is_shut_down_when_the_section_fails(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = full()
    nvml["devices"][1]["uuid"] = UUIDS[0]
    driver = use(monkeypatch, stub(tmp_path, nvml))
    assert [f.reason for f in gpus(host, driver=driver).failed] == ["IdentityUnstable"]
    assert driver.called()[-1] == "nvmlShutdown"


def test_a_library_that_hangs_in_shutdown_has_a_section_or_a_hang_but_never_holds_the_caller(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = use(monkeypatch, stub(tmp_path, full(), hang="nvmlShutdown"))
    assert [f.reason for f in gpus(host, driver=driver, limit=1.0).failed] == ["Hang"]


# -- the door's own promises


def run(script: str, library: Path) -> list[str]:
    command = [sys.executable, "-c", script, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()


PROBE = """
import sys
from agent.nvml import NvmlError, PynvmlNvml
nvml = PynvmlNvml(sys.argv[1])
nvml.close()
for ask in (nvml.count, lambda: nvml.system("driverVersion"), lambda: nvml.device(0, "uuid")):
    try:
        ask()
    except NvmlError as error:
        print(error.code)
print("pynvml" in sys.modules)
nvml.open()
print(nvml.count(), nvml.device(0, "uuid"))
try:
    nvml.device(99, "uuid")
except NvmlError as error:
    print(error, len({error}))
nvml.close()
nvml.open()
print(nvml.device(1, "retiredPagesDoubleBit"), nvml.device(1, "remappedRows"))
"""


def test_answers_only_while_it_is_open_and_imports_pynvml_only_then(tmp_path: Path) -> None:
    library = stub(tmp_path, full()).library
    assert run(PROBE, library) == [
        *["UNINITIALIZED"] * 3,
        "False",
        f"2 {UUIDS[0]}",
        "nvmlDeviceGetHandleByIndex_v2: INVALID_ARGUMENT 1",
        "3 [1, 2, 0, 0]",
    ]


OLD_PYNVML = """
import sys
import pynvml
for name in ("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetNumaNodeId", "nvmlMemory_v2", "c_nvmlEccSramErrorStatus_v1_t"):
    delattr(pynvml, name)
from agent.nvml import NvmlError, PynvmlNvml
nvml = PynvmlNvml(sys.argv[1])
nvml.open()
print(nvml.device(0, "fabric")["cliqueId"], nvml.device(0, "memoryTotal"))
for query in ("memoryNumaNode", "sramThresholdExceeded"):
    try:
        nvml.device(0, query)
    except NvmlError as error:
        print(error)
pynvml.nvmlDeviceGetSerial = lambda handle: (_ for _ in ()).throw(pynvml.NVMLLibraryMismatchError("x"))
try:
    nvml.device(0, "serial")
except NvmlError as error:
    print(error)
"""


def test_an_older_pynvml_costs_fields_only(tmp_path: Path) -> None:
    library = stub(tmp_path, full()).library
    said = subprocess.run(
        [sys.executable, "-c", OLD_PYNVML, str(library)], capture_output=True, text=True, check=True, timeout=30
    )
    assert said.stdout.splitlines() == [
        "7 85520809984",
        "nvmlDeviceGetNumaNodeId: FUNCTION_NOT_FOUND",
        "nvmlDeviceGetSramEccErrorStatus: FUNCTION_NOT_FOUND",
        "nvmlDeviceGetSerial: LIB_RM_VERSION_MISMATCH",
    ]
