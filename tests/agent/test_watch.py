"""The watch over a kernel log: a file or a FIFO as `DIR/kmsg`, the daemon played by the hooks."""

import asyncio
import contextlib
import errno
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import fault_store, faults, looks, watch
from agent.fault_store import FILE
from agent.kmsg.reader import KernelLogError
from agent.kmsg.record import Record
from agent.known_gpus import Remembered
from agent.watch import Hooks, Watch
from tests.agent.session.fake_gateway import until
from tests.repetitions import PROOF, within

A, B = "00000000:18:00.0", "00000000:2A:00.0"
UUID = "GPU-5f3a8c21-7b94-1e0d-a6c2-93d41b7e2f08"
KNOWN = {A: Remembered("boot-1", pb.Gpu(uuid="GPU-1", bus_id=A)), B: Remembered("boot-1", pb.Gpu(uuid="GPU-2", bus_id=B))}
EARLIER = {A: Remembered("boot-0", pb.Gpu(uuid="GPU-1", bus_id=A))}


def line(seq: int, text: str, priority: int = 4) -> str:
    return f"{priority},{seq},{seq * 1000},c;{text}\n"


def xid(seq: int, code: int = 79, bus: str = "0000:18:00") -> str:
    return line(seq, f"NVRM: Xid (PCI:{bus}): {code}, pid=1, name=python, Ch {seq:08x}")


@dataclass
class Bench:
    """A data directory, a log, and what the daemon was asked."""

    path: Path
    boot_id: str = "boot-1"
    known: dict[str, Remembered] = field(default_factory=lambda: dict(KNOWN))
    trust: bool = False
    reports: list[tuple[float, list[tuple[str, str, int]]]] = field(default_factory=list)
    wanted: list[tuple[float, str]] = field(default_factory=list)
    watch: Watch = field(init=False)

    @property
    def log(self) -> Path:
        return self.path / "kmsg"

    def says(self, *lines: str) -> None:
        with self.log.open("a") as file:
            file.write("".join(lines))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Watch]:
        loop = asyncio.get_running_loop()
        hooks = Hooks(
            changed=lambda: self.reports.append((loop.time(), self.told())),
            want=lambda reason: self.wanted.append((loop.time(), reason)),
            trust_userspace=lambda: self.trust,
            clock=lambda: 1000.0,
        )
        self.watch = Watch(self.log, self.path, self.boot_id, self.known, hooks)
        task = asyncio.create_task(self.watch.run())
        try:
            yield self.watch
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def told(self) -> list[tuple[str, str, int]]:
        return [(c.type, c.device_id, c.count) for c in self.watch.conditions() if "Xid" in c.type]

    def run(self, test: Callable[[Watch], Awaitable[None]]) -> None:
        async def main() -> None:
            async with self.running() as started:
                await asyncio.wait_for(test(started), 30)

        asyncio.run(main())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "kmsg").write_text(line(0, "Linux version 6.1.0", 5))
    return Bench(tmp_path)


def noting(writes: list[str], save: Callable[[Path, faults.Ledger], None] = fault_store.save) -> Callable[..., None]:
    """fault_store.save that says when it is called."""

    def wrapped(data_dir: Path, ledger: faults.Ledger) -> None:
        writes.append("disk")
        save(data_dir, ledger)

    return wrapped


def trouble(found: Watch) -> tuple[str, str] | None:
    return next(((c.status, c.reason) for c in found.conditions() if c.type == "KernelLogUnavailable"), None)


def test_a_fault_in_the_ring_is_reported_at_the_first_start(bench: Bench) -> None:
    bench.says(xid(1))

    async def test(found: Watch) -> None:
        await until(lambda: bench.reports and bench.reports[-1][1] == [("Xid79", "GPU-1", 1)])
        log = found.kernel_log()
        assert log is not None
        assert (log.available, log.complete, log.lost_records) == (True, True, 0)
        assert trouble(found) == ("false", "")

    bench.run(test)


def test_the_report_goes_out_before_the_disk_is_written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    async def test(found: Watch) -> None:
        await until(lambda: (bench.path / FILE).exists())
        monkeypatch.setattr(fault_store, "save", noting(order))
        bench.reports.clear()
        bench.says(xid(1))
        await until(lambda: bench.reports)
        assert order == []
        await until(lambda: order)

    bench.run(test)
    assert fault_store.load(bench.path, "boot-1").faults.cursor == 1


def test_a_restart_resumes_behind_the_cursor_and_counts_nothing_twice(bench: Bench) -> None:
    bench.says(xid(1), xid(2))

    async def first(found: Watch) -> None:
        await until(lambda: found.ledger.cursor == 2)

    async def second(found: Watch) -> None:
        assert bench.told() == [("Xid79", "GPU-1", 2)], "before anything is read"
        await until(lambda: found.ledger.cursor == 3)
        assert bench.told() == [("Xid79", "GPU-1", 3)]

    bench.run(first)
    bench.says(xid(3))
    bench.run(second)


def test_another_boot_begins_without_faults(bench: Bench) -> None:
    bench.says(xid(1))

    async def first(found: Watch) -> None:
        await until(lambda: found.ledger.faults)

    async def second(found: Watch) -> None:
        await until(lambda: found.ledger.cursor == 0)
        assert bench.told() == []

    bench.run(first)
    bench.log.write_text(line(0, "Linux version 6.1.0", 5))
    bench.boot_id = "boot-2"
    bench.run(second)


def test_a_recorded_host_that_is_rebooted_under_the_daemon_begins_anew(bench: Bench) -> None:
    bench.says(xid(1))

    async def test(found: Watch) -> None:
        await until(lambda: found.ledger.faults)
        bench.log.write_text(line(0, "Linux version 6.1.0", 5))
        found.learn(KNOWN, "boot-2")
        await until(lambda: (found.ledger.boot_id, found.ledger.cursor) == ("boot-2", 0))
        assert bench.told() == []
        assert bench.reports[-1][1] == []

    bench.run(test)


@pytest.mark.parametrize("inotify", [True, False])
def test_a_recorded_log_is_followed_as_it_grows_or_is_replaced(
    bench: Bench, inotify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not inotify:
        monkeypatch.setattr(watch, "changes", lambda *_: contextlib.nullcontext(False))
        monkeypatch.setattr(watch, "GROWTH_POLL", 0.05)

    async def test(found: Watch) -> None:
        await until(lambda: found.ledger.cursor == 0)
        for seq in (1, 2):
            bench.says(xid(seq))
            await until(lambda seq=seq: found.ledger.cursor == seq)  # type: ignore[misc]
        whole = bench.log.read_text()
        (bench.path / "new").write_text(whole + xid(3))
        (bench.path / "new").rename(bench.log)
        await until(lambda: bench.told() == [("Xid79", "GPU-1", 3)])

    bench.run(test)


def test_repeats_raise_the_count_and_are_told_at_most_once_a_second(bench: Bench) -> None:
    os.remove(bench.log)
    os.mkfifo(bench.log)

    async def test(found: Watch) -> None:
        await until(lambda: found.kernel_log())
        bench.reports.clear()
        began = asyncio.get_running_loop().time()
        for seq in range(1, 16):
            bench.says(xid(seq))
            await asyncio.sleep(0.1)
        await until(lambda: bench.reports[-1][1] == [("Xid79", "GPU-1", 15)])
        times = [at for at, _ in bench.reports]
        assert bench.reports[0][1] == [("Xid79", "GPU-1", 1)]
        assert len(times) <= asyncio.get_running_loop().time() - began + 2
        assert all(later - sooner > (0.99 if PROOF else 0.8) for sooner, later in itertools.pairwise(times))

    bench.run(test)


def test_a_process_cannot_forge_a_fault_unless_it_is_trusted(bench: Bench) -> None:
    forged = line(1, "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.", priority=12)

    async def not_trusted(found: Watch) -> None:
        await until(lambda: found.ledger.cursor == 1)
        assert bench.told() == []
        assert not bench.wanted

    async def trusted(found: Watch) -> None:
        await until(lambda: found.ledger.cursor == 2)
        assert bench.told() == [("Xid79", "GPU-1", 1)]

    bench.says(forged)
    bench.run(not_trusted)
    bench.says(forged.replace(",1,", ",2,"))
    bench.trust = True
    bench.run(trusted)


def test_the_short_form_of_old_drivers_is_no_fault_to_the_daemon(bench: Bench) -> None:
    bench.says(line(1, "NVRM: Xid (0018:00): 79, gone"), xid(2, 48))

    async def test(found: Watch) -> None:
        await until(lambda: found.ledger.cursor == 2)
        assert [kind for kind, _, _ in bench.told()] == ["Xid48"]

    bench.run(test)


def test_an_sxid_is_one_event_whatever_its_details(bench: Bench) -> None:
    head = "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 48 LTSSM Fault Up (First)"
    detail = "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Severity 1 Engine instance 48 Sub-engine instance 00"
    bench.says(line(1, head, 3), line(2, detail, 3))

    async def test(found: Watch) -> None:
        await until(lambda: found.ledger.cursor == 2)
        (condition,) = [c for c in found.conditions() if c.type == "SXid20034"]
        assert (condition.bus_id, condition.device_id, condition.count) == ("00000000:C4:00.0", "", 1)

    bench.run(test)


def test_lost_records_are_counted_logged_once_and_the_watch_goes_on(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.says(line(5, "usb 1-1: new device"), line(9, "usb 1-1: gone"), xid(10))

    async def test(found: Watch) -> None:
        await until(lambda: found.ledger.faults)
        log = found.kernel_log()
        assert log is not None
        assert (log.lost_records, log.complete) == (7, False)
        assert caplog.text.count("were lost") == 1

    bench.run(test)


def test_records_that_were_overwritten_while_bcd_was_down_are_lost_too(bench: Bench) -> None:
    async def first(found: Watch) -> None:
        await until(lambda: found.ledger.cursor == 0)

    async def second(found: Watch) -> None:
        await until(lambda: found.ledger.cursor == 40)
        assert (found.ledger.lost, found.ledger.complete) == (39, False)

    bench.run(first)
    bench.log.write_text(line(40, "usb 1-1: new device"))
    bench.run(second)


def test_what_does_not_parse_is_counted_and_passed_over(bench: Bench) -> None:
    bench.says("garbage\n", xid(1))

    async def test(found: Watch) -> None:
        await until(lambda: found.ledger.faults)
        assert found.describe()["unparsedRecords"] == 1

    bench.run(test)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda path: path.unlink(), "absent"),
        (lambda path: (path.unlink(), path.mkdir()), "ended"),
    ],
    ids=["absent", "not-a-log"],
)
def test_a_log_that_cannot_be_read_is_a_condition_and_is_opened_again(
    bench: Bench, broken: Callable[[Path], object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FIRST_DELAY", 0.05)
    monkeypatch.setattr(watch, "LAST_DELAY", 0.1)
    broken(bench.log)

    async def test(found: Watch) -> None:
        await until(lambda: trouble(found) == ("true", reason))
        log = found.kernel_log()
        assert log is not None
        assert (log.available, log.complete) == (False, False)
        since = next(c.since for c in found.conditions())
        await asyncio.sleep(0.2)
        assert next(c.since for c in found.conditions()) == since, "since moves only with the status"
        if bench.log.exists():
            bench.log.rmdir()
        bench.says(line(0, "Linux"), xid(1))
        await until(lambda: trouble(found) == ("false", "") and found.ledger.faults)
        assert next(c.since for c in found.conditions()) > since

    bench.run(test)


def test_the_delay_grows_even_where_each_try_reads_something(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[float] = []

    class Dying:
        def __init__(self, path: Path) -> None:
            self._path = path

        async def records(self) -> AsyncIterator[Record]:
            opened.append(asyncio.get_running_loop().time())
            yield Record(len(opened), 6, 0, "-", "usb 1-1: new device")
            raise KernelLogError("ended", self._path, "it ended")

    monkeypatch.setattr(watch, "FIRST_DELAY", 0.02)
    monkeypatch.setattr(watch, "Reader", Dying)

    async def test(found: Watch) -> None:
        await until(lambda: len(opened) == 5)
        assert opened[4] - opened[0] >= 0.02 + 0.04 + 0.08 + 0.16

    bench.run(test)


def test_no_permission_is_its_own_reason(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    async def test(found: Watch) -> None:
        await until(lambda: trouble(found) == ("true", "permission"))

    monkeypatch.setattr("agent.kmsg.reader.os.open", refuse)
    bench.run(test)


# -- whose it is


def test_an_xid_waits_for_the_first_inventory_and_is_attributed_then(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.known = {}
    bench.says(xid(1))

    async def test(found: Watch) -> None:
        await until(lambda: found.ledger.cursor == 1)
        log = found.kernel_log()
        assert log is not None
        assert log.unattributed == 0, "it waits"
        found.learn(KNOWN, "boot-1")
        assert bench.reports[-1][1] == [("Xid79", "GPU-1", 1)]
        assert "no GPU is known" not in caplog.text

    bench.run(test)


def unattributed(found: Watch) -> int:
    log = found.kernel_log()
    return log.unattributed if log else -1


def test_an_xid_of_no_known_gpu_is_logged_counted_and_makes_bcd_look(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "AFTER_XID", 0.1)
    bench.says(xid(1, bus="0000:99:00"), xid(2, bus="0000:99:00"))

    async def test(found: Watch) -> None:
        await until(lambda: unattributed(found) == 2)
        assert bench.told() == []
        assert caplog.text.count("Xid79 at 00000000:99:00.0: no GPU is known there") == 1
        assert found.describe()["unattributed"][0]["busId"] == "00000000:99:00.0"
        await until(lambda: bench.wanted)
        shown = {**KNOWN, "00000000:99:00.0": Remembered("boot-1", pb.Gpu(uuid="GPU-9"))}
        found.learn(shown, "boot-1")
        assert unattributed(found) == 0
        assert bench.reports[-1][1] == [("Xid79", "GPU-9", 2)], "attributed after all"

    bench.run(test)


@pytest.mark.parametrize(("limit", "value"), [("WAIT", 0.1), ("WAIT_RECORDS", 1)])
def test_waiting_ends_with_its_time_or_its_records(
    bench: Bench, limit: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, limit, value)
    monkeypatch.setattr(watch, "AFTER_XID", 0.1)
    bench.known = {}
    bench.says(xid(1), xid(2))

    async def test(found: Watch) -> None:
        await until(lambda: unattributed(found) == 2)
        await until(lambda: bench.wanted)

    bench.run(test)


def test_the_driver_s_line_names_the_gpu_and_is_remembered_over_a_restart(bench: Bench) -> None:
    bench.known = {}
    bench.says(line(1, f"NVRM: GPU at PCI:0000:18:00: {UUID}"))

    async def first(found: Watch) -> None:
        await until(lambda: found.ledger.cursor == 1)

    async def second(found: Watch) -> None:
        await until(lambda: bench.told() == [("Xid79", UUID, 1)])

    bench.run(first)
    bench.says(xid(2))
    bench.run(second)


def test_a_gpu_of_an_earlier_boot_is_remembered(bench: Bench) -> None:
    bench.known = dict(EARLIER)
    bench.says(xid(1))

    async def test(found: Watch) -> None:
        await until(lambda: bench.told() == [("Xid79", "GPU-1", 1)])
        assert [f.remembered for f in found.ledger.faults.values()] == [True]
        found.learn({A: Remembered("boot-1", pb.Gpu(uuid="GPU-9", bus_id=A))}, "boot-1")
        assert bench.told() == [("Xid79", "GPU-9", 1)], "this boot shows another GPU there"

    bench.run(test)


# -- what it starts


def test_an_xid_makes_bcd_look_two_seconds_later_once(bench: Bench) -> None:
    async def test(found: Watch) -> None:
        await until(lambda: found.kernel_log())
        began = asyncio.get_running_loop().time()
        bench.says(xid(1), xid(2), xid(3, 48))
        await until(lambda: bench.wanted)
        (at, reason), *more = bench.wanted
        assert reason == "xid"
        assert 1.9 < at - began < 2.0 + within(0.6)
        assert more == []

    bench.run(test)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:18:00.0\\x0aNVRM: (PCI ID: 10de:2330) has\\x0aNVRM: fallen off the bus",
    ],
)
def test_a_fallen_off_line_raises_nothing_and_makes_bcd_look_within_two_seconds(bench: Bench, text: str) -> None:
    async def test(found: Watch) -> None:
        await until(lambda: found.kernel_log())
        began = asyncio.get_running_loop().time()
        bench.says(line(1, text))
        await until(lambda: bench.wanted)
        assert bench.wanted[0][0] - began < 2.0 + within(0.2)
        assert bench.told() == []

    bench.run(test)


def test_xids_that_repeat_all_day_do_not_delay_the_look_at_a_gpu_that_is_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "AFTER_XID", 0.05)
    monkeypatch.setattr(watch, "AFTER_FALLEN", 0.05)
    monkeypatch.setattr(looks, "FIRST_GAP", 60.0)

    async def test(found: Watch) -> None:
        bench.says(xid(1))
        await until(lambda: len(bench.wanted) == 1)
        bench.says(xid(2))
        await until(lambda: found.ledger.cursor == 2)
        for seq, slot in enumerate(("0000:2a:00.0", "0000:18:00.0"), 3):
            bench.says(line(seq, f"NVRM: GPU {slot}: GPU has fallen off the bus."))
            await until(lambda seq=seq: len(bench.wanted) == seq - 1)  # type: ignore[misc]

    bench.run(test)


def test_a_fault_that_comes_just_before_a_look_has_its_own(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "AFTER_XID", 1.0)

    async def test(found: Watch) -> None:
        bench.says(xid(1, 31))
        await until(lambda: found.ledger.cursor == 1)
        await asyncio.sleep(0.8)
        began = asyncio.get_running_loop().time()
        bench.says(xid(2, 79))
        await until(lambda: len(bench.wanted) == 2)
        assert bench.wanted[1][0] - began > 0.9

    bench.run(test)


def test_a_verified_reset_drops_the_gpu_s_faults_on_disk_too(bench: Bench) -> None:
    bench.says(xid(1), xid(2, bus="0000:2a:00"))

    async def test(found: Watch) -> None:
        await until(lambda: len(found.ledger.faults) == 2)
        await found.drop(["GPU-1"])
        assert bench.reports[-1][1] == [("Xid79", "GPU-2", 1)]
        assert list(fault_store.load(bench.path, "boot-1").faults.faults) == [("GPU-2", "Xid79")]

    async def again(found: Watch) -> None:
        await until(lambda: found.kernel_log())
        await asyncio.sleep(0.1)
        assert bench.told() == [("Xid79", "GPU-2", 1)], "the ring still holds the line; it is behind the cursor"

    bench.run(test)
    bench.run(again)


# -- the disk


def test_a_full_disk_delays_no_report_and_is_tried_again_without_a_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[float] = []
    save = fault_store.save
    monkeypatch.setattr(watch, "KEEP_RETRY", 0.2)

    def full(*_: object) -> None:
        tries.append(0.0)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def test(found: Watch) -> None:
        monkeypatch.setattr(fault_store, "save", full)
        bench.says(xid(1))
        await until(lambda: bench.reports and bench.reports[-1][1] == [("Xid79", "GPU-1", 1)])
        await until(lambda: found.describe()["notSaved"] == "No space left on device")
        await until(lambda: len(tries) >= 2)
        await asyncio.sleep(0.5)
        assert len(tries) <= 5
        assert caplog.text.count("No space left on device") == 1
        monkeypatch.setattr(fault_store, "save", save)
        await until(lambda: found.describe()["notSaved"] is None)
        assert fault_store.load(bench.path, "boot-1").faults == found.ledger

    bench.run(test)


def test_a_storm_writes_the_disk_at_most_once_a_second(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[str] = []
    monkeypatch.setattr(fault_store, "save", noting(writes))
    os.remove(bench.log)
    os.mkfifo(bench.log)

    async def test(found: Watch) -> None:
        await until(lambda: found.kernel_log())
        began = asyncio.get_running_loop().time()
        for seq in range(1, 1500):
            bench.says(xid(seq))
            if seq % 100 == 0:
                await asyncio.sleep(0.1)
        await until(lambda: found.ledger.cursor == 1499)
        assert 1 <= len(writes) <= asyncio.get_running_loop().time() - began + 2

    bench.run(test)
    assert sum(f.count for f in fault_store.load(bench.path, "boot-1").faults.faults.values()) == 1499


def test_what_was_read_is_on_disk_when_the_watch_ends(bench: Bench) -> None:
    async def test(found: Watch) -> None:
        await until(lambda: found.ledger.cursor == 0)
        bench.says(xid(1))
        await until(lambda: found.ledger.cursor == 1)

    bench.run(test)
    assert fault_store.load(bench.path, "boot-1").cursor == 1
