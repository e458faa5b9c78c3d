"""Commands are queued once a key, sent to every session until they have a result, and end once (SPEC A7)."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from receiver.apply.command import CHANNEL, KeyInUse, due, outstanding, queue, record_result
from receiver.store.database import Connection
from receiver.values import CommandResult
from tests.receiver.builders import NODE, OTHER, join

LATE = datetime(2026, 1, 1, tzinfo=UTC)


def row(tx: Connection, command_id: str) -> Any:
    return tx.execute(
        "SELECT state, reason, result, finished_at IS NOT NULL FROM commands WHERE id = %s", [command_id]
    ).fetchone()


def sent(tx: Connection, epoch: int, *already: str, node: str = NODE) -> list[str]:
    return [one.id for one in due(tx, node, epoch, already)]


def test_a_command_is_handed_over_whole(tx: Connection) -> None:
    epoch = join(tx)
    command_id = queue(
        tx, NODE, "diag.nvml", {"expect": {"gpuCount": 8}}, "key", datetime.now(UTC) + timedelta(minutes=10), "ops"
    )
    (command,) = due(tx, NODE, epoch, [])
    assert command_id.startswith("cmd_")
    assert (command.id, command.kind, command.payload) == (command_id, "diag.nvml", {"expect": {"gpuCount": 8}})
    assert command.idempotency_key == "key"
    assert command.start_within is not None
    assert 590 < command.start_within <= 600
    assert row(tx, command_id) == ("sent", "", None, False)


def test_a_command_without_a_latest_start_has_none_and_not_none_left(tx: Connection) -> None:
    epoch = join(tx)
    queue(tx, NODE, "diag.nvml", {}, "key")
    (command,) = due(tx, NODE, epoch, [])
    assert command.start_within is None


def test_the_same_key_is_the_same_command(tx: Connection) -> None:
    join(tx)
    join(tx, OTHER)
    first = queue(tx, NODE, "diag.nvml", {}, "key")
    assert queue(tx, NODE, "diag.nvml", {}, "key") == first
    assert queue(tx, OTHER, "diag.nvml", {}, "key") != first, "keys are a node's own"
    with pytest.raises(KeyInUse, match=first):
        queue(tx, NODE, "node.reboot", {}, "key")
    with pytest.raises(KeyInUse):
        queue(tx, NODE, "diag.nvml", {"expect": {}}, "key")


def test_an_unknown_node_gets_no_command(tx: Connection) -> None:
    with pytest.raises(LookupError):
        queue(tx, NODE, "diag.nvml", {}, "key")


def test_queueing_notifies_at_commit(database: str) -> None:
    with psycopg.connect(database) as tx, psycopg.connect(database, autocommit=True) as listening:
        join(tx)
        listening.execute(f"LISTEN {CHANNEL}".encode())
        queue(tx, NODE, "diag.nvml", {}, "key")
        tx.commit()
        assert [one.payload for one in listening.notifies(timeout=5, stop_after=1)] == [NODE]


def test_commands_are_sent_oldest_first_and_once_a_session(tx: Connection) -> None:
    epoch = join(tx)
    ids = []
    for number in range(3):
        ids.append(queue(tx, NODE, "diag.nvml", {}, f"key-{number}"))
        tx.commit()
    assert sent(tx, epoch) == ids
    assert sent(tx, epoch, *ids) == []


def test_another_session_is_sent_what_has_no_result(tx: Connection) -> None:
    epoch = join(tx)
    first, second = (queue(tx, NODE, "diag.nvml", {}, key) for key in "ab")
    sent(tx, epoch)
    assert record_result(tx, NODE, CommandResult(first, "succeeded"))
    again = join(tx)
    assert sent(tx, epoch) == [], "a superseded session gets nothing"
    assert sent(tx, again) == [second]


def test_what_was_not_sent_in_time_expires(tx: Connection) -> None:
    epoch = join(tx)
    late = queue(tx, NODE, "diag.nvml", {}, "late", LATE)
    assert sent(tx, epoch) == []
    assert outstanding(tx, [NODE]) == []
    assert row(tx, late) == ("expired", "NotSent", None, True)


def test_what_was_sent_and_is_late_is_sent_again_for_the_node_knows(tx: Connection) -> None:
    epoch = join(tx)
    command_id = queue(tx, NODE, "diag.nvml", {}, "key")
    sent(tx, epoch)
    tx.execute("UPDATE commands SET not_after = %s", [LATE])
    assert outstanding(tx, [NODE]) == [(NODE, command_id)]
    (command,) = due(tx, NODE, join(tx), [])
    assert (command.id, command.start_within) == (command_id, 0.0)


def test_a_tenants_machine_is_only_asked_for_its_inventory(tx: Connection) -> None:
    epoch = join(tx)
    tx.execute("UPDATE nodes SET trust = 'tenant-controlled'")
    reboot = queue(tx, NODE, "node.reboot", {}, "a")
    refresh = queue(tx, NODE, "inventory.refresh", {}, "b")
    assert outstanding(tx, [NODE]) == [(NODE, refresh)]
    assert sent(tx, epoch) == [refresh]
    tx.execute("UPDATE nodes SET trust = 'platform'")
    assert sent(tx, epoch, refresh) == [reboot]


def test_a_result_is_stored_once(tx: Connection) -> None:
    join(tx)
    command_id = queue(tx, NODE, "diag.nvml", {}, "key")
    assert record_result(tx, NODE, CommandResult(command_id, "refused", "gpu-busy", {"holders": ["python\0"]}))
    stored = row(tx, command_id)
    assert stored == ("refused", "gpu-busy", {"holders": ["python\ufffd"]}, True)
    before = tx.execute("SELECT ctid, xmin FROM commands").fetchall()
    assert record_result(tx, NODE, CommandResult(command_id, "succeeded"))
    assert row(tx, command_id) == stored
    assert tx.execute("SELECT ctid, xmin FROM commands").fetchall() == before


def test_a_node_cannot_end_anothers_command(tx: Connection) -> None:
    join(tx)
    join(tx, OTHER)
    command_id = queue(tx, NODE, "diag.nvml", {}, "key")
    assert not record_result(tx, OTHER, CommandResult(command_id, "succeeded"))
    assert row(tx, command_id)[0] == "queued"


def test_eight_threads_with_one_key_queue_one_command(database: str) -> None:
    with psycopg.connect(database) as tx:
        join(tx)

    def once(_: int) -> str:
        with psycopg.connect(database) as connection:
            return queue(connection, NODE, "diag.nvml", {}, "key")

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(once, range(32)))) == 1


def test_two_sessions_that_look_at_once_wait_for_each_other_and_lose_nothing(database: str) -> None:
    with psycopg.connect(database) as tx:
        epoch = join(tx)
        ids = {queue(tx, NODE, "diag.nvml", {}, str(number)) for number in range(20)}

    def look(_: int) -> list[str]:
        with psycopg.connect(database) as connection:
            return sent(connection, epoch)

    with ThreadPoolExecutor(8) as threads:
        assert all(set(found) == ids for found in threads.map(look, range(16)))
