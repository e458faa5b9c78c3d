"""Singletons: one holder at a time, in every moment, whoever was suspended or killed."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from receiver.singletons import Run, Singleton, Singletons, set_within, while_true
from receiver.store import database as db
from receiver.store import leases
from receiver.store.leases import Lease, LeaseLost

GAP = timedelta(minutes=1)
SECONDS = 1.0


@pytest.fixture
def pool(database: str) -> Iterator[db.Pool]:
    with db.open_pool(database, size=6) as opened:
        opened.wait()
        yield opened


def taken(pool: db.Pool, name: str, holder: str, seconds: float = 60.0) -> Lease | None:
    return db.transact(pool, lambda tx: leases.take(tx, name, holder, seconds))


async def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def singletons(pool: db.Pool, holder: str, *kinds: Singleton, seconds: float = SECONDS) -> Singletons:
    return Singletons(pool, holder, kinds, GAP, seconds)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is run in an event loop of its own."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@asynccontextmanager
async def running(one: Singletons) -> Any:
    task = asyncio.create_task(one.run_forever())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await one.stop()


# ---- leases


def test_a_lease_is_one_holders_until_it_ends(pool: db.Pool) -> None:
    assert taken(pool, "a", "x") == Lease("a", "x", 1)
    assert taken(pool, "a", "y") is None
    assert taken(pool, "b", "y") == Lease("b", "y", 1)  # another lease
    assert taken(pool, "a", "x", seconds=0) == Lease("a", "x", 1)  # held on to: the same token
    assert taken(pool, "a", "y") == Lease("a", "y", 2)
    assert taken(pool, "a", "x") is None


def test_a_lease_that_is_let_go_is_free_at_once(pool: db.Pool) -> None:
    assert taken(pool, "a", "x")
    assert taken(pool, "b", "y")
    db.transact(pool, lambda tx: leases.release(tx, "x"))
    assert taken(pool, "a", "y") == Lease("a", "y", 2)
    assert taken(pool, "b", "x") is None  # that was not x's to let go


def test_who_has_lost_a_lease_is_refused_with_its_old_token(pool: db.Pool) -> None:
    old = taken(pool, "a", "x", seconds=0)
    assert old
    assert taken(pool, "a", "y", seconds=0)
    assert taken(pool, "a", "x") == Lease("a", "x", 3)
    with pytest.raises(LeaseLost, match="another receiver has the lease on a"):
        db.transact(pool, lambda tx: leases.fence(tx, old))
    db.transact(pool, lambda tx: leases.fence(tx, Lease("a", "x", 3)))


def test_nobody_takes_a_lease_while_its_holder_is_at_work_however_long(pool: db.Pool) -> None:
    lease = taken(pool, "a", "x", seconds=0)
    assert lease
    with pool.connection() as tx:
        leases.fence(tx, lease, seconds=0.5)
        time.sleep(0.2)
        tx.execute("SELECT pg_sleep(0.6)")
        began = time.monotonic()
        assert taken(pool, "a", "y") is None
        assert time.monotonic() - began < 1  # and it is not waited for
    assert taken(pool, "a", "y") == Lease("a", "y", 2)


def test_serving_goes_on_over_short_gaps_and_begins_anew_after_a_long_one(pool: db.Pool) -> None:
    def since_and_beat(tx: db.Connection) -> Any:
        leases.beat(tx, timedelta(seconds=60))
        return tx.execute("SELECT since = now(), beat_at = now(), since < now() - interval '1 hour' FROM serving").fetchone()

    def passed(seconds: int) -> None:
        update = "UPDATE serving SET since = since - %(by)s::interval, beat_at = beat_at - %(by)s::interval"
        db.transact(pool, lambda tx: tx.execute(update, {"by": timedelta(seconds=seconds)}))

    assert db.transact(pool, since_and_beat) == (True, True, False)
    db.transact(pool, lambda tx: tx.execute("UPDATE serving SET since = since - interval '1 day'"))
    passed(55)
    assert db.transact(pool, since_and_beat) == (False, True, True)
    passed(65)
    assert db.transact(pool, since_and_beat) == (True, True, False)


# ---- the work


def counting(times: list[str], name: str) -> Callable[[Run], None]:
    return lambda run: run(lambda tx: times.append(name))


@in_loop
async def test_one_of_two_works_and_the_other_when_that_one_stops(pool: db.Pool) -> None:
    times: list[str] = []
    a, b = (singletons(pool, name, Singleton("sweep", 0.02, counting(times, name)), seconds=30) for name in "ab")
    async with running(b):
        async with running(a):
            await until(lambda: len(times) >= 5)
            assert len(set(times)) == 1
            first = times[0]
            if first == "b":
                return
            await b.beat()
            assert set(times) == {"a"}
        await b.beat()  # a has let it go
        times.clear()
        await until(lambda: len(times) >= 3)
        assert set(times) == {"b"}


@in_loop
async def test_a_notification_wakes_the_work(pool: db.Pool) -> None:
    times: list[str] = []
    one = singletons(pool, "a", Singleton("sweep", 600, counting(times, "a"), "bc_sweep"), Singleton("other", 600, print))
    async with running(one):
        await until(lambda: times == ["a"])  # at first, because the lease is new
        one.channels["bc_sweep"]("node_1")
        await until(lambda: times == ["a", "a"])
        assert list(one.channels) == ["bc_sweep"]
        one.wake_all()
        await until(lambda: times == ["a", "a", "a"])


@in_loop
async def test_a_wake_while_it_works_has_it_work_again(pool: db.Pool) -> None:
    going, go = threading.Semaphore(0), threading.Semaphore(0)

    def work(run: Run) -> None:
        going.release()
        go.acquire()

    one = singletons(pool, "a", Singleton("sweep", 600, work, "bc_sweep"))
    async with running(one):
        assert await asyncio.to_thread(going.acquire, timeout=5)
        one.channels["bc_sweep"]("")
        go.release()
        assert await asyncio.to_thread(going.acquire, timeout=5)
        go.release()


@in_loop
async def test_work_goes_on_while_there_is_more(pool: db.Pool) -> None:
    left = [3]

    def work(tx: db.Connection) -> bool:
        left[0] -= 1
        return left[0] > 0

    async with running(singletons(pool, "a", Singleton("sweep", 600, while_true(work)))):
        await until(lambda: left == [0])
        await asyncio.sleep(0.1)
        assert left == [0]


@in_loop
async def test_a_mistake_of_ours_is_loud_and_a_database_that_is_away_is_not(pool: db.Pool, database: str) -> None:
    times: list[str] = []

    def work(run: Run) -> None:
        times.append("")
        run(lambda tx: tx.execute("SELECT pg_terminate_backend(pg_backend_pid())"))

    async with running(singletons(pool, "a", Singleton("sweep", 0.02, work))) as task:
        await until(lambda: len(times) >= 3)
        assert not task.done()
    wrong = singletons(pool, "b", Singleton("wrong", 0.02, lambda run: run(lambda tx: 1 / 0)))
    with pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(wrong.run_forever(), 10)
    assert raised.group_contains(ZeroDivisionError)
    await wrong.stop()


@in_loop
async def test_who_has_lost_the_lease_between_two_transactions_writes_nothing_more(pool: db.Pool) -> None:
    db.transact(pool, lambda tx: tx.execute("CREATE TABLE written (by text)"))
    refused = threading.Event()

    def work(run: Run) -> None:
        run(lambda tx: tx.execute("INSERT INTO written VALUES ('a 1')"))
        steal = "UPDATE leases SET holder = 'b', token = token + 1, expires_at = clock_timestamp() + interval '1 h'"
        db.transact(pool, lambda tx: tx.execute(steal))
        try:
            run(lambda tx: tx.execute("INSERT INTO written VALUES ('a 2')"))
        finally:
            refused.set()

    one = singletons(pool, "a", Singleton("sweep", 600, work))
    async with running(one):
        assert await asyncio.to_thread(refused.wait, 5)
        await until(lambda: not one.held)
        rows = db.transact(pool, lambda tx: tx.execute("SELECT by FROM written").fetchall())
        assert rows == [("a 1",)]


# ---- a receiver that is suspended

_SWEEPER = """
    import asyncio, sys, time
    from datetime import timedelta
    from receiver.singletons import Singleton, Singletons
    from receiver.store import database as db

    url, name, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])

    def write(tx):
        tx.execute("INSERT INTO written (by, token) SELECT %s, token FROM leases", [name])
        print("writing", flush=True)
        time.sleep(pause)
        tx.execute("INSERT INTO written (by, token) SELECT %s, token FROM leases", [name])

    def work(run):
        for _ in range(100):
            run(write)

    async def main():
        with db.open_pool(url, 4) as pool:
            await Singletons(pool, name, [Singleton("sweep", 0.01, work)], timedelta(60), 1.0).run_forever()

    asyncio.run(main())
"""


@pytest.mark.parametrize("stopped_in", ["a transaction", "its sleep"])
def test_a_receiver_that_was_suspended_writes_nothing_once_another_has_the_lease(
    pool: db.Pool, database: str, tmp_path: Path, stopped_in: str
) -> None:
    """Within a transaction (which sleeps most of its time), or at any other moment (which it sleeps through)."""
    make = "CREATE TABLE written (seq bigint GENERATED ALWAYS AS IDENTITY, by text, token bigint, at timestamptz DEFAULT now())"
    db.transact(pool, lambda tx: tx.execute(make))
    script = tmp_path / "sweeper.py"
    script.write_text(textwrap.dedent(_SWEEPER))
    pause = "0.2" if stopped_in == "a transaction" else "0"
    command = [sys.executable, str(script), database]
    with subprocess.Popen([*command, "first", pause], stdout=subprocess.PIPE) as first:
        assert first.stdout
        assert [first.stdout.readline() for _ in range(2)] == [
            b"writing\n"
        ] * 2  # one transaction is committed, the second has begun
        first.send_signal(signal.SIGSTOP)
        try:
            with subprocess.Popen([*command, "second", pause], stdout=subprocess.PIPE) as second:
                assert second.stdout
                assert second.stdout.readline() == b"writing\n"  # it has the lease
                first.send_signal(signal.SIGCONT)
                for _ in range(5):
                    second.stdout.readline()
                time.sleep(1.5)  # the first has tried to renew by now
                assert first.poll() is None
                assert second.poll() is None
                second.kill()
        finally:
            os.kill(first.pid, signal.SIGCONT)
            first.kill()
    rows = db.transact(pool, lambda tx: tx.execute("SELECT by, token FROM written ORDER BY token, seq").fetchall())
    assert {row for row in rows if row[1] <= 2} == {("first", 1), ("second", 2)}
    by_time = db.transact(pool, lambda tx: tx.execute("SELECT by FROM written ORDER BY seq").fetchall())
    names = [name for (name,) in by_time]
    assert names == sorted(names)  # all of the first's are before all of the second's


# ---- what cannot wait


@in_loop
async def test_what_a_notification_names_is_seen_to_while_a_long_work_goes_on(pool: db.Pool) -> None:
    begun, end, named = threading.Event(), threading.Event(), list[frozenset[str]]()

    def long(run: Run) -> None:
        begun.set()
        end.wait(10)

    one = singletons(pool, "x", Singleton("a", 60.0, long, "bc_test", lambda run, names: named.append(names), 60.0))
    async with running(one):
        await until(begun.is_set)
        for name in ("node_1", "node_2", "node_1"):
            one.channels["bc_test"](name)
        await until(lambda: bool(named))
        end.set()
    assert named == [frozenset({"node_1", "node_2"})]


@in_loop
async def test_a_notification_that_names_nothing_wakes_the_whole_work(pool: db.Pool) -> None:
    works, named = list[int](), list[frozenset[str]]()
    kind = Singleton("a", 60.0, lambda run: works.append(1), "bc_test", lambda run, names: named.append(names), 60.0)
    one = singletons(pool, "x", kind)
    async with running(one):
        await until(lambda: len(works) == 1)  # with the lease
        one.channels["bc_test"]("")
        await until(lambda: len(works) == 2)
    assert named == []


@in_loop
async def test_what_cannot_wait_is_looked_for_where_no_notification_comes(pool: db.Pool) -> None:
    named = list[frozenset[str]]()
    one = singletons(pool, "x", Singleton("a", 60.0, lambda run: None, "bc_test", lambda run, names: named.append(names), 0.01))
    async with running(one):
        await until(lambda: len(named) > 2)
    assert set(named) == {frozenset[str]()}


@in_loop
async def test_what_cannot_wait_is_fenced_too(pool: db.Pool) -> None:
    lost = list[bool]()

    def soon(run: Run, names: frozenset[str]) -> None:
        with db.connect(str(pool.conninfo), autocommit=True) as tx:
            tx.execute("UPDATE leases SET holder = 'y', token = token + 1 WHERE name = 'a'")
        try:
            run(lambda tx: None)
        except LeaseLost:
            lost.append(True)
            raise

    one = singletons(pool, "x", Singleton("a", 60.0, lambda run: None, "bc_test", soon, 60.0), seconds=60.0)
    async with running(one):
        await until(lambda: "a" in one.held)
        one.channels["bc_test"]("node_1")
        await until(lambda: bool(lost) and "a" not in one.held)


@pytest.mark.parametrize("moments", range(6))
def test_cancelled_in_the_moment_in_which_it_is_woken_it_ends(moments: int) -> None:
    """Python 3.11's wait_for() would go on: a receiver that is stopped as it takes its leases would never end."""

    async def loop(event: asyncio.Event) -> None:
        while True:
            await set_within(event, 60.0)
            event.clear()

    async def woken_and_cancelled() -> None:
        event = asyncio.Event()
        waiting = asyncio.create_task(loop(event))
        await asyncio.sleep(0.01)
        event.set()
        for _ in range(moments):
            await asyncio.sleep(0)
        waiting.cancel()
        ended, _ = await asyncio.wait({waiting}, timeout=1.0)
        assert ended

    asyncio.run(woken_and_cancelled())
