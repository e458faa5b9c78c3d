"""Commands over real streams: sent when they are queued, until they have a result that is acknowledged (SPEC A7)."""

import asyncio
import json
from unittest.mock import patch

import psycopg
from bettercompute.agent.v1 import session_pb2 as wire

from receiver.apply import command
from receiver.values import Payload
from tests.fake_daemon import FakeDaemon, until
from tests.handing_over import without_notify
from tests.queue_command import queue
from tests.receiver.live import Live, live, serving


def order(served: Live, daemon: FakeDaemon, kind: str = "diag.nvml", payload: Payload | None = None, key: str = "key") -> str:
    return queue(served.database, daemon.node_id, kind, payload or {}, key)


def state(served: Live, command_id: str) -> tuple[object, ...]:
    (found,) = served.rows("SELECT state, reason, result FROM commands WHERE id = %s", command_id)
    return found


@live
async def test_a_queued_command_reaches_the_open_session_and_its_result_is_acknowledged(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    command_id = order(served, daemon, payload={"expect": {"gpuCount": 8}})
    with patch("receiver.gateway.heartbeat.COMMANDS_EVERY", 10**9):  # NOTIFY alone
        found = await daemon.command()
    assert (found.id, found.kind, json.loads(found.payload_json)) == (command_id, "diag.nvml", {"expect": {"gpuCount": 8}})
    assert await daemon.finish(command_id, "refused", "NotAllowed", why="x") == command_id
    assert state(served, command_id) == ("refused", "NotAllowed", {"why": "x"})


@live
async def test_a_repeated_result_is_acknowledged_again_and_changes_nothing(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    command_id = order(served, daemon)
    await daemon.command()
    await daemon.finish(command_id, passed=True)
    assert await daemon.finish(command_id, "failed") == command_id
    assert state(served, command_id) == ("succeeded", "", {"passed": True})


@live
async def test_a_result_of_a_command_that_nobody_knows_is_acknowledged_too(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    assert await daemon.finish("cmd_of_a_database_that_is_gone") == "cmd_of_a_database_that_is_gone"


@live
async def test_what_was_queued_without_a_session_comes_right_after_welcome(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    await daemon.close()
    command_id = order(served, daemon)
    await daemon.connect()
    assert (await daemon.receive()).command.id == command_id


@live
async def test_a_command_comes_with_every_session_until_its_result_is_stored(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    command_id = order(served, daemon)
    for _ in range(2):
        assert (await daemon.command()).id == command_id
        await daemon.close()
        await daemon.connect()
    assert (await daemon.command()).id == command_id
    await daemon.finish(command_id)
    await daemon.close()
    await daemon.connect()
    other = order(served, daemon, key="other")
    assert (await daemon.receive()).command.id == other, "and never again"


@live
async def test_a_result_that_cannot_be_stored_is_not_acknowledged(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    command_id = order(served, daemon)
    await daemon.command()
    with patch("receiver.apply.command.record_result", side_effect=psycopg.OperationalError("gone")) as storing:
        await daemon.send(command_result=wire.CommandResult(id=command_id, status=wire.COMMAND_STATUS_SUCCEEDED))
        await until("the attempt", lambda: storing.called)
    assert state(served, command_id)[0] == "sent"
    assert await daemon.finish(command_id) == command_id


def test_a_notification_that_was_missed_is_made_up_for(database: str) -> None:
    async def main() -> None:
        with patch("receiver.service.COMMAND_CHANNEL", "bc_nobody"), patch("receiver.gateway.heartbeat.COMMANDS_EVERY", 1):
            async with serving(database) as served:
                daemon = served.daemon()
                await daemon.connect()
                command_id = order(served, daemon)
                assert (await daemon.command()).id == command_id

    asyncio.run(main())


def test_without_any_notification_a_command_reaches_whichever_receiver_has_the_session_and_none_twice(database: str) -> None:
    async def main() -> None:
        with without_notify():
            async with serving(database) as one, serving(database) as other:
                daemon = one.daemon()
                for here, there in ((one, other), (other, one), (one, other)):
                    daemon.target = here.receiver.config.listen_session
                    await daemon.connect()
                    asked = (await there.api("inventory.refresh", nodeId=daemon.node_id, reason="try"))["id"]
                    assert (await daemon.command()).id == asked
                    await daemon.finish(asked)
                    assert state(there, asked)[0] == "succeeded"

    asyncio.run(main())


def test_a_command_reaches_a_session_at_another_receiver(database: str) -> None:
    async def main() -> None:
        async with serving(database) as one, serving(database) as other:
            daemon = one.daemon()
            await daemon.connect()
            command_id = order(other, daemon)
            assert (await daemon.command()).id == command_id
            daemon.target = other.receiver.config.listen_session
            await daemon.connect()
            assert (await daemon.command()).id == command_id
            await daemon.finish(command_id)

    asyncio.run(main())


@live
async def test_messages_go_on_while_commands_come(served: Live) -> None:
    daemon = served.daemon()
    await daemon.connect()
    for number in range(20):
        order(served, daemon, key=str(number))
        daemon.set_condition("NvmlUnavailable", number % 2 == 0)
        if number < 8:
            await daemon.report()
    assert len({(await daemon.command()).id for _ in range(20)}) == 20
    await until("the last report", lambda: served.rows("SELECT status FROM conditions") == [("false",)])


@live
async def test_looking_for_commands_survives_a_database_that_does_not_answer(served: Live) -> None:
    with patch.object(command, "outstanding", side_effect=psycopg.OperationalError("gone")):
        await served.receiver.jobs.look_for_commands()
