"""Several receivers with TLS and real bcd that have joined them (SPEC B1, B10): one is stopped, and its nodes go to the other.

`make proof-identity` kills more often, and holds the strict times.
"""

import contextlib
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from receiver.store import database
from receiver.store.embedded import start as start_postgres
from tests.end_to_end.processes import BIN, Fleet, Process, free_port, wait_for
from tests.hosts_catalog import copy, swap_disk
from tests.repetitions import PROOF, times

FAST = {"fsync": "off", "max_connections": "60"}
NAME = "better_compute"
HOST = "a100-mig-8"
NAMES = ("n1", "n2", "n3", "n4") if PROOF else ("n1", "n2")
MOVED = 10.0 if PROOF else 30.0  # seconds: `make test` runs beside others


@dataclass
class Site:
    """Two receivers of one database, and a fleet whose API is the second one's."""

    url: str
    receivers: list[Process]
    sessions: list[str]  # where nodes report
    fleet: Fleet

    def rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(query.encode(), arguments or None).fetchall()

    def starts(self, number: int) -> None:
        """A receiver listens, and its API is the one that is asked."""
        self.receivers[number].start()
        socket = self.fleet.base / "api.sock"
        socket.unlink(missing_ok=True)
        socket.symlink_to(self.fleet.base / f"api-{number}.sock")
        self.fleet.receiver = self.receivers[number]
        self.fleet.ready()

    def are_at(self, server: str, names: list[str]) -> bool:
        """Whether all of these have a session there."""
        told = [self.fleet.status(name) for name in names]
        return all((one.get("session"), one.get("server")) == ("connected", server) for one in told)


@contextlib.contextmanager
def site() -> Iterator[Site]:
    """The first receiver listens, the second one does not yet; everything ends with the block."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, start_postgres(Path(directory) / "pg", settings=FAST) as server:
        base = Path(directory)
        database.create_database(server.url(), NAME)
        database.migrate(server.url(NAME))
        shared = ["--data-dir", str(base / "receiver"), "--database-url", server.url(NAME)]
        made = subprocess.run([BIN / "bc-receiver", "init", *shared], capture_output=True, text=True, timeout=60, check=True)
        (base / "token").write_text(made.stdout)
        sessions = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        receivers = [
            Process(
                f"receiver {number}",
                [
                    *(str(BIN / "bc-receiver"), "serve", *shared, "--metrics-listen", "", "--database-connections", "4"),
                    *("--listen-join", f"127.0.0.1:{free_port()}", "--listen-api", f"unix:{base}/api-{number}.sock"),
                    *("--listen-session", session, "--advertise-session", ",".join(sessions)),
                ],
                base / f"receiver-{number}.log",
            )
            for number, session in enumerate(sessions)
        ]
        found = Site(server.url(NAME), receivers, sessions, Fleet(base, receivers[0], port=1))
        try:
            found.starts(0)
            yield found
        finally:
            for process in [*found.fleet.daemons.values(), *receivers]:
                process.stop()


def stopped(process: Process) -> None:
    process.stop()


def killed(process: Process) -> None:
    process.kill()


@pytest.mark.parametrize("end", [stopped, killed] if PROOF else [stopped])
def test_nodes_of_a_receiver_that_is_stopped_move_within_10_s_and_nothing_is_lost(end: Callable[[Process], None]) -> None:
    with site() as here:
        a, (at_a, at_b), fleet = here.receivers[0], here.sessions, here.fleet
        hosts = {name: copy(HOST, fleet.base / name) for name in NAMES}
        for name, host in hosts.items():
            fleet.daemon(f"{name}-data", host, {"BCD_SETTLE": "0s"})
        names = list(fleet.daemons)
        nodes = {name: fleet.applied(name)["nodeId"] for name in names}
        assert here.are_at(at_a, names)
        here.starts(1)
        ordered = [fleet.api("inventory.refresh", nodeId=node, reason="while A goes")["id"] for node in nodes.values()]
        for host in hosts.values():
            swap_disk(host, "nvme1n1")
        asking = [threading.Thread(target=fleet.bcd, args=(name, "refresh"), kwargs={"check": False}) for name in names]
        for thread in asking:
            thread.start()
        time.sleep(0.5)  # it is collected, and perhaps offered, while A ends
        began = time.monotonic()
        end(a)
        ordered += [fleet.api("inventory.refresh", nodeId=node, reason="while A is gone")["id"] for node in nodes.values()]
        wait_for("all nodes at B", lambda: here.are_at(at_b, names), MOVED)
        assert time.monotonic() - began < MOVED
        query = "SELECT count(*) FROM commands WHERE state = 'succeeded' AND id = ANY(%s)"
        wait_for("all commands", lambda: here.rows(query, ordered) == [(len(ordered),)], 60.0)
        for thread in asking:
            thread.join(60)
        replaced = "SELECT count(*) FROM events WHERE type = 'node.disk.replaced' AND node_id = %s"
        for node in nodes.values():
            wait_for("the new disk", lambda n=node: here.rows(replaced, n)[0][0] >= 1, 60.0)  # type: ignore[misc]
            assert here.rows(replaced, node) == [(1,)], "reported, and told once"
        logs = "".join(fleet.daemons[name].log.read_text() for name in names)
        assert {command: logs.count(f"command {command} (inventory.refresh) starts") for command in ordered} == dict.fromkeys(
            ordered, 1
        ), "each command ran, once"
        assert "Traceback" not in logs
        assert here.rows("SELECT count(*) FROM events WHERE type LIKE 'security.%'") == [(0,)], "nobody is taken for two"


def test_a_real_bcd_that_is_killed_again_and_again_is_never_taken_for_two() -> None:
    chance = random.Random(8)
    with site() as here:
        here.starts(1)
        host = copy(HOST, here.fleet.base)
        for _ in range(kills := max(3, times(40))):
            here.fleet.daemon("bcd", host, {"BCD_SETTLE": "0s"})
            time.sleep((0.5 if PROOF else 1.0) + chance.random())
            here.fleet.daemons["bcd"].kill()
        here.fleet.daemon("bcd", host, {"BCD_SETTLE": "0s"})
        node = here.fleet.applied("bcd")["nodeId"]
        assert here.rows("SELECT count(*) FROM events WHERE type LIKE 'security.%'") == [(0,)]
        assert here.rows("SELECT count(*) FROM certificates WHERE revoked_at IS NOT NULL") == [(0,)]
        ((sessions,),) = here.rows("SELECT count(*) FROM sessions WHERE node_id = %s", node)
        assert sessions > 1 + PROOF * kills / 4, "some were killed in a session"
