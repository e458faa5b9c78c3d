"""The collection's child process: what it hands back, and what hangs, crashes or bugs cost."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import SECTIONS, decode

import agent
from agent import collection
from agent.collection import Collector
from agent.collectors import COLLECTORS, Options
from agent.sections import Collected
from tests.nvml_stub import HANGABLE, Stub, stub
from tests.nvml_stub.sample import UUIDS, full, record
from tests.repetitions import PROOF, some

ALL = list(COLLECTORS)
OTHERS = sorted(set(ALL) - {"gpus"})


def children() -> set[int]:
    """Worker processes that this process started and that are still there."""
    here = os.getpid()
    listed = Path(f"/proc/{here}/task/{here}/children").read_text().split()
    return {int(pid) for pid in listed if b"agent.collectors.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    yield
    assert children() == set()


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return record(tmp_path / "host", full())


def collector(host: Path | None, driver: Stub | None = None, limit: float = 20) -> Collector:
    return Collector(host, Options(), str(driver.library) if driver else "", limit)


def collect(names: list[str], host: Path | None, driver: Stub | None = None, limit: float = 20) -> Collected:
    return asyncio.run(collector(host, driver, limit).collect(names))


def use(monkeypatch: pytest.MonkeyPatch, driver: Stub) -> Stub:
    for key, value in driver.env.items():
        monkeypatch.setenv(key, value)
    return driver


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of code that runs in the child before anything else (sitecustomize), to put faults into it."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    (tmp_path / "site").mkdir()
    return tmp_path / "site/sitecustomize.py"


BREAK = """
import sys, types
def collect(ctx):
    {code}
sys.modules["agent.collectors.{section}"] = types.SimpleNamespace(collect=collect)
"""


# -- what comes out


def test_collects_every_section_of_this_machine() -> None:
    collected = collect(ALL, None)
    assert [s.name for s in collected.sections] == sorted(SECTIONS)
    assert not collected.failed
    assert isinstance(decode("cpu", collected.sections[0].data), pb.CpuSection)


def test_collects_only_what_is_asked_sorted_by_name(host: Path) -> None:
    assert [s.name for s in collect(["system", "gpus", "cpu"], host).sections] == ["cpu", "gpus", "system"]


def test_refuses_a_section_that_does_not_exist(host: Path) -> None:
    with pytest.raises(ValueError, match="no such section: gpu; there are system, os"):
        collect(["gpu"], host)


def test_known_gpus_and_options_reach_the_collectors(tmp_path: Path) -> None:
    nvml = full()
    del nvml["devices"][0]
    host = record(tmp_path / "host", nvml)
    image = host / "root/srv/images/a.raw"
    image.parent.mkdir(parents=True)
    image.write_bytes(b"x" * 100)
    known = [pb.Gpu(uuid=UUIDS[0], bus_id="00000000:18:00.0", name="x" * 200_000)]  # more than a pipe holds
    collector = Collector(host, Options(image_dir="/srv/images"), "", 20)
    gpus, images = asyncio.run(collector.collect(["images", "gpus"], known)).sections
    assert [gpu.state for gpu in pb.GpusSection.FromString(gpus.data).gpus] == ["lost", "ok"]
    assert [image.bytes for image in pb.ImagesSection.FromString(images.data).images] == [100]


def test_a_relative_host_directory_is_taken_from_here(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(host.parent)
    relative = collector(Path("host"))
    monkeypatch.chdir("/")
    assert len(asyncio.run(relative.collect(["gpus"])).sections) == 1


def test_one_collection_at_a_time(host: Path) -> None:
    async def both() -> list[int]:
        one = collector(host)
        seen: list[int] = []

        async def watch() -> None:
            while True:
                seen.append(len(children()))
                await asyncio.sleep(0.005)

        watching = asyncio.create_task(watch())
        await asyncio.gather(one.collect(ALL), one.collect(ALL))
        watching.cancel()
        return seen

    assert max(asyncio.run(both())) == 1


# -- bugs and failures


def test_our_bug_in_one_collector_costs_that_section_and_goes_loud(
    host: Path, plugin: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.write_text(BREAK.format(section="cpu", code="ctx.nonsense"))
    collected = collect(ALL, host)
    assert [s.name for s in collected.sections] == sorted(set(ALL) - {"cpu"})
    (failed,) = collected.failed
    assert (failed.name, failed.reason) == ("cpu", "Bug")
    assert "AttributeError" in failed.message
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        ("SectionFailed('IdentityUnstable', 'GPU 0 changes')", "IdentityUnstable", "GPU 0 changes"),
        ("Unreadable('/proc/x', 13)", "Unreadable", "cannot read /proc/x: Permission denied"),
    ],
)
def test_a_collector_that_says_why_it_failed_is_quoted(host: Path, plugin: Path, error: str, reason: str, message: str) -> None:
    plugin.write_text(BREAK.format(section="disks", code=f"import agent.errors; raise agent.errors.{error}"))
    collected = collect(ALL, host)
    assert [(f.name, f.reason, f.message) for f in collected.failed] == [("disks", reason, message)]
    assert len(collected.sections) == 7


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os._exit(3)", "the worker ended with exit code 3"),
        ("import os; os.write(2, b'first\\nlast words\\n'); os._exit(1)", "the worker ended with exit code 1: last words"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "the worker was ended by SIGKILL"),
        ("import os; os.kill(os.getpid(), 35)", "the worker was ended by signal 35"),
    ],
)
def test_a_worker_that_dies_costs_the_section_it_died_in(host: Path, plugin: Path, code: str, message: str) -> None:
    plugin.write_text(BREAK.format(section="memory", code=code))
    collected = collect(ALL, host)
    assert [(f.name, f.reason, f.message) for f in collected.failed] == [("memory", "WorkerDied", message)]
    assert [s.name for s in collected.sections] == sorted(set(ALL) - {"memory"})


def test_a_crash_in_the_drivers_library_costs_gpus_only(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = use(monkeypatch, stub(tmp_path, full(), crash="nvmlDeviceGetMigMode"))
    collected = collect(ALL, host, driver)
    assert [(f.name, f.reason, f.message) for f in collected.failed] == [
        ("gpus", "WorkerDied", "the worker was ended by SIGSEGV")
    ]
    assert [s.name for s in collected.sections] == OTHERS


def test_a_worker_that_cannot_start_fails_every_section_at_once(host: Path, plugin: Path) -> None:
    plugin.write_text("import os; os.write(2, b'no way\\n'); os._exit(1)")
    collected = collect(ALL, host)
    assert [f.name for f in collected.failed] == sorted(ALL)
    assert {f.message for f in collected.failed} == {"the worker ended with exit code 1: no way"}


def test_a_worker_that_the_kernel_refuses_fails_every_section_and_the_next_one_is_tried(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as full:
        full.setattr(subprocess, "Popen", refused)
        collected = collect(ALL, host)
    assert [f.name for f in collected.failed] == sorted(ALL)
    assert {f.message for f in collected.failed} == {"the worker cannot be started: Resource temporarily unavailable"}
    assert not collect(["os"], host).failed


def test_a_recording_that_is_damaged_fails_every_section_by_name(host: Path) -> None:
    (host / "nvml.json").write_text('{"devices": [')
    collected = collect(ALL, host)
    assert [f.name for f in collected.failed] == sorted(ALL)
    assert {(f.reason, f.message.splitlines()[0]) for f in collected.failed} == {
        ("UserError", f"{host}/nvml.json:1: not JSON: Expecting value")
    }


def test_a_bug_with_a_huge_text_is_cut(host: Path, plugin: Path) -> None:
    plugin.write_text(BREAK.format(section="cpu", code="raise ValueError('z' * 1_000_000)"))
    collected = collect(ALL, host)
    (failed,) = collected.failed
    assert failed.message.startswith("ValueError: zzz")
    assert len(failed.message) < 1100


def test_a_hang_says_the_same_each_time(host: Path, plugin: Path) -> None:
    plugin.write_text(BREAK.format(section="cpu", code="import time; time.sleep(600)"))
    assert collect(["cpu"], host, limit=0.5).failed == collect(["cpu"], host, limit=0.5).failed


def test_what_a_library_prints_does_not_reach_the_frames(host: Path, plugin: Path) -> None:
    plugin.write_text(
        BREAK.format(section="os", code="print('{\"section\": 1}', flush=True); import os; os.write(1, b'x'); ctx.bug")
    )
    collected = collect(ALL, host)
    assert [f.name for f in collected.failed] == ["os"]
    assert len(collected.sections) == 7


def test_a_worker_that_floods_standard_error_neither_blocks_nor_eats_memory(
    host: Path, plugin: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import os; [os.write(2, b'y' * 65536) for _ in range(200)]; os.write(2, b'\\nthe end\\n'); os._exit(9)"
    plugin.write_text(BREAK.format(section="os", code=code))
    (failed,) = collect(ALL, host).failed
    assert failed.message == "the worker ended with exit code 9: the end"
    assert len(caplog.text) < 20_000


# -- hangs


@pytest.mark.parametrize("function", some(HANGABLE))
def test_a_hang_in_any_nvml_call_costs_gpus_only(
    function: str, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = use(monkeypatch, stub(tmp_path, full(), hang=function))
    start = time.monotonic()
    collected = collect(ALL, host, driver, limit=2.0)
    assert time.monotonic() - start < 2.0 + 5
    assert driver.called()[-1] == function
    assert [(f.name, f.reason) for f in collected.failed] == [("gpus", "Hang")]
    assert [s.name for s in collected.sections] == OTHERS
    assert children() == set()


def test_a_recorded_hang_costs_gpus_only(tmp_path: Path) -> None:
    nvml = full()
    nvml["devices"][1]["fabric"] = {"hang": True}
    collected = collect(ALL, record(tmp_path / "host", nvml), limit=2.0)
    assert [(f.name, f.reason) for f in collected.failed] == [("gpus", "Hang")]
    assert [s.name for s in collected.sections] == OTHERS


def test_a_hang_in_an_earlier_section_does_not_cost_the_later_ones(host: Path, plugin: Path) -> None:
    plugin.write_text(BREAK.format(section="disks", code="import time; time.sleep(600)"))
    collected = collect(ALL, host, limit=2.0)
    assert [(f.name, f.reason) for f in collected.failed] == [("disks", "Hang")]
    assert [s.name for s in collected.sections] == sorted(set(ALL) - {"disks"})


def test_a_worker_that_hangs_before_it_begins_fails_every_section_within_one_limit(host: Path, plugin: Path) -> None:
    plugin.write_text("import time; time.sleep(600)")
    start = time.monotonic()
    collected = collect(ALL, host, limit=0.5)
    assert time.monotonic() - start < 4  # each of the eight would take half a second
    assert {f.reason for f in collected.failed} == {"Hang"}
    assert len(collected.failed) == 8


def test_the_event_loop_goes_on_while_a_worker_hangs(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = use(monkeypatch, stub(tmp_path, full(), hang="nvmlInitWithFlags"))

    async def measure() -> float:
        task = asyncio.create_task(collector(host, driver, 3.0).collect(ALL))
        slowest = 0.0
        while not task.done():
            before = time.monotonic()
            await asyncio.sleep(0.01)
            slowest = max(slowest, time.monotonic() - before)
        return slowest

    assert asyncio.run(measure()) < (0.5 if PROOF else 1.5)


def test_a_cancelled_collection_leaves_no_child(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = use(monkeypatch, stub(tmp_path, full(), hang="nvmlInitWithFlags"))

    async def cancel() -> None:
        task = asyncio.create_task(collector(host, driver).collect(["gpus"]))
        while not driver.called():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert children() == set()

    asyncio.run(cancel())


def test_a_child_that_outlives_sigkill_is_abandoned_and_none_is_started_over_it(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uninterruptible sleep cannot be arranged here: the child is spared its SIGKILL instead."""
    driver = use(monkeypatch, stub(tmp_path, full(), hang="nvmlDeviceGetUUID"))
    monkeypatch.setattr(collection, "KILL_WAIT", 0.1)

    async def scenario() -> None:
        one = collector(host, driver, 3.0)
        with monkeypatch.context() as spared:
            spared.setattr(subprocess.Popen, "kill", lambda _: None)
            first = await one.collect(ALL)
        (stuck,) = children()
        assert [(f.name, f.reason) for f in first.failed] == [("gpus", "Hang")]
        assert f"abandoned child pid {stuck}" in first.failed[0].message
        assert [s.name for s in first.sections] == OTHERS
        assert one.abandoned == 1

        start = time.monotonic()
        second = await one.collect(ALL)
        assert time.monotonic() - start < 3.0  # at once: no limit had to pass
        assert [(f.name, f.reason) for f in second.failed] == [("gpus", "Hang")]
        assert f"abandoned child pid {stuck}" in second.failed[0].message
        assert [s.name for s in second.sections] == OTHERS
        assert children() == {stuck}

        os.kill(stuck, signal.SIGKILL)
        while one.abandoned:
            await asyncio.sleep(0.01)
        monkeypatch.delenv("NVML_STUB_HANG")
        assert not (await one.collect(ALL)).failed

    asyncio.run(scenario())


# -- what the child has of its parent


def test_the_child_dies_with_its_parent(host: Path, tmp_path: Path) -> None:
    driver = stub(tmp_path, full(), hang="nvmlInitWithFlags")
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from agent.collection import Collector; from agent.collectors import Options\n"
        "asyncio.run(Collector(Path(sys.argv[1]), Options(), sys.argv[2], 60).collect(['gpus']))"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(host), str(driver.library)], env={**os.environ, **driver.env})
    try:
        while not driver.called():
            time.sleep(0.01)
        (child,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_child_inherits_no_descriptor_and_not_the_notify_socket(
    host: Path, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS"):
        monkeypatch.setenv(name, "/run/systemd/notify")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/nvidia")
    plugin.write_text(
        BREAK.format(
            section="os",
            code=f"import os; open({str(seen)!r}, 'w').write(repr((sorted(os.environ), "
            "[os.readlink('/proc/self/fd/' + n) for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)],"
            "os.getsid(0) == os.getpid())))",
        )
    )
    with open(tmp_path / "secret", "w") as file:
        os.set_inheritable(file.fileno(), True)
        collect(["os"], host)
    environment, files, own_session = eval(seen.read_text())  # noqa: S307 - written by the line above
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS"} & set(environment)
    assert "LD_LIBRARY_PATH" in environment
    assert not [name for name in files if "secret" in name or "socket" in name]
    assert own_session


def test_the_child_imports_neither_grpc_nor_asyncio_and_pynvml_only_for_gpus(host: Path, tmp_path: Path) -> None:
    script = (
        "import json, sys, agent.collectors.worker as worker\n"
        "from agent.recorded import open_host, open_nvml; from agent.collectors import collect; from pathlib import Path\n"
        "for name in sys.argv[2:]: collect(name, open_host(Path(sys.argv[1])), open_nvml(Path(sys.argv[1])))\n"
        "print([m for m in ('grpc', 'asyncio', 'rich', 'psutil', 'pynvml') if m in sys.modules])"
    )
    command = [sys.executable, "-c", script, str(host), *ALL]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30, cwd=Path(agent.__file__).parents[1])
    assert said.stdout.strip() == "[]"
