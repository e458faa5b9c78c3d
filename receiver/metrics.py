"""The receiver's own figures for Prometheus, over plain HTTP: `GET /metrics`. Text format 0.0.4."""

import asyncio
import logging
from collections.abc import Iterator, Mapping

from receiver.gateway.limits import LIMITS
from receiver.gateway.registry import Registry

LOG = logging.getLogger("receiver.metrics")
REQUEST_SECONDS = 5.0
REQUEST_BYTES = 8 << 10
RESULTS = ("applied", "unchanged", "advisory", "refused", "retry")


def text(registry: Registry) -> str:
    """All figures. A label's known values are there from the start, at 0, so that a rate can be had of the first one."""
    lines = [
        *_family("bc_sessions", "gauge", "Open sessions of nodes.", "", {"": len(registry.current)}),
        *_family("bc_sessions_ended_total", "counter", "Sessions that ended.", "reason", registry.ended),
        *_family(
            "bc_inventory_results_total", "counter", "Offers by how they ended.", "status",
            {status: registry.results[status] for status in RESULTS},
        ),
        *_family(
            "bc_limit_exceeded_total", "counter", "Messages that were over a limit.", "limit",
            {limit.name: registry.met[limit.name] for limit in LIMITS},
        ),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, tells: str, label: str, values: Mapping[str, int]) -> Iterator[str]:
    yield f"# HELP {name} {tells}"
    yield f"# TYPE {name} {kind}"
    for value, count in sorted(values.items()):
        yield f'{name}{{{label}="{value}"}} {count}' if label else f"{name} {count}"


async def listen(target: str, registry: Registry) -> asyncio.Server | None:
    """Answers until the server is closed. An address that is taken costs the metrics, with a warning, not the receiver."""
    host, _, port = target.rpartition(":")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_SECONDS)
            writer.write(_response(head, registry))
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # not a request
        finally:
            writer.close()

    try:
        return await asyncio.start_server(answer, host.strip("[]"), int(port), limit=REQUEST_BYTES)
    except OSError as error:
        LOG.warning("no metrics", extra={"listen": target, "reason": error.strerror or str(error)})
        return None


def _response(head: bytes, registry: Registry) -> bytes:
    method, _, rest = head.partition(b" ")
    found = rest.split(b" ", 1)[0].partition(b"?")[0] == b"/metrics"
    status = "405 Method Not Allowed" if method != b"GET" else "200 OK" if found else "404 Not Found"
    body = text(registry).encode() if status == "200 OK" else status.encode()
    kind = "text/plain; version=0.0.4; charset=utf-8"
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    )
