"""A real daemon process: what it does about its configuration at start and on SIGHUP, and what it tells Prometheus."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.agent.test_metrics import free_port
from tests.hosts_catalog import HOSTS
from tests.repetitions import within

H100 = str(HOSTS["h100-sxm-8"])


@dataclass
class Daemon:
    """One that runs below a directory: its log, its configuration file."""

    path: Path
    process: "subprocess.Popen[bytes]"

    @property
    def file(self) -> Path:
        return self.path / "bcd.toml"

    def log(self) -> str:
        return (self.path / "log").read_text()

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + within(20.0)
        while not true():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)

    def reload(self, text: str) -> None:
        self.file.write_text(text)
        self.process.send_signal(signal.SIGHUP)


def command(path: Path, name: str, *more: str) -> list[str]:
    where = ("--config", str(path / "bcd.toml"), "--host", H100, "--data-dir", str(path / "data"))
    return [sys.executable, "-m", "agent.cli", name, *where, *more]


@contextmanager
def running(path: Path, text: str) -> Iterator[Daemon]:
    (path / "bcd.toml").write_text(text)
    with (path / "log").open("wb") as log:
        process = subprocess.Popen(command(path, "run", "--insecure", "--server", f"unix:{path}/nobody.sock"), stderr=log)
    try:
        daemon = Daemon(path, process)
        daemon.until(lambda: " runs as node_" in daemon.log())
        yield daemon
        process.terminate()
        assert process.wait(within(10.0)) == 0
    finally:
        process.kill()
        process.wait()


def scrape(port: int) -> dict[tuple[str, ...], float]:
    caller = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    caller.request("GET", "/metrics")
    with caller.getresponse() as response:
        text = response.read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_wrong_file_starts_nothing_and_all_of_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "bcd.toml").write_text('settle = "soon"\ncolour = "red"\n\n[log]\nformat = 7\n')
    done = subprocess.run(command(tmp_path, "run"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert [
        f"bcd.toml:{line}: {what}" in done.stderr for line, what in ((1, "settle"), (2, "unknown key"), (5, "log.format"))
    ] == [True] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bcd.toml"]  # no directory, no identity, no socket


def test_sighup_keeps_the_old_configuration_when_the_new_one_is_wrong_and_says_so(tmp_path: Path) -> None:
    with running(tmp_path, 'log.format = "json"\n') as daemon:
        daemon.reload('log.format = "text"\nsettle = "soon"\ncolour = "red"\n')
        daemon.until(lambda: "the configuration is not reloaded" in daemon.log() and daemon.log().endswith("\n"))
        lines = [json.loads(line)["message"] for line in daemon.log().splitlines()]  # still JSON
        said = next(line for line in lines if "is not reloaded" in line)
        assert "bcd.toml:2: settle" in said
        assert "bcd.toml:3: unknown key 'colour'" in said
        daemon.file.unlink()
        daemon.process.send_signal(signal.SIGHUP)
        daemon.until(lambda: "cannot read the configuration" in daemon.log())
        daemon.reload('log.format = "text"\n')
        daemon.until(lambda: any(line.endswith("bcd: the configuration is reloaded") for line in daemon.log().splitlines()))


def test_sighup_names_what_waits_for_the_next_start(tmp_path: Path) -> None:
    with running(tmp_path, "") as daemon:
        daemon.reload(f'metrics.listen = "127.0.0.1:{free_port()}"\nsocket = "{tmp_path}/other.sock"\nprobe.interval = "1m"\n')
        daemon.until(lambda: "the configuration is reloaded" in daemon.log())
        assert "changed, but in force from the next start on only: socket, metrics.listen" in daemon.log()
        assert not (tmp_path / "other.sock").exists()


def test_prometheus_has_what_the_daemon_does(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, f'metrics.listen = "127.0.0.1:{port}"\n') as daemon:
        daemon.until(lambda: scrape(port)["bcd_collection_seconds_count",] == 1)
        daemon.until(lambda: scrape(port)["bcd_session_state", "waiting"] == 1)
        found = scrape(port)
        assert found["bcd_section_results_total", "ok", "gpus"] == 1
        assert 0 < found["bcd_collection_seconds_sum",] < 60
        assert abs(found["bcd_collection_last_timestamp_seconds",] - time.time()) < 60
        assert found["process_open_fds",] == pytest.approx(len(os.listdir(f"/proc/{daemon.process.pid}/fd")), abs=3)
        resident = int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert found["process_resident_memory_bytes",] == pytest.approx(resident, rel=0.2)
        assert found["bcd_reports_sent_total",] == 0
