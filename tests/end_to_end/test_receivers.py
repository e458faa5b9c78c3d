"""Several receivers over one Postgres, behind a load balancer, and a Postgres that goes away under them (SPEC B1, B10)."""

import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from receiver.store import database
from receiver.store.embedded import start as start_postgres
from tests.end_to_end.processes import BIN, Fleet, Process, cpu, wait_for
from tests.hosts_catalog import copy, swap_disk
from tests.repetitions import PROOF, times

FAST = {"fsync": "off", "max_connections": "60"}
NAME = "better_compute"


class Balancer:
    """Takes connections on a unix socket to `target`. `flip` moves the caller elsewhere, and leaves its old connection open."""

    def __init__(self, path: Path, target: Path) -> None:
        self.target = target
        self.callers: list[socket.socket] = []
        self.kept: list[socket.socket] = []
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(path))
        self.server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self.server.accept()
                upstream = socket.socket(socket.AF_UNIX)
                upstream.connect(str(self.target))
                self.callers.append(caller)
                self.kept += [caller, upstream]
                for one, other in ((caller, upstream), (upstream, caller)):
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    @staticmethod
    def _pump(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)

    def flip(self, target: Path) -> None:
        """New connections go to `target`. The present caller is hung up on; its receiver is not told."""
        self.target = target
        while self.callers:
            with contextlib.suppress(OSError):
                self.callers.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends everything."""
        self.server.close()
        for one in self.kept:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@dataclass
class Site:
    """Receivers of one database, a balancer before them, and the daemons' fleet, which knows the balancer only."""

    base: Path
    url: str
    receivers: list[Process]
    fleet: Fleet
    balancer: Balancer = field(init=False)

    def socket(self, number: int) -> Path:
        return self.base / f"session-{number}.sock"

    def rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(query.encode(), arguments or None).fetchall()

    def bcd(self, host: str) -> tuple[Path, str]:
        """A daemon named `bcd` for a copy of a recorded host, applied: the copy and the node's id."""
        directory = copy(host, self.base / "hosts")
        self.fleet.daemon("bcd", directory, {"BCD_SETTLE": "0s"})
        return directory, self.fleet.applied("bcd")["nodeId"]

    def applied(self, other_than: str, timeout: float = 60.0) -> str:
        """Waits until the daemon has another digest than that, and it is applied; the digest."""
        probe = self.fleet.status
        found = wait_for(
            "the new inventory to be applied",
            lambda: (s := probe("bcd")).get("applied") and s["digest"] != other_than and s,
            timeout,
        )
        digest: str = found["digest"]
        return digest


@contextlib.contextmanager
def site(base: Path, url: str, count: int) -> Iterator[Site]:
    """`count` receivers over the database, ready."""
    base.mkdir(parents=True, exist_ok=True)
    receivers = []
    for number in range(count):
        listen = [f"--listen-session=unix:{base}/session-{number}.sock", f"--listen-api=unix:{base}/api-{number}.sock"]
        argv = [str(BIN / "bc-receiver"), "serve", "--insecure", "--database-url", url, "--database-connections", "4"]
        receivers.append(Process(f"receiver {number}", [*argv, *listen, "--metrics-listen="], base / f"receiver-{number}.log"))
    (base / "api.sock").symlink_to(base / "api-0.sock")
    found = Site(base, url, receivers, Fleet(base, receivers[0]))
    try:
        for receiver in receivers:
            receiver.start()
        for number, receiver in enumerate(receivers):
            wait_for("a receiver to listen", lambda r=receiver, n=number: r.running() and found.socket(n).exists())  # type: ignore[misc]
        found.balancer = Balancer(base / "session.sock", found.socket(0))
        yield found
    finally:
        for process in [*found.fleet.daemons.values(), *receivers]:
            process.stop()
        if hasattr(found, "balancer"):
            found.balancer.close()


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bc-") as found:
        yield Path(found)


def test_a_node_that_moves_between_receivers_loses_no_apply_and_doubles_none(directory: Path) -> None:
    with start_postgres(directory / "pg", settings=FAST) as server:
        database.create_database(server.url(), NAME)
        database.migrate(server.url(NAME))
        with site(directory / "site", server.url(NAME), 2) as here:
            host, node = here.bcd("a100-mig-8")
            offered = [here.fleet.status("bcd")["digest"]]
            for turn in range(moves := max(2, times(6))):  # more would meet each receiver's rate of offers (B11)
                swap_disk(host, "nvme1n1")
                asking = threading.Thread(target=here.fleet.bcd, args=("bcd", "refresh"), kwargs={"check": False})
                asking.start()
                time.sleep(0.2 * turn % 1.2)  # before, while and after it is collected and offered
                here.balancer.flip(here.socket((turn + 1) % 2))
                offered.append(here.applied(offered[-1]))
                asking.join(60)
            digests = here.rows("SELECT digest FROM inventory_snapshots WHERE node_id = %s ORDER BY seq", node)
            assert [row[0] for row in digests] == offered
            assert here.rows("SELECT applied_digest FROM nodes WHERE id = %s", node) == [(offered[-1],)]
            assert here.rows("SELECT count(*) FROM events WHERE type = 'node.disk.replaced'") == [(moves,)]
            ended = here.rows("SELECT DISTINCT end_reason FROM sessions WHERE node_id = %s AND ended_at IS NOT NULL", node)
            assert ended == [("superseded",)], "the receiver that was left is told by the one that was come to"
            used = here.rows("SELECT count(DISTINCT receiver_id) FROM sessions WHERE node_id = %s", node)
            assert used == [(2,)]
            open_streams = here.rows("SELECT count(*) FROM sessions WHERE node_id = %s AND ended_at IS NULL", node)
            assert open_streams == [(1,)]
            here.fleet.daemons["bcd"].stop()
            for receiver in here.receivers:
                began = time.monotonic()
                receiver.stop()
                assert time.monotonic() - began < (5.0 if PROOF else 9.0), "peers that are gone without a word are not waited for"
                assert "stopped" in receiver.tail()
                assert "Traceback" not in receiver.log.read_text()


def test_a_database_that_goes_away_and_comes_back_costs_nobody_a_session(directory: Path) -> None:
    with start_postgres(directory / "pg", settings=FAST) as server:
        database.create_database(server.url(), NAME)
        database.migrate(server.url(NAME))
        url = server.url(NAME)
        with site(directory / "site", url, 1) as here:
            (receiver,) = here.receivers
            host, node = here.bcd("a100-mig-8")
            before = here.fleet.status("bcd")
            server.stop()
            swap_disk(host, "nvme1n1")
            asking = threading.Thread(target=here.fleet.bcd, args=("bcd", "refresh"), kwargs={"check": False})
            asking.start()
            burnt = cpu(receiver.pid)
            time.sleep(4.0)
            assert cpu(receiver.pid) - burnt < 1.0, "no busy loop"
            assert here.fleet.status("bcd")["epoch"] == before["epoch"]
            with start_postgres(directory / "pg", settings=FAST):
                here.applied(before["digest"], 90.0)
                asking.join(60)
                assert here.fleet.status("bcd")["epoch"] == before["epoch"], "the session went on"
                assert here.rows("SELECT count(*) FROM inventory_snapshots WHERE node_id = %s", node) == [(2,)]
                log = receiver.log.read_text()
                assert log.count("the database does not answer") + log.count("no notifications from the database") <= 6, log
                assert "notifications from the database again" in log
                assert "Traceback" not in log
                receiver.stop()
