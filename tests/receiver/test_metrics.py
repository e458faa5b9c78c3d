"""The receiver's own figures, as Prometheus asks for them."""

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from receiver import metrics
from receiver.gateway import limits
from receiver.gateway.registry import Registry


def registry() -> Registry:
    return Registry(lambda: 0.0, lambda: 0.0)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def served(of: Registry) -> Iterator[int]:
    port = free_port()
    listening = metrics.listen(f"127.0.0.1:{port}", of)
    assert listening is not None
    try:
        yield port
    finally:
        listening.close()


def ask(port: int, method: str = "GET") -> http.client.HTTPResponse:
    caller = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    caller.request(method, "/metrics")
    return caller.getresponse()


def samples(port: int) -> dict[tuple[str, str], float]:
    with ask(port) as response:
        assert response.status == 200
        text = response.read().decode()
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counts_what_happened_and_knows_every_limit_from_the_start() -> None:
    of = registry()
    of.met[limits.OFFERS.name] += 2
    of.results["applied"] += 3
    of.ended["superseded"] += 1
    with served(of) as port:
        found = samples(port)
    assert found["bc_limit_exceeded_total", "offers an hour"] == 2
    assert found["bc_inventory_results_total", "applied"] == 3
    assert found["bc_sessions_ended_total", "superseded"] == 1
    assert found["bc_sessions", ""] == 0
    assert found["bc_conditions_dropped_total", "bad-condition"] == 0
    assert found["bc_conditions_dropped_total", "foreign-xid"] == 0
    assert sum(name == "bc_limit_exceeded_total" for name, _ in found) == len(limits.LIMITS)


def test_figures_are_those_of_the_moment() -> None:
    of = registry()
    with served(of) as port:
        before = samples(port)["bc_inventory_results_total", "refused"]
        of.results["refused"] += 1
        assert (before, samples(port)["bc_inventory_results_total", "refused"]) == (0, 1)


def test_asking_while_counters_grow_never_fails() -> None:
    of = registry()
    ending = threading.Event()

    def count() -> None:
        number = 0
        while not ending.is_set():
            number += 1
            of.ended[f"reason-{number % 500}"] += 1

    counting = threading.Thread(target=count)
    counting.start()
    try:
        for _ in range(50):
            list(metrics.Figures(of).collect())
    finally:
        ending.set()
        counting.join()


def test_another_method_is_refused() -> None:
    with served(registry()) as port, ask(port, "POST") as response:
        assert response.status == 405


def test_its_port_is_free_when_it_is_closed() -> None:
    with served(registry()) as port:
        pass
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


def test_an_address_that_is_taken_costs_the_metrics_only(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert metrics.listen(f"127.0.0.1:{taken.getsockname()[1]}", registry()) is None
    assert "no metrics" in caplog.text
