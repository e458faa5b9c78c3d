"""One identity and several machines (SPEC B1, "Alternation"): two copies are found out, an honest bcd never is."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.session import reconnect
from receiver.gateway import limits
from tests.attacks.bcd import Bcd, keep
from tests.fake_daemon import until
from tests.receiver.tls import Secure, secure
from tests.repetitions import times

DUPLICATE, QUARANTINED = "security.node.duplicate-session", "security.node.quarantined"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two sessions 30 to 60 s are a tenth of a second."""
    monkeypatch.setattr(reconnect, "delay", lambda end, failures, jitter: 0.05 + 0.05 * jitter)


@asynccontextmanager
async def two_receivers(database: str) -> AsyncIterator[tuple[Secure, Secure]]:
    """Of one database, with the same CAs."""
    async with secure(database) as one, secure(database, one.folder) as other:
        yield one, other


def where(served: Secure) -> str:
    return served.receiver.config.listen_session


def told(served: Secure, kind: str) -> int:
    """How many events of this type there are."""
    found: int = served.rows("SELECT count(*) FROM events WHERE type = %s", kind)[0][0]
    return found


def duplicate(served: Secure, node_id: str) -> list[tuple[Any, ...]]:
    query = "SELECT reason, status FROM conditions WHERE node_id = %s AND type = 'DuplicateIdentity'"
    return served.rows(query, node_id)


def revoked(served: Secure, node_id: str) -> list[tuple[Any, ...]]:
    query = "SELECT revoked_reason FROM certificates WHERE node_id = %s AND revoked_at IS NOT NULL"
    return served.rows(query, node_id)


async def found_out(served: Secure, node_id: str, *copies: Bcd) -> None:
    """Until the identity is quarantined, after the fourth alternation, and no copy has a session."""
    await until("the quarantine", lambda: told(served, QUARANTINED) == 1, 30)
    assert told(served, DUPLICATE) == 4
    assert revoked(served, node_id) == [("duplicate-identity",)]
    assert duplicate(served, node_id) == [("DuplicateSession", "true")]
    await until("both to be told", lambda: all("revoked" in one.ends for one in copies), 10)
    before = [len(one.epochs) for one in copies]
    await asyncio.sleep(0.5)
    assert [len(one.epochs) for one in copies] == before, "neither has a session again"
    assert told(served, DUPLICATE) == 4


@pytest.fixture(autouse=True)
def _as_fast_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand sessions in a minute: the rate of a node would make hours of it."""
    monkeypatch.setattr(limits, "NODE_SESSIONS", replace(limits.NODE_SESSIONS, burst=1_000_000))


def test_two_copies_of_a_data_dir_against_two_receivers(database: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with two_receivers(database) as (a, b), AsyncExitStack() as ends:
            node = a.admit()
            keep(tmp_path / "real", node, where(a))
            real = Bcd(tmp_path / "real", "boot-1")
            real.start()
            ends.push_async_callback(real.kill)
            await real.until(1)
            shutil.copytree(tmp_path / "real", tmp_path / "copy")
            copy = Bcd(tmp_path / "copy", "boot-2", where(b))
            copy.start()
            ends.push_async_callback(copy.kill)
            await found_out(a, node.node_id, real, copy)

            keep(tmp_path / "real", await a.join(a.join_token(node=node.node_id)), where(a))  # bcd join, with a bound token
            began = len(real.epochs)
            await real.until(began + 1)
            assert duplicate(a, node.node_id) == [("", "false")]
            await asyncio.sleep(0.5)
            assert len(real.epochs) == began + 1, "the real machine keeps its session"
            assert len(set(copy.ends[-3:])) == 1
            assert copy.ends[-1] == "revoked", "the copy has none"
            assert (told(a, DUPLICATE), told(a, QUARANTINED)) == (4, 1)

    asyncio.run(main())


def test_a_virtual_machine_that_was_cloned_with_its_memory_counts_as_two(database: str, tmp_path: Path) -> None:
    """Same boot, instance and epoch, also in memory: what tells them apart is that one takes the session from the other."""

    async def main() -> None:
        async with two_receivers(database) as (a, b), AsyncExitStack() as ends:
            node = a.admit()
            keep(tmp_path / "real", node, where(a))
            real = Bcd(tmp_path / "real", "boot-1")
            real.start()
            ends.push_async_callback(real.kill)
            await real.until(1)
            shutil.copytree(tmp_path / "real", tmp_path / "clone")
            clone = Bcd(tmp_path / "clone", "boot-1", where(b))
            clone.member.trace.now, clone.member.trace.previous = real.member.trace.now, real.member.trace.previous
            clone.start()
            ends.push_async_callback(clone.kill)
            await found_out(a, node.node_id, real, clone)

    asyncio.run(main())


def test_an_honest_bcd_that_reconnects_a_thousand_times_is_never_taken_for_two(database: str, tmp_path: Path) -> None:
    """To the one receiver or the other, after a session or in the midst of its beginning."""

    async def main() -> None:
        chance = random.Random(3)
        async with two_receivers(database) as (a, b), AsyncExitStack() as ends:
            node = a.admit()
            keep(tmp_path / "bcd", node, where(a), where(b))
            bcd = Bcd(tmp_path / "bcd", "boot-1")
            bcd.start()
            ends.push_async_callback(bcd.kill)
            for _ in range(times(1000)):
                began = len(bcd.epochs)
                bcd.link.reconnect()
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() * 0.03)
                    bcd.link.reconnect()
                await bcd.until(began + 1)
            honest(a, node.node_id)
            used = a.rows("SELECT count(DISTINCT receiver_id) FROM sessions WHERE node_id = %s", node.node_id)
            assert used == [(2,)]

    asyncio.run(main())


def test_an_honest_bcd_that_is_killed_two_hundred_times_is_never_taken_for_two(database: str, tmp_path: Path) -> None:
    """At any moment of its start: what it knows then is what lies in its data_dir."""

    async def main() -> None:
        chance = random.Random(4)
        async with two_receivers(database) as (a, b):
            node = a.admit()
            keep(tmp_path / "bcd", node, where(a), where(b))
            midway = 0
            for _ in range(times(200)):
                bcd = Bcd(tmp_path / "bcd", "boot-1")
                bcd.start()
                await asyncio.sleep(chance.random() * 0.1)
                await bcd.kill()
                midway += not bcd.epochs
            bcd = Bcd(tmp_path / "bcd", "boot-1")
            bcd.start()
            await bcd.until(1)
            await bcd.kill()
            assert midway > 0, "some of them in the midst of a Hello"
            # The Hello of a dead run may come behind that of the next one, by another receiver: then the two do look like two.
            honest(a, node.node_id, at_most=2)

    asyncio.run(main())


def honest(served: Secure, node_id: str, at_most: int = 0) -> None:
    """Nothing is told of it, but so many duplicate sessions: four within 10 minutes would revoke its certificate."""
    assert told(served, DUPLICATE) <= at_most
    assert told(served, QUARANTINED) == 0
    assert revoked(served, node_id) == []
    assert duplicate(served, node_id) == []
