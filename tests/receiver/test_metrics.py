"""The receiver's own figures, as Prometheus asks for them."""

import asyncio
import http.client
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from receiver import metrics
from receiver.apply.hygiene import Swept
from receiver.gateway import limits
from receiver.gateway.registry import Registry
from receiver.measures import Measures
from receiver.store import depths
from tests.fake_daemon import until
from tests.receiver.builders import host
from tests.receiver.live import Live, live, serving


def registry() -> Registry:
    return Registry(lambda: 0.0, lambda: 0.0)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def served(of: Registry) -> Iterator[int]:
    port = free_port()
    listening = metrics.listen(f"127.0.0.1:{port}", [metrics.Figures(of)])
    assert listening is not None
    try:
        yield port
    finally:
        listening.close()


def ask(port: int, method: str = "GET") -> http.client.HTTPResponse:
    caller = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    caller.request(method, "/metrics")
    return caller.getresponse()


def samples(port: int) -> dict[tuple[str, ...], float]:
    """Name and values of labels, in the order of their names -> value."""
    with ask(port) as response:
        assert response.status == 200
        text = response.read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
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
    assert found["bc_sessions",] == 0
    assert found["bc_conditions_dropped_total", "bad-condition"] == 0
    assert found["bc_conditions_dropped_total", "foreign-xid"] == 0
    assert sum(name == "bc_limit_exceeded_total" for name, *_ in found) == len(limits.LIMITS)


def test_joins_and_renewals_are_told_by_how_they_ended() -> None:
    of = registry()
    of.joins["join", "UNAUTHENTICATED"] += 2
    with served(of) as port:
        found = samples(port)
    assert {key: value for key, value in found.items() if key[0] == "bc_joins_total"} == {
        ("bc_joins_total", "OK", "join"): 0,
        ("bc_joins_total", "OK", "renewal"): 0,
        ("bc_joins_total", "UNAUTHENTICATED", "join"): 2,
    }


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
        assert metrics.listen(f"127.0.0.1:{taken.getsockname()[1]}", []) is None
    assert "no metrics" in caplog.text


# ---- a whole receiver


async def scraped(served: Live) -> dict[tuple[str, ...], float]:
    """What Prometheus has of a receiver, asked over HTTP. What the database said before is not told on."""
    port = free_port()
    listening = metrics.listen(f"127.0.0.1:{port}", metrics.of_receiver(served.receiver.measured()))
    assert listening is not None
    try:
        return await asyncio.to_thread(samples, port)
    finally:
        await asyncio.to_thread(listening.close)


@live
async def test_what_a_receiver_does_is_measured(served: Live) -> None:
    await served.in_service(host())
    await served.api("nodes.list")
    await until("a sweep", lambda: ("hygiene", "done") in outcomes(served))
    found = await scraped(served)
    for job in ("begin", "judge", "find_wanted", "apply"):
        assert found["bc_job_seconds_count", job] >= 1
        assert 0 < found["bc_job_seconds_sum", job] < 30
    assert found["bc_api_seconds_count", "nodes.list"] == 1
    assert found["bc_inventory_results_total", "applied"] == 1
    assert (found["bc_sessions",], found["bc_handshakes",], found["bc_api_calls_open",]) == (1, 0, 0)
    assert found["bc_singleton_held", "hygiene"] == 1
    assert found["bc_singleton_runs_total", "done", "hygiene"] >= 1
    assert found["bc_singleton_runs_total", "lost", "remediation"] == 0
    assert found["bc_pool_connections_max", "write"] == found["bc_pool_connections_max", "read"] == 3
    assert found["bc_pool_requests_total",] > 0
    assert found["process_resident_memory_bytes",] > 1 << 20
    assert (found["bc_database_up",], found["bc_replan_waiting",], found["bc_pool_stops", "remediation"]) == (1, 0, 0)
    assert not [name for name, *_ in found if name.startswith("bc_webhook")]


def outcomes(served: Live) -> set[tuple[str, str]]:
    families = served.receiver.jobs.measures.outcomes.collect()
    return {
        (sample.labels["singleton"], sample.labels["outcome"]) for family in families for sample in family.samples if sample.value
    }


@live
async def test_what_waits_in_the_database_is_told(served: Live) -> None:
    daemon = await served.in_service(host())
    with psycopg.connect(served.database) as tx:
        tx.execute(
            "INSERT INTO commands (id, node_id, tenant_id, kind, idempotency_key) VALUES ('c', %s, 't', 'k', 'i')",
            [daemon.node_id],
        )
        tx.execute(
            "INSERT INTO remediation_runs (id, node_id, tenant_id, kind, state) VALUES ('r', %s, 't', 'gpu.reset', 'queued')",
            [daemon.node_id],
        )
        tx.execute(
            "INSERT INTO replan (node_id, reason, queued_at) VALUES (%s, 'test', now() + interval '1 hour')", [daemon.node_id]
        )
        for kind in ("remediation", "NodeSilent"):
            tx.execute("INSERT INTO pool_stops (pool_id, tenant_id, kind) VALUES ('p', 't', %s)", [kind])
        tx.commit()
        found = await scraped(served)
        tx.execute("UPDATE pool_stops SET ended_at = now()")
        tx.commit()
    assert (found["bc_commands_open", "queued"], found["bc_replan_waiting",]) == (1, 1)
    assert [key[1] for key in found if key[0] == "bc_repairs_open"] == ["gpu.reset"]
    assert (found["bc_pool_stops", "remediation"], found["bc_pool_stops", "NodeSilent"]) == (1, 1)
    assert (await scraped(served))["bc_pool_stops", "remediation"] == 0


@live
async def test_the_database_is_asked_once_however_many_ask(served: Live) -> None:
    waiting = metrics.Waiting(served.receiver.measured(), lambda: clock[0])
    clock = [0.0]
    with patch.object(depths, "read", wraps=depths.read) as read:
        for _ in range(5):
            await asyncio.to_thread(lambda: list(waiting.collect()))
        assert read.call_count == 1
        clock[0] = metrics.FRESH
        await asyncio.to_thread(lambda: list(waiting.collect()))
        assert read.call_count == 2


@live
async def test_a_database_that_does_not_answer_costs_its_own_figures_only(served: Live) -> None:
    with patch.object(depths, "read", side_effect=psycopg.OperationalError("gone")):
        found = await scraped(served)
    assert (found["bc_database_up",], found["bc_sessions",]) == (0, 0)
    assert ("bc_replan_waiting",) not in found


def test_how_the_webhook_goes_is_told_where_there_is_one(database: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("an endpoint's secret, 32 bytes ..")

    async def main() -> None:
        async with serving(database, webhook_url="http://127.0.0.1:9/x", webhook_secret_file=str(tmp_path / "secret")) as served:
            await until("its place", lambda: served.rows("SELECT count(*) FROM webhooks") == [(1,)])
            quiet = await scraped(served)
            await served.daemon().connect()
            await until("a failure", lambda: served.rows("SELECT failures > 0 FROM webhooks") == [(True,)])
            found = await scraped(served)
        assert (quiet["bc_webhook_oldest_seconds",], quiet["bc_webhook_failures",]) == (0, 0)
        assert 0 < found["bc_webhook_oldest_seconds",] < 60
        assert found["bc_webhook_failures",] >= 1
        assert (found["bc_webhook_delivered_total",], found["bc_webhook_skipped_total",]) == (0, 0)

    asyncio.run(main())


def test_sweeps_tell_what_they_raised_and_cleared() -> None:
    measures = Measures(("hygiene",))
    measures.worked("hygiene", "done", 0.2, Swept(3, Counter({"NodeSilent": 2}), Counter({"NodeSilent": 1}), failed=["n"]))
    measures.worked("hygiene", "lost", 0.1, None)
    listening = metrics.listen(f"127.0.0.1:{(port := free_port())}", [measures.registry])
    assert listening is not None
    found = samples(port)
    listening.close()
    assert found["bc_hygiene_changes_total", "raised", "NodeSilent"] == 2
    assert (found["bc_hygiene_changes_total", "cleared", "NodeSilent"], found["bc_hygiene_failed_total",]) == (1, 1)
    assert [found["bc_singleton_runs_total", outcome, "hygiene"] for outcome in ("done", "lost", "unanswered")] == [1, 1, 0]
    assert found["bc_singleton_seconds_count", "hygiene"] == 2
