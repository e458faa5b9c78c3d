"""A whole fleet's sessions with one receiver, beside an empty grpc.aio servicer that is asked for the same by the same players.

Players, receiver and Postgres share this machine. `nodes`: how many sessions; the aims are for 15,000.
"""

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import psycopg
from bettercompute.contract.sections import section_hash

from receiver.store import database as db
from receiver.store.view import RESERVATIONS
from tests.bench import Row, percentile
from tests.bench.fleet_hosts import own, recorded
from tests.bench.fleet_world import SETTLE, Players, World, statements
from tests.end_to_end.processes import Process, cpu, rss

HEARTBEAT = 30.0  # seconds
LATE = 3.0  # seconds that a heartbeat may be late: bcd's jitter, and one second until what was seen is written
FAILING, CALM = 1_500, 200
WARM = 24  # faults before, so that each connection has planned the statement: those of a receiver live for hours
SETTLED = 12.0  # seconds: for so long Postgres keeps to itself what was done before
SESSIONS, PACED = 1_000, 333  # of the benchmark of messages: how many report so often a second together
PACE = 0.4  # seconds between two calm faults

_MISSED = "SELECT count(*) FROM nodes WHERE connected AND last_seen < now() - make_interval(secs => %s)"
_COMMIT = "WITH written AS (INSERT INTO floor VALUES (now())) SELECT pg_notify(%s, %s)"


def rows(nodes: int, seconds: float) -> Iterator[Row]:
    """Sessions with certificates: memory, heartbeats, faults, a receiver that is killed."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, World(Path(directory)) as world:
        floor = _held(world, *world.empty(), nodes, seconds)
        receiver, target = world.receiver("--database-connections", "4")
        told = _held(world, receiver, target, nodes, seconds)
        yield Row("sessions held", told.connected, "", "asked for", float(nodes), 1.0, at_least=True, note="mTLS")
        yield Row("time to connect them", told.connecting, "s", "empty servicer", floor.connecting, None)
        note = f"in all {told.memory:.0f}, of the empty one {floor.memory:.0f}"
        beyond = told.memory - floor.memory
        yield Row("memory a session beyond an empty servicer's", beyond, "KiB", "the limit", 20.0, 1.0, note=note)
        yield Row("heartbeats missed", float(told.missed), "", "", None, None, note=f"{seconds:g} s at {HEARTBEAT:g} s")
        yield Row("round trip at a session, p99", 1000 * told.trip, "ms", "empty servicer", 1000 * floor.trip, None)
        beats, note = 1e-6 * seconds * nodes / HEARTBEAT, f"{nodes / HEARTBEAT:.0f} a second"
        yield Row("CPU a heartbeat, beyond rest", told.cpu / beats, "us", "empty servicer", floor.cpu / beats, None, note=note)
        yield Row("CPU at rest", 1000 * told.rest, "ms/s", "empty servicer", 1000 * floor.rest, None, note="without a session")
        yield Row("SQL meanwhile", told.statements, "transactions/s", "at rest", told.statements_at_rest, None, note=_BEATS)
        rate, note = _contact(world, receiver, world.players[-1], nodes)
        yield Row("first contact, sessions open", rate, "/s", "", None, None, note=note)
        yield from _killed(world, receiver, target, nodes)


_BEATS = "heartbeats that change nothing: one a second writes last_seen of all"


class _Told:
    """What was measured at one servicer. `rest`: seconds of CPU a second without a session, beyond which `cpu` is."""

    connecting = connected = memory = trip = cpu = missed = rest = 0.0
    statements = statements_at_rest = 0.0  # a second


def _held(world: World, process: Process, target: str, nodes: int, seconds: float) -> _Told:
    told = _Told()
    told.rest, told.statements_at_rest = _spends(world, process)
    before, players = rss(process.pid), world.play(target, nodes, interval=HEARTBEAT)
    connected = players.do("connect")
    told.connecting, told.connected = connected["seconds"], float(connected["welcomed"])
    time.sleep(SETTLE)
    told.memory = 1024 * (rss(process.pid) - before) / nodes
    spends, told.statements = _spends(world, process, seconds)
    told.cpu = seconds * (spends - told.rest)
    told.trip = players.do("live", seconds=min(seconds, 20.0))["p99"]
    told.missed = float(world.tx.execute(_MISSED, [HEARTBEAT * 1.05 + LATE]).fetchone()[0])  # type: ignore[index]
    if process.name.startswith("empty"):
        players.popen.kill()
        process.kill()
    return told


def _spends(world: World, process: Process, seconds: float = 10.0) -> tuple[float, float]:
    """Seconds of CPU a second, and transactions a second, of what is going on."""
    time.sleep(SETTLED)
    with statements(world.tx) as counted:
        began, at = cpu(process.pid), time.monotonic()
        time.sleep(seconds)
        spent = (cpu(process.pid) - began) / (time.monotonic() - at)
    return spent, counted[0] / (time.monotonic() - at)


def _contact(world: World, receiver: Process, players: Players, nodes: int) -> tuple[float, str]:
    """All nodes offer what they have: a second; and whose work that was."""
    with world.spending(receiver, players) as spent:
        offered = players.do("offer", atOnce=64)
    applied = offered["statuses"].pop("applied", 0)
    return applied / offered["seconds"], spent.each(nodes) + (
        f"; not applied: {offered['statuses']}" if offered["statuses"] else ""
    )


def _killed(world: World, receiver: Process, target: str, nodes: int) -> Iterator[Row]:
    """The receiver is killed under all sessions, and started again at once."""
    players = world.players[-1]
    players.begin("back", seconds=180)
    receiver.kill()
    receiver.start()
    back = players.ended()
    yield Row("sessions back after a kill", float(back["welcomed"]), "", "before", float(nodes), 1.0, at_least=True)
    yield Row("until 99 % are back", back["p99"], "s", "the limit", 60.0, 1.0, note="200 sessions a second are let in (B11)")
    yield Row("until the last is back", back["last"], "s", "the limit", 90.0, 1.0)
    busy = world.tx.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'").fetchone()
    yield Row("Postgres connections then", float(busy[0]), "", "", None, None)  # type: ignore[index]


def messages(seconds: float = 10.0, streams: int = 32) -> Iterator[Row]:
    """CPU of a heartbeat that changes nothing: when as many come as can be taken, and at PACED a second."""
    yield from _saturated(seconds, streams)
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, World(Path(directory)) as world:
        told = []
        for process, target in (world.empty(), world.receiver()):
            rest, at_rest = _spends(world, process)
            players = world.play(target, SESSIONS, interval=SESSIONS / PACED)
            players.do("connect")
            time.sleep(SESSIONS / PACED)
            spends, ends = _spends(world, process, 3 * seconds)
            told.append((1e6 * (spends - rest) / PACED, ends, at_rest))
            players.popen.kill()
        note = f"{PACED} a second of {SESSIONS:,} sessions, beyond rest"
        yield Row("CPU a heartbeat, paced", told[1][0], "us", "empty servicer", told[0][0], 1.1, note=note)
        yield Row("SQL meanwhile", told[1][1], "transactions/s", "at rest", told[1][2], None, note=_BEATS)


def _saturated(seconds: float, streams: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, World(Path(directory)) as world:
        spent = []
        for process, target in (world.empty(), world.receiver(module="tests.bench.unlimited_receiver")):
            players = world.play(target, streams, interval=1e6)
            players.do("connect")
            players.do("saturate", seconds=2.0)
            began = cpu(process.pid)
            with statements(world.tx) as counted:
                sent = players.do("saturate", seconds=seconds)
            spent.append(1e6 * (cpu(process.pid) - began) / sent["sent"])
            players.popen.kill()
        note = f"{streams} streams"
        yield Row("CPU a heartbeat, saturated", spent[1], "us", "empty servicer", spent[0], 1.5, note=note)
        yield Row("SQL meanwhile", counted[0] / seconds, "transactions/s", "", None, None, note="with those at rest")


def first_contact(nodes: int = 2_000) -> Iterator[Row]:
    """A whole fleet that was never seen: applies a second, with sessions open and with the set-up of TLS included."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, World(Path(directory)) as world:
        floor = _floor(world, nodes)
        receiver, target = world.receiver("--database-connections", "4")
        players = world.play(target, nodes)
        players.do("expected")  # it is there
        with world.spending(receiver, players) as spent:
            connecting = players.do("connect")["seconds"]
        rate, note = _contact(world, receiver, players, nodes)
        name, whole = "one load + one write of the same bytes", nodes / (connecting + nodes / rate)
        yield Row("first contact, sessions open", rate, "/s", name, floor, 0.4, at_least=True, note=note)
        note = f"the session alone: {spent.each(nodes)}"
        yield Row("first contact with TLS set-up", whole, "/s", name, floor, 0.15, at_least=True, note=note)


def _floor(world: World, nodes: int) -> float:
    """One load and one write a node, of the bytes that its first offer brings, by eight connections: a second."""
    world.tx.execute("CREATE TABLE floor (hash text PRIMARY KEY, body bytea NOT NULL)")
    first = recorded()
    work = [own(first, number) for number in range(nodes)]

    def run(share: list[dict[str, bytes]]) -> None:
        with psycopg.connect(world.url) as tx:
            for bodies in share:
                tx.execute(_LOAD, [list(bodies)], prepare=True).fetchone()
                tx.execute(_WRITE, [[section_hash(one) for one in bodies.values()], list(bodies.values())], prepare=True)
                tx.commit()

    with ThreadPoolExecutor(8) as pool:
        began = time.perf_counter()
        list(pool.map(run, [work[place::8] for place in range(8)]))
        return nodes / (time.perf_counter() - began)


_LOAD = "SELECT count(*), (SELECT array_agg(body) FROM floor WHERE hash = ANY(%s::text[])) FROM nodes WHERE id = 'none'"
_WRITE = "INSERT INTO floor (hash, body) SELECT * FROM unnest(%s::text[], %s::bytea[]) ON CONFLICT DO NOTHING"


def full(files: int = 1_000, reserve: int = 500) -> Iterator[Row]:
    """A receiver that may open few files: it takes so many sessions less a reserve, and refuses the next one clearly."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, World(Path(directory)) as world:
        receiver, target = world.receiver(files=files)
        there = world.play(target, files - reserve)
        yield Row(
            "sessions with few files", there.do("connect")["welcomed"], "", "files less 500", files - reserve, 1.0, at_least=True
        )
        more = world.play(target, 20, first=files).do("connect", seconds=5)
        yield Row("sessions beyond them", more["welcomed"], "", "", None, None, note=str(more["refused"]))
        receiver.running()


def faults(nodes: int = FAILING) -> Iterator[Row]:
    """From an XID's report until who books hears of its committed quarantine: 2.5 a second, and all nodes within a second.

    The floor, at the pace of the calm faults and between them: until one row's commit is heard.
    """
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, World(Path(directory)) as world:
        _, target = world.receiver()
        storm = world.play(target, nodes)
        calm, warm = world.play(target, CALM, first=nodes), world.play(target, WARM, first=nodes + CALM)
        for players in (storm, calm, warm):
            players.do("connect")
            players.do("offer")
        warm.do("fail", nodes=WARM, within=WARM * PACE / 4)
        with _Watch(world.url) as watch:
            calm.begin("fail", nodes=CALM, within=CALM * PACE)
            floor, sent = _commits(world), calm.ended()["sent"]
            median, most, commit = watch.latency(sent, 0.5), watch.latency(sent), watch.latency(floor)
            note = f"2.5 a second; medians {median:.1f} and {watch.latency(floor, 0.5):.1f} ms"
            yield Row("XID to quarantine, p99", most, "ms", "one raw commit, p99", commit, 5.0, note=note)
            sent = storm.do("fail", nodes=nodes, within=1.0)["sent"]
            most, note = watch.latency(sent), f"all of {nodes:,} nodes within 1 s; median {watch.latency(sent, 0.5):.0f} ms"
            yield Row("XID to quarantine, p99", most, "ms", "the limit", 2000.0, 1.0, note=note)
        missing, others = world.differ(one for players in world.players for one in players.do("expected")["conditions"])
        yield Row("conditions that the nodes caused, and are not there", float(missing), "", "", None, None)
        yield Row("conditions that are there, and nobody caused", float(others), "", "", None, None)


class _Watch:
    """When quarantines were committed, as who books learns: from the notice that comes with the commit, and names the node."""

    def __init__(self, url: str) -> None:
        self.tx: db.Connection = psycopg.connect(url, autocommit=True)
        self.tx.execute(f"LISTEN {RESERVATIONS}")
        self.at: dict[str, float] = {}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        self.tx.close()

    def _run(self) -> None:
        while not self.stop.is_set():
            for notice in self.tx.notifies(timeout=0.5):
                self.at.setdefault(json.loads(notice.payload)["nodeId"], time.time())

    def latency(self, sent: dict[str, float], share: float = 0.99) -> float:
        """Milliseconds from report to commit, this percentile; waits until all are there, at most a minute."""
        end = time.monotonic() + 60
        while sent.keys() - self.at.keys() and time.monotonic() < end:
            time.sleep(0.2)
        return percentile((1000 * (self.at.get(node, when + 60) - when) for node, when in sent.items()), share)


def _commits(world: World) -> dict[str, float]:
    """Transactions of one row, as many as calm faults: when each began."""
    world.tx.execute("CREATE TABLE IF NOT EXISTS floor (at timestamptz)")
    sent = {}
    for number in range(CALM):
        name = f"commit {number}"
        sent[name] = time.time()
        world.tx.execute(_COMMIT, [RESERVATIONS, json.dumps({"nodeId": name})])
        time.sleep(PACE)
    return sent
