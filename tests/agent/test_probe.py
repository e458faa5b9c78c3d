"""The health probe in the daemon: what is a difference, what two probes tell, and when it is tried again."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import probe
from agent.probe import Answer, History, Prober, differs, learn, risen
from agent.sections import Failed, Section


def gpu(**changes: Any) -> pb.Gpu:
    made = pb.Gpu(uuid="GPU-1", bus_id="00000000:18:00.0", state="ok", recovery_action="none", serial="1650")
    made.ecc.volatile.total = 0
    made.row_remap.SetInParent()
    made.fabric.state = "completed"
    for path, value in changes.items():
        *parents, name = path.split("__")
        message: Any = made
        for parent in parents:
            message = getattr(message, parent)
        setattr(message, name, value)
    return made


def test_what_is_as_collected_is_no_difference() -> None:
    section = pb.GpusSection(gpus=[gpu(), gpu(uuid="GPU-2", state="lost"), gpu(uuid="GPU-3", assigned=True)])
    assert differs(Answer(gpus=(gpu(serial=""),)), section) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"ecc__volatile__total": 1},
        {"ecc__volatile__dram": 1},
        {"row_remap__pending": True},
        {"row_remap__failure": True},
        {"recovery_action": "gpu-reset"},
        {"fabric__state": "in-progress"},
        {"retired_pages__pending": True},
        {"ecc__sram_threshold_exceeded": True},
        {"uuid": "GPU-9"},
    ],
)
def test_what_a_fault_moves_is_a_difference(changes: dict[str, Any]) -> None:
    assert differs(Answer(gpus=(gpu(**changes),)), pb.GpusSection(gpus=[gpu()]))


def test_gpus_that_came_or_went_are_named() -> None:
    assert differs(Answer(gpus=()), pb.GpusSection(gpus=[gpu()])) == "GPU-1 came or went"


@pytest.mark.parametrize(
    ("answer", "section", "differing"),
    [
        (Answer(error="DRIVER_NOT_LOADED"), pb.GpusSection(gpus=[gpu()]), True),
        (Answer(error="DRIVER_NOT_LOADED"), pb.GpusSection(error=pb.NvmlFailure(reason="DriverNotLoaded")), False),
        (Answer(gpus=(gpu(),)), pb.GpusSection(error=pb.NvmlFailure(reason="DriverNotLoaded")), True),
        (Answer(gpus=(gpu(),)), None, True),
        (Answer(error="Hang"), pb.GpusSection(gpus=[gpu()]), False),
        (Answer(error="Hang"), None, False),
        (Answer(skipped="asleep"), pb.GpusSection(gpus=[gpu()]), False),
    ],
)
def test_an_nvml_that_answers_otherwise_is_a_difference(answer: Answer, section: pb.GpusSection | None, differing: bool) -> None:
    assert (differs(answer, section) is not None) is differing


def test_hangs_are_counted_in_a_row() -> None:
    history = History()
    for answer, hung in (("Hang", False), ("Hang", True), ("Hang", True), ("", False), ("Hang", False), ("UNKNOWN", False)):
        history = learn(history, Answer(error=answer), "boot-1", 0.0)
        assert history.is_hung is hung
    assert learn(history, Answer(skipped="asleep"), "boot-1", 0.0).hangs == history.hangs


def test_a_collection_that_read_the_gpus_ends_a_hang() -> None:
    """Probes may be skipped from then on, where no client has the GPUs open: a hang must not stand for ever."""
    part = prober(lambda: Failed("probe", "Hang", ""), lambda difference: None)
    run(part, lambda: part.history.is_hung)
    part.collected()
    assert not part.history.is_hung


def counted(*samples: tuple[float, int], boot: str = "boot-1") -> History:
    history = History()
    for at, count in samples:
        history = learn(history, Answer(replays={"GPU-1": count}), boot, at)
    return history


@pytest.mark.parametrize(
    ("samples", "rise"),
    [
        (((0.0, 5),), None),
        (((0.0, 5), (300.0, 1006)), 1001),
        (((0.0, 0), (3300.0, 600), (3600.0, 1200)), 1200),  # an hour is an hour
        (((0.0, 0), (300.0, 2000), (600.0, 2000), (4200.0, 2000), (8000.0, 2100)), 100),  # what is long past counts no more
        (((0.0, 0), (7200.0, 3000)), 1500),  # per hour
        (((0.0, 9000), (300.0, 10)), None),  # the driver was loaded anew
        (((0.0, 9000), (300.0, 10), (600.0, 30)), 20),
    ],
)
def test_replays_are_told_per_hour(samples: tuple[tuple[float, int], ...], rise: float | None) -> None:
    told = risen(counted(*samples).replays["GPU-1"])
    assert told == (None if rise is None else pytest.approx(rise, rel=0.06))


def test_samples_of_an_hour_are_kept_and_no_more() -> None:
    history = counted(*((300.0 * n, n) for n in range(500)))
    assert len(history.replays["GPU-1"]) <= 14


def test_another_boot_begins_anew() -> None:
    history = learn(counted((0.0, 0)), Answer(replays={"GPU-1": 5000}), "boot-2", 300.0)
    assert risen(history.replays["GPU-1"]) is None


def prober(ask: Callable[[], Any], told: Callable[[str | None], None], interval: float = 0.01) -> Prober:
    async def asked() -> Section | Failed:
        outcome = ask()
        assert isinstance(outcome, Section | Failed)
        return outcome

    return Prober(lambda: interval, asked, lambda: pb.GpusSection(), lambda: "boot-1", told)


def run(part: Prober, until: Callable[[], bool]) -> None:
    async def work() -> None:
        task = asyncio.create_task(part.run())
        async with asyncio.timeout(5):
            while not until():
                await asyncio.sleep(0.005)
        task.cancel()

    asyncio.run(work())


def test_tells_each_probe_and_its_difference() -> None:
    told: list[str | None] = []
    answers = iter([Section("probe", b'{"gpus": ""}'), Section("probe", b'{"error": "UNKNOWN"}')])
    run(prober(lambda: next(answers, Failed("probe", "Hang", "")), told.append), lambda: len(told) >= 2)
    assert told[:2] == [None, "NVML answers otherwise"]


def test_interval_zero_is_never() -> None:
    told: list[str | None] = []
    part = prober(lambda: Section("probe", b'{"gpus": ""}'), told.append, interval=0.0)

    async def work() -> None:
        task = asyncio.create_task(part.run())
        await asyncio.sleep(0.1)
        task.cancel()

    asyncio.run(work())
    assert told == []


def test_after_no_answer_the_next_try_comes_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "RETRY", 0.01)
    told: list[str | None] = []
    part = prober(lambda: Failed("probe", "Hang", "no answer within 15 s"), told.append, interval=0.2)
    run(part, lambda: len(told) >= 3)
    assert part.history.is_hung
