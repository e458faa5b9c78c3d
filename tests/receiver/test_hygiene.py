"""Hygiene in whole receivers: by their settings, through sessions and the API, and by one receiver at a time."""

import asyncio
from typing import Any

import psycopg

from receiver.planning.hygiene import Options
from receiver.service import Receiver
from receiver.values import PROTOCOL
from tests.fake_daemon import until
from tests.receiver.live import serving

QUICK: dict[str, Any] = {"hygiene_every": 0.1}
HOLDERS = "SELECT holder, token FROM leases WHERE name = 'hygiene'"


def test_the_receivers_protocol_is_the_agents() -> None:
    from agent.session.codec import PROTOCOL_VERSION

    assert (PROTOCOL, Options().protocol_max) == (PROTOCOL_VERSION, PROTOCOL_VERSION)


def test_a_node_with_an_old_daemon_is_out_of_service_until_it_comes_back_with_a_newer(database: str) -> None:
    async def main() -> None:
        async with serving(database, min_daemon_version="0.2", **QUICK) as served:
            old = served.daemon()
            await old.connect()
            reasons = "SELECT no_schedule_reasons -> 0 ->> 'type' FROM nodes"
            await until("the condition", lambda: served.rows(reasons) == [("DaemonOutdated",)])
            (shown,) = (await served.api("nodes.get", nodeId=old.node_id))["conditions"]
            assert (shown["type"], shown["message"]) == ("DaemonOutdated", "bcd 0.1.0 is older than 0.2")
            newer = served.daemon(node_id=old.node_id, daemon_version="0.2.0", boot_id=old.boot_id)
            await newer.connect()
            await until("its end", lambda: served.rows(reasons) == [(None,)])

    asyncio.run(main())


def test_one_receiver_sweeps_and_the_next_when_that_one_stops(database: str) -> None:
    async def main() -> None:
        def holder() -> str:
            with psycopg.connect(database) as tx:
                row = tx.execute(HOLDERS).fetchone()
                return "" if row is None else str(row[0])

        async def sweeps(receiver: Receiver) -> bool:
            await receiver.singletons.beat()
            return "hygiene" in receiver.singletons.held

        async with serving(database, **QUICK) as second:
            async with serving(database, **QUICK) as first:
                await until("a lease", lambda: holder() != "")
                one, other = await sweeps(first.receiver), await sweeps(second.receiver)
                assert one is not other
                assert (holder() == first.receiver.jobs.receiver_id) is one
            assert await sweeps(second.receiver)
            assert holder() == second.receiver.jobs.receiver_id
        with psycopg.connect(database) as tx:  # both have let it go
            assert tx.execute("SELECT count(*) FROM leases WHERE expires_at > clock_timestamp()").fetchone() == (0,)
            assert tx.execute("SELECT count(*) FROM serving WHERE since <= beat_at AND beat_at <= now()").fetchone() == (1,)

    asyncio.run(main())
