"""The daemon as commands see it: real workers on recorded hosts, holds on disk, what counts as held."""

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import doors
from agent.commands.node import DaemonNode, NoGpus
from agent.config import Config
from agent.faults import Ledger
from agent.inventory import Inventory
from agent.kernel_log import Look
from agent.sections import Section
from agent.session.messages import Condition
from agent.triggers import Fingerprint
from tests.hosts_catalog import copy, nvml_init_error

REMEMBERED = pb.Gpu(uuid="GPU-remembered", bus_id="00000000:18:00.0")


class Daemon:
    """The parts of a daemon, and what was asked of it."""

    def __init__(self, host_dir: Path, data_dir: Path) -> None:
        config = Config(data_dir=data_dir)
        self.conditions: list[Condition] = []
        self.inventory: Inventory | None = None
        self.dropped: list[str] = []
        self.wanted: list[str] = []

        async def drop(devices: Iterable[str]) -> None:
            assert self.wanted == [], "first the faults, then the collection that is to show none"
            self.dropped += devices

        async def refresh() -> dict[str, Any]:
            return {"digest": "d1"}

        self.node = DaemonNode(
            recorded=True,
            collector=doors.collector(config, host_dir),
            get_config=lambda: config,
            get_host=lambda: doors.host(host_dir),
            get_boot_id=lambda: "boot-1",
            inventory=lambda: self.inventory,
            known=lambda: (REMEMBERED,),
            conditions=lambda: self.conditions,
            look=lambda: Look(Ledger("boot-1", from_start=True)),
            drop=drop,
            want=self.wanted.append,
            refresh_all=refresh,
        )


@pytest.fixture
def make(tmp_path: Path) -> Callable[[Path], Daemon]:
    (tmp_path / "data").mkdir()
    return lambda host: Daemon(host, tmp_path / "data")


def gpus_of(*uuids: str) -> Inventory:
    section = Section("gpus", pb.GpusSection(gpus=[pb.Gpu(uuid=uuid) for uuid in uuids]).SerializeToString())
    return Inventory("boot-1", "first", 1.0, Fingerprint("0", None, None), (section,), (), {"gpus": 1.0})


def test_gpus_are_those_of_the_last_collection_and_before_it_those_remembered(
    make: Callable[[Path], Daemon], tmp_path: Path
) -> None:
    daemon = make(copy("bare-proc-sys", tmp_path))
    assert list(daemon.node.gpus()) == [REMEMBERED]
    daemon.inventory = gpus_of("GPU-1", "GPU-2")
    assert [gpu.uuid for gpu in daemon.node.gpus()] == ["GPU-1", "GPU-2"]


def test_a_new_worker_reads_the_gpus_and_says_when_nvml_does_not_answer(make: Callable[[Path], Daemon], tmp_path: Path) -> None:
    host = copy("l4-cloud-vm", tmp_path)
    uuid = json.loads((host / "nvml.json").read_text())["devices"][0]["uuid"]
    daemon = make(host)

    async def work() -> None:
        assert [gpu.uuid for gpu in await daemon.node.read_gpus()] == [uuid]
        nvml_init_error(host, "DRIVER_NOT_LOADED")
        with pytest.raises(NoGpus, match="NVML does not answer: DriverNotLoaded"):
            await daemon.node.read_gpus()

    asyncio.run(work())


def test_no_worker_runs_while_the_node_is_quiet(make: Callable[[Path], Daemon], tmp_path: Path) -> None:
    daemon = make(copy("l4-cloud-vm", tmp_path))

    async def work() -> None:
        async with daemon.node.quiet():
            reading = asyncio.create_task(daemon.node.read_gpus())
            await asyncio.sleep(0.5)
            assert not reading.done()
        assert len(await reading) == 1

    asyncio.run(work())


def test_the_diagnosis_is_that_of_the_checks(make: Callable[[Path], Daemon], tmp_path: Path) -> None:
    daemon = make(copy("l4-cloud-vm", tmp_path))
    told = asyncio.run(daemon.node.diagnose(2))
    results = {check["check"]: check["result"] for check in told["checks"]}
    assert (told["passed"], results["nvml.init"], results["gpu.count"]) == (False, "pass", "fail")


def test_holds_are_read_anew_each_time(make: Callable[[Path], Daemon], tmp_path: Path) -> None:
    daemon = make(copy("bare-proc-sys", tmp_path))
    assert daemon.node.holds().held == ()
    holds = tmp_path / "data/holds"
    holds.mkdir()
    (holds / "a.json").write_text('{"id": "a", "owner": "o", "kind": "vm", "devices": ["*"], "bootId": "boot-1"}')
    assert [hold.id for hold in daemon.node.holds().held] == ["a"]


@pytest.mark.parametrize(("status", "held"), [("true", True), ("unknown", True), ("false", False)])
def test_releases_that_cannot_be_read_hold_every_gpu(
    make: Callable[[Path], Daemon], tmp_path: Path, status: str, held: bool
) -> None:
    daemon = make(copy("bare-proc-sys", tmp_path))
    daemon.conditions = [Condition("KubernetesReleasesUnreadable", status, 1.0), Condition("NvmlUnavailable", "true", 1.0)]
    assert bool(daemon.node.holds().unreadable) == held


def test_after_a_reset_faults_go_and_then_a_collection_starts(make: Callable[[Path], Daemon], tmp_path: Path) -> None:
    daemon = make(copy("bare-proc-sys", tmp_path))
    asyncio.run(daemon.node.repaired(["GPU-1"]))
    assert (daemon.dropped, daemon.wanted) == (["GPU-1"], ["reset"])


def test_programs_are_those_of_the_settings(make: Callable[[Path], Daemon], tmp_path: Path) -> None:
    daemon = make(copy("bare-proc-sys", tmp_path))
    for name in ("systemctl", "nvidia_smi", "dcgmi"):
        with pytest.raises(Exception, match="a recorded host runs no programs"):
            daemon.node.program(name)
