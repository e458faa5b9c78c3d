"""DOOR: Prometheus, over plain HTTP: `GET /metrics` of bcd itself and of the GPUs' faults (SPEC A9).

Imported only where `metrics.listen` is set: the libraries take several MiB. A thread of the library's answers; what it tells is
read in the event loop, so nothing here is shared between threads, and a loop that stands still shows as a scrape that fails.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bettercompute.contract.sections import SECTIONS
from prometheus_client import ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector as Figures
from prometheus_client.registry import CollectorRegistry

from agent import __version__
from agent.collection import Collector, Tally
from agent.errors import UserError
from agent.faults import Fault, Ledger
from agent.membership import Membership
from agent.session.stream import Link, LinkState, Sent
from agent.watch import Watch

PATIENCE = 5.0  # seconds that a scrape waits for the event loop
STATES = ("connecting", "connected", "waiting")
_log = logging.getLogger("bcd.metrics")


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts of the daemon that are measured."""

    collector: Collector
    watch: Watch
    link: Link
    member: Membership


@contextlib.asynccontextmanager
async def serving(listen: str, sources: Sources) -> AsyncIterator[None]:
    """Serves `HOST:PORT` for the length of the block. An address that cannot be had costs the metrics, not the daemon."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(InLoop(asyncio.get_running_loop(), sources))
    ProcessCollector(registry=registry)
    host, _, port = listen.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        _log.warning("no metrics: cannot listen on %s: %s", listen, error.strerror or error)
        yield
        return
    _log.info("metrics on http://%s/metrics", listen)
    try:
        yield
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()


class InLoop(Figures):
    """Has the event loop read the figures, for a thread that asks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sources: Sources) -> None:
        self._loop = loop
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """All figures. Raises TimeoutError when the loop does not answer: the scrape fails."""
        yield from asyncio.run_coroutine_threadsafe(_read(self._sources), self._loop).result(PATIENCE)


async def _read(of: Sources) -> list[Metric]:
    return [
        _labelled(GaugeMetricFamily, "bcd_build_info", "The version that runs.", ("version",), {(__version__,): 1}),
        *collections(of.collector.tally, of.collector.abandoned),
        *kernel_log(of.watch),
        *faults(of.watch.ledger),
        *session(of.link.state, of.link.sent),
        *joined(of.member),
    ]


def collections(tally: Tally, abandoned: int) -> Iterator[Metric]:
    """Of inventory: how long, how they ended, children that outlived them."""
    tells = "Collections of inventory, and the seconds that they took."
    yield SummaryMetricFamily("bcd_collection_seconds", tells, tally.collections, tally.seconds)
    if tally.last_at is not None:
        yield GaugeMetricFamily("bcd_collection_last_timestamp_seconds", "When the last one ended.", tally.last_at)
    results = {(name, "ok"): 0 for name in SECTIONS} | dict(tally.results)
    tells = "Sections collected, by result: ok, or why not."
    yield _labelled(CounterMetricFamily, "bcd_section_results", tells, ("section", "result"), results)
    yield CounterMetricFamily("bcd_workers_abandoned", "Workers that outlived their SIGKILL.", tally.abandoned)
    yield GaugeMetricFamily("bcd_workers_stuck", "Those of them that are still there.", abandoned)


def kernel_log(watch: Watch) -> Iterator[Metric]:
    """Whether the kernel log is read, and what was missed of it in this boot."""
    told = watch.kernel_log()
    if told is None:  # not tried yet
        return
    yield GaugeMetricFamily("bcd_kernel_log_available", "Whether the kernel log can be read.", int(told.available))
    yield CounterMetricFamily("bcd_kernel_records_lost", "Records of this boot that were overwritten unread.", told.lost_records)
    yield CounterMetricFamily("bcd_kernel_records_overflowed", "Records of faults beyond those kept apart.", told.overflow)


def faults(ledger: Ledger) -> Iterator[Metric]:
    """What the kernel log of this boot said of GPUs and switches: records by code, and what stands open."""
    for kind, name, label in (("Xid", "bcd_xids", "xid"), ("SXid", "bcd_sxids", "sxid")):
        counts: Counter[tuple[str, ...]] = Counter()
        for fault in ledger.faults.values():
            if fault.kind == kind:
                counts[str(fault.code),] += fault.count
        yield _labelled(CounterMetricFamily, name, f"Records of an {kind} in this boot, by code.", (label,), counts)
    labels = ("device", "bus_id", "type", "action")
    tells = "Faults that stand open: one a GPU (or switch) and code, until a reset, another boot or an operator."
    yield _labelled(GaugeMetricFamily, "bcd_open_faults", tells, labels, {_place(fault): 1 for fault in ledger.faults.values()})


def _place(fault: Fault) -> tuple[str, ...]:
    return fault.device_id, fault.bus_id, fault.type, fault.policy.action


def session(state: LinkState, sent: Sent) -> Iterator[Metric]:
    """How the node stands with its receiver, and what was sent."""
    states = {(name,): int(name == state.state) for name in STATES}
    yield _labelled(GaugeMetricFamily, "bcd_session_state", "1 for the state that the session is in.", ("state",), states)
    yield GaugeMetricFamily("bcd_session_since_timestamp_seconds", "Since when it is in it.", state.since)
    if state.epoch is not None:
        yield GaugeMetricFamily("bcd_session_epoch", "The number of the last session.", state.epoch)
    yield CounterMetricFamily("bcd_reports_sent", "Status reports sent.", sent.reports)
    yield CounterMetricFamily("bcd_offers_sent", "Inventories offered.", sent.offers)
    yield CounterMetricFamily("bcd_sections_sent", "Sections whose bytes were sent.", sent.sections)
    yield CounterMetricFamily("bcd_section_bytes_sent", "Their bytes.", sent.section_bytes)


def joined(member: Membership) -> Iterator[Metric]:
    """Whether the node has joined, and its certificate's life."""
    try:
        ours = member.access().joined
    except UserError:  # not joined, or a damaged file: `bcd status` says which
        ours = None
    yield GaugeMetricFamily("bcd_joined", "Whether this node has joined.", int(ours is not None))
    if ours is not None:
        yield GaugeMetricFamily("bcd_certificate_begin_timestamp_seconds", "When its certificate begins.", ours.not_before)
        yield GaugeMetricFamily("bcd_certificate_expiry_timestamp_seconds", "When it ends.", ours.not_after)


def _labelled(
    family: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    tells: str,
    labels: Iterable[str],
    values: Mapping[Any, float],
) -> Metric:
    """A value for each tuple of labels."""
    metric = family(name, tells, labels=list(labels))
    for key, value in sorted(values.items()):
        metric.add_metric(list(key), value)
    return metric
