"""The receiver's own figures for Prometheus, over plain HTTP: `GET /metrics`.

What is counted as it happens is in measures.py. The rest is read at a scrape: from memory, and of the database with one bounded
statement (store/depths.py), at most every few seconds however many ask.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Any, Protocol

from prometheus_client import ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from sqlalchemy import Engine

from receiver.gateway.jobs import Jobs
from receiver.gateway.limits import LIMITS
from receiver.gateway.registry import Registry
from receiver.singletons import Singletons
from receiver.store import depths
from receiver.store.database import NO_ANSWER, transact
from receiver.store.depths import MOST, Depths
from receiver.tls import Identity

LOG = logging.getLogger("receiver.metrics")
FRESH = 5.0  # seconds for which what the database has told is told on
IMPATIENT = 0.5  # seconds for a connection
RESULTS = ("applied", "unchanged", "advisory", "refused", "retry")


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts of a receiver that are measured. `calls`: of the API, under way; `webhook`: there is one."""

    jobs: Jobs
    engine: Engine
    singletons: Singletons
    calls: Callable[[], int]
    identity: Identity | None = None
    webhook: bool = False


class Parts(Collector):
    """Reads the parts around the registry, whenever it is asked."""

    def __init__(self, sources: Sources) -> None:
        self.of = sources

    def collect(self) -> Iterator[Metric]:
        """All figures."""
        of = self.of
        yield GaugeMetricFamily("bc_jobs_open", "Transactions of streams, under way or waiting.", value=of.jobs.under_way)
        yield GaugeMetricFamily("bc_api_calls_open", "Calls of the API under way, watchers too.", value=of.calls())
        held = {(kind.name,): int(kind.name in of.singletons.held) for kind in of.singletons.kinds}
        yield _gauge("bc_singleton_held", "Whether this receiver has the lease.", ("singleton",), held)
        yield from _pool(of.jobs.pool.get_stats(), of.engine)
        if of.identity:
            tells = "When a certificate of the receiver's own ends."
            ends = {(name,): at.timestamp() for name, at in of.identity.material.expires.items()}
            yield _gauge("bc_certificate_expiry_timestamp_seconds", tells, ("certificate",), ends)


class Waiting(Collector):
    """What waits in the database. One that does not answer in time costs these figures only."""

    def __init__(self, sources: Sources, now: Callable[[], float] = time.monotonic) -> None:
        self.of = sources
        self.now = now
        self.lock = Lock()
        self.read: tuple[float, Depths | None] = (float("-inf"), None)

    def collect(self) -> Iterator[Metric]:
        """All figures."""
        found = self._depths()
        yield GaugeMetricFamily("bc_database_up", "Whether the database answered in time.", value=int(found is not None))
        if found is None:
            return
        yield GaugeMetricFamily("bc_replan_waiting", f"Nodes to plan again (at most {MOST}).", value=found.replan)
        yield GaugeMetricFamily("bc_acceptances_running", "Nodes whose checks run.", value=found.acceptances)
        yield _gauge("bc_commands_open", "Commands without a result.", ("state",), found.commands)
        yield _gauge("bc_repairs_open", "Repairs that have not ended.", ("kind", "state"), found.repairs)
        tells = "Pools in which something does not go on: remediation (the breaker), a condition of hygiene, maintenance."
        yield _gauge("bc_pool_stops", tells, ("kind",), {("remediation",): 0, **found.stops})
        if self.of.webhook and found.told:
            told = found.told
            yield GaugeMetricFamily("bc_webhook_oldest_seconds", "Age of the first event that is not told.", value=told.oldest)
            yield GaugeMetricFamily("bc_webhook_failures", "Failed tries in a row.", value=told.failures)
            yield CounterMetricFamily("bc_webhook_delivered", "Events that the endpoint took.", value=told.delivered)
            yield CounterMetricFamily("bc_webhook_skipped", "Events that it refused for good.", value=told.skipped)

    def _depths(self) -> Depths | None:
        with self.lock:  # one asks, the others have its answer
            if self.now() - self.read[0] >= FRESH:
                try:
                    found = transact(self.of.jobs.pool, depths.read, IMPATIENT)
                except NO_ANSWER:
                    found = None
                self.read = (self.now(), found)
            return self.read[1]


class Figures(Collector):
    """Reads the registry whenever it is asked. A label's known values are there from the start, at 0, so that a rate can be
    had of the first one.

    The server's threads ask while the event loop counts: each Counter is copied whole first, which is one step of the
    interpreter.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def collect(self) -> Iterator[Metric]:
        """All figures."""
        of = self.registry
        yield GaugeMetricFamily("bc_sessions", "Open sessions of nodes.", value=len(of.current))
        yield _counter("bc_sessions_ended", "Sessions that ended.", "reason", of.ended)
        yield GaugeMetricFamily("bc_handshakes", "Streams without an epoch yet.", value=len(of.greeting))
        yield GaugeMetricFamily("bc_seen_unwritten", "Nodes that reported and are not yet noted as seen.", value=len(of.seen))
        joins = CounterMetricFamily(
            "bc_joins", "Joins and renewals of certificates, by how they ended.", labels=["what", "status"]
        )
        for key, count in sorted({("join", "OK"): 0, ("renewal", "OK"): 0, **dict(of.joins)}.items()):
            joins.add_metric(list(key), count)
        yield joins
        yield _counter("bc_inventory_results", "Offers by how they ended.", "status", of.results, RESULTS)
        tells = "Conditions of reports from which nothing follows: a type that they may not set, an XID of another node's GPU."
        yield _counter("bc_conditions_dropped", tells, "reason", of.dropped, ("bad-condition", "foreign-xid"))
        names = [limit.name for limit in LIMITS]
        yield _counter("bc_limit_exceeded", "Messages that were over a limit.", "limit", of.met, names)


def _counter(name: str, tells: str, label: str, counts: Mapping[str, int], known: Iterable[str] = ()) -> Metric:
    family = CounterMetricFamily(name, tells, labels=[label])
    for value, count in sorted({**dict.fromkeys(known, 0), **dict(counts)}.items()):
        family.add_metric([value], count)
    return family


def _gauge(name: str, tells: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    """A value for each tuple of labels."""
    family = GaugeMetricFamily(name, tells, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(list(key), value)
    return family


def _pool(stats: Mapping[str, float], engine: Engine) -> Iterator[Metric]:
    """Of connections: `write` is that of nodes and loops, `read` that of the API."""
    size, free = stats.get("pool_size", 0), stats.get("pool_available", 0)
    reading: Any = engine.pool
    used = {("write",): size - free, ("read",): reading.checkedout()}
    most = {("write",): stats.get("pool_max", 0), ("read",): reading.size()}
    yield _gauge("bc_pool_connections_used", "Connections to the database in use.", ("pool",), used)
    yield _gauge("bc_pool_connections_max", "How many there may be.", ("pool",), most)
    yield GaugeMetricFamily("bc_pool_waiting", "Who waits for a connection to write.", value=stats.get("requests_waiting", 0))
    waited = stats.get("requests_wait_ms", 0) / 1000
    yield CounterMetricFamily("bc_pool_requests", "Connections that were asked for.", value=stats.get("requests_num", 0))
    yield CounterMetricFamily("bc_pool_wait_seconds", "How long that took together.", value=waited)
    yield CounterMetricFamily("bc_pool_errors", "Those that were not had in time.", value=stats.get("requests_errors", 0))


class Stoppable(Protocol):
    """A server of the standard library."""

    def shutdown(self) -> None:
        """Ends its loop, and waits for that."""

    def server_close(self) -> None:
        """Closes its socket."""


class Listening:
    """Metrics that are served, in a thread, until `close`."""

    def __init__(self, server: Stoppable, thread: Thread) -> None:
        self.server = server
        self.thread = thread

    def close(self) -> None:
        """Stops serving; takes up to half a second."""
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def of_receiver(sources: Sources) -> list[Collector]:
    """All that a receiver tells, its process included."""
    counted = sources.jobs.measures.registry
    return [Figures(sources.jobs.registry), Parts(sources), Waiting(sources), counted, ProcessCollector(registry=None)]


def listen(target: str, collectors: Iterable[Collector]) -> Listening | None:
    """Serves `HOST:PORT`. An address that is taken costs the metrics, with a warning, not the receiver."""
    host, _, port = target.rpartition(":")
    figures = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        figures.register(collector)
    try:
        return Listening(*start_http_server(int(port), host.strip("[]"), figures))
    except OSError as error:
        LOG.warning("no metrics", extra={"listen": target, "reason": error.strerror or str(error)})
        return None
