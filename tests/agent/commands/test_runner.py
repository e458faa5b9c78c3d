"""The runner by rule (A7): each id once, the record before the effect, and what a repeat is answered after a crash."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from agent.commands import COMMANDS, runner
from agent.commands.order import AfterCrash, Kind, Node, Order, Payload
from agent.commands.runner import Runner
from agent.commands.store import Record, Store
from agent.config import COMMAND_KINDS, Config
from agent.errors import Failed, FieldError, Refused
from agent.session.messages import Command, CommandResult
from tests.agent.commands.fakes import FakeNode

ALLOWED = ("again", "interrupted", "reboot", "alone")


@dataclass
class Bench:
    """Runners on one directory; `run` is what each kind does, `ran` which ids did."""

    path: Path
    node: FakeNode
    run: Callable[[Order, Node], Awaitable[Payload]]
    now: float = 1_780_000_000.0
    ran: list[str] = field(default_factory=list)
    tidied: list[Mapping[str, Any]] = field(default_factory=list)
    sent: list[CommandResult] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return Store(self.path / "commands")

    def kinds(self) -> dict[str, Kind]:
        async def work(order: Order, node: Node) -> Payload:
            self.ran.append(order.id)
            assert self.store.get(order.id) is not None, "the record is on disk before the effect"
            return await self.run(order, node)

        async def tidy(facts: Mapping[str, Any], node: Node) -> None:
            self.tidied.append(facts)

        def limit(payload: Payload) -> float:
            return float(payload.get("limit", 30))

        return {
            "again": Kind(limit, work, AfterCrash.AGAIN),
            "interrupted": Kind(limit, work, AfterCrash.INTERRUPTED, tidy=tidy),
            "reboot": Kind(limit, work, AfterCrash.BY_BOOT, alone=True),
            "alone": Kind(limit, work, AfterCrash.AGAIN, alone=True),
            "forbidden": Kind(limit, work, AfterCrash.AGAIN),
        }

    def life(self, *commands: Command, until: int | None = None) -> list[CommandResult]:
        """One life of bcd: starts, takes the commands, dies when `until` results (one a command) are there. What it sent."""
        self.sent = []

        async def work() -> None:
            subject = Runner(self.store, self.node, self.sent.append, lambda: self.now, self.kinds())
            running = asyncio.create_task(subject.run())
            for command in commands:
                subject.received(command)
            try:
                async with asyncio.timeout(5):
                    while len(self.sent) < (len(commands) if until is None else until):
                        await asyncio.sleep(0.001)
                    await asyncio.sleep(0.005)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

        asyncio.run(work())
        return self.sent

    def die_in(self, command: Command) -> None:
        """A life that ends while the command runs."""

        async def work() -> None:
            subject = Runner(self.store, self.node, self.sent.append, lambda: self.now, self.kinds())
            running = asyncio.create_task(subject.run())
            before = len(self.ran)
            subject.received(command)
            async with asyncio.timeout(5):
                while len(self.ran) == before:
                    await asyncio.sleep(0.001)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        usual, self.run = self.run, forever
        asyncio.run(work())
        self.run = usual


async def done(order: Order, node: Node) -> Payload:
    return {"answer": 42}


async def forever(order: Order, node: Node) -> Payload:
    await asyncio.sleep(3600)
    return {}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, FakeNode(tmp_path, Config(commands_allow=ALLOWED)), done)


def order(kind: str, name: str = "cmd_1", payload: str = "", within: float | None = None) -> Command:
    return Command(name, kind, payload, "key", within)


def said(result: CommandResult) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(result.payload)
    return value


# ---- the table


def test_every_kind_has_its_row_its_limit_and_its_setting() -> None:
    assert tuple(COMMANDS) == COMMAND_KINDS
    limits = {name: kind.limit({}) / 60 for name, kind in COMMANDS.items()}
    assert limits == {"inventory.refresh": 2, "diag.nvml": 2, "diag.dcgm": 5, "gpu.reset": 10, "node.reboot": 5}
    again = {name for name, kind in COMMANDS.items() if kind.after_crash is AfterCrash.AGAIN}
    assert again == {"inventory.refresh", "diag.nvml", "diag.dcgm"}


# ---- answers


def test_a_command_that_is_done_succeeds_with_its_answer(bench: Bench) -> None:
    assert bench.life(order("again")) == [CommandResult("cmd_1", "succeeded", "", '{"answer": 42}')]


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (Failed("NotInstalled", "no dcgmi", tried="dcgmi"), "failed", "NotInstalled"),
        (Refused("gpu-busy", "in use"), "refused", "gpu-busy"),
        (FieldError("the world"), "failed", "FieldError"),
        (ZeroDivisionError("ours"), "failed", "Bug"),
    ],
)
def test_what_it_ends_with_is_its_answer(bench: Bench, error: Exception, status: str, reason: str) -> None:
    async def fails(order: Order, node: Node) -> Payload:
        raise error

    bench.run = fails
    (result,) = bench.life(order("again"))
    assert (result.status, result.reason) == (status, reason)
    assert str(error) in said(result)["message"]
    assert said(result).get("tried") == getattr(error, "payload", {}).get("tried")


def test_a_bug_in_a_command_is_loud_and_the_next_one_runs(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def bug(order: Order, node: Node) -> Payload:
        raise ZeroDivisionError

    bench.run = bug
    assert [result.reason for result in bench.life(order("again"), order("again", "cmd_2"))] == ["Bug", "Bug"]
    assert "Traceback" in caplog.text


def test_unknown_kinds_are_unsupported_and_others_than_the_allowed_are_refused(bench: Bench) -> None:
    unknown, forbidden = bench.life(order("node.fly"), order("forbidden", "cmd_2"))
    assert (unknown.status, unknown.reason) == ("failed", "UnsupportedCommand")
    assert (forbidden.status, forbidden.reason) == ("refused", "NotAllowed")
    assert "again, interrupted" in said(forbidden)["message"]
    assert bench.ran == []


@pytest.mark.parametrize("payload", ["{", "[]", "7", "nonsense", '"text"', "[" * 100_000])
def test_a_payload_that_is_no_object_fails(bench: Bench, payload: str) -> None:
    (result,) = bench.life(order("again", payload=payload))
    assert (result.status, result.reason) == ("failed", "BadPayload")
    assert bench.ran == []


def test_what_takes_longer_than_its_limit_is_ended(bench: Bench) -> None:
    bench.run = forever
    (result,) = bench.life(order("again", payload='{"limit": 0.05}'))
    assert (result.status, result.reason) == ("failed", "TimedOut")
    assert "0.05 s" in said(result)["message"]


def test_an_id_that_cannot_be_recorded_is_not_run(bench: Bench) -> None:
    (result,) = bench.life(order("again", "../../etc/cron.d/x"))
    assert (result.status, result.reason, bench.ran) == ("failed", "BadId", [])


def test_without_a_record_nothing_runs(bench: Bench) -> None:
    (bench.path / "commands").write_text("in the way")
    (result,) = bench.life(order("again"))
    assert (result.status, result.reason, bench.ran) == ("refused", "NotRecorded", [])


def test_an_answer_that_is_too_long_keeps_what_is_short_in_it(bench: Bench) -> None:
    async def long(order: Order, node: Node) -> Payload:
        return {"passed": False, "checks": ["x" * runner.MAX_PAYLOAD]}

    bench.run = long
    (result,) = bench.life(order("again"))
    assert result.status == "succeeded"
    assert list(said(result)) == ["passed", "message"]
    assert "longer than" in said(result)["message"]


# ---- the latest start


def test_too_late_is_expired_and_in_time_is_not(bench: Bench) -> None:
    late, early = bench.life(order("again", within=0.0), order("again", "cmd_2", within=5.0))
    assert (late.status, late.id, bench.ran) == ("expired", "cmd_1", ["cmd_2"])
    assert early.status == "succeeded"


def test_what_waits_for_another_one_until_it_is_too_late_expires(bench: Bench) -> None:
    async def slow(order: Order, node: Node) -> Payload:
        await asyncio.sleep(0.2)
        return {}

    bench.run = slow
    results = {r.id: r.status for r in bench.life(order("alone"), order("alone", "cmd_2", within=0.05), order("again", "cmd_3"))}
    assert results == {"cmd_1": "succeeded", "cmd_2": "expired", "cmd_3": "succeeded"}
    assert bench.ran == ["cmd_1", "cmd_3"], "what need not be alone runs beside it"


# ---- once


def test_a_repeat_of_a_finished_one_is_answered_with_the_stored_result_in_every_life(bench: Bench) -> None:
    first = bench.life(order("again"), order("again"), until=1)
    bench.run = forever
    assert set(bench.life(order("again"), until=2)) == set(first), "once after the start, once for the repeat"
    assert bench.ran == ["cmd_1"]


def test_a_repeat_of_one_that_runs_starts_nothing(bench: Bench) -> None:
    assert len(bench.life(order("again"), order("again"), order("again"), until=1)) == 1
    assert bench.ran == ["cmd_1"]


def test_those_that_run_or_wait_are_told_until_they_have_ended(bench: Bench) -> None:
    async def work() -> None:
        subject = Runner(bench.store, bench.node, bench.sent.append, lambda: bench.now, bench.kinds())
        running = asyncio.create_task(subject.run())
        for name in ("cmd_1", "cmd_2"):
            subject.received(order("again", name))
        rows = [{"id": name, "kind": "again", "since": bench.now} for name in ("cmd_1", "cmd_2")]
        assert subject.describe() == rows
        async with asyncio.timeout(5):
            while subject.describe():
                await asyncio.sleep(0.001)
        assert {result.id for result in bench.sent} == {"cmd_1", "cmd_2"}
        running.cancel()

    asyncio.run(work())


def test_a_refusal_stays_one_for_its_repeat(bench: Bench) -> None:
    (refused,) = bench.life(order("forbidden"))
    bench.node.config = Config(commands_allow=("forbidden",))
    assert set(bench.life(order("forbidden"), until=2)) == {refused}


def test_too_many_at_one_time_are_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_WAITING", 2)
    bench.run = forever
    (result,) = bench.life(*(order("again", f"cmd_{n}") for n in range(3)), until=1)
    assert (result.id, result.status, result.reason) == ("cmd_2", "refused", "TooManyCommands")


# ---- kept until acknowledged


def test_a_result_is_sent_again_in_the_next_life_until_it_is_acknowledged(bench: Bench) -> None:
    first = bench.life(order("again"))
    assert bench.life(until=1) == first
    Runner(bench.store, bench.node, bench.sent.append).acknowledged("cmd_1")
    assert bench.life(until=0) == []
    record = bench.store.get("cmd_1")
    assert record is not None
    assert record.acknowledged, "and it is kept"


def test_an_acknowledgement_of_what_nobody_knows_changes_nothing(bench: Bench) -> None:
    subject = Runner(bench.store, bench.node, bench.sent.append)
    for name in ("cmd_9", "../x", ""):
        subject.acknowledged(name)
    assert list(bench.store.all()) == []


# ---- bcd died while it ran


def test_what_may_not_run_twice_is_interrupted_tidied_up_and_told_without_a_repeat(bench: Bench) -> None:
    bench.die_in(order("interrupted"))
    (result,) = bench.life(until=1)
    assert (result.status, result.reason) == ("failed", "Interrupted")
    assert bench.tidied == [{}]
    assert set(bench.life(order("interrupted"), until=2)) == {result}
    assert bench.ran == ["cmd_1"]


def test_what_may_runs_again_at_its_repeat_and_not_by_itself(bench: Bench) -> None:
    bench.die_in(order("again"))
    assert bench.life(until=0) == []
    (result,) = bench.life(order("again"))
    assert (result.status, bench.ran) == ("succeeded", ["cmd_1", "cmd_1"])


def test_what_nobody_repeats_for_a_week_is_interrupted(bench: Bench) -> None:
    bench.die_in(order("again"))
    bench.now += 8 * 86400
    (result,) = bench.life(until=1)
    assert (result.status, result.reason) == ("failed", "Interrupted")


def test_a_reboot_has_succeeded_when_the_boot_is_another_one(bench: Bench) -> None:
    bench.die_in(order("reboot"))
    bench.node.boot_id = "boot-2"
    (result,) = bench.life(until=1)
    assert (result.status, said(result)) == ("succeeded", {"bootId": "boot-2", "previousBootId": "boot-1"})
    assert set(bench.life(order("reboot"), until=2)) == {result}
    assert bench.ran == ["cmd_1"]


def test_a_reboot_s_repeat_in_the_same_boot_starts_it_again_and_in_another_answers(bench: Bench) -> None:
    bench.die_in(order("reboot"))
    assert bench.life(until=0) == []
    bench.die_in(order("reboot"))
    assert bench.ran == ["cmd_1", "cmd_1"]
    bench.node.boot_id = "boot-2"
    assert bench.life(order("reboot"), until=1)[0].status == "succeeded"
    assert bench.ran == ["cmd_1", "cmd_1"]


def test_a_late_repeat_of_what_does_no_harm_runs_again_and_of_a_reboot_that_had_not_begun_expires(bench: Bench) -> None:
    for kind, status in (("again", "succeeded"), ("reboot", "expired")):
        bench.die_in(order(kind, kind))
        assert {r.status for r in bench.life(order(kind, kind, within=0.0)) if r.id == kind} == {status}


def test_a_repeat_whose_effect_has_begun_is_not_too_late(bench: Bench) -> None:
    bench.die_in(order("reboot"))
    record = bench.store.get("cmd_1")
    assert record is not None
    bench.store.put(replace(record, began=bench.now))
    assert bench.life(order("reboot", within=0.0))[0].status == "succeeded"
    assert bench.ran == ["cmd_1", "cmd_1"]


def test_a_damaged_record_is_an_interruption_and_nothing_runs(bench: Bench) -> None:
    bench.life(order("again"))
    (bench.path / "commands/cmd_1.json").write_text("{")
    (result,) = bench.life(order("again"), until=1)
    assert (result.status, result.reason) == ("failed", "Interrupted")
    assert bench.ran == ["cmd_1"]


def test_a_record_of_a_kind_that_this_version_lacks_is_interrupted(bench: Bench) -> None:
    bench.store.put(Record("cmd_1", "of.tomorrow", "", "", bench.now, "boot-1"))
    (result,) = bench.life(until=1)
    assert (result.status, result.reason) == ("failed", "Interrupted")


# ---- how often


def begins(*subjects: str, spacing: float = 600.0) -> Callable[[Order, Node], Awaitable[Payload]]:
    async def run(order: Order, node: Node) -> Payload:
        order.begin(subjects, spacing)
        return {}

    return run


def test_the_same_thing_again_too_soon_is_rate_limited_in_every_life(bench: Bench) -> None:
    bench.run = begins("GPU-1", "GPU-2")
    assert bench.life(order("alone"))[0].status == "succeeded"
    bench.now += 599
    bench.run = begins("GPU-2")
    (result,) = bench.life(order("alone", "cmd_2"), until=2)[1:]
    assert (result.status, result.reason) == ("refused", "RateLimited")
    bench.run = begins("GPU-3")
    assert bench.life(order("alone", "cmd_3"), until=3)[-1].status == "succeeded"
    bench.now += 1
    bench.run = begins("GPU-2")
    assert bench.life(order("alone", "cmd_4"), until=4)[-1].status == "succeeded"


def test_what_was_refused_before_its_effect_does_not_count(bench: Bench) -> None:
    async def refuses(order: Order, node: Node) -> Payload:
        raise Refused("gpu-busy", "in use")

    bench.run = refuses
    bench.life(order("alone"))
    bench.run = begins("GPU-1")
    assert bench.life(order("alone", "cmd_2"), until=2)[-1].status == "succeeded"


def test_a_clock_that_was_set_back_locks_nothing_for_ever(bench: Bench) -> None:
    bench.run = begins("GPU-1")
    bench.life(order("alone"))
    bench.now -= 86400
    assert bench.life(order("alone", "cmd_2"), until=2)[-1].status == "succeeded"
