"""What `inventory.refresh` answers, and drivers in Hello: the daemon as a whole against a gateway that a script plays."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from bettercompute.agent.v1 import session_pb2 as wire

from agent import drivers
from tests.agent.session.fake_gateway import Stream
from tests.agent.test_service import Bench, Run, accept, bench

__all__ = ["bench"]  # the fixture


def ordering(answers: list[wire.CommandResult], status: "wire.InventoryStatus.ValueType") -> Any:
    """A gateway that orders a refresh once an offer was made, and answers each offer with `status`."""

    async def script(stream: Stream) -> None:
        await stream.welcome()
        ordered = False
        while True:
            request = await stream.context.read()
            if not isinstance(request, wire.SessionRequest):
                return
            stream.received.append(request)
            if request.HasField("inventory_offer"):
                digest = request.inventory_offer.digest
                await stream.say(inventory_result=wire.InventoryResult(digest=digest, status=status, snapshot_id="inv_1"))
                if not ordered:
                    ordered = True
                    await stream.say(command=wire.Command(id="cmd_1", kind="inventory.refresh"))
            elif request.HasField("command_result"):
                answers.append(request.command_result)
                await stream.say(command_ack=wire.CommandAck(id=request.command_result.id))

    return script


async def answered(answers: list[wire.CommandResult]) -> wire.CommandResult:
    async with asyncio.timeout(10):
        while not answers:
            await asyncio.sleep(0.01)
    return answers[0]


def test_a_refresh_that_the_receiver_has_applied_succeeds_with_its_digest_and_snapshot(bench: Bench) -> None:
    answers: list[wire.CommandResult] = []

    async def test(run: Run) -> None:
        bench.collector.hostname = "n2"
        result = await answered(answers)
        told = json.loads(result.payload_json)
        assert result.status == wire.COMMAND_STATUS_SUCCEEDED
        assert (told["digest"], told["status"], told["snapshotId"]) == (run.offers()[-1].digest, "applied", "inv_1")
        assert len(bench.collector.asked) == 2

    bench.run(test, ordering(answers, wire.INVENTORY_STATUS_APPLIED))


def test_a_refresh_that_the_receiver_refuses_fails_with_its_words(bench: Bench) -> None:
    answers: list[wire.CommandResult] = []

    async def test(run: Run) -> None:
        result = await answered(answers)
        assert (result.status, result.reason) == (wire.COMMAND_STATUS_FAILED, "NotApplied")
        assert "refused" in json.loads(result.payload_json)["message"]

    bench.run(test, ordering(answers, wire.INVENTORY_STATUS_REFUSED))


def test_an_acknowledged_result_is_marked_so(bench: Bench) -> None:
    answers: list[wire.CommandResult] = []
    record = Path(bench.config.data_dir / "commands/cmd_1.json")

    async def test(run: Run) -> None:
        await answered(answers)
        async with asyncio.timeout(5):
            while not json.loads(record.read_text())["acknowledged"]:
                await asyncio.sleep(0.01)
        assert run.daemon._link.machine.results == ()

    bench.run(test, ordering(answers, wire.INVENTORY_STATUS_APPLIED))


def test_a_driver_that_comes_is_said_on_the_open_stream(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "CHECK", 0.05)
    own = bench.config.data_dir / "drivers.d"
    own.mkdir()
    (own / "a.toml").write_text('id = "gvisor"\nversion = "1"\nkinds = ["sandbox"]\n')

    async def test(run: Run) -> None:
        await run.applied()
        (own / "b.toml").write_text('id = "firecracker"\n')
        (stream,) = run.gateway.streams
        async with asyncio.timeout(5):
            while not (said := [list(r.hello.drivers) for r in stream.received if r.HasField("hello")])[1:]:
                await asyncio.sleep(0.01)
        assert [driver.id for driver in said[0]] == ["gvisor"]
        assert [(driver.id, driver.version, list(driver.kinds)) for driver in said[-1]] == [
            ("firecracker", "", []),
            ("gvisor", "1", ["sandbox"]),
        ]

    bench.run(test, accept)
