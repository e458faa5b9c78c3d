"""Status reports write what changed and nothing else (SPEC A3)."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from receiver.apply.status import record_status, touch
from receiver.store.database import Connection
from receiver.values import KernelLog, Missing, Status
from tests.receiver.builders import NODE, OTHER, apply, gpus, host, join

STATUS = Status("d" * 64, datetime(2026, 11, 29, 12, tzinfo=UTC), (), KernelLog(True, True), 0)


def rows(tx: Connection) -> list[Any]:
    tables = ("nodes", "node_missing_sections", "events")
    return [row for table in tables for row in tx.execute(f"SELECT '{table}', ctid, xmin, xmax FROM {table} ORDER BY ctid")]


def missing(tx: Connection) -> list[Any]:
    return tx.execute("SELECT name, error, source, last_snapshot_id FROM node_missing_sections ORDER BY name").fetchall()


def test_records_what_a_report_says_of_the_node(tx: Connection) -> None:
    epoch = join(tx)
    assert record_status(tx, NODE, epoch, replace(STATUS, abandoned_workers=1))
    row = tx.execute("SELECT reported_digest, collected_at, kernel_log ->> 'complete', abandoned_workers FROM nodes").fetchone()
    assert row == (STATUS.digest, STATUS.collected_at, "true", 1)


@pytest.mark.parametrize("status", [STATUS, Status(""), replace(STATUS, missing=(Missing("gpus", "Hang"),))])
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
