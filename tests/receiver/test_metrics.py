"""The receiver's own figures, as Prometheus asks for them."""

import asyncio
import socket

import pytest

from receiver import metrics
from receiver.gateway import limits
from receiver.gateway.registry import Registry


def registry() -> Registry:
    return Registry(lambda: 0.0, lambda: 0.0)


async def asked(request: bytes, of: Registry) -> bytes:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = await metrics.listen(f"127.0.0.1:{port}", of)
    assert server is not None
    async with server:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    return answer


def test_counts_what_happened_and_knows_every_limit_from_the_start() -> None:
    of = registry()
    of.met[limits.OFFERS.name] += 2
    of.results["applied"] += 3
    answer = asyncio.run(asked(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", of)).decode()
    assert answer.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
    lines = answer.splitlines()
    assert 'bc_limit_exceeded_total{limit="offers an hour"} 2' in lines
    assert 'bc_inventory_results_total{status="applied"} 3' in lines
    assert "bc_sessions 0" in lines
    assert sum(line.startswith("bc_limit_exceeded_total{") for line in lines) == len(limits.LIMITS)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [(b"GET /x HTTP/1.1\r\n\r\n", b"404"), (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"), (b"\r\n\r\n", b"405")],
)
def test_anything_else_is_refused(request_bytes: bytes, status: bytes) -> None:
    assert asyncio.run(asked(request_bytes, registry())).split(b" ")[1] == status


@pytest.mark.parametrize("request_bytes", [b"", b"GET /metrics", b"x" * (metrics.REQUEST_BYTES * 4)])
def test_what_is_no_request_is_hung_up_on(request_bytes: bytes) -> None:
    try:
        answer = asyncio.run(asked(request_bytes, registry()))
    except ConnectionError:
        return
    assert answer == b""


def test_an_address_that_is_taken_costs_the_metrics_only(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert asyncio.run(metrics.listen(f"127.0.0.1:{taken.getsockname()[1]}", registry())) is None
    assert "no metrics" in caplog.text
