"""Memory and CPU of an idle `bcd run`, beside a bare grpc.aio client and, where it is installed, prometheus-node-exporter.

All of them run at the same time for the given minutes, so that they meet the same machine.
"""

import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.bench import Row
from tests.end_to_end.processes import Process, cpu, fleet, free_port, rss
from tests.hosts_catalog import copy

SETTLED = 20.0  # seconds after the first report until memory is read and CPU is counted


def rows(minutes: float) -> Iterator[Row]:
    """RSS after settling; CPU over `minutes`."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, fleet(Path(directory), secure=True) as run:
        bcd = run.daemon("h100", copy("h100-sxm-8", run.base / "hosts"))
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
        finally:
            for process in (bare, *exporter):
                process.stop()
    note = f"{minutes:g} min"
    yield Row("CPU of idle bcd run", spent[0], "ms", "bare grpc.aio client", spent[1], 1.3, note=note)
    if exporter:
        yield Row("CPU of idle bcd run", spent[0], "ms", "node-exporter scraped each 30 s", spent[2], 2.0, note=note)
    else:
        yield Row("CPU of idle bcd run", spent[0], "ms", "", None, 2.0, note="prometheus-node-exporter is not installed")


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
