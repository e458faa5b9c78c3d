"""The webhook: every event, in its order, signed; whoever dies, and whatever the endpoint answers."""

import asyncio
import base64
import itertools
import re
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest

from receiver import webhook
from receiver.authority import ServerAuthority, create_ca
from receiver.config import Config
from receiver.errors import ReceiverError
from receiver.events import event
from receiver.ids import mint
from receiver.loops import kinds
from receiver.planning.webhook import BATCH, TRIES, Step
from receiver.singletons import Singletons
from receiver.store import database as db
from receiver.store import webhooks
from receiver.store.events import publish
from receiver.webhook import Webhook
from tests.fake_daemon import until
from tests.receiver.builders import NODE, join
from tests.receiver.endpoint import SECRET, Endpoint, Post, endpoint
from tests.receiver.live import Live, live, serving

T = TypeVar("T")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    return file


class World:
    """A database with a node, and the webhook over it, its waits taken out of the clock."""

    def __init__(self, database: str, told: Webhook) -> None:
        self.pool = db.open_pool(database, size=2)
        self.told = told
        self.numbers = itertools.count(1)
        self.run(join)
        self.round()  # begins with what happens from now on

    def run(self, work: Callable[[db.Connection], T]) -> T:
        return db.transact(self.pool, work)

    def happen(self, count: int) -> list[str]:
        """So many events: their ids."""
        ids = [mint("evt") for _ in range(count)]
        minted = iter(ids)
        rows = [event("node.joined", {"by": f"n{next(self.numbers)}"}) for _ in ids]
        self.run(lambda tx: publish(tx, NODE, rows, lambda _: next(minted)))
        return ids

    def round(self) -> None:
        """One piece of the singleton's work, as if the time to wait were over."""
        self.run(lambda tx: tx.execute("UPDATE webhooks SET next_at = NULL"))
        self.told.work(self.run)

    def row(self, *columns: str) -> Any:
        return self.run(lambda tx: tx.execute(f"SELECT {', '.join(columns)} FROM webhooks").fetchone())


@pytest.fixture
def endpoint_() -> Iterator[Endpoint]:
    with endpoint() as of:
        yield of


@pytest.fixture
def world(database: str, endpoint_: Endpoint, secret: Path) -> Iterator[World]:
    made = World(database, Webhook(endpoint_.url, secret, chance=lambda: 0.5))
    yield made
    made.pool.close()


# ---- what is told


def test_every_event_is_told_once_in_its_order_in_batches(world: World, endpoint_: Endpoint) -> None:
    ids = world.happen(2 * BATCH + 7)
    world.round()
    assert endpoint_.taken == ids
    assert [len(post.events) for post in endpoint_.posts] == [BATCH, BATCH, 7]
    world.round()
    assert len(endpoint_.posts) == 3
    assert world.row("delivered", "skipped", "error") == (len(ids), 0, "")


def test_the_first_time_it_begins_with_what_happens_from_then_on(world: World, endpoint_: Endpoint) -> None:
    world.round()
    assert endpoint_.posts == []  # the node's join was before
    told = world.happen(1)
    world.round()
    assert endpoint_.taken == told


def test_what_an_older_transaction_may_still_write_is_waited_for(world: World, endpoint_: Endpoint, database: str) -> None:
    with psycopg.connect(database) as slow:
        publish(slow, NODE, [event("node.joined", {"by": "slow"})], mint)
        late = world.happen(1)
        world.round()
        assert endpoint_.taken == []
        slow.commit()
    world.round()
    assert len(endpoint_.taken) == 2
    assert set(late) < set(endpoint_.taken)


def test_a_post_is_signed_over_its_id_its_time_and_its_body(world: World, endpoint_: Endpoint) -> None:
    first, *_, last = world.happen(3)
    world.round()
    alone = world.happen(1)[0]
    world.round()
    assert [post.headers["webhook-id"] for post in endpoint_.posts] == [f"{first}-{last}", alone]
    for post in endpoint_.posts:
        assert post.signed_by(SECRET)
        assert not post.signed_by(SECRET + b"x")
        assert abs(int(post.headers["webhook-timestamp"]) - time.time()) < 60
        assert post.headers["content-type"] == "application/json"


def test_secrets_are_rotated_without_a_restart(world: World, endpoint_: Endpoint, secret: Path) -> None:
    new = b"another secret of 24 byt"
    secret.write_text(f"whsec_{base64.b64encode(new).decode()}\n{SECRET.decode()}\n")
    world.happen(1)
    world.round()
    assert endpoint_.posts[0].signed_by(new)
    assert endpoint_.posts[0].signed_by(SECRET)


def test_known_signature() -> None:
    """The example of the specification of Standard Webhooks (its reference libraries' test)."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = webhook.signed("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [key])
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_check_in_the_docs_takes_what_is_ours_and_nothing_else() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/receiver.md").read_text()
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found
    names: dict[str, Any] = {}
    exec(found[1], names)  # noqa: S102 - it is ours
    genuine, now = names["genuine"], int(time.time())
    headers = webhook.signed("evt_1", now, b"{}", [b"new secret", SECRET])
    assert genuine(headers, b"{}", SECRET)
    assert not genuine(headers, b"{ }", SECRET)
    assert not genuine(headers, b"{}", b"another")
    assert not genuine(webhook.signed("evt_1", now - 400, b"{}", [SECRET]), b"{}", SECRET)


# ---- what the endpoint answers


@pytest.mark.parametrize("status", [500, 503, 429, 401, 302])
def test_an_endpoint_that_is_away_or_wrong_loses_nothing(world: World, endpoint_: Endpoint, status: int) -> None:
    ids = world.happen(3)
    endpoint_.answer = lambda post: status
    for _ in range(TRIES + 2):
        world.round()
    assert (endpoint_.taken, world.row("failures", "skipped")) == ([], (TRIES + 2, 0))
    assert world.row("error")[0] == f"HTTP {status} this will not do"
    endpoint_.answer = lambda post: 200
    world.round()
    assert endpoint_.taken == ids
    assert world.row("failures", "error") == (0, "")


def test_it_is_not_asked_again_before_its_time(world: World, endpoint_: Endpoint) -> None:
    world.happen(1)
    endpoint_.answer = lambda post: (503, {"retry-after": "120"})
    world.round()
    for _ in range(5):
        world.told.work(world.run)
    assert len(endpoint_.posts) == 1
    wait = world.run(lambda tx: tx.execute("SELECT extract(epoch FROM next_at - clock_timestamp()) FROM webhooks").fetchone())
    assert wait
    assert 100 < wait[0] <= 120


def test_a_connection_that_breaks_or_a_port_without_a_listener_is_waited_out(
    world: World, endpoint_: Endpoint, secret: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def hang_up(post: Post) -> int:
        raise ConnectionError

    ids = world.happen(2)
    endpoint_.answer = hang_up
    world.round()
    assert world.row("error")[0].startswith("no answer: ProtocolError")
    there = world.told
    world.told = Webhook("http://127.0.0.1:9/a-path-that-is-a-secret", secret)
    world.round()
    assert "no answer: NewConnectionError" in world.row("error")[0]
    assert "a-path-that-is-a-secret" not in world.row("error")[0] + caplog.text
    world.told, endpoint_.answer = there, lambda post: 204
    world.round()
    assert endpoint_.taken == ids


def test_an_endpoint_that_does_not_answer_is_left(world: World, endpoint_: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(post: Post) -> int:
        time.sleep(1)
        return 204

    world.happen(1)
    endpoint_.answer = sleep
    monkeypatch.setattr(webhook, "ANSWER", 0.2)
    world.told = Webhook(endpoint_.url, world.told.secret_file)
    began = time.monotonic()
    world.round()
    assert time.monotonic() - began < 0.9
    assert "ReadTimeoutError" in world.row("error")[0]


def test_the_events_that_are_refused_are_found_and_skipped_and_the_others_told(
    world: World, endpoint_: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    ids = world.happen(BATCH)
    bad = {ids[0], ids[41], ids[42], ids[-1]}
    endpoint_.answer = lambda post: 422 if bad & set(post.ids) else 204
    for _ in range(len(bad) * TRIES):
        world.round()
    assert endpoint_.taken == [one for one in ids if one not in bad]
    assert world.row("delivered", "skipped") == (BATCH - 4, 4)
    skipped = [record for record in caplog.records if record.levelname == "ERROR"]
    assert {record.__dict__["event"] for record in skipped} == bad
    more = world.happen(50)
    world.round()
    assert endpoint_.taken[-50:] == more


def test_a_batch_that_is_too_big_is_made_smaller(world: World, endpoint_: Endpoint) -> None:
    endpoint_.answer = lambda post: 413 if len(post.body) > 2000 else 204
    ids = world.happen(BATCH)
    world.round()
    assert endpoint_.taken == ids
    assert world.row("skipped") == (0,)


# ---- whoever dies


def test_what_was_told_but_not_written_is_told_again(world: World, endpoint_: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = world.happen(3)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(webhooks, "settle", killed)
        with pytest.raises(KeyboardInterrupt):
            world.round()
    world.round()
    assert endpoint_.taken == [*ids, *ids]  # at least once; the ids are the same
    assert endpoint_.posts[0].headers["webhook-id"] == endpoint_.posts[1].headers["webhook-id"]


def test_who_wakes_late_does_not_take_the_place_back(world: World, endpoint_: Endpoint) -> None:
    world.happen(2)
    old = world.run(webhooks.due)
    assert old
    world.round()
    before = world.row("xid", "seq", "delivered")
    world.run(partial(webhooks.settle, sent=old, step=Step(old.progress, done=True), error=""))
    assert world.row("xid", "seq", "delivered") == before


def test_receivers_come_and_go_and_nothing_is_missed_or_out_of_order(database: str, endpoint_: Endpoint, secret: Path) -> None:
    settings = Config(webhook_url=endpoint_.url, webhook_secret_file=str(secret), insecure=True)

    ids: list[str] = []

    async def turn(pool: db.Pool, name: str, world: World, killed: bool) -> None:
        one = Singletons(pool, name, [k for k in kinds(settings) if k.name == "webhook"], timedelta(minutes=1), 1.0)
        working = asyncio.create_task(one.run_forever())
        await until("its lease", lambda: "webhook" in one.held)
        for _ in range(3):
            ids.extend(await asyncio.to_thread(world.happen, 5))
            one.channels[webhooks.CHANNEL]("")
        await until("the events", lambda: endpoint_.taken == ids)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        if killed:  # who is killed lets no lease go: the next one waits until it ends
            one.threads.shutdown(wait=True)
        else:
            await one.stop()

    async def main() -> None:
        with db.open_pool(database, size=6) as pool:
            world = World(database, Webhook(endpoint_.url, secret))
            for name, killed in (("a", False), ("b", True), ("c", True), ("d", False)):
                await turn(pool, name, world, killed)
            world.pool.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "trusted", "what"),
    [
        ("127.0.0.1", True, ""),
        ("127.0.0.1", False, "certificate verify failed: unable to get local issuer certificate"),
        ("h.example", True, "IP address mismatch"),
    ],
)
def test_over_tls_its_certificate_must_be_of_the_cas_that_are_named(
    database: str, secret: Path, tmp_path: Path, name: str, trusted: bool, what: str
) -> None:
    now = datetime.now(UTC)
    cas = [create_ca(f"ca {number}", now) for number in range(2)]
    server_key, issued = ServerAuthority(cas[0][1], cas[0][0]).mint([name], now, timedelta(days=1))
    files = {"key": server_key, "pem": issued.pem.encode(), "ca": cas[not trusted][1]}
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem", tmp_path / "key")
    with endpoint(context) as of:
        world = World(database, Webhook(of.url, secret, str(tmp_path / "ca")))
        ids = world.happen(1)
        world.round()
        error = world.row("error")[0]
        world.pool.close()
    assert of.taken == ([] if what else ids)
    assert what in error
    assert bool(what) is bool(error)


# ---- the whole receiver


def test_a_receiver_tells_events_as_its_api_lists_them(database: str, endpoint_: Endpoint, secret: Path) -> None:
    async def main() -> None:
        async with serving(database, webhook_url=endpoint_.url, webhook_secret_file=str(secret)) as served:
            begun = "SELECT count(*) FROM webhooks"
            await until("its place in the log", lambda: served.rows(begun) == [(1,)])
            daemon = served.daemon()
            await daemon.connect()
            began = time.monotonic()
            await until("the event", lambda: bool(endpoint_.taken))
            assert time.monotonic() - began < 1.5  # woken, not found in the next round
            await asyncio.sleep(0.2)
            listed = (await served.api("events.list"))["events"]
            assert [one for post in endpoint_.posts for one in post.events] == listed
            assert listed[0]["nodeId"] == daemon.node_id

    asyncio.run(main())


@live
async def test_without_a_url_there_is_no_webhook(served: Live) -> None:
    """And no row that would grow old."""
    await served.daemon().connect()
    assert [kind.name for kind in served.receiver.singletons.kinds].count("webhook") == 0
    assert served.rows("SELECT count(*) FROM webhooks") == [(0,)]


# ---- settings


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("ftp://h/x", "no https://"),
        ("h", "no https://"),
        ("https://user:word@h/x", "without a password"),
        ("http://h.example/x", "whoever listens"),
        ("http://[::1", "no URL"),
    ],
)
def test_a_url_that_cannot_be_is_an_error_before_anything_starts(url: str, what: str, secret: Path) -> None:
    with pytest.raises(ReceiverError, match=what):
        webhook.opened(Config(webhook_url=url, webhook_secret_file=str(secret)))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "No such file"),
        (b"", "at least 16 bytes"),
        (b"short\n", "at least 16 bytes"),
        (b"whsec_not base64!", "no base64"),
        (b"\xff" * 32, "no text"),
    ],
)
def test_a_secret_that_cannot_be_is_an_error_that_does_not_tell_it(tmp_path: Path, content: bytes | None, what: str) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ReceiverError, match=what) as error:
        webhook.opened(Config(webhook_url="https://h/x", webhook_secret_file=str(file)))
    assert not content or content.decode(errors="replace").strip() not in str(error.value)


def test_url_and_secret_go_together(secret: Path, tmp_path: Path) -> None:
    assert webhook.opened(Config()) is None
    with pytest.raises(ReceiverError, match=r"webhook\.secretFile is not set"):
        webhook.opened(Config(webhook_url="https://h/x"))
    with pytest.raises(ReceiverError, match=r"webhook\.ca"):
        webhook.opened(Config(webhook_url="https://h/x", webhook_secret_file=str(secret), webhook_ca=str(tmp_path / "none")))
    for url in ("https://h.example/x", "http://127.0.0.1:8080/x", "http://[::1]:8080/", "http://localhost/x"):
        assert webhook.opened(Config(webhook_url=url, webhook_secret_file=str(secret)))
