"""The health probe's child: what it asks, what it tells, and when it asks nothing because asking would wake a GPU."""

import asyncio
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collection import Collector
from agent.collectors import Options
from agent.collectors.clients import clients
from agent.host import Host
from agent.probe import Answer, decode
from agent.sections import Section
from tests.hosts_catalog import HOSTS, copy, hang, lose_gpu, nvml_init_error
from tests.nvml_stub import PROBED, Stub, stub
from tests.nvml_stub.sample import SLOTS, UUIDS, full, record

ALLOWED = {
    "nvmlInitWithFlags", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID",
    "nvmlDeviceGetEccMode", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetMemoryErrorCounter", "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetRemappedRows", "nvmlDeviceGetArchitecture", "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetCurrPcieLinkWidth",
}  # fmt: skip


def ask(host: Path, driver: Stub | None = None, known: tuple[pb.Gpu, ...] = (), limit: float = 10) -> Answer:
    collector = Collector(host, Options(), str(driver.library) if driver else "", limit)
    return decode(asyncio.run(collector.run(["probe"], known))["probe"])


def test_tells_what_a_fault_moves(tmp_path: Path) -> None:
    answer = ask(record(tmp_path / "host", full()))
    assert [gpu.uuid for gpu in answer.gpus] == list(UUIDS)
    gpu = answer.gpus[0]
    assert (gpu.ecc.volatile.total, gpu.row_remap.correctable, gpu.recovery_action, gpu.fabric.state) == (
        0,
        1,
        "none",
        "completed",
    )
    assert answer.replays == dict.fromkeys(UUIDS, 12)
    assert answer.widths == dict.fromkeys(UUIDS, 16)


def test_asks_the_driver_for_little_and_never_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = stub(tmp_path, full())
    monkeypatch.setenv("NVML_STUB_LOG", str(driver.log))
    host = record(tmp_path / "host", full())
    assert ask(host, driver) == ask(host)
    assert set(PROBED) <= set(driver.called()) <= ALLOWED


def test_leaves_out_a_lost_gpu(tmp_path: Path) -> None:
    host = copy("h100-sxm-8", tmp_path)
    lose_gpu(host, 3)
    assert len(ask(host).gpus) == 7


def test_names_nvmls_error(tmp_path: Path) -> None:
    host = copy("h100-sxm-8", tmp_path)
    nvml_init_error(host, "LIB_RM_VERSION_MISMATCH")
    assert ask(host) == Answer(error="LIB_RM_VERSION_MISMATCH")


def test_is_ended_when_the_driver_hangs(tmp_path: Path) -> None:
    host = copy("h100-sxm-8", tmp_path)
    hang(host, "eccVolatileTotal", 2)
    assert ask(host, limit=1.0) == Answer(error="Hang")


def test_asks_nothing_where_no_gpu_should_answer() -> None:
    assert ask(HOSTS["bare-proc-sys"]) == Answer()


def test_does_not_wake_a_suspended_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = stub(tmp_path, full())
    monkeypatch.setenv("NVML_STUB_LOG", str(driver.log))
    host = record(tmp_path / "host", full())
    power = (host / f"root/sys/bus/pci/devices/{SLOTS[1]}").resolve() / "power"
    power.mkdir()
    (power / "runtime_status").write_text("suspended\n")
    assert ask(host, driver).skipped == "GPU 00000000:3B:00.0 is suspended"
    assert driver.called() == []
    (power / "runtime_status").write_text("active\n")
    assert ask(host, driver).skipped == ""


def open_device(host: Path, pid: int, target: str) -> None:
    folder = host / f"root/proc/{pid}/fd"
    folder.mkdir(parents=True)
    (folder / "5").symlink_to(target)


@pytest.mark.parametrize(
    ("persistence", "opened", "skipped"),
    [
        ((True, True), "", False),
        ((True, False), "", True),
        ((True, False), "/dev/nvidia1", False),
        ((True, False), "/dev/nvidia0", True),
        ((True, False), "/dev/nvidiactl", True),
        ((None, None), "", False),  # not told: a guest whose host decides
    ],
)
def test_does_not_wake_a_gpu_without_persistence_and_clients(
    tmp_path: Path, persistence: tuple[bool | None, bool | None], opened: str, skipped: bool
) -> None:
    host = record(tmp_path / "host", full())
    if opened:
        open_device(host, 4711, opened)
    known = tuple(
        pb.Gpu(uuid=uuid, minor=n, bus_id=f"0000{SLOTS[n].upper()}", persistence=persistence[n]) for n, uuid in enumerate(UUIDS)
    )
    assert bool(ask(host, known=known).skipped) is skipped


def test_clients_are_told_by_minor_and_process(tmp_path: Path) -> None:
    for pid, target in ((12, "/dev/nvidia0"), (7, "/dev/nvidia3"), (13, "/dev/nvidia-uvm"), (14, "socket:[1]")):
        open_device(tmp_path, pid, target)
    (tmp_path / "root/proc/self").mkdir()
    assert sorted(clients(Host(tmp_path / "root"))) == [(0, 12), (3, 7)]


def test_no_gpus_are_an_answer() -> None:
    assert decode(Section("probe", b'{"gpus": ""}')) == Answer()
