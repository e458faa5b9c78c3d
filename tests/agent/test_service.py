"""The daemon as a whole, in this process: a recorded host, a gateway that does what a script says, a collector that counts."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.agent.v1 import session_pb2 as wire
from bettercompute.contract.sections import SECTIONS, encode

from agent import doors, local, settling, triggers
from agent.collectors import Options
from agent.config import Config
from agent.errors import UserError
from agent.inventory import Store
from agent.sections import Collected, Failed, Section
from agent.service import Daemon
from agent.session import reconnect
from agent.systemd import Notifier
from tests.agent.session.fake_gateway import FakeGateway, Stream, until
from tests.hosts_catalog import HOSTS
from tests.repetitions import PROOF, within

GPU = pb.GpusSection(
    driver=pb.NvidiaDriver(nvml_version="12.550"),
    pci_functions=[pb.PciFunction(bus_id="00000000:18:00.0", device_id="2330", class_code="030200", driver="nvidia")],
    gpus=[pb.Gpu(uuid="GPU-1", bus_id="00000000:18:00.0", device_id="2330", state="ok")],
)


@dataclass
class FakeCollector:
    """Answers at once (or when `gate` opens) and remembers what it was asked."""

    gpus: pb.GpusSection | Failed = field(default_factory=lambda: GPU)
    hostname: str = "n1"
    abandoned: int = 0
    asked: list[tuple[str, ...]] = field(default_factory=list)
    known: list[tuple[str, ...]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    configured: list[tuple[object, ...]] = field(default_factory=list)

    def configure(self, *settings: object) -> None:
        self.configured.append(settings)

    async def collect(self, names: Sequence[str], known: Sequence[pb.Gpu] = ()) -> Collected:
        self.asked.append(tuple(sorted(names)))
        self.known.append(tuple(gpu.uuid for gpu in known))
        if self.gate:
            await self.gate.wait()
        bodies = dict.fromkeys(names, b"") | {"os": encode(pb.OsSection(hostname=self.hostname))}
        if isinstance(self.gpus, pb.GpusSection):
            bodies["gpus"] = encode(self.gpus)
        failed = (self.gpus,) if isinstance(self.gpus, Failed) and "gpus" in names else ()
        told = sorted(set(names) - {f.name for f in failed})
        return Collected(tuple(Section(name, bodies[name]) for name in told), failed)


async def accept(stream: Stream) -> None:
    """A gateway that applies what it is offered."""
    await stream.welcome(epoch=len(stream.received) + 1)
    while True:
        offer = await stream.next("inventory_offer")
        await stream.say(inventory_result=wire.InventoryResult(digest=offer.digest, status=wire.INVENTORY_STATUS_APPLIED))


@dataclass
class Run:
    """A running daemon and what is around it."""

    daemon: Daemon
    config: Config
    collector: FakeCollector
    gateway: FakeGateway
    ended: "asyncio.Task[None]"

    async def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        return await asyncio.to_thread(lambda: local.call(self.config.socket_path, method, 20.0, **arguments))

    async def applied(self) -> dict[str, Any]:
        while not (status := await self.ask("status"))["applied"]:
            await asyncio.sleep(0.01)
        return status

    def offers(self) -> list[wire.InventoryOffer]:
        return [
            r.inventory_offer for s in self.gateway.streams for r in s.received if r.WhichOneof("message") == "inventory_offer"
        ]


@dataclass
class Bench:
    """Starts daemons on one data directory and one copy of a recorded host."""

    path: Path
    host: Path
    config: Config
    collector: FakeCollector
    environ: dict[str, str] = field(default_factory=dict)
    reload: Callable[[], Config] | None = None

    def run(self, test: Callable[[Run], Awaitable[None]], script: Callable[[Stream], Awaitable[None]] = accept) -> None:
        async def work() -> None:
            async with FakeGateway(self.path / "g.sock", script) as gateway:
                config = replace(self.config, server=gateway.target, insecure=True)
                notifier = Notifier(self.environ)
                daemon = Daemon(config, self.host, notifier, self.reload or (lambda: config))
                ended = asyncio.create_task(daemon.run())
                await until(lambda: config.socket_path.exists() or ended.done())
                try:
                    await asyncio.wait_for(test(Run(daemon, config, self.collector, gateway, ended)), 30)
                finally:
                    if not ended.done():
                        os.kill(os.getpid(), signal.SIGTERM)
                    started = time.monotonic()
                    await asyncio.wait_for(ended, within(5))
                    assert time.monotonic() - started < within(2.0), "ends within a second or two"

        asyncio.run(work())

    def facts(self, **changed: object) -> None:
        """Changes host.json."""
        path = self.host / "host.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    host = tmp_path / "host"
    for name in ("proc", "sys/kernel", "sys/module/nvidia"):
        (host / "root" / name).mkdir(parents=True)
    (host / "root/sys/module/nvidia/version").write_text("550.90.07\n")
    (host / "root/sys/kernel/uevent_seqnum").write_text("1\n")
    (host / "host.json").write_text('{"bootId": "boot-1", "uptime": 86400.0}')
    data = tmp_path / "data"
    data.mkdir()
    collector = FakeCollector()
    monkeypatch.setattr(doors, "collector", lambda config, host_dir: collector)
    return Bench(tmp_path, host, Config(data_dir=data, settle=600.0), collector)


def test_the_first_start_collects_everything_and_the_receiver_gets_it(bench: Bench) -> None:
    async def test(run: Run) -> None:
        status = await run.applied()
        assert run.collector.asked == [tuple(sorted(SECTIONS))]
        assert [(o.trigger, o.boot_id, len(o.sections)) for o in run.offers()] == [("first", "boot-1", 8)]
        assert (status["nodeId"], status["digest"]) == (run.gateway.streams[0].node_id, run.offers()[0].digest)

    bench.run(test)


def test_a_restart_names_the_run_before_and_who_was_superseded_comes_back_as_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnect, "RECONNECT", {"superseded": (0.05, 0.1)})
    hellos: list[wire.Hello] = []

    async def supersede(stream: Stream) -> None:
        hellos.append(await stream.welcome(epoch=len(hellos) + 1))
        if len(hellos) == 2:
            await stream.say(session_end=wire.SessionEnd(reason=wire.SESSION_END_REASON_SUPERSEDED))
        await stream.stay()

    async def until_told(run: Run) -> None:
        seen = len(hellos) + 1 + (len(hellos) == 1)
        await until(lambda: len(hellos) == seen)
        while (await run.ask("status"))["epoch"] != seen:
            await asyncio.sleep(0.01)

    bench.run(until_told, supersede)  # 1
    bench.run(until_told, supersede)  # 2, which is superseded, and 3
    first, second, third = hellos
    assert (first.previous_instance_id, first.HasField("previous_epoch")) == ("", False)
    assert (second.previous_instance_id, second.previous_epoch) == (first.instance_id, 1)
    assert (third.previous_instance_id, third.previous_epoch) == (second.instance_id, 2)
    assert len({hello.instance_id for hello in hellos}) == 3


def test_a_restart_in_the_same_boot_reports_without_collecting(bench: Bench) -> None:
    digests: list[str] = []

    async def first(run: Run) -> None:
        digests.append((await run.applied())["digest"])

    async def again(run: Run) -> None:
        await until(lambda: run.gateway.streams and "status_report" in run.gateway.streams[0].kinds())
        hello, report = run.gateway.streams[0].received[:2]
        assert hello.hello.digest == report.status_report.digest == digests[0]
        assert hello.hello.previous_epoch == 1
        assert list(hello.hello.capabilities) == ["nvml"]
        await asyncio.sleep(0.1)
        assert len(bench.collector.asked) == 1

    bench.run(first)
    bench.run(again)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda bench: bench.facts(bootId="boot-2"), "boot"),
        (lambda bench: (bench.host / "root/sys/module/nvidia/version").write_text("560.1"), "upgrade"),
        (lambda bench: (bench.host / "root/sys/kernel/uevent_seqnum").write_text("2"), "events"),
        (lambda bench: shutil.rmtree(bench.config.data_dir / "inventory" / "sections"), "first"),
    ],
)
def test_a_restart_collects_when_something_differs(bench: Bench, change: Callable[[Bench], object], reason: str) -> None:
    async def first(run: Run) -> None:
        await run.applied()

    async def again(run: Run) -> None:
        await until(lambda: len(bench.collector.asked) == 2)
        await run.applied()
        assert (await run.ask("status"))["trigger"] == reason

    bench.run(first)
    change(bench)
    bench.run(again)


def test_gpus_are_remembered_over_boots(bench: Bench) -> None:
    async def first(run: Run) -> None:
        await run.applied()

    bench.run(first)
    bench.facts(bootId="boot-2")
    bench.run(first)
    assert bench.collector.known == [(), ("GPU-1",)]


def test_refresh_ends_when_the_receiver_has_the_new_inventory(bench: Bench) -> None:
    async def test(run: Run) -> None:
        await run.applied()
        run.collector.hostname = "n2"
        answer = await run.ask("refresh")
        assert (answer["applied"], answer["reason"]) == (True, "")
        assert answer["digest"] == run.offers()[-1].digest != run.offers()[0].digest
        assert run.offers()[-1].trigger == "refresh"
        assert (await run.ask("refresh"))["applied"], "what has not changed is there already"
        assert len(run.offers()) == 2

    bench.run(test)


def test_refresh_tells_a_refusal_and_bcd_collects_once_more(bench: Bench) -> None:
    async def refuse(stream: Stream) -> None:
        await stream.welcome()
        while True:
            offer = await stream.next("inventory_offer")
            result = wire.InventoryResult(
                digest=offer.digest, status=wire.INVENTORY_STATUS_REFUSED, section="os", reason="too odd"
            )
            await stream.say(inventory_result=result)

    async def test(run: Run) -> None:
        await until(lambda: len(run.offers()) == 2)
        assert run.offers()[1].trigger == "refused"
        await asyncio.sleep(0.1)
        answer = await run.ask("refresh")
        assert not answer["applied"]
        assert answer["reason"] == "the receiver's answer: refused: section os: too odd"
        assert len(run.offers()) == 2, "refused twice: not offered again"

    bench.run(test, refuse)


def test_refresh_tells_when_its_time_is_over(bench: Bench) -> None:
    async def silent(stream: Stream) -> None:
        await stream.welcome()
        await stream.stay()

    async def test(run: Run) -> None:
        assert (await run.ask("refresh", timeout=0.3))["reason"] == "the receiver has not answered after 0.3 s"
        run.collector.gate = asyncio.Event()
        assert (await run.ask("refresh", timeout=0.3))["reason"] == "the collection has not ended after 0.3 s"
        run.collector.gate.set()
        with pytest.raises(UserError, match="timeout is 'x'"):
            await run.ask("refresh", timeout="x")

    bench.run(test, silent)


def test_triggers_during_a_collection_make_one_more(bench: Bench) -> None:
    bench.collector.gate = asyncio.Event()

    async def test(run: Run) -> None:
        await until(lambda: run.collector.asked)
        for _ in range(5):
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.sleep(0.01)
        assert (await run.ask("status"))["collecting"], "the local socket answers all the while"
        assert run.collector.gate
        run.collector.gate.set()
        await run.applied()
        await until(lambda: len(run.collector.asked) == 2)
        await asyncio.sleep(0.1)
        assert len(run.collector.asked) == 2

    bench.run(test)


def test_settling_leaves_gpus_out_and_tries_gpus_alone_until_they_are_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "RETRY", 0.2)
    bench.facts(uptime=10.0)
    bench.collector.gpus = pb.GpusSection(pci_functions=GPU.pci_functions, error=pb.NvmlFailure(reason="DriverNotLoaded"))

    async def test(run: Run) -> None:
        status = await run.applied()
        assert [(missing["name"], missing["error"]) for missing in status["missing"]] == [("gpus", "settling")]
        assert len(status["sections"]) == 7
        run.collector.gpus = GPU
        await until(lambda: len(run.offers()) == 2)
        assert (len(run.offers()[1].sections), run.offers()[1].trigger) == (8, "settling")
        assert set(run.collector.asked[1:]) == {("gpus",)}

    bench.run(test)


def test_other_collections_while_it_settles_do_not_multiply_its_tries(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "RETRY", 0.3)
    bench.facts(uptime=10.0)
    bench.collector.gpus = pb.GpusSection(pci_functions=GPU.pci_functions, error=pb.NvmlFailure(reason="DriverNotLoaded"))

    async def test(run: Run) -> None:
        await run.applied()
        for _ in range(10):
            await run.ask("refresh")
        tried = run.collector.asked.count(("gpus",))
        await asyncio.sleep(0.7)
        assert 1 <= run.collector.asked.count(("gpus",)) - tried <= 3

    bench.run(test)


def test_settling_ends_with_its_time_and_then_reports_what_there_is(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "RETRY", 0.1)
    bench.facts(uptime=10.0)
    bench.config = replace(bench.config, settle=10.5)
    bench.collector.gpus = pb.GpusSection(error=pb.NvmlFailure(reason="DriverNotLoaded"))

    async def test(run: Run) -> None:
        await until(lambda: any(len(offer.sections) == 8 for offer in run.offers()))
        assert len(run.offers()[0].sections) == 7

    bench.run(test)


def test_a_hang_after_settling_is_one_missing_section(bench: Bench) -> None:
    bench.collector.gpus = Failed("gpus", "Hang", "no answer within 60 s")
    bench.collector.abandoned = 1

    async def test(run: Run) -> None:
        status = await run.applied()
        assert [missing["error"] for missing in status["missing"]] == ["Hang: no answer within 60 s"]
        assert status["abandonedWorkers"] == 1
        reports = [r.status_report for r in run.gateway.streams[0].received if r.WhichOneof("message") == "status_report"]
        assert reports[-1].abandoned_workers == 1

    bench.run(test)


@pytest.mark.parametrize(
    "missing", [Failed("gpus", "WorkerDied", "ended by SIGSEGV"), pb.GpusSection(error=pb.NvmlFailure(reason="DriverNotLoaded"))]
)
def test_what_is_missing_is_tried_again_until_it_is_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, missing: pb.GpusSection | Failed
) -> None:
    monkeypatch.setattr(triggers, "RETRY", 0.1)
    bench.collector.gpus = missing

    async def test(run: Run) -> None:
        await until(lambda: len(bench.collector.asked) == 3)
        assert bench.collector.asked[1:] == [("gpus",), ("gpus",)]
        bench.collector.gpus = GPU
        await until(lambda: len(bench.collector.asked) == 4)
        await asyncio.sleep(0.3)
        assert len(bench.collector.asked) == 4, "and not once it is there"
        assert (await run.applied())["trigger"] == "retry-gpus"

    bench.run(test)


def test_a_restart_tries_a_section_that_nvml_did_not_answer_for(bench: Bench) -> None:
    async def test(run: Run) -> None:
        await run.applied()

    bench.collector.gpus = pb.GpusSection(error=pb.NvmlFailure(reason="Error"))
    bench.run(test)
    bench.run(test)
    assert len(bench.collector.asked) == 2


def test_a_slow_disk_holds_up_no_report(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    applied = threading.Event()
    saved: list[bool] = []
    monkeypatch.setattr(Store, "save", lambda *_: saved.append(applied.wait(10)))

    async def test(run: Run) -> None:
        await run.applied()
        applied.set()

    bench.run(test)
    assert all(saved), "what waits for the disk does not wait for the report"
    assert saved


def test_hello_is_said_again_when_nvml_begins_to_answer(bench: Bench) -> None:
    bench.collector.gate = asyncio.Event()

    async def test(run: Run) -> None:
        await until(lambda: run.gateway.streams and "status_report" in run.gateway.streams[0].kinds())
        assert run.collector.gate
        run.collector.gate.set()
        await until(lambda: run.gateway.streams[0].kinds().count("hello") == 2)
        hellos = [list(r.hello.capabilities) for r in run.gateway.streams[0].received if r.WhichOneof("message") == "hello"]
        assert hellos == [[], ["nvml"]]

    bench.run(test)


def test_another_boot_of_a_recorded_host_opens_another_session(bench: Bench) -> None:
    async def test(run: Run) -> None:
        await run.applied()
        bench.facts(bootId="boot-2")
        await run.ask("refresh")
        await until(lambda: len(run.gateway.streams) == 2 and run.gateway.streams[1].received)
        assert run.gateway.streams[1].received[0].hello.boot_id == "boot-2"

    bench.run(test)


def test_a_recorded_host_that_goes_away_does_not_end_the_daemon(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def test(run: Run) -> None:
        before = (await run.applied())["digest"]
        (bench.host / "root").rename(bench.host / "gone")
        answer = await run.ask("refresh")
        assert not answer["applied"]
        assert answer["reason"].startswith("the collection failed: ")
        assert (await run.ask("status"))["digest"] == before
        assert "is no recorded host" in caplog.text
        (bench.host / "gone").rename(bench.host / "root")
        assert (await run.ask("refresh"))["applied"]

    bench.run(test)


def test_reload_takes_new_settings_and_keeps_the_old_ones_when_one_is_wrong(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Config | UserError] = []

    def reload() -> Config:
        answer = answers.pop(0)
        if isinstance(answer, UserError):
            raise answer
        return answer

    bench.reload = reload

    async def test(run: Run) -> None:
        await run.applied()
        async with FakeGateway(bench.path / "other.sock", accept) as other:
            answers[:] = [
                UserError("bcd.toml:3: unknown key"),
                replace(run.config, server=other.target, image_dir="/images", collect_limit=7.0, data_dir=Path("/elsewhere")),
            ]
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: len(answers) == 1)
            assert (await run.applied())["server"] == run.gateway.target
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: other.streams)
            assert (await run.applied())["server"] == other.target
            assert run.collector.configured == [(Options(image_dir="/images"), "", 7.0)]

    bench.run(test)
    assert "the configuration is not reloaded: bcd.toml:3: unknown key" in caplog.text
    assert "changed, but in force from the next start on only: data_dir" in caplog.text


def test_rescans_when_its_interval_is_over(bench: Bench) -> None:
    bench.config = replace(bench.config, rescan_interval=0.2)

    async def test(run: Run) -> None:
        await until(lambda: len(run.collector.asked) >= 3)
        assert (await run.ask("status"))["trigger"] == "rescan"
        assert len(run.offers()) <= 1

    bench.run(test)


def test_images_alone_are_collected_where_a_cri_socket_is_configured(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.triggers.IMAGES_INTERVAL", 0.2)
    bench.config = replace(bench.config, cri_socket="/run/cri.sock")

    async def test(run: Run) -> None:
        await until(lambda: len(run.collector.asked) >= 3)
        assert set(run.collector.asked[1:]) == {("images",)}

    bench.run(test)


def test_the_service_manager_hears_ready_without_a_receiver_and_the_watchdog_is_fed(bench: Bench) -> None:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(bench.path / "notify"))
        manager.settimeout(5)
        bench.environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "100000"}

        async def gone(stream: Stream) -> None:
            await stream.context.abort(14, "no")

        async def test(run: Run) -> None:
            await asyncio.sleep(0.3)

        bench.run(test, gone)
        said: list[bytes] = []
        while not said or said[-1] != b"STOPPING=1":
            said.append(manager.recv(64))
    assert said.count(b"READY=1") == 1
    assert said.count(b"WATCHDOG=1") >= 3


def test_the_daemon_imports_nothing_heavy() -> None:
    heavy = "'cryptography', 'pynvml', 'rich', 'psutil', 'sqlalchemy', 'yaml'"
    code = f"import sys, agent.service; print(sorted({{{heavy}}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_recorded_host_s_hang_costs_one_section_and_status_answers_all_the_while(
    tmp_path: Path,
) -> None:
    host = tmp_path / "host"
    shutil.copytree(HOSTS["h100-sxm-8"], host, symlinks=True)
    nvml = json.loads((host / "nvml.json").read_text())
    nvml["devices"][2]["uuid"] = {"hang": True}
    (host / "nvml.json").write_text(json.dumps(nvml))
    bench = Bench(tmp_path, host, Config(data_dir=tmp_path, collect_limit=3.0, settle=0.0), FakeCollector())

    async def test(run: Run) -> None:
        slowest = 0.0
        status: dict[str, Any] = {"digest": None}
        while not status["digest"]:
            started = time.monotonic()
            status = await run.ask("status")
            slowest = max(slowest, time.monotonic() - started)
            await asyncio.sleep(0.05)
        assert [missing["name"] for missing in status["missing"]] == ["gpus"]
        assert status["missing"][0]["error"].startswith("Hang: ")
        assert len(status["sections"]) == 7
        assert slowest < (0.5 if PROOF else 1.5)

    bench.run(test)


def test_a_gpu_that_was_lost_before_bcd_came_is_found_by_the_kernel_log_s_word(tmp_path: Path) -> None:
    config = Config(data_dir=tmp_path / "data", settle=0.0)
    config.data_dir.mkdir()
    bench = Bench(tmp_path, HOSTS["lost-gpu"], config, FakeCollector())

    async def test(run: Run) -> None:
        lost: list[dict[str, Any]] = []
        while not lost:
            await asyncio.sleep(0.1)
            lost = [device for device in (await run.ask("status"))["devices"] if device["state"] == "lost"]
        assert [(device["busId"], device["offer"]) for device in lost] == [("00000000:C1:00.0", False)]
        text = (HOSTS["lost-gpu"] / "kmsg").read_text()
        assert f"GPU at PCI:0000:c1:00: {lost[0]['deviceId']}" in text

    bench.run(test)
