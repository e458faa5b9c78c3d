"""The session over real gRPC: it comes back from whatever a gateway does."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from bettercompute.agent.v1 import session_pb2 as pb
from bettercompute.contract.sections import digest, section_hash
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from agent.errors import UserError
from agent.identity import Access, Identity, NotJoined
from agent.sections import Section
from agent.session import machine
from agent.session import messages as m
from agent.session.stream import Link
from tests.agent.fake_fleet import OTHER, FakeFleet
from tests.agent.session.fake_gateway import FakeGateway, Script, Stream, until

CPU, OS = Section("cpu", b"c" * 2500), Section("os", b"")
INVENTORY = m.InventoryOffer(digest({"cpu": CPU.hash, "os": OS.hash}), (CPU, OS), (), 100.0, "boot-1", "first")


def plain(*servers: str) -> Access:
    return Access("node_1", servers, None)


def hello() -> m.Hello:
    return m.Hello("0.1.0", "boot-1", "instance-1", previous_epoch=4, digest=INVENTORY.digest)


def status() -> m.Status:
    return m.Status(INVENTORY.digest)


def talk(path: Path, done: Callable[[FakeGateway, Link], object], *scripts: Script, feed: tuple[object, ...] = ()) -> Link:
    """Runs a link against a gateway's scripts until `done`; the link. Its notes are in `link.notes`."""

    async def work() -> Link:
        notes: list[machine.Output] = []
        async with FakeGateway(path / "g.sock", *scripts) as gateway:
            link = Link(lambda: plain(gateway.target), hello, status, notes.append)
            link.notes = notes  # type: ignore[attr-defined]
            for event in (machine.InventoryChanged(INVENTORY), machine.StatusChanged(status()), *feed):
                link.feed(event)
            running = asyncio.create_task(link.run())
            try:
                await until(lambda: done(gateway, link) or running.done())
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            gateway.check()
            return link

    return asyncio.run(work())


def sessions(count: int) -> Callable[[FakeGateway, Link], object]:
    return lambda gateway, link: len(gateway.streams) >= count and link.state.state == "connected"


async def stay(stream: Stream) -> None:
    await stream.welcome(applied=INVENTORY.digest)
    await stream.stay()


def test_knows_how_far_the_receivers_clock_is_ahead(tmp_path: Path) -> None:
    async def script(stream: Stream) -> None:
        await stream.next("hello")
        await stream.say(welcome=pb.Welcome(node_id="n", epoch=1, now=Timestamp(seconds=int(time.time()) + 90)))
        await stream.stay()

    link = talk(tmp_path, lambda gateway, link: link.machine.welcomed, script)
    assert link.clock_difference is not None
    assert 85 < link.clock_difference < 91


def test_says_who_it_is_reports_and_offers_and_sends_what_is_wanted(tmp_path: Path) -> None:
    got: dict[str, bytes] = {}

    async def script(stream: Stream) -> None:
        said = await stream.welcome(epoch=5, chunk_bytes=1000)
        assert (stream.node_id, said.previous_epoch, said.digest) == ("node_1", 4, INVENTORY.digest)
        assert (await stream.next("status_report")).seq == 1
        offer = await stream.next("inventory_offer")
        assert [s.hash for s in offer.sections] == [CPU.hash, OS.hash]
        await stream.say(inventory_request=pb.InventoryRequest(sections=["cpu"], digest=offer.digest))
        for expected in (1000, 1000, 500):
            part = await stream.next("inventory_sections")
            assert (part.name, len(part.data), part.last) == ("cpu", expected, expected == 500)
            got["cpu"] = got.get("cpu", b"") + part.data
        result = pb.InventoryResult(digest=offer.digest, status=pb.INVENTORY_STATUS_APPLIED)
        await stream.say(inventory_result=result)
        await stream.stay()

    link = talk(tmp_path, lambda gateway, link: link.machine.is_applied, script)
    assert section_hash(got["cpu"]) == CPU.hash
    assert (link.sent.offers, link.sent.sections, link.sent.section_bytes) == (1, 1, 2500)
    assert link.notes[:2] == [machine.Greeting("node_1"), machine.Welcomed(5)]  # type: ignore[attr-defined]


def test_a_status_report_does_not_wait_for_the_sections_behind_it(tmp_path: Path) -> None:
    big = tuple(Section(name, bytes([number]) * (2 << 20)) for number, name in enumerate(("cpu", "disks", "nics", "os")))
    offered = m.InventoryOffer(digest((s.name, s.hash) for s in big), big, (), 100.0, "boot-1", "first")
    link_of: list[Link] = []
    order: list[str] = []

    async def script(stream: Stream) -> None:
        await stream.welcome()
        await stream.next("inventory_offer")
        await stream.say(inventory_request=pb.InventoryRequest(sections=[s.name for s in big], digest=offered.digest))
        await stream.next("inventory_sections")
        link_of[0].feed(machine.StatusChanged(m.Status(offered.digest, abandoned_workers=1)))
        for _ in range(8):
            await stream.next()
        order.extend(stream.kinds()[3:])
        await stream.stay()

    def done(gateway: FakeGateway, link: Link) -> object:
        link_of[:] = [link]
        return order

    talk(tmp_path, done, script, feed=(machine.InventoryChanged(offered),))
    assert order.count("status_report") == 1
    assert order.index("status_report") < 7, order


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param(lambda stream: asyncio.sleep(0), id="closes"),
        pytest.param(lambda stream: stream.raw(b"\x0a\xff\xff"), id="half-a-message"),
        pytest.param(lambda stream: stream.context.abort(14, "gone"), id="breaks-off"),
        pytest.param(lambda stream: stream.say(session_end=pb.SessionEnd(reason=pb.SESSION_END_REASON_DRAINING)), id="draining"),
    ],
)
def test_comes_back_when_the_gateway(tmp_path: Path, ending: Script) -> None:
    async def script(stream: Stream) -> None:
        await stream.welcome(applied=INVENTORY.digest)
        await ending(stream)

    link = talk(tmp_path, sessions(2), script, stay)
    assert link.sent.offers == 0, "the receiver has it: nothing is sent again"


def test_comes_back_when_the_gateway_refuses_before_hello(tmp_path: Path) -> None:
    async def refuses(stream: Stream) -> None:
        import grpc

        await stream.context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")

    seen: list[str] = []

    def done(gateway: FakeGateway, link: Link) -> object:
        seen.append(link.state.error)
        return sessions(2)(gateway, link)

    talk(tmp_path, done, refuses, stay)
    assert "UNAUTHENTICATED: who are you?" in seen


def test_connects_when_the_receiver_appears_later(tmp_path: Path) -> None:
    async def work() -> None:
        link = Link(lambda: plain(f"unix:{tmp_path}/g.sock"), hello, status, lambda note: None)
        running = asyncio.create_task(link.run())
        await until(lambda: link.state.state == "waiting")
        assert "UNAVAILABLE" in link.state.error
        async with FakeGateway(tmp_path / "g.sock", stay):
            await until(lambda: link.state.state == "connected")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("end", "low", "high"),
    [
        (pb.SessionEnd(reason=pb.SESSION_END_REASON_SUPERSEDED), 30.0, 60.0),
        (pb.SessionEnd(reason=pb.SESSION_END_REASON_PROTOCOL_UNSUPPORTED), 1800.0, 3600.0),
        (pb.SessionEnd(reason=pb.SESSION_END_REASON_OVERLOADED, retry_after=Duration(seconds=100)), 100.0, 150.0),
    ],
)
def test_waits_as_the_reason_says(tmp_path: Path, end: pb.SessionEnd, low: float, high: float) -> None:
    async def script(stream: Stream) -> None:
        await stream.next("hello")
        await stream.say(session_end=end)
        await stream.stay()

    link = talk(tmp_path, lambda gateway, link: link.state.state == "waiting", script)
    assert link.state.next_attempt is not None
    assert low - 1 <= link.state.next_attempt - time.time() <= high


def test_reconnect_ends_the_wait(tmp_path: Path) -> None:
    async def superseded(stream: Stream) -> None:
        await stream.next("hello")
        await stream.say(session_end=pb.SessionEnd(reason=pb.SESSION_END_REASON_SUPERSEDED))

    def done(gateway: FakeGateway, link: Link) -> object:
        if link.state.state == "waiting":
            link.reconnect()
        return sessions(2)(gateway, link)

    talk(tmp_path, done, superseded, stay)


def test_reports_each_interval_and_ignores_what_it_does_not_know(tmp_path: Path) -> None:
    async def script(stream: Stream) -> None:
        await stream.welcome(applied=INVENTORY.digest, interval=1.0)
        await stream.raw(b"\x9a\x06\x03abc")
        await stream.say(command=pb.Command(id="cmd_1", kind="of.tomorrow"))
        assert [(await stream.next("status_report")).seq for _ in range(3)] == [1, 2, 3]
        await stream.stay()

    talk(tmp_path, lambda gateway, link: link.machine.seq >= 3, script)


def test_a_cause_that_repeats_itself_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def breaks(stream: Stream) -> None:
        await stream.next("hello")

    talk(tmp_path, lambda gateway, link: len(gateway.streams) >= 3, breaks)
    assert caplog.text.count("ended: the receiver closed the stream") == 1


def test_our_own_bug_is_loud(tmp_path: Path) -> None:
    async def work() -> None:
        def bug(note: machine.Output) -> None:
            raise ZeroDivisionError

        async with FakeGateway(tmp_path / "g.sock", stay) as gateway:
            await asyncio.wait_for(Link(lambda: plain(gateway.target), hello, status, bug).run(), 10)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(work())


def test_a_report_that_is_due_says_what_is_true_now_and_a_bug_in_it_is_loud(tmp_path: Path) -> None:
    reports: list[int] = []

    async def script(stream: Stream) -> None:
        await stream.welcome(applied=INVENTORY.digest, interval=1.0)
        for _ in range(2):
            reports.append((await stream.next("status_report")).abandoned_workers)
        await stream.stay()

    def now() -> m.Status:
        if len(reports) == 2:
            raise ZeroDivisionError
        return m.Status(INVENTORY.digest, abandoned_workers=3)

    async def work() -> None:
        async with FakeGateway(tmp_path / "g.sock", script) as gateway:
            await asyncio.wait_for(Link(lambda: plain(gateway.target), hello, now, lambda note: None).run(), 10)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(work())
    assert reports == [0, 3]


# -- with TLS, and with several receivers


@pytest.fixture(scope="module")
def fleet() -> FakeFleet:
    return FakeFleet()


def run_until(link: Link, done: Callable[[], object]) -> None:
    async def work() -> None:
        running = asyncio.create_task(link.run())
        try:
            await until(lambda: done() or running.done())
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(work())


def over_tls(
    path: Path, fleet: FakeFleet, who: Identity, done: Callable[[FakeGateway, Link], object]
) -> tuple[FakeGateway, Link]:
    """A link with this identity to a gateway that asks for certificates of the fleet's nodes."""

    async def work() -> tuple[FakeGateway, Link]:
        credentials = fleet.credentials(client=True)
        async with FakeGateway(path / "g.sock", stay, credentials=credentials) as gateway:
            link = Link(lambda: Access(who.node_id, (gateway.target,), who.joined), hello, status, lambda note: None)
            running = asyncio.create_task(link.run())
            try:
                await until(lambda: done(gateway, link) or running.done())
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            return gateway, link

    return asyncio.run(work())


def test_over_tls_the_node_is_the_certificate_s_and_nothing_else_is_said(tmp_path: Path, fleet: FakeFleet) -> None:
    gateway, _ = over_tls(tmp_path, fleet, fleet.identity("gw:1", OTHER), lambda _, link: link.state.state == "connected")
    stream = gateway.streams[0]
    assert stream.node_id == OTHER
    assert "bc-node-id" not in dict(stream.context.invocation_metadata())
    assert stream.peer["ssl_tls_version"] == [b"TLSv1.3"]


def waits(gateway: FakeGateway, link: Link) -> object:
    return link.state.state == "waiting"


def test_a_receiver_of_another_ca_gets_no_word(tmp_path: Path, fleet: FakeFleet) -> None:
    gateway, link = over_tls(tmp_path, fleet, FakeFleet(nodes=fleet.nodes).identity("gw:1"), waits)
    assert gateway.streams == []
    assert "UNAVAILABLE" in link.state.error


@pytest.mark.parametrize("what", ["of another CA", "expired"])
def test_a_certificate_that_the_receiver_refuses_is_tried_again(tmp_path: Path, fleet: FakeFleet, what: str) -> None:
    ago = timedelta(days=31) if what == "expired" else timedelta()
    by = fleet.nodes if what == "expired" else FakeFleet().nodes
    who = fleet.identity("gw:1", now=datetime.now(UTC) - ago, by=by)
    gateway, link = over_tls(tmp_path, fleet, who, waits)
    assert gateway.streams == []
    assert link.state.error.startswith("the certificate expired on ") == (what == "expired")


def test_of_several_receivers_the_next_one_is_tried_each_time(tmp_path: Path) -> None:
    async def work() -> None:
        async def leaves(stream: Stream) -> None:
            await stream.welcome(applied=INVENTORY.digest)
            await stream.say(session_end=pb.SessionEnd(reason=pb.SESSION_END_REASON_DRAINING))

        async with FakeGateway(tmp_path / "a.sock", leaves) as a, FakeGateway(tmp_path / "b.sock", stay) as b:
            link = Link(lambda: plain(a.target, f"unix:{tmp_path}/nobody", b.target), hello, status, lambda note: None)
            running = asyncio.create_task(link.run())
            await until(lambda: b.streams and link.state.state == "connected")
            assert link.state.server == b.target
            await b.__aexit__()  # B is stopped while the node is connected: it comes to A
            await until(lambda: a.streams)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(work())


def test_the_first_of_several_is_a_random_one() -> None:
    firsts: set[str] = set()
    for _ in range(40):
        link = Link(lambda: plain("unix:/nobody/a", "unix:/nobody/b"), hello, status, lambda note: None)
        run_until(link, lambda link=link: link.state.server)  # type: ignore[misc]
        firsts.add(link.state.server)
    assert firsts == {"unix:/nobody/a", "unix:/nobody/b"}


def test_a_node_that_has_not_joined_looks_again_until_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agent.session.stream.LOOK", 0.02)
    asked: list[int] = []
    states: set[str] = set()

    async def work() -> None:
        async with FakeGateway(tmp_path / "g.sock", stay) as gateway:

            def access() -> Access:
                asked.append(1)
                if len(asked) == 3:
                    raise UserError("identity.json is damaged", "restore it")
                if len(asked) < 5:
                    raise NotJoined
                return plain(gateway.target)

            link = Link(access, hello, status, lambda note: None)
            running = asyncio.create_task(link.run())
            await until(lambda: states.add(link.state.state) or link.state.state == "connected")  # type: ignore[func-returns-value]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(work())
    assert {"not joined", "waiting", "connected"} <= states
    assert caplog.text.count("no session: not joined: bcd join --token-file FILE") == 2
    assert "no session: identity.json is damaged: restore it" in caplog.text


def test_the_daemon_is_told_of_the_greeting_before_hello_and_of_the_end(tmp_path: Path) -> None:
    order: list[object] = []

    async def superseded(stream: Stream) -> None:
        await stream.welcome()
        await stream.say(session_end=pb.SessionEnd(reason=pb.SESSION_END_REASON_SUPERSEDED))
        await stream.stay()

    async def work() -> None:
        def said() -> m.Hello:
            order.append("hello")
            return hello()

        async with FakeGateway(tmp_path / "g.sock", superseded) as gateway:
            link = Link(lambda: plain(gateway.target), said, status, order.append)
            running = asyncio.create_task(link.run())
            await until(lambda: link.state.state == "waiting")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(work())
    assert order[:3] == [machine.Greeting("node_1"), "hello", machine.Welcomed(1)]
    end = order[-1]
    assert isinstance(end, machine.Close)
    assert end.end is not None
    assert end.end.reason == "superseded"
