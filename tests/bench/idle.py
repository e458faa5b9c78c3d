"""Memory and CPU of an idle `bcd run`, beside a bare grpc.aio client and, where it is installed, prometheus-node-exporter.

All of them run at the same time for the given minutes, so that they meet the same machine. Then the same bcd collects everything
a few times, beside a scrape of the exporter, and reads XIDs in its kernel log until the receiver has committed what they tell.
"""

import os
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench import Row, percentile
from tests.bench.fleet_world import cpu_of_all
from tests.end_to_end.processes import Fleet, Process, cpu, fleet, free_port, rss, wait_for
from tests.hosts_catalog import copy, slot_of

COLLECTIONS, XIDS = 5, 40
SETTLED = 20.0  # seconds after the first report until memory is read and CPU is counted


def rows(minutes: float) -> Iterator[Row]:
    """RSS after settling; CPU over `minutes`."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, fleet(Path(directory), secure=True) as run:
        host = copy("h100-sxm-8", run.base / "hosts")
        (host / "kmsg").unlink()
        os.mkfifo(host / "kmsg")
        bcd = run.daemon("h100", host)
        run.applied("h100")
        run.join("bare", None)
        argv = [sys.executable, "-m", "tests.bench.bare_client", str(run.base / "bare/identity.json")]
        bare = Process("bare client", argv, run.base / "bare.log")
        bare.start()
        exporter, scrape = _exporter(run.base)
        try:
            time.sleep(SETTLED)
            before = [cpu(p.pid) for p in (bcd, bare, *exporter)]
            end = time.monotonic() + 60 * minutes
            while time.monotonic() < end:
                scrape()
                time.sleep(min(30.0, max(0.0, end - time.monotonic())))
            spent = [1000 * (cpu(p.pid) - start) for p, start in zip((bcd, bare, *exporter), before, strict=True)]
            bcd.running()
            bare.running()
            yield Row("RSS of idle bcd run", rss(bcd.pid), "MiB", "bare grpc.aio client", rss(bare.pid), 1.25)
            yield Row("RSS of idle bcd run", rss(bcd.pid), "MiB", "the limit", 48.0, 1.0)
            if exporter:
                yield Row("RSS of idle bcd run", rss(bcd.pid), "MiB", "node-exporter", rss(exporter[0].pid), None)
            collection, scraped = _each(bcd, lambda: run.bcd("h100", "refresh")), _each(exporter[0], scrape) if exporter else None
            name = "a scrape of node-exporter" if exporter else ""
            yield Row("CPU of a full collection, bcd and its child", collection, "ms", name, scraped, None)
            yield from _latency(run, host)
        finally:
            for process in (bare, *exporter):
                process.stop()
    note = f"{minutes:g} min"
    yield Row("CPU of idle bcd run", spent[0], "ms", "bare grpc.aio client", spent[1], 1.3, note=note)
    if exporter:
        yield Row("CPU of idle bcd run", spent[0], "ms", "node-exporter scraped each 30 s", spent[2], 2.0, note=note)
    else:
        yield Row("CPU of idle bcd run", spent[0], "ms", "", None, 2.0, note="prometheus-node-exporter is not installed")


def _each(process: Process, do: Callable[[], object]) -> float:
    """Milliseconds of CPU, of the process with its children, that this costs it, done COLLECTIONS times."""
    before = cpu_of_all(process.pid)
    for _ in range(COLLECTIONS):
        do()
        time.sleep(1.0)
    return 1000 * (cpu_of_all(process.pid) - before) / COLLECTIONS


def _latency(run: Fleet, host: Path) -> Iterator[Row]:
    """From the kernel's line to the committed event, as who watches events learns it."""
    arrivals, took = run.arrivals(run.applied("h100")["nodeId"]), []
    slots = [slot_of(host, index).rsplit(".", 1)[0] for index in range(8)]
    with (host / "kmsg").open("wb", buffering=0) as log:
        for number in range(XIDS):
            time.sleep(1.05)  # at most one report a second
            code, began = 5_000 + number, time.monotonic()
            log.write(f"4,{number},{90_000_000_000 + number},c;NVRM: Xid (PCI:{slots[number % 8]}): {code}, pid=1\n".encode())
            wait_for(f"the event of Xid {code}", lambda code=code: code in arrivals.at, every=0.005)  # type: ignore[misc]
            took.append(1000 * (arrivals.at[code] - began))
    arrivals.stop()
    for share in (0.5, 0.95):
        yield Row(
            f"XID's line to event, p{share * 100:g}", percentile(took, share), "ms", "", None, None, note=f"{XIDS} XIDs, TLS"
        )


def _exporter(base: Path) -> tuple[list[Process], "_Scrape"]:
    binary = shutil.which("prometheus-node-exporter")
    if binary is None:
        return [], _Scrape(None)
    port = free_port()
    process = Process("node-exporter", [binary, f"--web.listen-address=127.0.0.1:{port}"], base / "exporter.log")
    process.start()
    return [process], _Scrape(f"http://127.0.0.1:{port}/metrics")


class _Scrape:
    """Reads the exporter's metrics once per call; nothing without one."""

    def __init__(self, url: str | None) -> None:
        self.url = url

    def __call__(self) -> None:
        if self.url:
            with urllib.request.urlopen(self.url, timeout=10) as answer:
                answer.read()
