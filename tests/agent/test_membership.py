"""The daemon follows its identity: a join is taken up within seconds, a certificate is renewed in time by a child."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent import identity, membership
from agent.config import Config
from agent.membership import Membership
from agent.session import machine
from agent.session import messages as m
from tests.agent.fake_fleet import NODE, OTHER, FakeFleet
from tests.agent.session.fake_gateway import FakeGateway, Stream, until
from tests.hosts_catalog import HOSTS

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def cas() -> FakeFleet:
    return FakeFleet()


@pytest.fixture
def fleet(cas: FakeFleet, monkeypatch: pytest.MonkeyPatch) -> FakeFleet:
    monkeypatch.setattr(membership, "LOOK", 0.02)
    return FakeFleet(cas.servers, cas.nodes)


@pytest.fixture
def server(fleet: FakeFleet) -> Iterator[str]:
    with fleet.serving(fleet.credentials(client=True)) as address:
        fleet.session = address
        yield address


def follow(
    data_dir: Path, done: Callable[[Membership, list[float]], object], act: Callable[[], None] = lambda: None
) -> Membership:
    """Runs a membership until `done`; `act` happens meanwhile. The list has the times at which it said that it has changed."""

    async def work() -> Membership:
        changes: list[float] = []
        config = Config(data_dir=data_dir)
        member = Membership(lambda: config, lambda: changes.append(time.monotonic()))
        running = asyncio.create_task(member.run())
        await asyncio.sleep(0.05)
        act()
        await until(lambda: done(member, changes) or running.done(), 30)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        return member

    return asyncio.run(work())


def test_a_join_is_taken_up_and_said_once(tmp_path: Path, fleet: FakeFleet) -> None:
    before = Membership(lambda: Config(data_dir=tmp_path), lambda: None).describe()
    assert (before["joined"], before["nodeId"], before["certificate"]) == (False, None, None)
    assert before["identityError"].startswith("not joined: bcd join --token-file FILE")
    member = follow(tmp_path, lambda member, changes: changes, lambda: identity.write(tmp_path, fleet.identity("gw-1:1,gw-2:1")))
    told = member.describe()
    assert (told["joined"], told["nodeId"], told["identityError"]) == (True, NODE, "")
    assert told["certificate"]["remaining"] > 0.99
    assert member.access().servers == ("gw-1:1", "gw-2:1")


def test_a_certificate_past_two_thirds_is_renewed_by_a_child(tmp_path: Path, fleet: FakeFleet, server: str) -> None:
    old = fleet.identity(server, now=datetime.now(UTC) - 22 * DAY)
    identity.write(tmp_path, old)
    member = follow(tmp_path, lambda member, changes: changes)
    new = identity.read(tmp_path)
    assert new is not None
    assert new.joined is not None
    assert old.joined is not None
    assert (new.node_id, new.joined.key == old.joined.key, len(fleet.renewals)) == (NODE, False, 1)
    assert member.describe()["certificate"]["renewalError"] == ""


@pytest.mark.parametrize(("age", "why"), [(19.8, "it is not due"), (31.0, "what is expired cannot be renewed")])
def test_no_child_is_started_when(
    tmp_path: Path, fleet: FakeFleet, age: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bug(self: Membership) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Membership, "_renew", bug)
    identity.write(tmp_path, fleet.identity("gw:1", now=datetime.now(UTC) - age * DAY))
    end = time.monotonic() + 0.3
    follow(tmp_path, lambda member, changes: time.monotonic() > end)


def test_a_renewal_that_fails_is_told_and_tried_again_later(tmp_path: Path, fleet: FakeFleet, server: str) -> None:
    fleet.node_id = OTHER  # an answer that cannot be used
    identity.write(tmp_path, fleet.identity(server, now=datetime.now(UTC) - 22 * DAY))
    before = (tmp_path / "identity.json").read_bytes()
    member = follow(tmp_path, lambda member, changes: member.describe()["certificate"]["renewalError"])
    assert "the certificate of another node" in member.describe()["certificate"]["renewalError"]
    assert ((tmp_path / "identity.json").read_bytes(), len(fleet.renewals)) == (before, 1)
    assert 40 < member._next_try - time.time() < 80


def test_renewals_of_nodes_that_joined_together_are_apart(tmp_path: Path, fleet: FakeFleet) -> None:
    identity.write(tmp_path, fleet.identity("gw:1"))
    config = Config(data_dir=tmp_path)
    times = {Membership(lambda: config, lambda: None).describe()["certificate"]["renewAt"] for _ in range(10)}
    assert len(times) > 5
    moments = [datetime.fromisoformat(at) - datetime.now(UTC) for at in times]
    assert timedelta(days=19.9) < min(moments)
    assert max(moments) < timedelta(days=21.6)


def test_what_the_session_tells_is_kept_for_the_next_one(tmp_path: Path) -> None:
    member = Membership(lambda: Config(data_dir=tmp_path), lambda: None)
    first = member.trace.now.instance
    member.heed(machine.Greeting(NODE))
    kept = json.loads((tmp_path / "session.json").read_text())
    assert kept == {"format": 2, "nodeId": NODE, "epoch": None, "instance": first, "open": True}
    member.heed(machine.Welcomed(7))
    member.heed(machine.Close(m.SessionEnd("draining")))
    assert (member.trace.now.instance, member.trace.now.epoch) == (first, 7)
    member.heed(machine.Close(m.SessionEnd("superseded")))
    assert member.trace.now.instance != first


async def _greet(stream: Stream) -> None:
    await stream.welcome(epoch=7)
    await stream.stay()


def _status(data: Path) -> dict[str, Any]:
    """`bcd status --json`; {} while the daemon does not answer."""
    argv = [sys.executable, "-m", "agent.cli", "--data-dir", str(data), "status", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def test_a_running_daemon_goes_from_not_joined_to_a_session_of_its_certificate_without_a_restart(
    tmp_path: Path, cas: FakeFleet
) -> None:
    fleet, data = FakeFleet(cas.servers, cas.nodes), tmp_path / "data"
    common = [sys.executable, "-m", "agent.cli", "--host", str(HOSTS["l4-cloud-vm"]), "--data-dir", str(data)]

    async def work() -> None:
        gateway = FakeGateway(tmp_path / "g.sock", _greet, credentials=fleet.credentials(client=True))
        fleet.session = gateway.target
        with (tmp_path / "log").open("w") as log, subprocess.Popen([*common, "run"], stderr=log) as daemon:
            try:
                async with gateway:
                    while not (status := await asyncio.to_thread(_status, data)):
                        await asyncio.sleep(0.1)
                    assert (status["session"], status["joined"], status["nodeId"]) == ("not joined", False, None)
                    with fleet.serving(fleet.credentials()) as address:
                        argv = [*common, "join", "--token", fleet.token(address)]
                        joined = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
                        assert await joined.wait() == 0
                    await until(lambda: gateway.streams and gateway.streams[0].received, 20)
                    assert gateway.streams[0].node_id == NODE
                    status = await asyncio.to_thread(_status, data)
                    assert (status["joined"], status["nodeId"], status["server"]) == (True, NODE, gateway.target)
                    modules = Path(f"/proc/{daemon.pid}/maps").read_text()
                    assert "cryptography" not in modules, "the daemon does not load what only joining needs"
                    doctor = await asyncio.create_subprocess_exec(*common, "doctor", "--json", stdout=subprocess.PIPE)
                    said, _ = await doctor.communicate()
            finally:
                daemon.terminate()
        lines = {line["subject"]: line for line in json.loads(said)["lines"]}
        assert lines["receiver"]["text"] == f"{gateway.target} is reached within 2 s over TLS, as this node"
        assert lines["certificate"]["text"] == f"{NODE}, 29 d 23 h left of 30 d 1 h"
        assert (lines["certificate"]["shown"], lines["daemon"]["text"].split(",")[0]) == ("ok", f"runs as {NODE}")

    asyncio.run(work())
    log = (tmp_path / "log").read_text()
    assert "no session: not joined: bcd join --token-file FILE" in log
    assert "Traceback" not in log
