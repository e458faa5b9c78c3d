"""What a receiver remembers of its streams, and the rates."""

import asyncio

import pytest

from receiver.gateway import limits
from receiver.gateway.limits import Bucket, Limit, OverLimit
from receiver.gateway.registry import MOST_SILENT, Registry
from receiver.values import Status

SLOW = Limit("things an hour", 12, "RESOURCE_EXHAUSTED", 3600.0, 3)


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(SLOW)
    assert [bucket.take(100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 300.0]
    assert bucket.take(250.0) == pytest.approx(150.0), "what was refused took nothing"
    assert bucket.take(400.0) == 0.0
    assert bucket.take(400.0) > 0


def test_a_bucket_never_gives_more_than_its_burst() -> None:
    bucket = Bucket(SLOW)
    assert bucket.take(1e9, 4) == 3600.0
    assert bucket.take(1e9, 3) == 0.0


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = Bucket(SLOW)
    bucket.take(1000.0, 3)
    assert bucket.take(0.0) > 0
    assert bucket.take(1000.0) > 0


def test_a_bucket_takes_back_up_to_its_burst() -> None:
    bucket = Bucket(SLOW)
    bucket.take(0.0, 3)
    bucket.give_back()
    assert [bucket.take(0.0), bucket.take(0.0)] == [0.0, 300.0]
    bucket.give_back(9)
    assert [bucket.take(0.0) for _ in range(4)] == [0.0, 0.0, 0.0, 300.0]


def test_what_queued_up_while_nothing_was_read_is_forgiven() -> None:
    bucket = Bucket(SLOW)
    bucket.take(0.0, 3)
    bucket.forgive(600.0)
    assert [bucket.take(0.0) for _ in range(3)] == [0.0, 0.0, 300.0], "at the rate that is allowed, not more"


class World:
    """A registry at a time of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.registry = Registry(lambda: self.now, lambda: 0.5)


def test_an_older_stream_is_told_and_a_late_older_one_too() -> None:
    async def main() -> None:
        world = World()
        first, second = world.registry.admit("node"), world.registry.admit("node")
        world.registry.begun(second, 2, 0)
        world.registry.begun(first, 1, 0)  # its epoch was taken before, its answer came later
        assert first.leave
        assert first.leave.end.reason == "superseded"
        assert second.leave is None
        world.registry.left(first, "superseded")
        assert world.registry.current == {"node": second}

    asyncio.run(main())


def test_a_newer_stream_here_ends_the_older_one_without_waiting_for_a_notification() -> None:
    async def main() -> None:
        registry = World().registry
        first, second = registry.admit("node"), registry.admit("node")
        registry.begun(first, 1, 0)
        registry.begun(second, 2, 0)
        assert first.leave
        assert first.leave.end.reason == "superseded"
        assert second.leave is None

    asyncio.run(main())


def test_a_notification_ends_older_epochs_only() -> None:
    async def main() -> None:
        registry = World().registry
        stream = registry.admit("node")
        registry.begun(stream, 5, 0)
        registry.taken("node", 5)
        registry.taken("other", 9)
        assert stream.leave is None
        registry.taken("node", 6)
        assert stream.leave

    asyncio.run(main())


def test_all_keys_that_a_node_ever_had_take_no_more_than_its_share_of_the_handshakes() -> None:
    async def main() -> None:
        registry = World().registry
        for number in range(100):
            registry.admit("node", f"certificate {number}")
        assert sum(one.leave is None for one in registry.greeting) == MOST_SILENT < limits.HANDSHAKES.most / 10
        assert registry.met == {limits.STREAMS.name: 100 - MOST_SILENT}
        assert registry.admit("other", "its own").leave is None

    asyncio.run(main())


def test_handshakes_in_progress_are_limited_and_freed_by_hello_and_by_leaving() -> None:
    async def main() -> None:
        registry = World().registry
        streams = [registry.admit(f"node{number}") for number in range(limits.HANDSHAKES.most)]
        with pytest.raises(OverLimit, match="handshakes in progress"):
            registry.admit("one more")
        assert registry.met[limits.HANDSHAKES.name] == 1
        registry.begun(streams[0], 1, 0)
        registry.left(streams[1], "lost")
        registry.admit("a")
        registry.admit("b")
        with pytest.raises(OverLimit):
            registry.admit("c")

    asyncio.run(main())


def test_a_report_is_news_when_it_or_the_nodes_plan_differs() -> None:
    async def main() -> None:
        registry = World().registry
        stream = registry.admit("node")
        registry.begun(stream, 1, 7)
        assert stream.is_news(Status("a")), "the first of a session is judged"
        stream.judged = (Status("a"), 7)
        assert not stream.is_news(Status("a"))
        assert stream.is_news(Status("b"))
        registry.touched({"node": 8, "unknown": 1})
        assert stream.is_news(Status("a"))

    asyncio.run(main())


def test_the_rates_of_a_node_outlive_its_stream_until_nothing_is_owed() -> None:
    async def main() -> None:
        world = World()
        stream = world.registry.admit("node")
        world.registry.rates["node"].offers.take(0.0, 6)
        world.registry.left(stream, "lost")
        world.registry.forget()
        assert world.registry.rates["node"].offers.take(0.0) > 0
        world.now = 3600.0
        world.registry.forget()
        assert world.registry.rates == {}

    asyncio.run(main())


def test_only_sessions_that_began_are_written_as_ended() -> None:
    async def main() -> None:
        registry = World().registry
        one, two = registry.admit("one"), registry.admit("two")
        registry.begun(one, 3, 0)
        registry.left(one, "lost")
        registry.left(two, "bad-message")
        assert registry.gone == [("one", 3, "lost")]
        assert (registry.streams, registry.greeting, registry.current) == ({}, set(), {})

    asyncio.run(main())


def test_only_who_was_not_sent_a_command_of_its_own_looks_for_it() -> None:
    async def main() -> None:
        registry = World().registry
        for node in ("a", "b", "c"):
            registry.begun(registry.admit(node), 1, 0)
        registry.current["b"].sent.add("cmd_2")
        registry.outstanding([("a", "cmd_1"), ("b", "cmd_2"), ("elsewhere", "cmd_3")])
        assert [node for node, stream in registry.current.items() if stream.queued] == ["a"]
        registry.queued("a")  # twice is once
        registry.queued("elsewhere")
        greeting = registry.admit("a")
        registry.queued("a")
        assert greeting.queued, "it may have looked for commands before this one was queued, and be none of the open ones yet"

    asyncio.run(main())


def test_dropped_conditions_are_all_counted_and_logged_when_they_are_others(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        registry = World().registry
        stream = registry.admit("a")
        for types in (("X",), ("X",), ("X", "Y" * 100)):
            registry.bad_conditions(stream, types)
        assert registry.dropped == {"bad-condition": 4}

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == ["bad-condition"] * 2


def test_a_receiver_that_may_open_few_files_refuses_the_next_session_clearly() -> None:
    async def main() -> None:
        registry = Registry(lambda: 0.0, lambda: 0.5, places=Limit("sessions of this receiver", 2, "RESOURCE_EXHAUSTED"))
        registry.begun(registry.admit("one"), 1, 0)
        greeting = registry.admit("two")
        with pytest.raises(OverLimit, match="RESOURCE_EXHAUSTED: sessions of this receiver: 3, at most 2"):
            registry.admit("three")
        assert registry.met == {"sessions of this receiver": 1}
        registry.left(greeting, "lost")
        registry.admit("three")

    asyncio.run(main())
