"""Telemetry of sessions over real gRPC (SPEC B5, ClockSkew of B3): judged in memory, written when what is concluded changes."""

import asyncio
import time
from typing import Any
from unittest.mock import patch

import psycopg
import pytest

from receiver.apply import status as status_module
from tests.fake_daemon import FakeDaemon
from tests.receiver.live import Live, live, serving

CONDITIONS = "SELECT type, status, reason, no_schedule FROM conditions WHERE status <> 'false' ORDER BY type"
EVENTS = "SELECT payload ->> 'condition', payload ->> 'status' FROM events WHERE type = 'node.condition.changed' ORDER BY seq"


async def reports(daemon: FakeDaemon, times: int = 1) -> None:
    """Sends reports; back when they are dealt with."""
    for _ in range(times):
        await daemon.report()
    await daemon.dealt_with()


async def connected(served: Live, kind: str = "vps-host") -> FakeDaemon:
    """A node in a pool of this kind, with a report behind it."""
    daemon = served.daemon()
    await daemon.connect()
    served.rows("INSERT INTO pools (id, tenant_id, name, kind) VALUES ('pool_1', 'default', 'a', %s) RETURNING id", kind)
    served.rows("UPDATE nodes SET pool_id = 'pool_1' WHERE id = %s RETURNING id", daemon.node_id)
    daemon.set_pressure()
    await reports(daemon)
    return daemon


def reasons(served: Live) -> list[str]:
    ((found,),) = served.rows("SELECT no_schedule_reasons FROM nodes")
    return [one["type"] for one in found]


@live
async def test_two_samples_raise_pressure_which_is_no_schedule_in_vps_host_pools(served: Live) -> None:
    daemon = await connected(served)
    daemon.set_pressure(cpu=60.0, memory=19.9)
    await reports(daemon)
    assert served.rows(CONDITIONS) == []
    await reports(daemon)
    assert served.rows(CONDITIONS) == [("CpuPressure", "true", "High", True)]
    assert reasons(served) == ["CpuPressure"]
    daemon.set_pressure(cpu=29.0)
    await reports(daemon, 2)
    assert served.rows(CONDITIONS) == []
    assert reasons(served) == []
    assert served.rows(EVENTS) == [("CpuPressure", "true"), ("CpuPressure", "false")]


@live
async def test_pressure_in_another_pool_is_told_and_keeps_no_one_away(served: Live) -> None:
    daemon = await connected(served, "gpu")
    daemon.set_pressure(io=80.0)
    await reports(daemon, 2)
    assert served.rows(CONDITIONS) == [("IoPressure", "true", "High", False)]
    assert reasons(served) == []
    assert served.rows(EVENTS) == [("IoPressure", "true")]


@live
async def test_samples_that_conclude_nothing_new_are_no_statement(served: Live) -> None:
    daemon = await connected(served)
    daemon.set_pressure(cpu=80.0)
    await reports(daemon, 2)
    assert reasons(served) == ["CpuPressure"]
    with patch.object(served.receiver.jobs, "transaction", side_effect=AssertionError("a statement")):
        for cpu in (40.0, 99.0, 20.0, 60.0, 35.0):
            daemon.set_pressure(cpu=cpu)
            await daemon.report()
        await daemon.dealt_with()


@live
async def test_the_first_samples_of_a_session_that_find_what_stands_are_no_statement(served: Live) -> None:
    first = await connected(served)
    first.set_pressure(cpu=80.0)
    await reports(first, 2)
    assert reasons(served) == ["CpuPressure"]
    await first.close()
    daemon = served.daemon(node_id=first.node_id, boot_id=first.boot_id, pressure=first.pressure)
    await daemon.connect()
    await reports(daemon)
    with patch.object(served.receiver.jobs, "transaction", side_effect=AssertionError("a statement")):
        await reports(daemon, 3)
    assert served.rows(EVENTS) == [("CpuPressure", "true")]


@live
async def test_pressure_that_is_not_reported_any_more_is_unknown_and_no_reason(served: Live) -> None:
    daemon = await connected(served)
    daemon.set_pressure(steal=50.0)
    await reports(daemon, 2)
    assert reasons(served) == ["CpuSteal"]
    daemon.pressure = None
    await reports(daemon)
    assert served.rows(CONDITIONS) == [("CpuSteal", "unknown", "NotReported", False)]
    assert reasons(served) == []


@pytest.mark.parametrize(("boot", "status"), [("same", "true"), ("another", "unknown")])
def test_a_session_without_pressure_keeps_what_is_raised_in_its_boot_only(database: str, boot: str, status: str) -> None:
    async def main() -> None:
        async with serving(database) as served:
            first = await connected(served)
            first.set_pressure(memory=50.0)
            await reports(first, 2)
            assert reasons(served) == ["MemoryPressure"]
            await first.close()
            boot_id = first.boot_id if boot == "same" else "another"
            daemon = served.daemon(node_id=first.node_id, boot_id=boot_id)
            await daemon.connect()
            await reports(daemon, 2)
            assert [row[:2] for row in served.rows(CONDITIONS)] == [("MemoryPressure", status)]

    asyncio.run(main())


@live
async def test_pressure_and_clock_of_a_tenants_machine_change_nothing(served: Live) -> None:
    daemon = await connected(served)
    served.rows("UPDATE nodes SET trust = 'tenant-controlled', lease_id = 'l' WHERE id = %s RETURNING id", daemon.node_id)
    daemon.set_pressure(cpu=99.0, memory=99.0, io=99.0, steal=99.0)
    daemon.skew = 60.0
    await reports(daemon, 4)
    assert (served.rows(CONDITIONS), reasons(served), served.rows(EVENTS)) == ([], [], [])


def test_pressure_is_not_judged_where_its_handler_is_not_in_force(database: str) -> None:
    async def main() -> None:
        async with serving(database, status_handlers=("conditions",)) as served:
            daemon = await connected(served)
            daemon.set_pressure(cpu=99.0)
            daemon.skew = 60.0
            await reports(daemon, 4)
            assert [row[0] for row in served.rows(CONDITIONS)] == ["ClockSkew"]

    asyncio.run(main())


def test_levels_and_samples_are_the_settings_of_the_receiver(database: str) -> None:
    async def main() -> None:
        levels = {"cpu": 90.0, "memory": 20.0, "io": 50.0, "steal": 10.0}
        async with serving(database, pressure_raise=levels, pressure_samples=1) as served:
            daemon = await connected(served)
            daemon.set_pressure(cpu=89.0, memory=20.0)
            await reports(daemon)
            assert [row[0] for row in served.rows(CONDITIONS)] == ["MemoryPressure"]

    asyncio.run(main())


@pytest.mark.parametrize(("skew", "reason"), [(20.0, "Ahead"), (-20.0, "Behind")])
def test_a_clock_that_differs_in_three_reports_in_a_row_is_told_and_is_no_reason(database: str, skew: float, reason: str) -> None:
    async def main() -> None:
        async with serving(database) as served:
            daemon = await connected(served)
            daemon.skew = skew
            await reports(daemon, 2)
            assert served.rows(CONDITIONS) == []
            await reports(daemon)
            assert served.rows(CONDITIONS) == [("ClockSkew", "true", reason, False)]
            daemon.skew = 0.0
            await reports(daemon)
            assert served.rows(CONDITIONS) == []

    asyncio.run(main())


@live
async def test_reports_that_waited_for_a_slow_database_are_no_clock_skew(served: Live) -> None:
    daemon = await connected(served)
    record = status_module.record_status

    def slow(*arguments: Any, **named: Any) -> bool:
        time.sleep(1.0)
        return record(*arguments, **named)

    with patch("receiver.planning.clock.MOST", 0.2), patch.object(status_module, "record_status", slow):
        daemon.set_condition("RebootRequired")
        await reports(daemon, 4)  # the first takes a second, and the others wait for it
    assert [row[0] for row in served.rows(CONDITIONS)] == ["RebootRequired"]


@live
async def test_what_could_not_be_recorded_is_recorded_with_the_next_report(served: Live) -> None:
    daemon = await connected(served)
    daemon.set_pressure(cpu=80.0)
    await reports(daemon)
    with patch("receiver.apply.telemetry.record_host_pressure", side_effect=psycopg.OperationalError("down")):
        await reports(daemon)
    assert served.rows(CONDITIONS) == []
    await reports(daemon)
    assert reasons(served) == ["CpuPressure"]
