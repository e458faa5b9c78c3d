"""What a report costs the database, in statements and transactions (SPEC B: telemetry never goes there; B2, B3)."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import psycopg

from receiver.apply.inventory import apply_inventory
from receiver.gateway import heartbeat, replanning
from receiver.store.database import Connection
from tests.fake_daemon import FakeDaemon
from tests.receiver.builders import NODE, apply, disk, disks, gpu, gpus, host, join, offer
from tests.receiver.certified import Machine, issue
from tests.receiver.live import Live, live

MOST = 6  # statements of an apply that changes an 8-GPU node


@dataclass(slots=True)
class Work:
    """What was asked of the database by this process."""

    statements: list[str] = field(default_factory=list)
    commits: int = 0


@contextmanager
def counted() -> Iterator[Work]:
    """Counts what any connection is asked for meanwhile."""
    work = Work()
    execute, many, commit = psycopg.Cursor.execute, psycopg.Cursor.executemany, psycopg.Connection.commit

    def executed(self: Any, query: Any, *rest: Any, **named: Any) -> Any:
        work.statements.append(str(query))
        return execute(self, query, *rest, **named)

    def executed_many(self: Any, query: Any, rows: Any, *rest: Any, **named: Any) -> Any:
        listed = list(rows)
        work.statements += [str(query)] * len(listed)
        return many(self, query, listed, *rest, **named)

    def committed(self: Any) -> None:
        work.commits += 1
        commit(self)

    with (
        patch.object(psycopg.Cursor, "execute", executed),
        patch.object(psycopg.Cursor, "executemany", executed_many),
        patch.object(psycopg.Connection, "commit", committed),
    ):
        yield work


def changed() -> dict[str, bytes]:
    """Another collection of host(8): a GPU waits for a reset, one is lost, the driver and a disk are others."""
    listed = [gpu(number) for number in range(8)]
    listed[2].row_remap.pending = True
    listed[5].state = "lost"
    return host(8, gpus=gpus(*listed, driver="550.90.07"), disks=disks(disk("nvme0n1", "S1"), disk("nvme1n1", "S2")))


def test_an_apply_that_changes_an_eight_gpu_node_is_at_most_six_statements(tx: Connection) -> None:
    join(tx)
    apply(tx, host(8))
    with counted() as work:
        assert apply(tx, changed()).status == "applied"
    assert len(work.statements) <= MOST, work.statements
    assert tx.execute("SELECT count(*) FROM devices WHERE NOT healthy").fetchone() == (2,), "everything is concluded in them"


def test_an_apply_that_moves_a_gpu_in_is_at_most_six_statements(tx: Connection) -> None:
    """One that is new here may be another node's: that is looked up too."""
    join(tx)
    apply(tx, host(7))
    with counted() as work:
        assert apply(tx, host(8)).status == "applied"
    assert len(work.statements) <= MOST, work.statements


def test_an_apply_that_changes_nothing_writes_nothing(tx: Connection) -> None:
    join(tx)
    apply(tx, host(8))
    tx.commit()
    with counted() as work:
        assert apply_inventory(tx, NODE, offer(host(8)), {}).status == "unchanged"
    assert len(work.statements) == 2, "the lock and the load"
    rows = tx.execute("SELECT max(xmin::text::bigint) = pg_current_xact_id()::text::bigint FROM nodes WHERE id = %s", [NODE])
    assert rows.fetchone() == (False,)


def quietly(test: Callable[[Live], Awaitable[None]]) -> Callable[[str], None]:
    """As `live`, without the chores that a receiver has beside its sessions: they look every second."""
    run = live(test)

    def quiet(database: str) -> None:
        with patch.object(heartbeat, "EVERY", 3600.0), patch.object(replanning, "EVERY", 3600.0):
            run(database)

    return quiet


async def settled(served: Live) -> FakeDaemon:
    """A node with an inventory and a report behind it."""
    daemon = served.daemon()
    await daemon.connect()
    await daemon.offer(host(8))
    daemon.set_pressure(cpu=10.0)
    await reported(daemon)
    return daemon


async def reported(daemon: FakeDaemon) -> None:
    """Sends a report; back when it is dealt with."""
    await daemon.report()
    await daemon.dealt_with()


@quietly
async def test_a_report_that_changes_nothing_is_no_statement(served: Live) -> None:
    daemon = await settled(served)
    await reported(daemon)
    with counted() as work:
        for cpu in (20.0, 59.0, 1.0):
            daemon.set_pressure(cpu=cpu)
            await reported(daemon)
    assert work.statements == []


@quietly
async def test_a_report_that_flips_one_condition_is_one_transaction(served: Live) -> None:
    daemon = await settled(served)
    daemon.set_condition("NvmlUnavailable", reason="Hang")
    with counted() as work:
        await reported(daemon)
    assert served.rows("SELECT status FROM conditions WHERE type = 'NvmlUnavailable'") == [("true",)]
    assert (work.commits, len(work.statements) <= MOST) == (1, True), work.statements


def test_a_hello_looks_its_certificate_up_in_no_statement_of_its_own(tx: Connection) -> None:
    machine = Machine("i1", issue(tx, "aa"))
    machine.hello(tx)
    with counted() as work:
        assert machine.hello(tx).epoch == 2
    assert len(work.statements) == 3, f"the lock, the session, the labels: {work.statements}"
