"""Commands are queued once a key, sent to every session until they have a result, and end once (SPEC A7)."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from receiver.apply import nodes
from receiver.apply.command import CHANNEL, KEPT, KeyInUse, cancel, cancel_all, due, forget, outstanding, queue, record_result
from receiver.errors import NotFound, Refused
from receiver.store.database import Connection
from receiver.store.nodes import lock_node
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
    assert outstanding(tx, "") == []
    assert row(tx, late) == ("expired", "NotSent", None, True)


def test_what_was_sent_and_is_late_is_sent_again_for_the_node_knows(tx: Connection) -> None:
    epoch = join(tx)
    command_id = queue(tx, NODE, "diag.nvml", {}, "key")
    sent(tx, epoch)
    tx.execute("UPDATE commands SET not_after = %s", [LATE])
    assert outstanding(tx, "") == [(NODE, command_id)]
    (command,) = due(tx, NODE, join(tx), [])
    assert (command.id, command.start_within) == (command_id, 0.0)


def test_a_tenants_machine_is_only_asked_for_its_inventory(tx: Connection) -> None:
    epoch = join(tx)
    tx.execute("UPDATE nodes SET trust = 'tenant-controlled'")
    reboot = queue(tx, NODE, "node.reboot", {}, "a")
    refresh = queue(tx, NODE, "inventory.refresh", {}, "b")
    assert outstanding(tx, "") == [(NODE, refresh)]
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


# ---- how a command ends otherwise, and who is told


def test_a_command_that_was_not_sent_can_be_cancelled_and_is_not_sent(tx: Connection) -> None:
    epoch = join(tx)
    command_id = queue(tx, NODE, "diag.nvml", {}, "key")
    cancel(tx, command_id, "not now")
    assert row(tx, command_id) == ("cancelled", "not now", None, True)
    assert (sent(tx, epoch), outstanding(tx, "")) == ([], [])
    with pytest.raises(Refused, match=r"has ended: cancelled \(not now\)"):
        cancel(tx, command_id, "again")


def test_a_command_that_the_node_may_have_begun_is_not_cancelled(tx: Connection) -> None:
    epoch = join(tx)
    command_id = queue(tx, NODE, "node.reboot", {}, "key")
    sent(tx, epoch)
    with pytest.raises(Refused, match="may have begun"):
        cancel(tx, command_id, "too late")
    assert record_result(tx, NODE, CommandResult(command_id, "succeeded"))
    with pytest.raises(Refused, match="has ended: succeeded"):
        cancel(tx, command_id, "too late")
    with pytest.raises(NotFound, match="no command cmd_none"):
        cancel(tx, "cmd_none", "why")


def test_a_cancel_that_races_a_sending_comes_before_or_is_refused(database: str) -> None:
    with psycopg.connect(database) as tx:
        epoch = join(tx)
        ids = [queue(tx, NODE, "diag.nvml", {}, str(number)) for number in range(30)]

    def ended(command_id: str) -> bool:
        with psycopg.connect(database) as connection:
            try:
                cancel(connection, command_id, "raced")
            except Refused:
                return False
            return True

    def handed() -> list[str]:
        with psycopg.connect(database) as connection:
            return sent(connection, epoch)

    with ThreadPoolExecutor(9) as threads:
        sending = threads.submit(handed)
        cancelled = dict(zip(ids, threads.map(ended, ids), strict=True))
        with psycopg.connect(database) as tx:
            assert {*sending.result(), *sent(tx, epoch, *sending.result())} == {one for one in ids if not cancelled[one]}


def test_a_node_that_is_retired_has_no_open_commands(tx: Connection) -> None:
    epoch = join(tx)
    first = queue(tx, NODE, "diag.nvml", {}, "a")
    sent(tx, epoch)
    second = queue(tx, NODE, "diag.nvml", {}, "b")
    nodes.retire(tx, NODE, reason="sold")
    assert [row(tx, one)[:2] for one in (first, second)] == [("cancelled", "NodeRetired")] * 2
    assert record_result(tx, NODE, CommandResult(first, "succeeded")), "an answer that comes late is taken, and changes nothing"
    assert row(tx, first)[0] == "cancelled"


def test_who_waits_for_a_command_is_told_of_every_end(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as tx, psycopg.connect(database, autocommit=True) as listening:
        epoch = join(tx)
        listening.execute("LISTEN bc_acceptance; LISTEN bc_remediation")

        def told() -> list[tuple[str, str]]:
            return [(one.channel, one.payload) for one in listening.notifies(timeout=0.2)]

        keys = ("acceptance:1:1:diag.nvml", "remediation:run_1", "mine")
        answered, cancelled, expired = (
            [queue(tx, NODE, "diag.nvml", {}, f"{key}{way}", LATE if way == "c" else None) for key in keys] for way in "abc"
        )
        sent(tx, epoch, *cancelled)
        assert told() == []
        every = [("bc_acceptance", NODE), ("bc_remediation", NODE)]
        for one in answered:
            record_result(tx, NODE, CommandResult(one, "failed"))
        assert told() == every
        record_result(tx, NODE, CommandResult(answered[0], "failed"))
        assert told() == [], "nothing ended"
        for one in cancelled:
            cancel(tx, one, "why")
        assert told() == every
        outstanding(tx, "")
        assert [row(tx, one)[0] for one in expired] == ["expired"] * 3
        assert told() == every


def test_only_what_ended_long_ago_is_forgotten(tx: Connection) -> None:
    join(tx)
    old, young, still_open = (queue(tx, NODE, "diag.nvml", {}, key) for key in "abc")
    for one, age in ((old, KEPT + timedelta(minutes=1)), (young, KEPT - timedelta(minutes=1))):
        record_result(tx, NODE, CommandResult(one, "succeeded"))
        tx.execute("UPDATE commands SET finished_at = now() - %s WHERE id = %s", [age, one])
    tx.execute("UPDATE commands SET created_at = now() - %s", [2 * KEPT])
    assert not forget(tx), "no more of them"
    assert (row(tx, old), row(tx, young)[0], row(tx, still_open)[0]) == (None, "succeeded", "queued")


def test_what_is_to_be_forgotten_goes_some_at_a_time(tx: Connection) -> None:
    join(tx)
    tx.execute(
        """INSERT INTO commands (id, node_id, tenant_id, kind, idempotency_key, state, finished_at)
        SELECT 'cmd_' || n, %s, 'default', 'diag.nvml', n::text, 'succeeded', now() - interval '1 year'
        FROM generate_series(1, 1001) AS n""",
        [NODE],
    )
    assert forget(tx)
    assert not forget(tx)
    assert tx.execute("SELECT count(*) FROM commands").fetchone() == (0,)


def test_a_result_waits_for_who_has_the_node_before_it_locks_anything(database: str) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(database) as tx:
        join(tx)
        command_id = queue(tx, NODE, "gpu.reset", {"deviceId": "GPU-1"}, "key")

    def answered() -> bool:
        with psycopg.connect(database) as connection:
            return record_result(connection, NODE, CommandResult(command_id, "succeeded"))

    with ThreadPoolExecutor(1) as threads, psycopg.connect(database) as retiring:
        lock_node(retiring, NODE)
        result = threads.submit(answered)
        with psycopg.connect(database, autocommit=True) as looking:
            while looking.execute(waiting).fetchone() != (1,):
                time.sleep(0.01)
        retiring.execute("SET lock_timeout = '2s'")
        cancel_all(retiring, NODE, "NodeRetired")
        retiring.commit()
        assert result.result()
        assert row(retiring, command_id)[:2] == ("cancelled", "NodeRetired")


def test_what_is_locked_does_not_hold_up_what_expires(database: str) -> None:
    with psycopg.connect(database) as tx, psycopg.connect(database) as other:
        join(tx)
        first, second = (queue(tx, NODE, "diag.nvml", {}, key, LATE) for key in "ab")
        tx.commit()
        other.execute("SELECT FROM commands WHERE id = %s FOR UPDATE", [first])
        outstanding(tx, "")
        assert [row(tx, one)[0] for one in (first, second)] == ["queued", "expired"]
        other.rollback()
        outstanding(tx, "")
        assert row(tx, first)[0] == "expired"
