"""Snapshots and events are append-only in the database itself; prune_snapshots(before) is the one way to delete."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from receiver.store.database import Connection
from receiver.store.inventory import prune_snapshots
from tests.receiver.builders import NODE, OTHER, apply, count, gpu, gpus, host, join

SETUP = ("", "SET session_replication_role = replica", "SET bc.pruning = 'on'")
REFUSED = (
    "UPDATE inventory_snapshots SET digest = 'x'",
    "DELETE FROM inventory_snapshots",
    "DELETE FROM inventory_snapshots WHERE false",
    "TRUNCATE inventory_snapshots",
    "INSERT INTO inventory_snapshots (id, node_id, tenant_id, digest) SELECT id, node_id, 'x', 'x' FROM inventory_snapshots "
    "ON CONFLICT (id) DO UPDATE SET digest = 'x'",
    "UPDATE events SET payload = '{}'",
    "DELETE FROM events",
    "TRUNCATE events",
)


@pytest.mark.parametrize("statement", REFUSED)
@pytest.mark.parametrize("setup", SETUP)
def test_refuses_a_superuser_too(tx: Connection, setup: str, statement: str) -> None:
    assert tx.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (True,)
    join(tx)
    apply(tx, host())
    if setup:
        tx.execute(setup)
    with pytest.raises(psycopg.errors.RestrictViolation, match="is append-only"):
        tx.execute(statement)


def prune(tx: Connection, hours: int = 1) -> int:
    return prune_snapshots(tx, datetime.now(UTC) + timedelta(hours=hours))


def test_prune_keeps_each_nodes_applied_and_newest_one(tx: Connection) -> None:
    join(tx)
    join(tx, OTHER)
    for number in (1, 2, 3):
        kept = apply(tx, host(number))
    other = apply(tx, host(1), OTHER)
    tx.execute("UPDATE nodes SET trust = 'tenant-controlled' WHERE id = %s", [NODE])
    for number in (1, 2):
        newest = apply(tx, host(number))
    assert prune(tx) == 3
    left = {row[0] for row in tx.execute("SELECT id FROM inventory_snapshots")}
    assert left == {kept.snapshot_id, newest.snapshot_id, other.snapshot_id}


def test_prune_keeps_what_is_not_older(tx: Connection) -> None:
    join(tx)
    for number in (1, 2, 3):
        apply(tx, host(number))
    assert prune(tx, hours=-1) == 0
    assert count(tx, "inventory_snapshots") == 3


def test_prune_keeps_every_section_still_named(tx: Connection) -> None:
    join(tx)
    apply(tx, host(1))
    apply(tx, host(2))
    apply(tx, host(gpus=gpus(gpu(0), error="Error")))
    assert prune(tx) == 2
    # Eight of the kept snapshot, and the baseline: the last good gpus, which no snapshot names any more.
    assert count(tx, "sections") == count(tx, "tenant_sections") == 9
    apply(tx, host(1))
    assert tx.execute("SELECT payload ->> 'deviceId' FROM events WHERE type = 'node.gpu.missing'").fetchall() == [
        ("GPU-00000001",)
    ]


def test_prune_asks_again_for_bytes_that_are_gone(tx: Connection) -> None:
    join(tx)
    apply(tx, host(1))
    apply(tx, host(2))
    prune(tx)
    assert apply(tx, host(1)).status == "applied"
