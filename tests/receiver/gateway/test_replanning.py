"""The task that plans nodes again, in a running receiver."""

from unittest.mock import patch

import psycopg
import pytest

from receiver.apply import replan
from receiver.gateway import replanning
from tests.fake_daemon import until
from tests.receiver.builders import host
from tests.receiver.live import Live, live

GPU = "GPU-00000000"


def do(served: Live, statement: str, *arguments: object) -> None:
    """As somebody else does it in the database."""
    with psycopg.connect(served.database) as tx:
        tx.execute(statement.encode(), arguments or None)


def there(served: Live) -> list[str]:
    """The atoms that are there."""
    return [row[0] for row in served.rows("SELECT id FROM atoms ORDER BY id")]


@live
async def test_a_queued_node_is_planned_again_soon(served: Live) -> None:
    daemon = await served.in_service(host(1))
    do(served, "DELETE FROM atoms")
    do(served, "INSERT INTO replan (node_id, reason) VALUES (%s, 'a test')", daemon.node_id)
    await until("the atom", lambda: there(served) == [GPU])
    await until("the end of the queue", lambda: served.rows("SELECT FROM replan") == [])


@live
async def test_a_missing_device_is_gone_soon_after_its_booking_ended(served: Live) -> None:
    daemon = await served.in_service(host(2))
    do(
        served,
        """INSERT INTO bookings (booking_id, tenant_id, node_id, device_id, atom_id, atom_generation)
           SELECT 'b1', tenant_id, node_id, device_id, id, generation FROM bookable_atoms WHERE id = %s""",
        GPU,
    )
    await daemon.offer(host(0))
    await until("what is missing", lambda: there(served) == [GPU])
    do(served, "UPDATE bookings SET ended_at = now()")
    await until("its end", lambda: there(served) == [])


@live
async def test_what_neither_a_trigger_nor_a_plan_saw_is_looked_for(served: Live) -> None:
    with patch.object(replanning, "MISSED_EVERY", 1):
        await served.in_service(host(1))
        do(served, "UPDATE devices SET present = false")
        await until("the device to be planned again", lambda: served.rows("SELECT present FROM devices") == [(True,)])


@live
async def test_a_full_batch_is_followed_by_the_next_at_once(served: Live) -> None:
    with patch.object(replan, "BATCH", 2), patch.object(replanning, "EVERY", 3600):
        for number in range(5):
            do(served, "INSERT INTO nodes (id, tenant_id) VALUES (%s, 'default')", f"node_{number}")
        do(served, "INSERT INTO replan (node_id, reason) SELECT id, 'a test' FROM nodes")
        await replanning.once(served.receiver.jobs, 1)
        assert served.rows("SELECT FROM replan") == []


@live
async def test_a_database_that_does_not_answer_is_asked_again(served: Live) -> None:
    def away(*_: object) -> int:
        raise psycopg.OperationalError("gone")

    daemon = await served.in_service(host(1))
    with patch.object(replan, "drain", away):
        do(served, "DELETE FROM atoms")
        do(served, "INSERT INTO replan (node_id, reason) VALUES (%s, 'a test')", daemon.node_id)
        await replanning.once(served.receiver.jobs, 1)
        served.receiver.check()
    await until("the atom", lambda: there(served) == [GPU])


@live
async def test_a_replanning_that_dies_ends_the_receiver(served: Live) -> None:
    def broken(*_: object) -> int:
        raise AssertionError("our bug")

    with patch.object(replan, "drain", broken):
        await until("its end", served.receiver.chores[1].done)
    with pytest.raises(AssertionError, match="our bug"):
        served.receiver.check()
