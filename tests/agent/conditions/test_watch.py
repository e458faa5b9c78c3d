"""The daemon's part: it judges when there is news, keeps `since`, and says nothing that has not changed."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import encode

from agent.conditions import watch
from agent.conditions.table import Verdict
from agent.conditions.watch import Conditions, Node, load, with_since
from agent.config import Config
from agent.host import Host
from agent.inventory import Inventory
from agent.probe import History
from agent.sections import Failed, Section
from agent.session.messages import Condition
from agent.triggers import Fingerprint


def test_since_moves_only_when_the_status_does() -> None:
    before = {("MPSDown", ""): ("true", 100.0), ("PcieReplayHigh", "GPU-1"): ("false", 50.0)}
    judged = (
        ("MPSDown", Verdict("true", "NoAnswer", "another message")),
        ("PcieReplayHigh", Verdict("true", "Replays", "", "GPU-1")),
        ("PcieReplayHigh", Verdict("false", device_id="GPU-2")),
    )
    assert [condition.since for condition in with_since(judged, before, 200.0)] == [100.0, 200.0, 200.0]


@dataclass
class Bench:
    """A part over a small host whose facts a test sets."""

    root: Path
    config: Config
    gpus: pb.GpusSection | Failed | None = None
    boot: str = "boot-1"
    uptime: float = 86_400.0
    history: History = field(default_factory=History)
    failed_resets: frozenset[str] = frozenset()
    reports: int = 0

    def inventory(self) -> Inventory | None:
        if self.gpus is None:
            return None
        sections = (Section("gpus", encode(self.gpus)),) if isinstance(self.gpus, pb.GpusSection) else ()
        failed = (self.gpus,) if isinstance(self.gpus, Failed) else ()
        return Inventory(self.boot, "first", 1.0, Fingerprint("0", None, None), sections, failed, {})

    def part(self) -> Conditions:
        def changed() -> None:
            self.reports += 1

        host = FakeHost(self.root, boot=self.boot)
        node = Node(
            lambda: host,
            lambda: self.uptime,
            lambda: self.config,
            self.inventory,
            lambda: self.history,
            lambda: self.failed_resets,
        )
        return Conditions(node, self.config.data_dir, changed)

    def run(self, test: Callable[[Conditions], Awaitable[None]]) -> None:
        async def work() -> None:
            part = self.part()
            task = asyncio.create_task(part.run())
            async with asyncio.timeout(10):
                await until(lambda: part.current != ())
                await test(part)
            task.cancel()

        asyncio.run(work())


@dataclass(frozen=True)
class FakeHost(Host):
    boot: str = "boot-1"

    def boot_id(self) -> str:
        return self.boot


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.005)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "root/proc").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    return Bench(tmp_path / "root", Config(data_dir=tmp_path / "data"))


def statuses(part: Conditions) -> dict[str, str]:
    return {condition.type: condition.status for condition in part.current}


QUIET = {"HostManagedExternally": "false", "RebootRequired": "false"}


def test_before_the_first_collection_only_what_needs_none_is_judged(bench: Bench) -> None:
    async def test(part: Conditions) -> None:
        assert statuses(part) == QUIET
        assert bench.reports == 1

    bench.run(test)


def test_a_look_that_finds_nothing_new_reports_nothing(bench: Bench) -> None:
    async def test(part: Conditions) -> None:
        for _ in range(5):
            part.look()
            await asyncio.sleep(0.02)
        assert bench.reports == 1

    bench.run(test)


def test_what_changes_without_an_event_is_seen_at_the_next_interval(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "INTERVAL", 0.02)

    async def test(part: Conditions) -> None:
        (bench.root / "run").mkdir()
        (bench.root / "run/reboot-required").touch()
        await until(lambda: statuses(part)["RebootRequired"] == "true")
        (bench.root / "run/reboot-required").unlink()
        await until(lambda: statuses(part)["RebootRequired"] == "false")

    bench.run(test)


def test_a_driver_two_minutes_late_is_no_condition(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """While a boot settles nothing is said of NVML and the fabric; then that they are well."""
    caplog.set_level(logging.INFO)
    functions = [pb.PciFunction(bus_id="00000000:18:00.0", device_id="2330", class_code="030200", driver="nvidia")]

    async def test(part: Conditions) -> None:
        for uptime in (20.0, 60.0, 120.0):
            bench.uptime = uptime
            part.look()
            await asyncio.sleep(0.03)
            assert statuses(part) == QUIET
        bench.uptime, bench.gpus = 135.0, pb.GpusSection(pci_functions=functions, gpus=[pb.Gpu(uuid="GPU-1", state="ok")])
        bench.gpus.gpus[0].fabric.state = "completed"
        part.look()
        await until(lambda: len(part.current) == 4)
        assert set(statuses(part).values()) == {"false"}
        assert caplog.records == []

    bench.gpus = Failed("gpus", "settling", "NVML does not answer: DriverNotLoaded")
    bench.run(test)


def test_since_outlives_a_restart(bench: Bench) -> None:
    first: list[Condition] = []

    async def remember(part: Conditions) -> None:
        first.extend(part.current)

    async def compare(part: Conditions) -> None:
        assert list(part.current) == first

    bench.run(remember)
    bench.run(compare)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2, "conditions": []}', '{"format": 1, "conditions": [5]}', "\xff"])
def test_a_damaged_file_begins_anew(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "conditions.json"
    path.write_text(text, encoding="latin-1")
    assert load(path) == {}
    assert str(path) in caplog.text


def test_a_disk_that_is_full_costs_a_log_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    (bench.config.data_dir / "conditions.json").mkdir()

    async def test(part: Conditions) -> None:
        assert statuses(part) == QUIET
        await until(lambda: "begin anew" in caplog.text)

    bench.run(test)


def test_settings_switch_conditions_on(bench: Bench) -> None:
    bench.config = replace(
        bench.config,
        mps_enabled=True,
        tools_mps_control="/nonexistent/control",
        kubernetes_worker=True,
        kubernetes_socket="/nonexistent/kubelet.sock",
        host_managed_marker="/etc/managed",
    )
    (bench.root / "etc").mkdir()
    (bench.root / "etc/managed").touch()

    async def test(part: Conditions) -> None:
        on = ("MPSDown", "PodResourcesUnavailable", "ForeignGpuExposure", "HostManagedExternally")
        assert {statuses(part)[kind] for kind in on} == {"true"}

    bench.run(test)


def test_declared_conditions_go_along(bench: Bench) -> None:
    folder = bench.config.data_dir / "conditions.d"
    folder.mkdir()
    entry = {"type": "KubernetesReleased", "status": "true", "deviceId": "GPU-1"}
    (folder / "k.json").write_text(json.dumps({"conditions": [entry]}))

    async def test(part: Conditions) -> None:
        assert statuses(part) == {**QUIET, "KubernetesReleased": "true"}

    bench.run(test)


def test_failed_resets_are_asked_for_only_while_a_mig_change_waits(bench: Bench) -> None:
    gpu = pb.Gpu(uuid="GPU-1", state="ok")
    gpu.mig.capable, gpu.mig.current, gpu.mig.pending = True, False, True
    bench.gpus, bench.failed_resets = pb.GpusSection(gpus=[gpu]), frozenset({"GPU-1"})

    async def waits(part: Conditions) -> None:
        [told] = [condition for condition in part.current if condition.type == "RebootRequired"]
        assert told.message == "MigPending: GPU-1; MigResetFailed: GPU-1"

    bench.run(waits)


def test_bridges_are_read_once_a_boot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """VPD is slow, and reading it often wears nobody's patience but the card's."""
    slot = bench.root / "sys/bus/pci/devices/0000:05:00.0"
    slot.mkdir(parents=True)
    for name, text in (("vendor", "0x15b3"), ("class", "0x020700"), ("vpd", "MODL=CX7:SMDL=SW_MNG")):
        (slot / name).write_text(text)
    reads: list[str] = []
    read = Host.read

    def counted(host: Host, path: str, limit: int = 1 << 20, follow: bool = True) -> bytes:
        reads.append(path)
        return read(host, path, limit, follow)

    monkeypatch.setattr(Host, "read", counted)
    functions = [pb.PciFunction(bus_id="00000000:18:00.0", device_id="2901", class_code="030200", driver="nvidia")]
    bench.gpus = pb.GpusSection(pci_functions=functions, gpus=[pb.Gpu(uuid="GPU-1", state="ok")])

    async def test(part: Conditions) -> None:
        assert statuses(part)["FabricManagerDown"] == "true"
        for _ in range(5):
            part.look()
            await asyncio.sleep(0.02)
        assert sum(path.endswith("/vpd") for path in reads) == 1

    bench.run(test)
