"""What is measured as it happens, in Prometheus' own counters: any thread may count. What is read at a scrape: metrics.py."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram

from receiver.apply.hygiene import Swept

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LONG = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)


class Measures:
    """One receiver's. A label's values appear with the first of each, but for outcomes, which are there from the start."""

    def __init__(self, singletons: tuple[str, ...] = ()) -> None:
        self.registry = of = CollectorRegistry(auto_describe=False)
        # (A label named `job` would be taken for Prometheus' own.)
        tells = "What streams had done: begin, judge (a report that says something new), apply and so on."
        self.jobs = Histogram("bc_job_seconds", tells, ["kind"], registry=of, buckets=_BUCKETS)
        self.calls = Histogram("bc_api_seconds", "Calls of the API, by method.", ["method"], registry=of, buckets=_BUCKETS)
        tells = "Work of singletons, while this receiver had the lease."
        self.singletons = Histogram("bc_singleton_seconds", tells, ["singleton"], registry=of, buckets=_LONG)
        self.outcomes = Counter("bc_singleton_runs", "How that ended.", ["singleton", "outcome"], registry=of)
        tells = "Conditions of hygiene that sweeps raised and cleared."
        self.swept = Counter("bc_hygiene_changes", tells, ["condition", "change"], registry=of)
        self.failed = Counter("bc_hygiene_failed", "Nodes that a sweep could not write.", registry=of)
        for name in singletons:
            for outcome in ("done", "lost", "unanswered"):
                self.outcomes.labels(name, outcome)

    @contextmanager
    def call(self, method: str) -> Iterator[None]:
        """Measures a call of the API."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.calls.labels(method).observe(time.perf_counter() - began)

    def worked(self, singleton: str, outcome: str, seconds: float, answer: object) -> None:
        """A singleton's work has ended: `done` with an answer, `lost` the lease, `unanswered` by the database."""
        self.singletons.labels(singleton).observe(seconds)
        self.outcomes.labels(singleton, outcome).inc()
        if isinstance(answer, Swept):
            self.failed.inc(len(answer.failed))
            for change, counts in (("raised", answer.raised), ("cleared", answer.cleared)):
                for condition, count in counts.items():
                    self.swept.labels(condition, change).inc(count)
