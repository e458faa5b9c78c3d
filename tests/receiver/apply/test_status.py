"""Status reports write what changed and nothing else (SPEC A3)."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from receiver.apply.session import hello
from receiver.apply.status import record_status, touch
from receiver.store.database import Connection
from receiver.values import Condition, Fault, KernelLog, Missing, Status
from tests.receiver.builders import FACTS, NODE, OTHER, apply, count, gpus, host, join, offer, told

STATUS = Status("d" * 64, datetime(2026, 11, 29, 12, tzinfo=UTC), (), KernelLog(True, True), 0)

DOWN = Condition("NvmlUnavailable", "true", "Hang", "no answer in 30 s")
REPLAY = Condition("PcieReplayHigh", "true", device_id="GPU-1", bus_id="00000000:18:00.0")
XID = Fault("xid", 79, "GPU-1", "00000000:18:00.0", 1, "79, GPU has fallen off the bus.")
SXID = Fault("sxid", 12028, "", "00000000:05:00.0", 1, "12028, Non-fatal")


def rows(tx: Connection) -> list[Any]:
    tables = ("nodes", "node_missing_sections", "conditions", "node_faults", "events")
    return [row for table in tables for row in tx.execute(f"SELECT '{table}', ctid, xmin, xmax FROM {table} ORDER BY ctid")]


def missing(tx: Connection) -> list[Any]:
    return tx.execute("SELECT name, error, source, last_snapshot_id FROM node_missing_sections ORDER BY name").fetchall()


def test_records_what_a_report_says_of_the_node(tx: Connection) -> None:
    epoch = join(tx)
    assert record_status(tx, NODE, epoch, replace(STATUS, abandoned_workers=1))
    row = tx.execute("SELECT reported_digest, collected_at, kernel_log ->> 'complete', abandoned_workers FROM nodes").fetchone()
    assert row == (STATUS.digest, STATUS.collected_at, "true", 1)


@pytest.mark.parametrize(
    "status",
    [
        STATUS,
        Status(""),
        replace(STATUS, missing=(Missing("gpus", "Hang"),)),
        replace(STATUS, conditions=(DOWN, REPLAY), faults=(XID, SXID)),
    ],
)
def test_writes_and_locks_nothing_when_nothing_changed(tx: Connection, status: Status) -> None:
    epoch = join(tx)
    record_status(tx, NODE, epoch, status)
    tx.commit()
    before = rows(tx)
    tx.commit()
    assert record_status(tx, NODE, epoch, status)
    assert tx.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)
    tx.commit()
    assert rows(tx) == before


@pytest.mark.parametrize(
    "other",
    [
        replace(STATUS, digest="e" * 64),
        replace(STATUS, collected_at=datetime(2026, 11, 30, tzinfo=UTC)),
        replace(STATUS, kernel_log=None),
        replace(STATUS, kernel_log=KernelLog(True, False, lost_records=3)),
        replace(STATUS, abandoned_workers=2),
    ],
)
def test_writes_a_change_of_any_field(tx: Connection, other: Status) -> None:
    epoch = join(tx)
    record_status(tx, NODE, epoch, STATUS)
    record_status(tx, NODE, epoch, other)
    row = tx.execute("SELECT reported_digest, collected_at, kernel_log, abandoned_workers FROM nodes").fetchone()
    assert row is not None
    assert (row[0], row[1], KernelLog(**row[2]) if row[2] else None, row[3]) == (
        other.digest,
        other.collected_at,
        other.kernel_log,
        other.abandoned_workers,
    )


def test_missing_sections_are_kept_with_error_and_last_snapshot_until_they_return(tx: Connection) -> None:
    epoch = join(tx)
    first = apply(tx, host())
    second = apply(tx, host(3))
    record_status(tx, NODE, epoch, replace(STATUS, missing=(Missing("gpus", "Settling"), Missing("dpus", "Error"))))
    assert missing(tx) == [("dpus", "Error", "report", None), ("gpus", "Settling", "report", second.snapshot_id)]
    assert first.snapshot_id != second.snapshot_id
    record_status(tx, NODE, epoch, replace(STATUS, missing=(Missing("gpus", "Hang"),)))
    assert missing(tx) == [("gpus", "Hang", "report", second.snapshot_id)]
    record_status(tx, NODE, epoch, STATUS)
    assert missing(tx) == []


def test_since_of_a_missing_section_stays_while_its_error_changes(tx: Connection) -> None:
    epoch = join(tx)
    record_status(tx, NODE, epoch, replace(STATUS, missing=(Missing("gpus", "Settling"),)))
    tx.execute("UPDATE node_missing_sections SET since = '2026-01-01'")
    record_status(tx, NODE, epoch, replace(STATUS, missing=(Missing("gpus", "Hang"),)))
    assert tx.execute("SELECT extract(year FROM since), extract(month FROM since) FROM node_missing_sections").fetchone() == (
        2026,
        1,
    )


def test_report_does_not_clear_what_a_section_says_of_itself(tx: Connection) -> None:
    epoch = join(tx)
    apply(tx, host(gpus=gpus(error="DriverNotLoaded")))
    record_status(tx, NODE, epoch, STATUS)
    assert [row[0] for row in missing(tx)] == ["gpus"]


def test_report_of_another_session_is_not_recorded(tx: Connection) -> None:
    epoch = join(tx)
    join(tx)
    assert not record_status(tx, NODE, epoch, STATUS)
    assert tx.execute("SELECT reported_digest FROM nodes").fetchone() == (None,)


def test_unknown_node_is_our_bug(tx: Connection) -> None:
    with pytest.raises(LookupError):
        record_status(tx, NODE, 1, STATUS)


def test_touch_writes_all_sessions_and_answers_their_plan_revs(tx: Connection) -> None:
    join(tx)
    join(tx, OTHER)
    apply(tx, host())
    tx.execute("UPDATE nodes SET last_seen = '2026-01-01'")
    assert touch(tx, [(OTHER, 1), (NODE, 1)]) == {NODE: 1, OTHER: 0}
    assert tx.execute("SELECT count(*) FROM nodes WHERE last_seen = now()").fetchone() == (2,)
    assert touch(tx, [(NODE, 7)]) == {}, "superseded"
    assert touch(tx, []) == {}


def test_touch_does_not_wait_for_a_node_that_is_being_applied(database: str) -> None:
    with psycopg.connect(database) as tx, psycopg.connect(database, options="-c lock_timeout=2000") as other:
        join(tx)
        join(tx, OTHER)
        tx.commit()
        apply(tx, host())
        assert touch(other, [(NODE, 1), (OTHER, 1)]) == {OTHER: 0}


def conditions(tx: Connection) -> list[Any]:
    return tx.execute("SELECT type, device_id, status, reason, advisory FROM conditions ORDER BY type, device_id").fetchall()


def payloads(tx: Connection, kind: str) -> list[Any]:
    return [row[0] for row in tx.execute("SELECT payload FROM events WHERE type = %s ORDER BY seq", [kind])]


def test_conditions_are_as_the_last_report_says(tx: Connection) -> None:
    epoch = join(tx)
    record_status(tx, NODE, epoch, replace(STATUS, conditions=(DOWN, REPLAY)))
    assert conditions(tx) == [("NvmlUnavailable", "", "true", "Hang", False), ("PcieReplayHigh", "GPU-1", "true", "", False)]
    record_status(tx, NODE, epoch, replace(STATUS, conditions=(REPLAY,)))
    assert conditions(tx) == [("NvmlUnavailable", "", "false", "", False), ("PcieReplayHigh", "GPU-1", "true", "", False)]
    assert [(one["condition"], one["status"]) for one in payloads(tx, "node.condition.changed")] == [
        ("NvmlUnavailable", "true"),
        ("PcieReplayHigh", "true"),
        ("NvmlUnavailable", "false"),
    ]


def test_since_of_a_condition_moves_with_its_status_only(tx: Connection) -> None:
    epoch = join(tx)
    record_status(tx, NODE, epoch, replace(STATUS, conditions=(DOWN,)))
    tx.execute("UPDATE conditions SET since = '2026-01-01'")
    record_status(tx, NODE, epoch, replace(STATUS, conditions=(replace(DOWN, reason="GpuLost", message="another"),)))
    assert tx.execute("SELECT since < '2026-01-03', reason, message FROM conditions").fetchone() == (True, "GpuLost", "another")
    record_status(tx, NODE, epoch, STATUS)
    assert tx.execute("SELECT since = now() FROM conditions").fetchone() == (True,)


class Counting(psycopg.Connection[Any]):
    """Counts the statements that are run."""

    statements = 0

    def execute(self, *arguments: Any, **options: Any) -> psycopg.Cursor[Any]:
        Counting.statements += 1
        return super().execute(*arguments, **options)


@pytest.mark.parametrize(
    ("status", "statements", "changed"),
    [
        (STATUS, 1, False),
        (replace(STATUS, conditions=(DOWN,)), 4, False),
        (replace(STATUS, conditions=(DOWN,)), 3, True),
        (replace(STATUS, conditions=(DOWN, REPLAY), faults=(SXID,), missing=(Missing("disks", "Hang"),)), 4, False),
        (replace(STATUS, faults=(replace(XID, number=13),)), 5, False),
        (replace(STATUS, faults=(replace(XID, number=13),)), 4, True),
    ],
)
def test_a_report_is_one_statement_and_what_it_changes_is_written_in_one(
    database: str, status: Status, statements: int, changed: bool
) -> None:
    """Those of a change: load, lock, load again, write; or, where it is known for one, lock, load, write. What others have of a
    GPU that is none of the node's: one more."""
    with Counting.connect(database) as tx:
        epoch = join(tx)
        apply(tx, host())
        record_status(tx, NODE, epoch, STATUS)
        before = Counting.statements
        record_status(tx, NODE, epoch, status, changed=changed)
        assert Counting.statements - before == statements


@pytest.mark.parametrize("changed", [False, True])
def test_a_report_is_judged_by_what_whoever_held_the_node_has_left(database: str, changed: bool) -> None:
    status = replace(STATUS, faults=(XID,), conditions=(DOWN,))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with (
        psycopg.connect(database) as tx,
        psycopg.connect(database) as other,
        psycopg.connect(database, autocommit=True) as looking,
        ThreadPoolExecutor(1) as threads,
    ):
        epoch = join(tx)
        tx.commit()
        record_status(tx, NODE, epoch, status)
        second = threads.submit(record_status, other, NODE, epoch, status, changed=changed)
        wait_until(lambda: looking.execute(waiting).fetchone() == (1,))
        tx.commit()
        assert second.result(10)
        other.commit()
        assert [len(payloads(tx, kind)) for kind in ("node.xid", "node.condition.changed")] == [1, 2]


def wait_until(so: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_change_is_one_transaction(database: str) -> None:
    with psycopg.connect(database) as tx:
        epoch = join(tx)
        record_status(tx, NODE, epoch, STATUS)
        tx.commit()
        before = count_transactions(tx)
        record_status(tx, NODE, epoch, replace(STATUS, conditions=(DOWN,)))
        tx.commit()
        assert count_transactions(tx) - before == 2, "this one, and the one that asks"


def count_transactions(tx: Connection) -> int:
    """The number of the next transaction. (Asking is one that writes.)"""
    row = tx.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    tx.commit()
    assert row is not None
    return int(row[0])


def test_conditions_of_other_writers_are_not_touched(tx: Connection) -> None:
    epoch = join(tx)
    tx.execute(
        """INSERT INTO conditions (node_id, type, device_id, tenant_id, status, no_schedule)
           VALUES (%s, 'GpuLost', 'GPU-1', 'default', 'true', true)""",
        [NODE],
    )
    lost = [{"owner": "health", "type": "GpuLost"}]
    tx.execute("UPDATE nodes SET no_schedule_reasons = %s", [Jsonb(lost)])
    record_status(tx, NODE, epoch, STATUS)
    assert conditions(tx) == [("GpuLost", "GPU-1", "true", "", False)]
    assert (reasons(tx)[0], told(tx)) == (lost, [])


def test_a_type_is_a_reason_in_the_transaction_of_its_row(tx: Connection) -> None:
    epoch = join(tx)
    record_status(tx, NODE, epoch, replace(STATUS, conditions=(DOWN, REPLAY)))
    assert reasons(tx) == ([{"owner": "health", "type": "NvmlUnavailable"}], [])
    record_status(tx, NODE, epoch, STATUS)
    assert reasons(tx) == ([], [])


def test_reasons_of_other_owners_are_never_touched_not_even_of_the_same_type(tx: Connection) -> None:
    epoch = join(tx)
    others = [{"owner": "metal", "type": "NvmlUnavailable"}, {"owner": "upgrade", "type": "Rollout"}]
    tx.execute("UPDATE nodes SET no_schedule_reasons = %s", [Jsonb(others)])
    record_status(tx, NODE, epoch, replace(STATUS, conditions=(DOWN,)))
    assert reasons(tx)[0] == [{"owner": "health", "type": "NvmlUnavailable"}, *others]
    record_status(tx, NODE, epoch, STATUS)
    assert reasons(tx)[0] == others


def test_in_a_pool_that_observes_the_reason_is_would_no_schedule(tx: Connection) -> None:
    epoch = join(tx)
    tx.execute("INSERT INTO pools (id, tenant_id, name, mode) VALUES ('pool_1', 'default', 'p', 'observe')")
    tx.execute("UPDATE nodes SET pool_id = 'pool_1'")
    record_status(tx, NODE, epoch, replace(STATUS, conditions=(DOWN,)))
    assert reasons(tx) == ([], [{"owner": "health", "type": "NvmlUnavailable"}])
    (payload,) = payloads(tx, "node.condition.changed")
    assert (payload["noSchedule"], payload["wouldNoSchedule"]) == (False, True)


def test_a_change_of_foreign_gpu_exposure_notifies_reservations(database: str) -> None:
    exposed = replace(STATUS, conditions=(Condition("ForeignGpuExposure", "true", "OtherPath"),))
    with psycopg.connect(database) as tx, psycopg.connect(database, autocommit=True) as listener:
        listener.execute("LISTEN bc_reservations")
        epoch = join(tx)
        for status in (exposed, exposed, STATUS):
            record_status(tx, NODE, epoch, status)
            tx.commit()
        heard = [json.loads(one.payload) for one in listener.notifies(timeout=5, stop_after=2)]
    assert heard == [{"reason": "AtomUnhealthy", "deviceId": None, "nodeId": NODE}] * 2


def test_a_message_is_cut_at_2_kib(tx: Connection) -> None:
    epoch = join(tx)
    status = replace(STATUS, conditions=(replace(DOWN, message="ü" * 5000),))
    record_status(tx, NODE, epoch, status)
    assert tx.execute("SELECT message FROM conditions").fetchone() == ("ü" * 1024,)
    tx.commit()
    record_status(tx, NODE, epoch, status)
    assert tx.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,), "and is the same the next time"


def test_a_report_in_another_boot_confirms_the_applied_inventory(tx: Connection) -> None:
    epoch, bodies = join(tx), host()
    apply(tx, bodies)
    digest = offer(bodies).digest
    record_status(tx, NODE, epoch, replace(STATUS, digest=digest))
    assert inventory_boot(tx) == "boot-1"
    epoch = hello(tx, NODE, replace(FACTS, boot_id="boot-2")).epoch
    record_status(tx, NODE, epoch, replace(STATUS, digest="e" * 64))
    assert inventory_boot(tx) == "boot-1", "it has another one"
    record_status(tx, NODE, epoch, replace(STATUS, digest=digest, missing=(Missing("gpus", "settling"),)))
    assert inventory_boot(tx) == "boot-1", "without its GPUs it confirms nothing"
    record_status(tx, NODE, epoch, replace(STATUS, digest=digest))
    assert inventory_boot(tx) == "boot-2"


def inventory_boot(tx: Connection) -> str:
    row = tx.execute("SELECT inventory_boot FROM nodes").fetchone()
    assert row is not None
    return str(row[0])


def reasons(tx: Connection) -> Any:
    return tx.execute("SELECT no_schedule_reasons, would_no_schedule FROM nodes").fetchone()


def test_an_xid_is_told_once_whoever_reports_it_again(tx: Connection) -> None:
    status = replace(STATUS, faults=(XID, SXID))
    for _ in range(3):  # another session, in the same boot
        epoch = join(tx)
        record_status(tx, NODE, epoch, status)
        record_status(tx, NODE, epoch, replace(status, abandoned_workers=epoch))
    assert told(tx, "node.xid") == ["node.xid", "node.xid"]
    assert count(tx, "node_faults") == 2


def test_counts_are_stored_and_doublings_told(tx: Connection) -> None:
    epoch = join(tx)
    for number in (1, 2, 3, 4, 7, 3, 8, 100):
        record_status(tx, NODE, epoch, replace(STATUS, faults=(replace(XID, count=number),)))
    assert [one["count"] for one in payloads(tx, "node.xid")] == [1, 2, 4, 8, 100]
    assert tx.execute("SELECT code, device_id, boot_id, count, told FROM node_faults").fetchall() == [
        ("Xid79", "GPU-1", "boot-1", 100, 100)
    ]


def test_a_report_that_lists_an_xid_no_more_forgets_nothing(tx: Connection) -> None:
    epoch = join(tx)
    for faults in ((XID,), (), (XID,)):
        record_status(tx, NODE, epoch, replace(STATUS, faults=faults))
    assert told(tx, "node.xid") == ["node.xid"]


def test_the_same_xid_in_another_boot_is_new_and_the_old_count_goes(tx: Connection) -> None:
    record_status(tx, NODE, join(tx), replace(STATUS, faults=(replace(XID, count=50), SXID)))
    epoch = hello(tx, NODE, replace(FACTS, boot_id="boot-2")).epoch
    record_status(tx, NODE, epoch, STATUS)
    assert count(tx, "node_faults") == 2, "nothing is written for a report that tells nothing new"
    record_status(tx, NODE, epoch, replace(STATUS, faults=(XID,)))
    assert [one["count"] for one in payloads(tx, "node.xid")] == [50, 1, 1]
    assert tx.execute("SELECT boot_id, code FROM node_faults").fetchall() == [("boot-2", "Xid79")]


@pytest.mark.parametrize(
    "lease", ["UPDATE nodes SET trust = 'tenant-controlled'", "UPDATE nodes SET trust_epoch = session_trust_epoch + 1"]
)
def test_of_a_tenants_machine_conditions_are_advisory_and_xids_nothing(tx: Connection, lease: str) -> None:
    epoch = join(tx)
    record_status(tx, NODE, epoch, replace(STATUS, conditions=(REPLAY,)))
    tx.execute(lease.encode())
    record_status(tx, NODE, epoch, replace(STATUS, conditions=(DOWN,), faults=(XID,)))
    assert conditions(tx) == [("NvmlUnavailable", "", "true", "Hang", True), ("PcieReplayHigh", "GPU-1", "false", "", True)]
    assert [one.get("advisory", False) for one in payloads(tx, "node.condition.changed")] == [False, True, True]
    assert (count(tx, "node_faults"), told(tx, "node.xid")) == (0, [])
    assert tx.execute("SELECT no_schedule_reasons FROM nodes").fetchone() == ([],)


def test_text_with_a_nul_is_stored(tx: Connection) -> None:
    epoch = join(tx)
    record_status(tx, NODE, epoch, replace(STATUS, conditions=(replace(DOWN, message="a\0b"),)))
    assert tx.execute("SELECT message FROM conditions").fetchone() == ("a\ufffdb",)


def test_a_count_that_no_bigint_holds_is_refused(tx: Connection) -> None:
    epoch = join(tx)
    with pytest.raises(psycopg.DataError):
        record_status(tx, NODE, epoch, replace(STATUS, faults=(replace(XID, count=1 << 63),)))


def test_eight_threads_that_report_the_same_tell_it_once(database: str) -> None:
    status = replace(STATUS, conditions=(DOWN, REPLAY), faults=(XID, SXID))
    with psycopg.connect(database) as tx:
        epoch = join(tx)

    def report(number: int) -> None:
        with psycopg.connect(database) as connection:
            for turn in range(10):
                record_status(connection, NODE, epoch, replace(status, abandoned_workers=number * 10 + turn))
                connection.commit()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(report, range(8)))
    with psycopg.connect(database) as tx:
        rows = tx.execute(
            "SELECT type, payload ->> 'condition', payload ->> 'xid' FROM events WHERE type <> 'node.joined'"
        ).fetchall()
    assert len(rows) == len(set(rows))
    assert {row[1:] for row in rows} >= {("NvmlUnavailable", None), ("PcieReplayHigh", None), (None, "79"), (None, "12028")}
