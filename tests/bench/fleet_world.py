"""What the benchmarks of a fleet run on: Postgres, a receiver or an empty servicer as a process, the players as another one."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import psycopg
from cryptography.hazmat.primitives.asymmetric import ec

from receiver.authority import NodeAuthority, ServerAuthority, create_ca, key_pem
from receiver.store import database as db
from receiver.store.embedded import start
from tests.end_to_end.processes import Process, cpu, free_port, wait_for

SETTLE = 5.0  # seconds


def cpu_of_all(pid: int) -> float:
    """CPU of a process with its children, also those that ended (fields 16 and 17)."""
    ended = sum(int(one) for one in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15])
    total = cpu(pid) + ended / os.sysconf("SC_CLK_TCK")
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == pid:
                total += cpu(int(status.parent.name))
    return total


@dataclass
class Players:
    """The process of tests/bench/fleet.py."""

    popen: "subprocess.Popen[str]"

    def do(self, what: str, **more: object) -> dict[str, Any]:
        """Has it do something, and answers how it went. Raises RuntimeError when it ends instead."""
        self.begin(what, **more)
        return self.ended()

    def begin(self, what: str, **more: object) -> None:
        """Has it begin something; `ended` waits for it."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self.popen.stdin.flush()

    def ended(self) -> dict[str, Any]:
        """How what was begun went."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            raise RuntimeError(f"the players ended with {self.popen.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass
class Spent:
    """Seconds of CPU during a block: whose work bounds a figure where all share two cores."""

    receiver: float = 0.0
    players: float = 0.0
    postgres: float = 0.0

    def each(self, number: int) -> str:
        """What it is for one of so many."""
        of = {"receiver": self.receiver, "players": self.players, "Postgres": self.postgres}
        return "CPU ms each: " + ", ".join(f"{name} {1000 * value / number:.1f}" for name, value in of.items())


@dataclass
class World:
    """One database; processes that end with the `with` block. `secure`: with certificates."""

    base: Path
    secure: bool = True
    processes: list[Process] = field(default_factory=list)
    players: list[Players] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.ends = contextlib.ExitStack()
        server = self.ends.enter_context(start(self.base))
        db.create_database(server.url(), "fleet")
        self.url = server.url("fleet")
        self.postgres = server.process.pid
        db.migrate(self.url)
        self.tx: db.Connection = self.ends.enter_context(psycopg.connect(self.url, autocommit=True))
        now = datetime.now(UTC)
        self.tls = self.base / "tls"
        self.tls.mkdir(mode=0o700)
        self.cas = {name: create_ca(f"bench {name}", now) for name in ("server-ca", "node-ca")}
        for name, (key, certificate) in self.cas.items():
            (self.tls / f"{name}.pem").write_bytes(certificate)
            (self.tls / f"{name}.key").touch(0o600)
            (self.tls / f"{name}.key").write_bytes(key)
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.players:
            one.popen.kill()
        for process in self.processes:
            process.kill()
        self.ends.close()

    def receiver(self, *options: str, files: int | None = None, module: str = "receiver.cli") -> tuple[Process, str]:
        """A receiver, and where sessions are. `files`: how many descriptors it may have (default: as many as this process)."""
        port = free_port()
        name = f"receiver-{port}"
        argv = [sys.executable, "-m", module, "serve", "--database-url", self.url, "--metrics-listen", ""]
        argv += [
            "--data-dir",
            str(self.base),
            "--listen-session",
            f"127.0.0.1:{port}",
            "--listen-api",
            f"unix:{self.base}/{name}",
        ]
        argv += ["--listen-join", f"127.0.0.1:{free_port()}"] if self.secure else ["--insecure"]
        if files:
            argv = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *argv]
        return self._started(Process(name, [*argv, *options], self.base / f"{name}.log"), port)

    def empty(self) -> tuple[Process, str]:
        """An empty servicer, and where its sessions are."""
        port = free_port()
        plan: dict[str, str] = {"target": f"127.0.0.1:{port}"}
        if self.secure:
            authority = ServerAuthority(self.cas["server-ca"][1], self.cas["server-ca"][0])
            key, issued = authority.mint(["127.0.0.1"], datetime.now(UTC), timedelta(days=1))
            plan |= {"key": key.decode(), "certificate": issued.pem, "nodeCa": self.cas["node-ca"][1].decode()}
        path = self.base / f"empty-{port}.json"
        path.write_text(json.dumps(plan))
        argv = [sys.executable, "-m", "tests.bench.empty_servicer", str(path)]
        return self._started(Process(f"empty-{port}", argv, self.base / f"empty-{port}.log"), port)

    def _started(self, process: Process, port: int) -> tuple[Process, str]:
        process.start()
        self.processes.append(process)

        def listens() -> bool:
            process.running()
            with socket.socket() as sock:
                return sock.connect_ex(("127.0.0.1", port)) == 0

        wait_for(f"{process.name} to listen", listens, 60.0)
        return process, f"127.0.0.1:{port}"

    def play(self, target: str, nodes: int, first: int = 0, **plan: object) -> Players:
        """So many nodes that report to this target; their numbers begin with `first`."""
        plan = {"target": target, "nodes": nodes, "first": first, "seed": first, **plan}
        if self.secure:
            plan |= {"serverCa": self.cas["server-ca"][1].decode(), "identities": self._identities(first, nodes)}
        path = self.base / f"plan-{first}-{nodes}.json"
        path.write_text(json.dumps(plan))
        argv = [sys.executable, "-m", "tests.bench.fleet", str(path)]
        with (self.base / f"players-{first}.log").open("a") as log:
            popen = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=Path.cwd())
        self.ends.enter_context(popen)
        self.players.append(Players(popen))
        return self.players[-1]

    def _identities(self, first: int, nodes: int) -> list[tuple[str, str, str]]:
        """Node ids with their certificates and keys, as a join would have given them."""
        authority = NodeAuthority(self.cas["node-ca"][1], self.cas["node-ca"][0])
        now, made, rows = datetime.now(UTC), [], []
        for number in range(first, first + nodes):
            node, key = f"node_{number:026d}", ec.generate_private_key(ec.SECP256R1())
            issued = authority.sign(key.public_key(), node, now, timedelta(days=30))
            made.append((node, issued.pem, key_pem(key).decode()))
            rows.append((issued.fingerprint, node, issued.not_before, issued.not_after))
        with self.tx.cursor() as cursor:
            there = "INSERT INTO nodes (id, tenant_id) VALUES (%s, 'default') ON CONFLICT DO NOTHING"
            cursor.executemany(there, [(node,) for _, node, _, _ in rows])
            cursor.executemany(
                "INSERT INTO certificates (fingerprint, node_id, tenant_id, issued_by, not_before, not_after)"
                " VALUES (%s, %s, 'default', 'bench', %s, %s)",
                rows,
            )
        return made

    @contextlib.contextmanager
    def spending(self, process: Process, players: Players) -> Iterator[Spent]:
        """What the block costs the three."""

        def look() -> list[float]:
            return [cpu(process.pid), cpu(players.popen.pid), cpu_of_all(self.postgres)]

        before, spent = look(), Spent()
        yield spent
        spent.receiver, spent.players, spent.postgres = (now - then for now, then in zip(look(), before, strict=True))

    def differ(self, caused: Iterable[Sequence[str]]) -> tuple[int, int]:
        """How many of the conditions that players have caused are not there, and how many others are."""
        there = {tuple(row) for row in self.tx.execute("SELECT node_id, type, device_id FROM conditions WHERE status = 'true'")}
        wanted = {tuple(row) for row in caused}
        return len(wanted - there), len(there - wanted)

    def behind(self, digests: Iterable[Sequence[str]]) -> int:
        """How many nodes have an inventory that is not the applied one."""
        applied = {tuple(row) for row in self.tx.execute("SELECT id, applied_digest FROM nodes")}
        return len({tuple(row) for row in digests} - applied)


@contextlib.contextmanager
def statements(tx: db.Connection) -> Iterator[list[int]]:
    """How many transactions the database ended during the block but this connection's own: [number]."""
    counted: list[int] = []

    def look() -> int:
        tx.execute("SELECT pg_stat_force_next_flush()") if tx.info.server_version >= 150000 else None
        time.sleep(1.2)  # statistics of the others come once a second
        row = tx.execute("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()").fetchone()
        assert row is not None
        return int(row[0])

    before = look()
    yield counted
    counted.append(look() - before)
