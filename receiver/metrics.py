"""The receiver's own figures for Prometheus, over plain HTTP: `GET /metrics`."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from threading import Thread
from typing import Protocol

from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from receiver.gateway.limits import LIMITS
from receiver.gateway.registry import Registry

LOG = logging.getLogger("receiver.metrics")
RESULTS = ("applied", "unchanged", "advisory", "refused", "retry")


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


def listen(target: str, registry: Registry) -> Listening | None:
    """Serves `HOST:PORT`. An address that is taken costs the metrics, with a warning, not the receiver."""
    host, _, port = target.rpartition(":")
    figures = CollectorRegistry(auto_describe=False)
    figures.register(Figures(registry))
    try:
        return Listening(*start_http_server(int(port), host.strip("[]"), figures))
    except OSError as error:
        LOG.warning("no metrics", extra={"listen": target, "reason": error.strerror or str(error)})
        return None
